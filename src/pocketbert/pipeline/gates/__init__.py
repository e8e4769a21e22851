"""The gates that a file must pass before it is packed."""
