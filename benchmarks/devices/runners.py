"""Command lines of LiteRT's ``benchmark_model`` and ONNX Runtime's ``onnxruntime_perf_test``, and what they are given.

Sources: the tools' own help texts and sources (``tensorflow/lite/tools/benchmark``, ``onnxruntime/test/perftest``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.operators import OpTimes
from pocketbert.benchmarks.records import OpShare, Placement

# --- benchmark_model ---
# What LiteRT's ``benchmark_model`` prints: times, and the table of operators where it was asked for.
#
# Sources: the tool's own sources (``tensorflow/lite/tools/benchmark``, ``tensorflow/lite/profiling``) and published logs. The
# readers take text, so that they can be used on output that was recorded anywhere.


LITERT = "benchmark_model"
_NUMBER = r"[\d.]+(?:e[+-]?\d+)?"
_COUNT = re.compile(rf"\bcount=(?P<count>\d+)\s+(?:first=\S+\s+)?curr=(?P<curr>{_NUMBER})(?P<rest>[^\n]*)")
_REST = re.compile(rf"(\w+)=({_NUMBER})")
_SUMMARY = re.compile(rf"Inference timings in us: Init: ({_NUMBER}), First inference: ({_NUMBER})")
_MEMORY = re.compile(r"memory footprint[^\n]*\(MB\): init=[\d.]+ overall=([\d.]+)", re.IGNORECASE)
_DELAY = re.compile(rf"Inter-run delay \(seconds\): \[({_NUMBER})\]")
_PROFILE = "Operator-wise Profiling Info for Regular Benchmark Runs"
_ASKED = re.compile(r"Enable op profiling: \[1\]|--enable_op_profiling=(?:true|1)")
_INTERNAL = re.compile(r"^Delegate internal:", re.MULTILINE)
_TYPES = "Summary by node type"
_TYPE_ROW = re.compile(
    r"^\s*(?P<type>\S.*?)\s+(?P<count>\d+)\s+(?P<ms>[\d.]+)\s+-?[\d.na]+%\s+-?[\d.na]+%\s+-?[\d.]+\s+(?P<called>\d+)\s*$"
)
_DELEGATED = re.compile(r"\tDelegate/(.+):\d+\s*$|\s{2,}Delegate/(.+):\d+\s*$")
_OBSERVED = re.compile(r"^\s*(?:Subgraph [^\n]*)?\d+ nodes observed", re.MULTILINE)
_OPAQUE = "DelegateOpInvoke"
"""Type of what a delegate tells of its inside; the tool's older versions list it next to the delegate itself, which contains it."""
XNNPACK, BUILT_IN = "XNNPACK", "built-in kernels"


@dataclass(frozen=True)
class LitertTimes:
    """What ``benchmark_model`` says of its timed inferences; None where this version does not tell.

    Attributes:
        count: Their number.
        last_us: The last one in µs.
        mean_us: Their mean in µs.
        init_us: Opening the file, in µs.
        first_us: The first inference of the process in µs.
        memory_bytes: Peak memory above that of the tool.
        min_us: The shortest one.
        max_us: The longest one.
        median_us: Their median.
        stdev_us: Their standard deviation.
    """

    count: int
    last_us: float
    mean_us: float
    init_us: float
    first_us: float
    memory_bytes: int | None
    min_us: float | None = None
    max_us: float | None = None
    median_us: float | None = None
    stdev_us: float | None = None


def read_litert(text: str) -> LitertTimes:
    """Read the output of ``benchmark_model``, of old versions and of those that log as Android does.

    The timed inferences are in the last line with ``count=`` before the summary; the warm-up has one before it.

    Raises:
        ValueError: If the output has no such line, for example because the file was refused.
    """
    summary = _SUMMARY.search(text)
    counts = list(_COUNT.finditer(text, 0, summary.start())) if summary is not None else []
    if not counts or summary is None:
        raise ValueError(f"{LITERT} reports no inference: {last_line(text)}")
    last = counts[-1]
    rest = {name: float(value) for name, value in _REST.findall(last["rest"])}
    memory, only = _MEMORY.search(text), float(last["curr"])
    return LitertTimes(
        count=int(last["count"]),
        last_us=only,
        mean_us=rest.get("avg", only),
        init_us=float(summary[1]),
        first_us=float(summary[2]),
        memory_bytes=round(float(memory[1]) * 2**20) if memory else None,  # what the tool calls MB are MiB
        min_us=rest.get("min"),
        max_us=rest.get("max"),
        median_us=rest.get("median"),
        stdev_us=rest.get("std"),
    )


def read_delay(text: str) -> float | None:
    """Idle time after each inference in s, as an output tells the setting; None where it tells none."""
    found = _DELAY.search(text)
    return float(found[1]) if found else None


def has_operators(text: str) -> bool:
    """Whether an output has a table of operators, or should have: the tool was asked for it."""
    return _PROFILE in text or _ASKED.search(text) is not None


def read_operators(text: str) -> OpTimes:
    """Read the operators of an output with ``--enable_op_profiling=true``.

    Each graph has a table by operator type, in ms per inference. What a delegate tells of its inside in a separate table
    is left out: the delegate is one operator of the graph, which contains it.

    Raises:
        ValueError: If the output has no such table, or ends in it.
    """
    _, there, profile = text.partition(_PROFILE)
    if not there:
        raise ValueError(f"{LITERT} prints no table of operators: {last_line(text)}")
    graphs = _INTERNAL.split(profile)[0]
    if graphs.count(_TYPES) == 0 or len(_OBSERVED.findall(graphs)) < graphs.count(_TYPES):
        raise ValueError(f"the table of operators of {LITERT} is cut short: {last_line(text)}")
    found: dict[str, tuple[int, float]] = {}
    for kind, nodes, ms in _rows(graphs):
        before = found.get(kind, (0, 0.0))
        found[kind] = (before[0] + nodes, before[1] + ms)
    if not found:
        raise ValueError(f"the table of operators of {LITERT} is empty")
    total = sum(ms for _, ms in found.values())
    times = read_litert(text)
    return OpTimes(
        runs=times.count,
        ops=[
            OpShare(op_type=kind, nodes=nodes, share=ms / (total or 1.0), ms=ms)
            for kind, (nodes, ms) in sorted(found.items(), key=lambda item: -item[1][1])
        ],
        placement=_placement(graphs, found),
        note=(
            f"The profiler of {LITERT}, which counts each operator in whole µs; together {total:.3g} of "
            f"{times.mean_us / 1e3:.3g} ms per inference, with the profiler on."
        ),
    )


def _rows(graphs: str) -> Iterator[tuple[str, int, float]]:
    """Operator type, how often it is called in an inference, and its ms, of the tables by type."""
    inside = False
    for line in graphs.splitlines():
        if _TYPES in line:
            inside = True
        elif inside and not line.strip():
            inside = False
        elif inside and (row := _TYPE_ROW.match(line)) and row["type"] != _OPAQUE:
            yield row["type"], int(row["called"]), float(row["ms"])


def _placement(graphs: str, found: dict[str, tuple[int, float]]) -> list[Placement]:
    """Operators of XNNPACK and built-in ones: those of a delegate have a name that tells it."""
    names = {row[1] or row[2] for line in graphs.splitlines() if (row := _DELEGATED.search(line))}
    sides: dict[str, dict[str, int]] = {XNNPACK: {}, BUILT_IN: {}}
    for kind, (nodes, _) in found.items():
        sides[XNNPACK if kind in names else BUILT_IN][kind] = nodes
    return [Placement(provider=side, nodes=sum(ops.values()), op_types=ops) for side, ops in sides.items() if ops]


def last_line(text: str) -> str:
    """The last line that says something, for errors."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "".join(c for c in lines[-1].strip()[:300] if c.isprintable()) if lines else "no output"


# --- perf_test ---
# What ``onnxruntime_perf_test`` prints, and the file of results that it writes.
#
# Sources: the tool's own sources (``onnxruntime/test/perftest``) and published logs.


ONNX = "onnxruntime_perf_test"
_PERF_TEST_NUMBER = r"\s*([\d.]+(?:e[+-]?\d+)?)"
_SECONDS = {
    "session": re.compile(rf"^\s*Session creation time cost:{_PERF_TEST_NUMBER} s", re.MULTILINE),
    **{
        name: re.compile(rf"^\s*{title} Latency(?:: | is ){_PERF_TEST_NUMBER} ?s", re.MULTILINE)
        for name, title in {
            "min": "Min",
            "max": "Max",
            "p50": "P50",
            "p90": "P90",
            "p99": "P99",
            "last": "P999",
        }.items()
    },
}
_FIRST = re.compile(rf"^\s*First inference time cost:{_PERF_TEST_NUMBER} ms", re.MULTILINE)
_PERF_TEST_COUNT = re.compile(rf"^\s*Total (?:inference requests|iterations):{_PERF_TEST_NUMBER}", re.MULTILINE)
_MEAN = re.compile(rf"^\s*Average (?:inference )?time cost(?: total)?:{_PERF_TEST_NUMBER} ms", re.MULTILINE)
_PEAK = re.compile(rf"^\s*Peak working set size:{_PERF_TEST_NUMBER} bytes", re.MULTILINE)


@dataclass(frozen=True)
class PerfTest:
    """What the tool prints; None where this version does not tell, or was not asked to.

    Attributes:
        count: Timed inferences.
        mean_ms: Their mean.
        session_s: Creating the session, in s.
        first_ms: The untimed first inference, in whole ms.
        peak_rss_bytes: Peak memory of the process.
        min_ms: The shortest inference.
        max_ms: The longest one.
        p50_ms: Their median.
        p90_ms: Their 90th percentile.
        p99_ms: Their 99th percentile.
    """

    count: int
    mean_ms: float
    session_s: float | None
    first_ms: float | None
    peak_rss_bytes: int | None
    min_ms: float | None
    max_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


def read_printed(text: str) -> PerfTest:
    """Read what the tool prints.

    Raises:
        ValueError: If it reports no inference, or ends within what it reports.
    """
    count, mean = _number(_PERF_TEST_COUNT, text), _number(_MEAN, text)
    seconds = {name: _number(pattern, text) for name, pattern in _SECONDS.items()}
    if count is None or mean is None:
        raise ValueError(f"{ONNX} reports no inference, or its output is cut short: {last_line(text)}")
    if seconds["min"] is not None and seconds["last"] is None:
        raise ValueError(f"the output of {ONNX} is cut short: {last_line(text)}")
    peak = _number(_PEAK, text)
    if seconds["session"] is not None and peak is None and seconds["last"] is None:
        raise ValueError(f"the output of {ONNX} is cut short: {last_line(text)}")
    ms = {name: None if s is None else s * 1000 for name, s in seconds.items()}
    return PerfTest(
        count=int(count),
        mean_ms=mean,
        session_s=seconds["session"],
        first_ms=_number(_FIRST, text),
        peak_rss_bytes=None if peak is None else int(peak),
        min_ms=ms["min"],
        max_ms=ms["max"],
        p50_ms=ms["p50"],
        p90_ms=ms["p90"],
        p99_ms=ms["p99"],
    )


def read_perf_test(text: str) -> list[float]:
    """Read the file of results: the wall time of each inference in ms, in order.

    A line holds name, seconds, peak memory, CPU use and number of an inference (newer versions have a second time, of the
    whole call, which is taken); the statistics after them are left out.

    Raises:
        ValueError: If the file has no such line, or their numbers are not 0, 1, 2 and so on.
    """
    rows = [line.rsplit(",", 4) for line in text.splitlines() if line.count(",") >= 4]
    try:
        times = [float(row[1]) * 1000 for row in rows]
        numbers = [int(row[4]) for row in rows]
    except ValueError as error:
        raise ValueError(f"{ONNX} wrote a line of another form: {error}") from error
    if numbers.count(0) > 1:
        raise ValueError(
            f"it holds {numbers.count(0)} runs of {ONNX}, which adds to a file that is there: give one file each"
        )
    if not rows or numbers != list(range(len(rows))):
        raise ValueError(f"{ONNX} reports no inference: {last_line(text)}")
    return times


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) if found else None


WARMUP = 3
"""Untimed inferences before each timed one of LiteRT's tool, which then starts anew."""
MOST_EVENTS = 16_384
"""Events of one inference that the profiler of LiteRT's tool keeps; by itself it keeps 1,024, and 12 layers have more."""
_RUNNERS_TYPES = {"int64": 7, "int32": 6, "float32": 1, "float16": 10}
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
    kind = _field(2, 0) + _varint(_RUNNERS_TYPES[value.dtype.name])
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
