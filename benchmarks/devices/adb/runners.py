"""Command lines of LiteRT's ``benchmark_model`` and ONNX Runtime's ``onnxruntime_perf_test``, and what they are given.

Sources: the tools' own help texts and sources (``tensorflow/lite/tools/benchmark``, ``onnxruntime/test/perftest``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.devices.runners.benchmark_model import LITERT
from pocketbert.benchmarks.devices.runners.perf_test import ONNX

WARMUP = 3
"""Untimed inferences before each timed one of LiteRT's tool, which then starts anew."""
MOST_EVENTS = 16_384
"""Events of one inference that the profiler of LiteRT's tool keeps; by itself it keeps 1,024, and 12 layers have more."""
_TYPES = {"int64": 7, "int32": 6, "float32": 1, "float16": 10}
"""Numbers of ``TensorProto.DataType`` in onnx.proto."""


def litert_command(file: str, threads: int, signature: str, runs: int = 1, delay_s: float = 0.0) -> list[str]:
    """Arguments that time inferences of a signature, on random input, after `WARMUP` untimed ones.

    Args:
        file: The model file.
        threads: Threads within an operator.
        signature: Its name.
        runs: Timed inferences.
        delay_s: Idle time after each inference, untimed ones included, in s; 0 for none.
    """
    delay = [f"--run_delay={delay_s:g}"] if delay_s else []
    return [
        f"./{LITERT}",
        f"--graph={file}",
        f"--num_threads={threads}",
        f"--signature_to_run_for={signature}",
        f"--warmup_runs={WARMUP}",
        "--warmup_min_secs=0",
        f"--num_runs={runs}",
        "--min_secs=0",
        *delay,
    ]


def litert_profile_command(file: str, threads: int, signature: str, runs: int) -> list[str]:
    """Arguments that print the time of each operator over some inferences."""
    profiler = ["--enable_op_profiling=true", f"--max_profiling_buffer_entries={MOST_EVENTS}"]
    return [*litert_command(file, threads, signature, runs), *profiler]


def perf_test_command(
    file: str, threads: int, result: str, *, runs: int = 0, seconds: int = 0, trace: str = ""
) -> list[str]:
    """Arguments that time inferences on the inputs in ``test_data_set_*`` next to the file, after one untimed one.

    Args:
        file: The model file.
        threads: Threads within an operator.
        result: File for the times.
        runs: Timed inferences; 0 where `seconds` decide.
        seconds: Seconds of timed inferences; 0 where `runs` decide.
        trace: Begin of the name of a trace of the operators, which gets the time and ``.json`` appended; empty for none.
    """
    profiler = ["-p", trace] if trace else []
    lasting = ["-m", "duration", "-t", str(seconds)] if seconds else ["-m", "times", "-r", str(runs)]
    return [f"./{ONNX}", "-e", "cpu", *lasting, "-x", str(threads), "-Z", *profiler, file, result]


def tensor_proto(name: str, value: NDArray[Any]) -> bytes:
    """A tensor as ONNX stores it: message ``TensorProto`` with dims, data_type, name and raw_data (onnx.proto).

    Raises:
        KeyError: If the dtype is none that encoders take.
    """
    shape = b"".join(_field(1, 0) + _varint(size) for size in value.shape)
    data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()
    kind = _field(2, 0) + _varint(_TYPES[value.dtype.name])
    return shape + kind + _bytes(8, name.encode()) + _bytes(9, data)


def _field(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _bytes(number: int, data: bytes) -> bytes:
    return _field(number, 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
