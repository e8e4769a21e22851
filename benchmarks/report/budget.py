"""The report's part on a search inside a budget: a plot for each format, and the table of everything considered."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.report import plots
from pocketbert.core.artefacts.search import BudgetSearch, Candidate
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Unit

_WORDS = {"max_drop": "loss at most {}", "max_size_mb": "size at most {:g} MB", "max_p90_ms": "p90 at most {:g} ms"}


@dataclass(frozen=True)
class SearchRow:
    """One candidate as the table prints it.

    Attributes:
        name: Its path.
        student: The student that it is made of; empty where there is one only.
        size: Its size.
        error: How far it is from the exported file.
        same: Share of rows with the same label.
        lost: Loss of the score.
        p90: Latency.
        verdict: Whether it is inside.
        note: Why it was not measured or not taken.
        chosen: Whether it was chosen.
    """

    name: str
    student: str
    size: str
    error: str
    same: str
    lost: str
    p90: str
    verdict: str
    note: str
    chosen: bool


def search_rows(search: BudgetSearch) -> list[SearchRow]:
    """The table of all candidates, in the order in which they were considered."""
    return [_row(c, search.metric) for c in search.candidates]


def _row(candidate: Candidate, metric: str) -> SearchRow:
    none = wording.NONE
    return SearchRow(
        name=candidate.name,
        student=candidate.student or "",
        size=none if candidate.bytes is None else wording.size(candidate.bytes),
        error=none if candidate.rel is None else f"{candidate.rel:.4f}",
        same=none if candidate.agreement is None else f"{candidate.agreement:.1%}",
        lost=none if candidate.drop is None else METRICS[metric].lost(candidate.drop),
        p90=none if candidate.p90_ms is None else wording.milliseconds(candidate.p90_ms),
        verdict={True: "inside", False: "outside", None: "not scored"}[candidate.inside],
        note=candidate.note,
        chosen=candidate.chosen,
    )


def limits_in_words(search: BudgetSearch) -> str:
    """The budget as a reader of the page sees it."""
    unit = "points" if METRICS[search.metric].unit is Unit.FRACTION else "per cent"
    shown = {name: f"{100 * v:g} {unit}" if name == "max_drop" else v for name, v in search.budget.items()}
    return ", ".join(_WORDS[name].format(value) for name, value in shown.items() if name in _WORDS)


def search_plots(search: BudgetSearch) -> list[tuple[str, str]]:
    """A drawing and its caption for each format with candidates that were scored."""
    metric, out = METRICS[search.metric], []
    points = metric.unit is Unit.FRACTION
    loss = search.budget.get("max_drop")
    limits = (search.budget.get("max_size_mb"), None if loss is None else 100 * loss)
    scale = f"{metric.name} lost, {'points' if points else 'per cent'}"
    for format in dict.fromkeys(c.format for c in search.candidates):
        title = FORMATS[format].title
        found = [c for c in search.candidates if c.format is format]
        shown = [_point(c) for c in found if c.drop is not None and math.isfinite(c.drop)]
        if shown:
            caption = (
                f"{title}: what the files of the front lose on the {search.chosen_on:,} rows that chose, and their size. "
                "Candidates that are not drawn were too large, failed a gate, or are larger than one of these and further from "
                "the exported file."
            )
            if len({c.student for c in found}) > 1:
                caption += " Names that would cover others are left out; the table has all."
            out.append((plots.front(shown, limits, scale, f"{title} files inside and outside the budget"), caption))
    return out


def _point(c: Candidate) -> plots.Considered:
    assert c.drop is not None and c.bytes is not None
    name = f"{c.scheme}, {len(c.left)} role{'s' if len(c.left) > 1 else ''} float" if c.left else c.scheme
    return plots.Considered(name, c.bytes / 1e6, 100 * c.drop, c.front, bool(c.inside), c.chosen, c.student or "")


def student_rows(search: BudgetSearch) -> list[tuple[str, str, str, str]]:
    """Name, weights, loss before any scheme, and what became of each student, where several were considered."""
    metric, none = METRICS[search.metric], wording.NONE
    return [
        (
            s.name,
            none if s.parameters is None else f"{s.parameters / 1e6:.2f} M",
            none if s.lost is None else metric.lost(s.lost),
            "chosen" if s.chosen else s.note,
        )
        for s in search.students
    ]
