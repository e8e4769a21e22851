"""Smaller Core ML packages; importing this package registers its reader and its schemes."""

from pocketbert.quantize.coreml import quantizer, reading, static

__all__ = ["quantizer", "reading", "static"]
