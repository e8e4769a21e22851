"""Smaller TFLite files; importing this package registers its reader and its schemes."""

from pocketbert.quantize.tflite import gpu, npu, quantizer, reading, static

__all__ = ["gpu", "npu", "quantizer", "reading", "static"]
