"""One Python function per MIL operation, in numpy. Keyword defaults are MIL's, since a program leaves defaults out."""

from __future__ import annotations

from pocketbert.runtime.coreml.kernels import constexpr, elementwise, linear, shapes
from pocketbert.runtime.coreml.kernels.registry import KERNELS, Kernel

__all__ = ["KERNELS", "Kernel", "constexpr", "elementwise", "linear", "shapes"]
