"""What LiteRT's ``benchmark_model`` prints: times, and the table of operators where it was asked for.

Sources: the tool's own sources (``tensorflow/lite/tools/benchmark``, ``tensorflow/lite/profiling``) and published logs. The
readers take text, so that they can be used on output that was recorded anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pocketbert.benchmarks.operators.times import OpTimes
from pocketbert.benchmarks.records import OpShare, Placement

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
