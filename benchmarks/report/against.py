"""Files of several folders against the files of the same name in the first folder."""

from __future__ import annotations

from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.statistics import Ratio, time_ratio


def same_file_ratio(session: BenchmarkResult, m: Measurement) -> Ratio | None:
    """Ratio of wall times to the same file of the first folder, paired by round; below 1 this file is faster.

    Args:
        session: What one device measured.
        m: One of its measurements.

    Returns:
        None for files of the first folder, for those that it does not have, and where nothing was timed.
    """
    by_name = {v.name: v for v in session.variants}
    variant, first = by_name.get(m.variant), session.variants[0].tokenizer
    if variant is None or variant.tokenizer == first or not m.wall_ms:
        return None
    others = {v.name for v in session.variants if v.tokenizer == first and _inside(v) == _inside(variant)}
    condition = (m.threads, m.length, m.gap_ms)
    for other in session.measurements:
        if other.variant in others and (other.threads, other.length, other.gap_ms) == condition:
            turn = 1 if m.gap_ms else session.protocol.burst
            return time_ratio(m.wall_ms, other.wall_ms, turn, session.protocol.fresh)
    return None


def _inside(variant: Variant) -> str:
    """Path of a file in its folder."""
    path, folder = variant.path, variant.tokenizer
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
