"""Types, tables and helpers that all wings use. It imports with only the core dependencies, without torch."""
