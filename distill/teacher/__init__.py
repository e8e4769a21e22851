"""What a teacher says about a batch: computed beside the training, or read from a cache."""
