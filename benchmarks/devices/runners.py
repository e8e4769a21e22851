"""The measuring programs of the two engines: their command lines, and reading what they print.

LiteRT's ``benchmark_model``: `litert_command` and `litert_profile_command` build its command lines, `read_litert`
and `read_operators` read its output. ONNX Runtime's ``onnxruntime_perf_test``: `perf_test_command` builds its
command line, `tensor_proto` writes its inputs, `read_printed` reads its output and `read_perf_test` its file of
results. The readers take text, so that they can be used on output that was recorded anywhere.

Sources: the tools' own help texts and sources (``tensorflow/lite/tools/benchmark``, ``tensorflow/lite/profiling``,
``onnxruntime/test/perftest``) and published logs.
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
from pocketbert.core.model_files import encode_varint

LITERT, ONNX = "benchmark_model", "onnxruntime_perf_test"
WARMUP = 3
"""Untimed inferences before each timed one of LiteRT's tool, which then starts anew."""
_MAX_EVENTS = 16_384
"""Events of one inference that the profiler of LiteRT's tool keeps; its default is 1,024, and 12 layers have more."""


@dataclass(frozen=True)
class LitertTimes:
    """The numbers that ``benchmark_model`` prints; None for numbers that this version of it does not print.

    Attributes:
        count: Number of timed inferences.
        last_us: Time of the last inference in µs.
        mean_us: Mean time of the inferences in µs.
        init_us: Time to open the file, in µs.
        first_us: Time of the first inference of the process, in µs.
        memory_bytes: Peak memory, without that of the program itself.
        min_us: Time of the shortest inference in µs.
        max_us: Time of the longest inference in µs.
        median_us: Median time in µs.
        stdev_us: Standard deviation of the times in µs.
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


@dataclass(frozen=True)
class _PerfTestFigures:
    """The numbers that ``onnxruntime_perf_test`` prints; None for numbers that it did not print.

    Attributes:
        count: Number of timed inferences.
        mean_ms: Mean time of the inferences in ms.
        session_s: Time to create the session, in s.
        first_ms: Time of the untimed first inference, in whole ms.
        peak_rss_bytes: Peak memory of the process.
        min_ms: Time of the shortest inference in ms.
        max_ms: Time of the longest inference in ms.
        p50_ms: Median time in ms.
        p90_ms: 90th percentile of the times in ms.
        p99_ms: 99th percentile of the times in ms.
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


# --- LiteRT's benchmark_model ----------------------------------------------------------------------------------------


def litert_command(file: str, threads: int, signature: str, runs: int = 1, delay_s: float = 0.0) -> list[str]:
    """Return the ``benchmark_model`` command that times a signature on random input, after untimed inferences.

    Args:
        file: The model file.
        threads: Number of threads within an operator.
        signature: Name of the signature to run.
        runs: Number of timed inferences.
        delay_s: Idle time in s after each inference, untimed ones included; 0 for none.
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
    """Return the ``benchmark_model`` command that prints the time per operator over `runs` inferences."""
    profiler = ["--enable_op_profiling=true", f"--max_profiling_buffer_entries={_MAX_EVENTS}"]
    return [*litert_command(file, threads, signature, runs), *profiler]


_NUMBER = r"[\d.]+(?:e[+-]?\d+)?"
_COUNT = re.compile(rf"\bcount=(?P<count>\d+)\s+(?:first=\S+\s+)?curr=(?P<curr>{_NUMBER})(?P<rest>[^\n]*)")
_REST = re.compile(rf"(\w+)=({_NUMBER})")
_SUMMARY = re.compile(rf"Inference timings in us: Init: ({_NUMBER}), First inference: ({_NUMBER})")
_MEMORY = re.compile(r"memory footprint[^\n]*\(MB\): init=[\d.]+ overall=([\d.]+)", re.IGNORECASE)
_DELAY = re.compile(rf"Inter-run delay \(seconds\): \[({_NUMBER})\]")


def read_litert(text: str) -> LitertTimes:
    """Parse the output of ``benchmark_model`` into a record of its numbers.

    Output of old versions and in Android's log format is read too. The timed inferences are those of the last line with
    ``count=`` before the summary.

    Raises:
        ValueError: If the output has no such line, for example because the file was refused.
    """
    summary = _SUMMARY.search(text)
    counts = list(_COUNT.finditer(text, 0, summary.start())) if summary is not None else []
    if not counts or summary is None:
        raise ValueError(f"{LITERT} reports no inference: {_last_line(text)}")
    last = counts[-1]
    rest = {name: float(value) for name, value in _REST.findall(last["rest"])}
    memory, last_us = _MEMORY.search(text), float(last["curr"])
    return LitertTimes(
        count=int(last["count"]),
        last_us=last_us,
        mean_us=rest.get("avg", last_us),
        init_us=float(summary[1]),
        first_us=float(summary[2]),
        memory_bytes=round(float(memory[1]) * 2**20) if memory else None,  # what the tool calls MB are MiB
        min_us=rest.get("min"),
        max_us=rest.get("max"),
        median_us=rest.get("median"),
        stdev_us=rest.get("std"),
    )


def read_delay(text: str) -> float | None:
    """Return the idle time after each inference in s, as ``benchmark_model`` prints it; None if it does not."""
    return _number(_DELAY, text)


_PROFILE_TITLE = "Operator-wise Profiling Info for Regular Benchmark Runs"
_PROFILE_REQUESTED = re.compile(r"Enable op profiling: \[1\]|--enable_op_profiling=(?:true|1)")
_DELEGATE_INSIDE = re.compile(r"^Delegate internal:", re.MULTILINE)
_OBSERVED = re.compile(r"^\s*(?:Subgraph [^\n]*)?\d+ nodes observed", re.MULTILINE)
_TYPES_TITLE = "Summary by node type"
_TYPE_ROW = re.compile(
    r"^\s*(?P<type>\S.*?)\s+(?P<count>\d+)\s+(?P<ms>[\d.]+)\s+-?[\d.na]+%\s+-?[\d.na]+%\s+-?[\d.]+\s+(?P<called>\d+)\s*$"
)
_DELEGATED = re.compile(r"\tDelegate/(.+):\d+\s*$|\s{2,}Delegate/(.+):\d+\s*$")
_DELEGATE_OPERATOR = "DelegateOpInvoke"
"""Type of an operator inside a delegate; older versions list it next to the delegate itself, which contains it."""
_XNNPACK, _BUILT_IN = "XNNPACK", "built-in kernels"


def has_operators(text: str) -> bool:
    """Return whether an output contains a table of operators, or a command line that asks for one."""
    return _PROFILE_TITLE in text or _PROFILE_REQUESTED.search(text) is not None


def read_operators(text: str) -> OpTimes:
    """Parse the operator tables of ``benchmark_model --enable_op_profiling=true`` into times per operator type.

    Each graph has a table by operator type, in ms per inference, in which a delegate counts as one operator. Further
    tables for the inside of a delegate are left out.

    Raises:
        ValueError: If the output has no such table, or ends inside one.
    """
    _, title, profile = text.partition(_PROFILE_TITLE)
    if not title:
        raise ValueError(f"{LITERT} prints no table of operators: {_last_line(text)}")
    graphs = _DELEGATE_INSIDE.split(profile)[0]
    if graphs.count(_TYPES_TITLE) == 0 or len(_OBSERVED.findall(graphs)) < graphs.count(_TYPES_TITLE):
        raise ValueError(f"the table of operators of {LITERT} is cut short: {_last_line(text)}")
    nodes: dict[str, int] = {}
    ms: dict[str, float] = {}
    for op_type, calls, op_ms in _operator_rows(graphs):
        nodes[op_type] = nodes.get(op_type, 0) + calls
        ms[op_type] = ms.get(op_type, 0.0) + op_ms
    if not nodes:
        raise ValueError(f"the table of operators of {LITERT} is empty")
    total, times = sum(ms.values()), read_litert(text)
    by_time = sorted(nodes, key=lambda op_type: -ms[op_type])
    # an operator that is a delegate has a name that starts with Delegate/
    delegates = {row[1] or row[2] for line in graphs.splitlines() if (row := _DELEGATED.search(line))}
    providers: dict[str, dict[str, int]] = {_XNNPACK: {}, _BUILT_IN: {}}
    for op_type, calls in nodes.items():
        providers[_XNNPACK if op_type in delegates else _BUILT_IN][op_type] = calls
    return OpTimes(
        runs=times.count,
        ops=[OpShare(op_type=t, nodes=nodes[t], share=ms[t] / (total or 1.0), ms=ms[t]) for t in by_time],
        placement=[
            Placement(provider=provider, nodes=sum(op_types.values()), op_types=op_types)
            for provider, op_types in providers.items()
            if op_types
        ],
        note=(
            f"The profiler of {LITERT}, which counts each operator in whole µs; together {total:.3g} of "
            f"{times.mean_us / 1e3:.3g} ms per inference, with the profiler on."
        ),
    )


def _operator_rows(graphs: str) -> Iterator[tuple[str, int, float]]:
    """Yield (operator type, calls per inference, ms) for the rows of ``benchmark_model``'s tables of operator types.

    ``DelegateOpInvoke`` is left out, since the delegate's own row contains it.
    """
    inside = False
    for line in graphs.splitlines():
        if _TYPES_TITLE in line:
            inside = True
        elif inside and not line.strip():
            inside = False
        elif inside and (row := _TYPE_ROW.match(line)) and row["type"] != _DELEGATE_OPERATOR:
            yield row["type"], int(row["called"]), float(row["ms"])


# --- ONNX Runtime's onnxruntime_perf_test -----------------------------------------------------------------------------


def perf_test_command(
    file: str, threads: int, result: str, *, runs: int = 0, seconds: int = 0, trace: str = ""
) -> list[str]:
    """Return the ``onnxruntime_perf_test`` command that times inferences on the inputs beside the file.

    Args:
        file: The model file, beside which folders ``test_data_set_*`` contain the inputs.
        threads: Number of threads within an operator.
        result: File to which the program writes the times.
        runs: Number of timed inferences; 0 if `seconds` is given.
        seconds: Seconds of timed inferences; 0 if `runs` is given.
        trace: Beginning of the name of a file for a trace of operators; the program appends the time and ``.json``.
            Empty for none.
    """
    profiler = ["-p", trace] if trace else []
    duration = ["-m", "duration", "-t", str(seconds)] if seconds else ["-m", "times", "-r", str(runs)]
    return [f"./{ONNX}", "-e", "cpu", *duration, "-x", str(threads), "-Z", *profiler, file, result]


_FIGURE = r"\s*([\d.]+(?:e[+-]?\d+)?)"
_SESSION = re.compile(rf"^\s*Session creation time cost:{_FIGURE} s", re.MULTILINE)
_LATENCIES = {
    name: re.compile(rf"^\s*{title} Latency(?:: | is ){_FIGURE} ?s", re.MULTILINE)
    for name, title in {"min": "Min", "max": "Max", "p50": "P50", "p90": "P90", "p99": "P99", "last": "P999"}.items()
}
_FIRST = re.compile(rf"^\s*First inference time cost:{_FIGURE} ms", re.MULTILINE)
_INFERENCES = re.compile(rf"^\s*Total (?:inference requests|iterations):{_FIGURE}", re.MULTILINE)
_MEAN = re.compile(rf"^\s*Average (?:inference )?time cost(?: total)?:{_FIGURE} ms", re.MULTILINE)
_PEAK = re.compile(rf"^\s*Peak working set size:{_FIGURE} bytes", re.MULTILINE)


def read_printed(text: str) -> _PerfTestFigures:
    """Parse what ``onnxruntime_perf_test`` prints into a record of its numbers.

    Raises:
        ValueError: If the output reports no inference, or is cut off.
    """
    count, mean = _number(_INFERENCES, text), _number(_MEAN, text)
    if count is None or mean is None:
        raise ValueError(f"{ONNX} reports no inference, or its output is cut short: {_last_line(text)}")
    session, peak = _number(_SESSION, text), _number(_PEAK, text)
    seconds = {name: _number(pattern, text) for name, pattern in _LATENCIES.items()}
    # cut within the latencies, or between the session and the peak
    if seconds["last"] is None and (seconds["min"] is not None or (session is not None and peak is None)):
        raise ValueError(f"the output of {ONNX} is cut short: {_last_line(text)}")
    ms = {name: None if s is None else s * 1000 for name, s in seconds.items()}
    return _PerfTestFigures(
        count=int(count),
        mean_ms=mean,
        session_s=session,
        first_ms=_number(_FIRST, text),
        peak_rss_bytes=None if peak is None else int(peak),
        min_ms=ms["min"],
        max_ms=ms["max"],
        p50_ms=ms["p50"],
        p90_ms=ms["p90"],
        p99_ms=ms["p99"],
    )


def read_perf_test(text: str) -> list[float]:
    """Parse the result file of ``onnxruntime_perf_test``; return the wall time of each inference in ms, in order.

    A line has the name, seconds, peak memory, CPU use and number of an inference. Newer versions add the time of the
    whole call, which is then used. The statistics after these lines are ignored.

    Raises:
        ValueError: If the file has no such line, or the inferences are not numbered 0, 1, 2 and so on.
    """
    rows = [line.rsplit(",", 4) for line in text.splitlines() if line.count(",") >= 4]
    try:
        times = [float(row[1]) * 1000 for row in rows]
        numbers = [int(row[4]) for row in rows]
    except ValueError as error:
        raise ValueError(f"{ONNX} wrote a line of another form: {error}") from error
    if (runs := numbers.count(0)) > 1:
        raise ValueError(f"it holds {runs} runs of {ONNX}, which adds to a file that is there: give one file each")
    if not rows or numbers != list(range(len(rows))):
        raise ValueError(f"{ONNX} reports no inference: {_last_line(text)}")
    return times


_DATA_TYPES = {"int64": 7, "int32": 6, "float32": 1, "float16": 10}
"""Numbers of ``TensorProto.DataType`` in onnx.proto."""


def tensor_proto(name: str, value: NDArray[Any]) -> bytes:
    """Serialize an array as an ONNX ``TensorProto`` with dims, data_type, name and raw_data.

    Raises:
        KeyError: If the dtype is none that inputs of encoders have.
    """

    def number_field(field: int, number: int) -> bytes:
        return encode_varint(field << 3) + encode_varint(number)

    def bytes_field(field: int, data: bytes) -> bytes:
        return encode_varint(field << 3 | 2) + encode_varint(len(data)) + data

    data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()
    shape = b"".join(number_field(1, size) for size in value.shape)
    data_type = number_field(2, _DATA_TYPES[value.dtype.name])
    return shape + data_type + bytes_field(8, name.encode()) + bytes_field(9, data)


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    """Return the number that a pattern finds; None if it is not in the text."""
    match = pattern.search(text)
    return float(match[1]) if match else None


def _last_line(text: str) -> str:
    """Return the last non-blank line for an error message, without unprintable characters."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "".join(c for c in lines[-1].strip()[:300] if c.isprintable()) if lines else "no output"
