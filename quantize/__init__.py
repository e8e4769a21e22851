"""Quantize exported files: `quantize` writes one according to a `Plan` and checks the type of every weight in it."""

from pocketbert.quantize.files import quantize, read_stored_numbers, read_weight_types
from pocketbert.quantize.table import Plan, find_row

__all__ = ["Plan", "find_row", "quantize", "read_stored_numbers", "read_weight_types"]
