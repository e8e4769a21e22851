"""Comparison of models and files: metrics on data, parity with the reference, golden rows."""
