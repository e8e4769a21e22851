"""Quantized ONNX files; importing this package registers the reader and the schemes of the format.

Schemes are registered in the order in which the search for a budget tries them.
"""

from pocketbert.quantize.onnx import blocks, dynamic, qnn, reading, static
from pocketbert.quantize.table import register_scheme

__all__ = ["blocks", "dynamic", "qnn", "reading", "static"]

for _row in (dynamic.INT8_ROW, *blocks.ROWS, *qnn.ROWS, reading.FP32_ROW, dynamic.SMALL_ROW, *static.ROWS):
    register_scheme(_row)
