"""The command line: it parses, and calls `pocketbert.api`."""
