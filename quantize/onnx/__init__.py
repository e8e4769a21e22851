"""Smaller ONNX files; importing this package registers its reader and its schemes."""

from pocketbert.quantize.onnx import blocks, dynamic, qnn, reading, static

__all__ = ["blocks", "dynamic", "qnn", "reading", "static"]
