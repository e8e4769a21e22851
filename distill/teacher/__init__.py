"""A teacher's outputs for a batch: computed during training, or read from a cache on disk."""
