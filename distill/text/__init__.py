"""Plain text to train on: corpora, pairs of segments, masking."""
