"""Recipe files that come with the package, and the JSON Schema of the format."""
