"""What the terminal and the report show of texts that a user saved of measuring programs."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.records import Reported

REPORTED = (
    "Figures of texts that measuring programs printed, as their user reported them. The texts tell neither what else the device did "
    "nor repeats, and files did not take turns: there is no interval, and no ratio is formed."
)
_HEADER = (
    "file",
    "device",
    "threads",
    "length",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "mean ms",
    "min ms",
    "max ms",
    "runs",
    "load ms",
    "first ms",
    "added memory",
    "process memory",
)
_ALWAYS = 4
"""Columns that are shown even if all are empty."""


def reported_table(reported: Sequence[Reported]) -> tuple[list[str], list[list[str]]]:
    """Header and cells, one row for each text; columns without any figure are left out."""
    rows = [
        [
            one.variant,
            one.device,
            wording.thread_count(one.threads),
            str(one.length),
            *map(_ms, (one.p50_ms, one.p90_ms, one.p99_ms, one.mean_ms, one.min_ms, one.max_ms)),
            str(one.runs),
            *map(_ms, (one.load_ms, one.first_ms)),
            *map(_bytes, (one.peak_memory_bytes, one.peak_rss_bytes)),
        ]
        for one in reported
    ]
    kept = [i for i in range(len(_HEADER)) if i < _ALWAYS or any(row[i] != wording.NONE for row in rows)]
    return [_HEADER[i] for i in kept], [[row[i] for i in kept] for row in rows]


def reported_stamps(reported: Sequence[Reported]) -> list[str]:
    """Where the figures of each text come from."""
    out = []
    for one in reported:
        settings = f" ({'; '.join(one.settings)})" if one.settings else ""
        notes = "".join(f" {note}" for note in one.notes)
        out.append(
            f"{one.provenance} on {one.device}, as reported by the user · {one.tool}{settings} · {one.source}.{notes}"
        )
    return out


def reported_lines(reported: Sequence[Reported]) -> list[str]:
    """Lines under the terminal's table."""
    return [*reported_stamps(reported), REPORTED] if reported else []


def _ms(value: float | None) -> str:
    return wording.NONE if value is None else wording.milliseconds(value)


def _bytes(value: int | None) -> str:
    return wording.NONE if value is None else wording.size(value)
