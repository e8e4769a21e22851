"""What the C library does with freed memory during training."""

from __future__ import annotations

import ctypes
import platform


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks instead of giving them back to the system after every step.

    Gradients of an embedding table are tens of megabytes; giving them back and faulting them in again
    each step costs a fifth of the CPU time. Does nothing where the C library is another one.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, (1 << 31) - 1)
