"""The page of `cadence.py`, written from its JSON files: every engine back to back, and in single calls after idle time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.columns import FASTEST, WHAT
from engine.measure import QUIET, SINGLES
from engine.results import Cell, Result
from engine.verdict import CrossFit, cross_fit
from pocketbert.benchmarks.statistics import Ratio, nearest_rank
from pocketbert.core.disk.files import write_atomic

INTERACTIVE = "fastest, interactive"
"""The toolkit's choice for single calls; `FASTEST` is its choice for batches."""
ALLOWED = 1.05
"""`fastest` may take so much of the best engine's time."""


@dataclass(frozen=True)
class Verdict:
    """The toolkit's choice for one cadence in one cell.

    Attributes:
        title: Model, threads, length and idle time.
        fit: Its time over that of the best engine that is called directly.
        other: Its time over that of the toolkit's choice for the other cadence; None where they share no rounds.
    """

    title: str
    fit: CrossFit
    other: Ratio | None


def subject_of(gap_ms: float) -> str:
    """The column that is judged where so much idle time comes before each inference."""
    return INTERACTIVE if gap_ms else FASTEST


def verdict(result: Result, cell: Cell, gap_ms: float) -> Verdict | None:
    """Judge the toolkit's choice in one cell; None where it or everybody else is missing."""
    subject = subject_of(gap_ms)
    direct = [n for n in cell.finalists if n not in (FASTEST, INTERACTIVE)]
    rounds = cell.kept(subject, *direct) if subject in cell.engines else []
    if len(rounds) < 2 or not direct:
        return None
    times = {n: [r.time(n) for r in rounds] for n in (subject, *direct)}
    fit = cross_fit(times, subject, [r.part.generation for r in rounds])
    other = FASTEST if gap_ms else INTERACTIVE
    shared = cell.ratio(subject, other) if other in cell.engines and cell.rounds(subject, other) else None
    return Verdict(f"{result.model}, {_threads(cell.threads)}, {cell.length}{_idle(gap_ms)}", fit, shared)


def write_page(results: Mapping[float, Sequence[Result]], page: Path) -> list[Verdict]:
    """Write the page.

    Args:
        results: Results of all models, by idle time in ms.
        page: The Markdown file to write.

    Returns:
        The verdicts.

    Raises:
        SystemExit: If nothing was measured.
    """
    every = [r for some in results.values() for r in some if r.cells()]
    if not every:
        raise SystemExit("nothing was measured; no page was written")
    verdicts = [v for gap, some in results.items() for r in some for c in r.cells() if (v := verdict(r, c, gap))]
    lines = [*_head(every[0], results), *_verdicts(verdicts)]
    for gap, some in results.items():
        for result in some:
            lines += _tables(result, gap)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(page, "\n".join(lines) + "\n")
    return verdicts


def _head(first: Result, results: Mapping[float, Sequence[Result]]) -> list[str]:
    gaps = ", ".join(f"{g:g} ms" for g in results if g)
    versions = ", ".join(sorted({v for r in (first,) for v in (f"{n}: {x}" for n, x in r.versions.items())}))
    return [
        "# Engines, back to back and in single calls",
        "",
        "This page is written by `lab/peers/cadence.py`.",
        "",
        f"Machine: {first.machine}.  ",
        f"Text: {first.texts}, {first.tokens_mean:.0f} tokens on average.  ",
        f"Versions: {versions}.  ",
        f"{disturbance(results)}  ",
        "Provenance: measured.",
        "",
        "Every engine runs in a separate process, and one works at a time, in a new order each round. Back to back, a turn is a "
        f"burst. Single calls come after an idle time ({gaps or 'none measured'}): a turn is one untimed inference and {SINGLES} "
        "calls, each after the idle time. Percentiles are nearest-rank over all samples of the rounds used; ratios are paired by "
        "round, with 95 % intervals of the median.",
        "",
    ]


def disturbance(results: Mapping[float, Sequence[Result]]) -> str:
    """How much of the CPU other processes took while the rounds were made, in one or two sentences."""
    others = [share for some in results.values() for r in some for part in r.parts for share in part.others]
    quiet = sum(share <= QUIET for share in others)
    told = f"Other processes took {nearest_rank(others, 50):.0%} of the CPU time in the middle round; {quiet} of {len(others)} rounds were quiet (at most {QUIET:.0%})."
    return told if quiet >= len(others) / 2 else f"{told} The machine was busy: measure again when it is not."


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    met = sum(v.fit.ratio.median <= ALLOWED for v in verdicts)
    yield f'## `engine="fastest"`: {met} of {len(verdicts)} cells within {ALLOWED - 1:.0%} of the best engine'
    yield ""
    yield "The choice for each cadence is judged at that cadence; the last column is its time over that of the other cadence's choice."
    yield ""
    yield "| cell | best engine | `fastest` / best | / the other cadence's choice |"
    yield "| --- | --- | --- | --- |"
    for v in verdicts:
        yield f"| {v.title} | {' / '.join(v.fit.names)} | {_ratio(v.fit.ratio)} | {_ratio(v.other) if v.other else '–'} |"
    yield ""


def _tables(result: Result, gap_ms: float) -> Iterator[str]:
    cells = result.cells()
    for threads in sorted({c.threads for c in cells}):
        there = [c for c in cells if c.threads == threads]
        pace = f"single calls{_idle(gap_ms)}" if gap_ms else "back to back"
        yield f"## {result.model} ({result.weights}), {_threads(threads)}, {pace}"
        yield ""
        yield "p50 / p90 in ms."
        yield ""
        yield f"| engine | {' | '.join(c.length for c in there)} |"
        yield "| --- |" + " --- |" * len(there)
        for name in [n for n in (*WHAT, INTERACTIVE) if any(n in c.engines for c in there)]:
            yield f"| {name} | {' | '.join(_percentiles(c, name) for c in there)} |"
        yield ""


def _percentiles(cell: Cell, name: str) -> str:
    rounds = cell.kept(name) if name in cell.engines else []
    samples = [ms for r in rounds for ms in r.part.engines[name].wall[r.number]]
    return f"{nearest_rank(samples, 50):.3g} / {nearest_rank(samples, 90):.3g}" if samples else "–"


def _ratio(ratio: Ratio) -> str:
    return f"**{ratio.median:.2f}** [{ratio.low:.2f}, {ratio.high:.2f}]"


def _idle(gap_ms: float) -> str:
    return f" after {gap_ms:g} ms idle" if gap_ms else ""


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
