"""Plain text to train on: corpora on disk, pairs of segments, masking."""
