"""Static ONNX files for Qualcomm's NPU; importing this package registers their schemes."""

from pocketbert.quantize.onnx.qnn import scheme

__all__ = ["scheme"]
