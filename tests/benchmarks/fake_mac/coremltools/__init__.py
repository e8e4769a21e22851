"""The part of coremltools 9.0 that the script uses, without Core ML. Its times mean nothing.

tests/benchmarks/devices/test_on_mac.py compares names and arguments with the real library where that is installed.
"""

from enum import Enum

__version__ = "9.0-synthetic"


class ComputeUnit(Enum):
    ALL = 1
    CPU_AND_GPU = 2
    CPU_ONLY = 3
    CPU_AND_NE = 4


from . import models as models
