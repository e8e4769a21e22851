"""From a PyTorch module to a file that a phone runs, compared with the untouched model."""
