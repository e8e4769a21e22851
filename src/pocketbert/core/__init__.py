"""The vocabulary of all wings. It imports with only the core dependencies, without torch."""
