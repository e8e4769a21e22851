"""Core ML packages on any system: read, checked and computed in numpy, with neither coremltools nor a Mac."""

from __future__ import annotations

REFERENCE_ENGINE = "coreml-reference"
"""The evaluator's engine name."""
EVALUATOR_LIMITS: tuple[str, ...] = (
    "It computes the operations as the file defines them; a device sums in another order and partly in fp16, so its results differ.",
    "Kernels of the Neural Engine and the GPU are not emulated; their results may differ more from float32.",
    "Whether a device compiles the program, and on which unit each operation runs, is not known.",
    "The evaluator's time is not the latency of a device.",
)
"""Limits of the evaluator, as sentences for a report."""
