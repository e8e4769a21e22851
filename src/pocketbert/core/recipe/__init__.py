"""A recipe as typed data, and reading it from YAML."""
