"""Comparison of models and files: metrics on data, parity with the reference, golden rows."""

GOLDEN_FILE = "golden.jsonl"
"""File of the golden rows; named here since a model that answers looks for it without importing their records."""
MAX_GOLDEN_MIB = 64
