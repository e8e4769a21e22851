"""Text, with labels or without, read from files into typed examples."""
