"""A teacher's signals for task data, computed once and kept on disk."""
