"""What ``onnxruntime_perf_test`` prints, and the file of results that it writes.

Sources: the tool's own sources (``onnxruntime/test/perftest``) and published logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pocketbert.benchmarks.devices.runners.benchmark_model import last_line

ONNX = "onnxruntime_perf_test"
_NUMBER = r"\s*([\d.]+(?:e[+-]?\d+)?)"
_SECONDS = {
    "session": re.compile(rf"^\s*Session creation time cost:{_NUMBER} s", re.MULTILINE),
    **{
        name: re.compile(rf"^\s*{title} Latency(?:: | is ){_NUMBER} ?s", re.MULTILINE)
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
_FIRST = re.compile(rf"^\s*First inference time cost:{_NUMBER} ms", re.MULTILINE)
_COUNT = re.compile(rf"^\s*Total (?:inference requests|iterations):{_NUMBER}", re.MULTILINE)
_MEAN = re.compile(rf"^\s*Average (?:inference )?time cost(?: total)?:{_NUMBER} ms", re.MULTILINE)
_PEAK = re.compile(rf"^\s*Peak working set size:{_NUMBER} bytes", re.MULTILINE)


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
    count, mean = _number(_COUNT, text), _number(_MEAN, text)
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
