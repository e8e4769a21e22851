"""Numpy kernels: one function per MIL operation. Keyword defaults are MIL's, since a program leaves defaults out.

Importing the package fills the table `KERNELS`.
"""

from __future__ import annotations

from pocketbert.runtime.coreml.kernels import constexpr, elementwise, linear, shapes
from pocketbert.runtime.coreml.kernels.registry import KERNELS, Kernel

__all__ = ["KERNELS", "Kernel", "constexpr", "elementwise", "linear", "shapes"]
