"""Smaller numbers in the same graph, checked operator by operator: `quantize` is the way in, `Plan` what it is asked for."""

from pocketbert.quantize.files import quantize, stored_numbers, weight_types
from pocketbert.quantize.table import Plan, row_of

__all__ = ["Plan", "quantize", "row_of", "stored_numbers", "weight_types"]
