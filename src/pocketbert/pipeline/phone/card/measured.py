"""The figures of an artefact folder, read from nothing but the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import Artefacts
from pocketbert.pipeline.make.exporting import read_parity
from pocketbert.pipeline.phone.card.figures import REAL_TEXT, CardFigures, LatencyRow

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult

TEACHER_SCORE = "teacher score"
"""Entry of `Artefacts.lineage` with the teacher's score in words."""
BENCHMARK_FILE = "benchmark.json"


def measured_figures(folder: Path, artefacts: Artefacts) -> CardFigures:
    """Read what was measured of a folder's files from ``benchmark.json`` and ``parity.json``, where they are there.

    Args:
        folder: The artefact folder.
        artefacts: Its list.
    """
    from pocketbert.benchmarks.measurement import BenchmarkResult

    benchmark = folder / BENCHMARK_FILE
    session = BenchmarkResult.read(benchmark).headline if benchmark.is_file() else None
    timed = session if session is not None and session.timed else None
    paths = {r.path for r in artefacts.models()}
    score = artefacts.lineage.get(TEACHER_SCORE)
    return CardFigures(
        latency=latency_rows(artefacts, timed) if timed else (),
        condition=_condition(timed) if timed else "",
        teacher_score=f"Teacher: {score}." if score else "",
        parity=[p for p in read_parity(folder) if p.subject in paths],
    )


def latency_rows(artefacts: Artefacts, session: BenchmarkResult) -> Sequence[LatencyRow]:
    """List the latencies of one session; files of the folder are known by their digest, others keep their name.

    Args:
        artefacts: The folder's list.
        session: What one device measured.
    """
    from pocketbert.benchmarks.wording import idle, time_ratio

    paths = {r.sha256: r.path for r in artefacts.models()}
    names = {v.name: paths.get(v.sha256, v.name) for v in session.variants}
    out = []
    for m in session.measurements:
        if m.wall is None or (m.gap_ms and m.length != session.protocol.lengths[0]):
            continue  # the report has single calls at every length, too
        compared = session.compare(m.variant, m.threads, m.length, m.gap_ms)
        length = (REAL_TEXT if m.length == "text" else str(m.length)) + idle(m.gap_ms)
        ratio = time_ratio(compared.wall if compared else None)
        out.append(LatencyRow(names.get(m.variant, m.variant), m.threads, length, m.wall.p50, m.wall.p90, ratio))
    return out


def _condition(session: BenchmarkResult) -> str:
    engines = ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in session.measurements))
    return (
        f"Provenance {session.measurements[0].provenance}, batch 1, {engines} on {session.machine.summary}; "
        f"the files took turns, {session.protocol.runs_made[0]} or more runs in each of {session.protocol.repeats} repeats. "
        f"Figures on a phone differ. Raw samples: `{BENCHMARK_FILE}`."
    )
