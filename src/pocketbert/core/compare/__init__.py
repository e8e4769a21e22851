"""Comparing what models and files answer: metrics on data, parity, golden rows."""
