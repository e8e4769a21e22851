"""Quantize exported files: `quantize` writes one according to a `Plan` and checks the type of every weight in it."""

from pocketbert.quantize.files import quantize, stored_numbers, weight_types
from pocketbert.quantize.table import Plan, row_of

__all__ = ["Plan", "quantize", "row_of", "stored_numbers", "weight_types"]
