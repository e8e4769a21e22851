"""Exact rewrites of the stock encoders into cheaper graphs."""
