"""Data augmentation by replacing words."""
