"""Corpora of token ids on disk: written once, read at any place, mixed."""
