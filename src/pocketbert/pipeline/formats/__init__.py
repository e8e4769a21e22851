"""Which model files a recipe makes, and how each is written."""
