"""Longformer for export: attention in windows, over all pairs of tokens or over blocks of them."""
