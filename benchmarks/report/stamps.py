"""The line under a table or a plot that tells where its figures come from."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.report.data import ReportData


def measurement_stamp(*shown: Measurement) -> str:
    """Where figures come from: provenance, engines, device, ISA and load, on one line.

    Args:
        shown: Measurements of one device and one thread count.
    """
    first = shown[0]
    return f"{first.provenance} · {_engines(shown)} · {first.device}: {first.machine.summary} · {first.load.summary}"


def result_stamp(result: BenchmarkResult) -> str:
    """Where all figures of a session come from, with the load at each thread count."""
    first = {m.threads: m for m in reversed(result.measurements)}
    m = first[result.protocol.threads[0]]
    loads = "; ".join(f"{wording.threads(t)}: {first[t].load.summary}" for t in result.protocol.threads)
    return f"{m.provenance} · {_engines(result.measurements)} · {m.device}: {m.machine.summary} · {loads}"


def run_stamp(data: ReportData) -> str:
    """Where parity, gates and other figures come from that name no machine."""
    return f"{data.provenance} · {data.machine.summary}"


def score_stamp(data: ReportData) -> str:
    """Where the scores come from."""
    return data.scored_by or run_stamp(data)


def _engines(shown: Sequence[Measurement]) -> str:
    return ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in shown))
