"""The vocabulary all wings speak. Imports with the core dependencies alone, without torch."""
