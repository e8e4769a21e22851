"""Code for the model card, one module per language."""
