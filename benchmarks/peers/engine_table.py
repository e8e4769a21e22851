"""The page with the tables, written from the JSON files: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from engine_columns import BASELINE, CALIBRATED, FASTEST, RIVAL, WHAT
from engine_measure import QUIET, TEXT, Cell
from engine_models import SHAPES
from engine_results import Result

from pocketbert.benchmarks.statistics import Ratio, paired_ratio
from pocketbert.core.files import write_atomic

GOAL_LENGTH = "128"
GOALS = {"distilbert": {1: 1.2, 2: 1.4}, "tinybert4": {1: 1.4, 2: 1.9}, "mobilebert": {1: 1.4, 2: 2.7}}
"""How many times as fast LiteRT int8 is wanted to be as ONNX Runtime int8, by model and threads, given VNNI."""
ALLOWED = 1.05
"""`fastest` may take so much of the best engine's time."""
WRONG = 0.02
"""An fp32 engine that differs from torch by more than this share of the logits' spread computes something else."""


@dataclass(frozen=True)
class Verdict:
    """`fastest` against the best of the others in one cell."""

    result: Result
    cell: Cell
    best: str
    ratio: Ratio
    cpu: Ratio


def write_page(folder: Path, page: Path) -> None:
    """Write the page from all results in a folder.

    Args:
        folder: Holds one JSON file per model.
        page: The Markdown file to write.
    """
    results = [Result.model_validate_json(p.read_text()) for p in folder.glob("*.json")]
    order = [*SHAPES]
    results.sort(key=lambda r: order.index(r.model) if r.model in order else len(order))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(
        page, "\n".join([*_head(results), *_fastest(results), *_goals(results), *_tables(results)]) + "\n"
    )


def _head(results: Sequence[Result]) -> list[str]:
    versions: dict[str, str] = {}
    for result in results:
        versions |= result.versions
    library = {
        RIVAL: "onnxruntime",
        BASELINE: "ai-edge-litert",
        "OpenVINO int8": "openvino",
        "torch fp32": "torch",
    }
    shown = ", ".join(f"{name} {versions[c]}" for c, name in library.items() if c in versions)
    shares = [s for r in results for c in r.cells for i, s in enumerate(c.others) if i in c.kept()]
    return [
        "# Engines",
        "",
        "Written by `benchmarks/peers/engines.py`, as is every figure on it; raw samples: `docs/figures/engines/`.",
        "",
        f"Machine: {'; '.join(sorted({r.machine for r in results}))}.  ",
        f"Versions: {shown}.  ",
        f"Text: {'; '.join(sorted({f'{r.texts}, {r.tokens_mean:.0f} tokens on average' for r in results}))}.  ",
        f"Provenance: measured. Other processes had {np.mean(shares):.1%} of the CPU time in the rounds used.",
        "",
        "Batch 1. Every engine has a process of its own; all are open, one works at a time, in short bursts in a new order",
        "each round; the next one starts when the CPU is quiet again. Ratios are paired by round, with 95 % intervals of the",
        f"median. Rounds in which other processes had more than {QUIET:.0%} of the CPU are left out where 6 quiet ones remain.",
        "`text` is real text at its own length; LiteRT pads it to the next signature. Dynamic int8 reads its ranges from",
        "the values, so random weights are timed as real ones would be, but say nothing about accuracy.",
        "",
        *(f"- **{name}**: {what}." for name, what in WHAT.items() if name in versions),
        "",
    ]  # fmt: skip


def _verdicts(results: Sequence[Result], among: Set[str] = frozenset()) -> Iterable[Verdict]:
    """`fastest` against the best of the engines that need no calibration data, and of the calibrated ones in `among`."""
    for result in results:
        for cell in result.cells:
            others = [
                n for n in cell.engines if n not in (FASTEST, *(CALIBRATED - among)) and _right(result, n)
            ]
            if FASTEST in cell.engines and others:
                best = min(others, key=lambda n: float(np.median(cell.series(n))))
                wall, cpu = (
                    paired_ratio(cell.series(FASTEST, kind), cell.series(best, kind))
                    for kind in (False, True)
                )
                yield Verdict(result, cell, best, wall, cpu)


def _right(result: Result, name: str) -> bool:
    seen = result.agreement.get(name)
    return "fp32" not in name or seen is None or seen.worst < WRONG


def _fastest(results: Sequence[Result]) -> list[str]:
    verdicts = list(_verdicts(results))
    if not verdicts:
        return []
    over = [v for v in verdicts if v.ratio.median > ALLOWED]
    sure = [v for v in over if v.ratio.low > ALLOWED]
    worst = max(verdicts, key=lambda v: v.ratio.median)
    lines = [
        '## `engine="fastest"` against the best engine of the tables',
        "",
        f"Wall time of `fastest` over that of the best other engine in the same cell; wanted: {ALLOWED} or less. "
        f"{', '.join(sorted(CALIBRATED))} is calibrated on data, which is another scheme (`a8w8`, none of the toolkit's "
        "yet): it is compared below. "
        f"{len(verdicts) - len(over)} of {len(verdicts)} cells hold it; {len(sure)} miss it with the whole interval. "
        "At one thread the second figure, the same ratio in CPU time, is the steadier one on a busy machine. "
        f"Worst: {_ratio(worst.ratio)} ({_title(worst.result)}, {worst.cell.threads} threads, {worst.cell.length}).",
        "",
    ]
    lengths = _lengths(c for r in results for c in r.cells)
    lines += [_row(["model", "threads", *lengths]), _row(["---"] * (2 + len(lengths)))]
    for result in results:
        for threads in sorted({c.threads for c in result.cells}):
            mine = {v.cell.length: v for v in verdicts if v.result is result and v.cell.threads == threads}
            cells = [_against(mine[n]) if n in mine else "" for n in lengths]
            lines.append(_row([_title(result), str(threads), *cells]))
    choices = [
        f"- {r.model}, {key.rpartition(', ')[2]} threads: {note}."
        for r in results
        for key, note in r.notes.items()
    ]
    resolution = (
        "Where `fastest` chose the file of a column, the two columns time the same file and engine in two processes: what "
        "they differ by there is the resolution of this page."
    )
    return [*lines, "", *_calibrated(results), resolution, "", "What it chose, by length:", "", *choices, ""]


def _calibrated(results: Sequence[Result]) -> list[str]:
    """Where static int8, which needs calibration data, is faster."""
    slower = [v for v in _verdicts(results, CALIBRATED) if v.best in CALIBRATED and v.ratio.median > ALLOWED]
    if not slower:
        return [f"No calibrated engine is more than {ALLOWED - 1:.0%} faster in any cell.", ""]
    where = "; ".join(
        f"{v.result.model}, {v.cell.threads} threads, {v.cell.length}: {_ratio(v.ratio)}" for v in slower
    )
    return [
        f"Calibrated engines ({', '.join(sorted(CALIBRATED))}) are faster than `fastest` here: {where}.",
        "",
    ]


def _against(verdict: Verdict) -> str:
    cpu = f"CPU {_ratio(verdict.cpu)}<br>" if verdict.cell.threads == 1 else ""
    return f"{_ratio(verdict.ratio)}<br>{cpu}{verdict.best}"


def _goals(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        for cell in result.cells:
            wanted = GOALS.get(result.model, {}).get(cell.threads)
            if wanted and cell.length == GOAL_LENGTH and {BASELINE, RIVAL} <= set(cell.engines):
                wall = paired_ratio(cell.series(RIVAL), cell.series(BASELINE))
                cpu = paired_ratio(cell.series(RIVAL, True), cell.series(BASELINE, True))
                found = "yes" if wall.median >= wanted else "no"
                lines.append(
                    _row([result.model, str(cell.threads), _ratio(wall), _ratio(cpu), f"{wanted}", found])
                )
    if not lines:
        return []
    return [
        f"## LiteRT int8 over ONNX Runtime int8, {GOAL_LENGTH} tokens",
        "",
        "Raw engines; how many times as fast. The goal binds on CPUs with VNNI.",
        "",
        _row(["model", "threads", "wall", "CPU", "goal", "met"]),
        _row(["---"] * 6),
        *lines,
        "",
    ]


def _tables(results: Sequence[Result]) -> list[str]:
    lines = [
        "## Tables",
        "",
        f"Each cell: wall time over that of {BASELINE} in the same rounds, with its interval (above 1: slower); below it",
        "median wall and CPU time in ms.",
        "",
    ]
    for result in results:
        for threads in sorted({c.threads for c in result.cells}):
            cells = {c.length: c for c in result.cells if c.threads == threads and BASELINE in c.engines}
            lengths = _lengths(cells.values())
            several = "thread" if threads == 1 else "threads"
            lines += [f"### {_title(result)}, {threads} {several}", ""]
            answers = ["same labels", "worst logit"] if result.weights == "trained" else ["worst logit"]
            lines += [_row(["engine", *lengths, *answers]), _row(["---"] * (1 + len(lengths) + len(answers)))]
            for name in (n for n in WHAT if any(n in c.engines for c in cells.values())):
                shown = [_cell(cells[n], name) if name in cells[n].engines else "" for n in lengths]
                lines.append(_row([name, *shown, *_answers(result, name)]))
            lines += ["", f"{_quietness(cells.values())} {_worst_after(cells.values())}", ""]
    return lines


def _cell(cell: Cell, name: str) -> str:
    wall, cpu = cell.series(name), cell.series(name, cpu=True)
    ratio = "1" if name == BASELINE else _ratio(paired_ratio(wall, cell.series(BASELINE)))
    return f"{ratio}<br>{np.median(wall):.3g} / {np.median(cpu):.3g}"


def _answers(result: Result, name: str) -> list[str]:
    seen = result.agreement.get(name)
    if seen is None:
        return ["", ""] if result.weights == "trained" else [""]
    worst = f"{seen.worst:.1e}" if seen.worst < 0.01 else f"{seen.worst:.2f}"
    return [f"{seen.labels:.0%}", worst] if result.weights == "trained" else [worst]


def _quietness(cells: Iterable[Cell]) -> str:
    made, kept = sum(len(c.others) for c in cells), sum(len(c.kept()) for c in cells)
    return f"{kept} of {made} rounds used."


def _worst_after(cells: Iterable[Cell]) -> str:
    """Who still used the CPU when its turn was over."""
    after: dict[str, float] = {}
    for cell in cells:
        for name, engine in cell.engines.items():
            after[name] = max(after.get(name, 0.0), float(np.median([engine.after[i] for i in cell.kept()])))
    spinning = [f"{name} {ms:.0f} ms" for name, ms in after.items() if ms >= 1]
    return f"CPU time used after a turn (spinning): {', '.join(spinning) or 'below 1 ms everywhere'}."


def _lengths(cells: Iterable[Cell]) -> list[str]:
    found = {c.length for c in cells}
    return [*sorted(found - {TEXT}, key=int), *([TEXT] if TEXT in found else [])]


def _title(result: Result) -> str:
    return f"{result.model} ({result.weights})"


def _ratio(ratio: Ratio) -> str:
    return f"**{ratio.median:.2f}** [{ratio.low:.2f}, {ratio.high:.2f}]"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
