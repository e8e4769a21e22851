"""Outlier channels: a few that are much larger than the rest, divided by powers of two where a product reads them."""
