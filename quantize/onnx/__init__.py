"""Smaller ONNX files; importing this package registers its reader and its schemes."""

from pocketbert.quantize.onnx import dynamic, reading, static_inputs, static_openvino

__all__ = ["dynamic", "reading", "static_inputs", "static_openvino"]
