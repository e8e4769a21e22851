"""Quantized TFLite files; importing this package registers the reader and the schemes of the format."""

from pocketbert.quantize.tflite import gpu, npu, quantizer, reading, static

__all__ = ["gpu", "npu", "quantizer", "reading", "static"]
