"""Core ML packages on any system: read, checked and computed in numpy, with neither coremltools nor a Mac."""

from __future__ import annotations

REFERENCE = "coreml-reference"
"""The evaluator's engine name."""
LIMITS: tuple[str, ...] = (
    "It computes what the file means, not what a device does: Core ML's order of summation and its fp16 sums differ.",
    "Kernels of the Neural Engine and the GPU are not imitated; their results may lie further from float32.",
    "Whether a device compiles the program, and on which unit each operation runs, is not known.",
    "Its time says nothing about a device: it is never a latency.",
)
"""What the evaluator cannot tell."""
