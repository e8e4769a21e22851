"""Steps that make and measure model files."""
