"""Where a page's figures come from, stated once for each machine.

While the values of a page are made, `Sources.cite` notes what a machine measured, emulated or estimated, and returns the mark that
stands beside the figures: ``measured [1]``. `Sources.entries` is the page's list of these machines. `cite_session`,
`cite_run`, `cite_scores` and `cite_compilations` word the usual cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Compilation
from pocketbert.benchmarks.report.figures import ReportData
from pocketbert.core.types import Provenance


@dataclass(frozen=True)
class Citation:
    """The mark beside a figure: how it came about, and the number of its machine in the page's list.

    Attributes:
        provenance: ``measured``, ``emulated``, ``estimated`` or ``compiled-only``.
        number: Number of the machine in `Sources.entries`.
    """

    provenance: str
    number: int


class Sources:
    """The machines that the figures of a page come from, in the order in which they were cited first."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, None]] = {}

    def cite(self, machine: str, provenance: str, what: str) -> Citation:
        """Note that `machine` gave figures, and return the mark for them.

        Args:
            machine: CPU, cores and extensions, or the target of a compiler; the key of the list.
            provenance: How the figures came about.
            what: Which figures, with engines, load and other conditions.
        """
        self._facts.setdefault(machine, {})[f"{provenance}: {what}"] = None
        return Citation(str(provenance), list(self._facts).index(machine) + 1)

    @property
    def entries(self) -> list[tuple[int, str, list[str]]]:
        """Return (number, machine, lines on its figures) of every machine that was cited."""
        return [(number, machine, list(facts)) for number, (machine, facts) in enumerate(self._facts.items(), 1)]


def cite_session(sources: Sources, session: BenchmarkResult, name: str = "") -> Citation:
    """Cite the measurements of one device: its engines, and its load at each thread count.

    Args:
        sources: The page's list of machines.
        session: The measurements of one device.
        name: Name of the benchmark where a page shows several.
    """
    return cite_measurements(sources, session.measurements, name)


def cite_measurements(sources: Sources, shown: Sequence[Measurement], name: str = "") -> Citation:
    """Cite measurements of one device; see `cite_session`."""
    first = {m.threads: m for m in reversed(shown)}
    m = shown[0]
    engines = ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in shown))
    loads = "; ".join(f"{wording.threads(t)}: {first[t].load.summary}" for t in sorted(first))
    what = "latency" if m.wall is not None else "guest instructions"
    words = f"{name}{', ' * bool(name)}{what} on {m.device} by {engines} ({loads})"
    return sources.cite(m.machine.summary, m.provenance, words)


def cite_run(sources: Sources, data: ReportData, what: str) -> Citation:
    """Cite the machine of a run for its own figures, such as gates and losses."""
    return sources.cite(data.machine.summary, data.provenance, what)


def cite_scores(sources: Sources, data: ReportData) -> Citation:
    """Cite the machine that computed the scores, and return the mark.

    Files that were scored by the project's evaluator instead of an engine have an entry of their own.
    """
    machine = data.scored_machine or data.machine.summary
    rows = sorted({row.eval_score.rows for row in data.rows if row.eval_score is not None})
    counted = f" on {' to '.join(f'{n:,}' for n in dict.fromkeys((rows[0], rows[-1])))} rows" if rows else ""
    words = f"scores{counted}, each file by itself{f', {data.scored_by}' if data.scored_by else ''}"
    mark = sources.cite(machine, data.provenance, words)
    emulated = [r.name for r in data.rows if r.provenance is Provenance.EMULATED and r.eval_score is not None]
    if emulated:
        sources.cite(machine, Provenance.EMULATED, f"scores of {', '.join(emulated)}, by the project's evaluator")
    return mark


def cite_compilations(sources: Sources, compilations: Sequence[Compilation]) -> list[Citation]:
    """Cite the targets that files were compiled for, with what was counted, emulated and estimated; return their marks."""
    marks = dict[Citation, None]()
    for one in compilations:
        kinds = [(one.provenance, "placement, size")] if not one.failed else []
        kinds += [(one.answers.provenance, "answers")] if one.answers else []
        kinds += [(one.estimate.provenance, "time, cycles, memory")] if one.estimate else []
        for provenance, what in kinds:
            words = f"{what} by {one.engine} {one.engine_version}"
            marks[sources.cite(f"{one.device}: {one.target}", provenance, words)] = None
    return list(marks)
