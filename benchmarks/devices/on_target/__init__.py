"""TODO: say what the package on_target holds."""
