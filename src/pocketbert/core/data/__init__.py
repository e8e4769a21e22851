"""Data: files and data sets read into typed examples, with their labels."""
