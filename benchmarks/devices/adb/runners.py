"""Command lines of LiteRT's ``benchmark_model`` and ONNX Runtime's ``onnxruntime_perf_test``, and what they print.

Sources: the tools' own help texts and sources (``tensorflow/lite/tools/benchmark``, ``onnxruntime/test/perftest``). The
readers take text, so that they can be used on output that was recorded anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LITERT, ONNX = "benchmark_model", "onnxruntime_perf_test"
WARMUP = 3
"""Untimed inferences before each timed one of LiteRT's tool, which then starts anew."""
_COUNT = re.compile(r"\bcount=(?P<count>\d+)\s+(?:first=\S+\s+)?curr=(?P<curr>[\d.e+]+)(?P<rest>[^\n]*)")
_REST = re.compile(r"(\w+)=([\d.e+]+)")
_SUMMARY = re.compile(r"Inference timings in us: Init: ([\d.e+]+), First inference: ([\d.e+]+)")
_MEMORY = re.compile(r"memory footprint[^\n]*\(MB\): init=[\d.]+ overall=([\d.]+)", re.IGNORECASE)
_TYPES = {"int64": 7, "int32": 6, "float32": 1, "float16": 10}
"""Numbers of ``TensorProto.DataType`` in onnx.proto."""


@dataclass(frozen=True)
class LitertTimes:
    """What ``benchmark_model`` says of its timed inferences.

    Attributes:
        count: Their number.
        last_us: The last one in µs.
        mean_us: Their mean in µs.
        init_us: Opening the file, in µs.
        first_us: The first inference of the process in µs.
        memory_bytes: Peak memory above that of the tool; None where it does not tell.
    """

    count: int
    last_us: float
    mean_us: float
    init_us: float
    first_us: float
    memory_bytes: int | None


def read_litert(text: str) -> LitertTimes:
    """Read the output of ``benchmark_model``, of old versions and of those that log as Android does.

    The timed inferences are in the last line with ``count=``; the warm-up has one before it.

    Raises:
        ValueError: If the output has no such line, for example because the file was refused.
    """
    counts, summary = list(_COUNT.finditer(text)), _SUMMARY.search(text)
    if not counts or summary is None:
        raise ValueError(f"{LITERT} reports no inference: {_last(text)}")
    last = counts[-1]
    rest = dict(_REST.findall(last["rest"]))
    memory = _MEMORY.search(text)
    return LitertTimes(
        count=int(last["count"]),
        last_us=float(last["curr"]),
        mean_us=float(rest.get("avg") or last["curr"]),
        init_us=float(summary[1]),
        first_us=float(summary[2]),
        memory_bytes=round(float(memory[1]) * 1e6) if memory else None,
    )


def read_perf_test(text: str) -> list[float]:
    """Read the result file of ``onnxruntime_perf_test``: the wall time of each inference in ms, in order.

    A line holds name, seconds, peak memory, CPU use and number of an inference; the statistics after them are left out.

    Raises:
        ValueError: If the file has no such line, or their numbers are not 0, 1, 2 and so on.
    """
    rows = [line.rsplit(",", 4) for line in text.splitlines() if line.count(",") >= 4]
    try:
        times = [float(row[1]) * 1000 for row in rows]
        numbers = [int(row[4]) for row in rows]
    except ValueError as error:
        raise ValueError(f"{ONNX} wrote a line of another form: {error}") from error
    if not rows or numbers != list(range(len(rows))):
        raise ValueError(f"{ONNX} reports no inference: {_last(text)}")
    return times


def litert_command(file: str, threads: int, signature: str) -> list[str]:
    """Arguments that time one inference of a signature, on random input, after `WARMUP` untimed ones."""
    return [
        f"./{LITERT}",
        f"--graph={file}",
        f"--num_threads={threads}",
        f"--signature_to_run_for={signature}",
        f"--warmup_runs={WARMUP}",
        "--warmup_min_secs=0",
        "--num_runs=1",
        "--min_secs=0",
    ]


def perf_test_command(file: str, threads: int, runs: int, result: str) -> list[str]:
    """Arguments that time inferences on the input in ``test_data_set_0`` next to the file, after one untimed one."""
    return [f"./{ONNX}", "-e", "cpu", "-m", "times", "-r", str(runs), "-x", str(threads), "-Z", file, result]


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


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
