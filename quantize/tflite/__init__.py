"""Smaller TFLite files; importing this package registers its reader and its schemes."""

from pocketbert.quantize.tflite import quantizer, reading, static

__all__ = ["quantizer", "reading", "static"]
