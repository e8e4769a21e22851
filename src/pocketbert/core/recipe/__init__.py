"""What a recipe says, as typed data, and reading it from YAML."""
