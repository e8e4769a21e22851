"""TODO: say what the package imported holds."""
