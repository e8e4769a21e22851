"""Quantized ONNX files; importing this package registers the reader and the schemes of the format."""

from pocketbert.quantize.onnx import blocks, dynamic, qnn, reading, static

__all__ = ["blocks", "dynamic", "qnn", "reading", "static"]
