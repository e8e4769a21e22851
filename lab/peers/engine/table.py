"""The page with the tables, written from the JSON files: no figure in it is typed by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.columns import BASELINE, FASTEST, RIVAL, WHAT, chosen_column
from engine.measure import CLOSE, QUIET, TEXT, Effort
from engine.models import SHAPES
from engine.results import ENOUGH, Cell, Opened, Result, Round
from engine.verdict import CrossFit, cross_fit, ratio_to
from pocketbert.benchmarks.statistics import Ratio, paired_ratio
from pocketbert.core.disk.files import write_atomic

GOAL_LENGTH = "128"
GOALS = {"distilbert": {1: 1.2, 2: 1.4}, "tinybert4": {1: 1.4, 2: 1.9}, "mobilebert": {1: 1.4, 2: 2.7}}
"""How many times as fast LiteRT int8 is wanted to be as ONNX Runtime int8, by model and threads, given VNNI."""
ALLOWED = 1.05
"""`fastest` may take so much of the best engine's time."""
WRONG = 0.02
"""An fp32 engine that differs from torch by more than this share of the logits' spread computes something else."""


@dataclass(frozen=True)
class Verdict:
    """`fastest` against the best of the others in one cell.

    Attributes:
        result: The model.
        cell: The cell.
        fit: Wall time.
        cpu: CPU time against the same opponents.
        generations: Wall time, for each generation by itself.
        choice: Wall time of the column that times what `fastest` chose; None where there is none.
    """

    result: Result
    cell: Cell
    fit: CrossFit
    cpu: Ratio
    generations: tuple[Ratio, ...]
    choice: Ratio | None

    @property
    def ratio(self) -> Ratio:
        """Wall time of `fastest` over the best engine's."""
        return self.fit.ratio

    @property
    def title(self) -> str:
        """Which cell."""
        return f"{_title(self.result)}, {_threads(self.cell.threads)}, {self.cell.length}"


def write_page(folder: Path, page: Path) -> None:
    """Write the page from all results in a folder.

    Args:
        folder: Holds one JSON file per model.
        page: The Markdown file to write.
    """
    every = [Result.model_validate_json(p.read_text()) for p in sorted(folder.glob("*.json"))]
    results = [r for r in every if r.cells()]
    for result in every:
        if result not in results:
            print(f"left out of the page: {result.model}, nothing was measured in rounds and generations")
    if not results:
        raise SystemExit(f"{folder} holds no results of this kind; no page was written")
    order = [*SHAPES]
    results.sort(key=lambda r: order.index(r.model) if r.model in order else len(order))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(page, "\n".join([*_head(results), *_fastest(results), *_goals(results), *_tables(results)]) + "\n")


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
    cells = [c for r in results for c in r.cells()]
    shares = [r.part.others[r.number] for c in cells for r in c.kept(*c.finalists)]
    return [
        "# Engines",
        "",
        "This page and all its figures are written by `lab/peers/engines.py`; the raw samples are in `docs/figures/engines/`.",
        "",
        f"Machine: {'; '.join(sorted({r.machine for r in results}))}.  ",
        f"Versions: {shown}.  ",
        f"Text: {'; '.join(sorted({f'{r.texts}, {r.tokens_mean:.0f} tokens on average' for r in results}))}.  ",
        f"Provenance: measured. Other processes had {np.mean(shares):.1%} of the CPU time in the rounds used.",
        "",
        "All figures are at batch 1. Every engine runs in a separate process. All processes are open, and one works at a time, in",
        "short bursts in a new order each round; the next one starts when the CPU is quiet again. Ratios are paired by round, with 95 % intervals of the",
        f"median. Rounds in which other processes had more than {QUIET:.0%} of the CPU are left out where {ENOUGH} quiet ones",
        "remain. `text` is real text at its own length; LiteRT pads it to the next signature. Dynamic int8 reads its ranges",
        "from the values, so random weights are timed as real ones would be, but say nothing about accuracy.",
        "",
        f"Finalists: in each cell all engines run {Effort.least} rounds. Those with a lower quartile within {CLOSE} times the",
        f"lowest one continue, and `fastest` always does; at {GOAL_LENGTH} tokens the two engines with a goal below continue too. The others",
        f"keep their {Effort.least} rounds. A finalist has {_span(len(c.kept(*c.finalists)) for c in cells)}.",
        f"Generations: every process is opened anew {_span((len(c.parts) for c in cells), 'time')}, and each time `fastest`",
        "measures and chooses anew. A cell has an equal share of its rounds in each generation.",
        "",
        *(f"- **{name}**: {what}." for name, what in WHAT.items() if name in versions),
        "",
    ]


def _verdicts(results: Sequence[Result]) -> Iterator[Verdict]:
    for result in results:
        for cell in result.cells():
            names = [n for n in cell.finalists if n == FASTEST or _right(result, n)]
            if FASTEST not in names or len(names) < 2:
                continue
            rounds = cell.kept(*names)
            wall, cpu = ({n: [r.time(n, kind) for r in rounds] for n in names} for kind in (False, True))
            fit = cross_fit(wall, FASTEST, [r.part.generation for r in rounds])
            generations = []
            for part in cell.parts:
                own = [i for i, r in enumerate(rounds) if r.part is part]
                if own:
                    times = {n: [ms[i] for i in own] for n, ms in wall.items()}
                    generations.append(ratio_to(times[FASTEST], times, [fit.opponents[i] for i in own]))
            against = ratio_to(cpu[FASTEST], cpu, fit.opponents)
            yield Verdict(result, cell, fit, against, tuple(generations), _choice(result, cell, rounds, fit))


def _choice(result: Result, cell: Cell, rounds: Sequence[Round], fit: CrossFit) -> Ratio | None:
    """The chosen column against the best one, both of processes that run nothing else."""
    mine, theirs = [], []
    for one, opponent in zip(rounds, fit.opponents, strict=True):
        said = result.choice(cell.threads, cell.length, one.part.generation)
        column = chosen_column(said, cell.threads) if said else None
        if column and one.has([column]):
            mine.append(one.time(column))
            theirs.append(one.time(opponent))
    return paired_ratio(mine, theirs) if len(mine) >= ENOUGH else None


def _right(result: Result, name: str) -> bool:
    seen = result.agreement.get(name)
    return "fp32" not in name or seen is None or seen.worst < WRONG


def _fastest(results: Sequence[Result]) -> list[str]:
    verdicts = list(_verdicts(results))
    if not verdicts:
        return []
    over = [v for v in verdicts if v.ratio.median > ALLOWED]
    sure = [v for v in over if v.ratio.low > ALLOWED]
    under = [v for v in verdicts if v.ratio.high <= ALLOWED]
    worst = max(verdicts, key=lambda v: v.ratio.median)
    single = [(g, v) for v in verdicts for g in v.generations]
    several = any(len(v.cell.parts) > 1 for v in verdicts)
    folds = "other generations" if several else "other rounds"
    lucky = max(single, key=lambda pair: pair[0].median)
    lines = [
        '## `engine="fastest"` compared with the best engine of the tables',
        "",
        f"The ratio is the wall time of `fastest` over that of the best other engine in the same cell; the goal is {ALLOWED} or less. "
        f"{len(verdicts) - len(over)} of {len(verdicts)} cells meet it with their median, {len(under)} with the whole interval; "
        f"{len(sure)} miss it with the whole interval. The worst ratio is {_ratio(worst.ratio)} ({worst.title}).",
        "",
        f"The best engine is picked in {folds} than it is compared in "
        "(cross-fitting), since the smallest of several noisy medians is too small; where they pick different engines, "
        "both are named. `plain` is the ratio to the engine that is best in all rounds, where it differs. At one thread, `CPU` "
        "is the same ratio in CPU time, which varies less on a busy machine.",
        "",
        *_choices_alone(verdicts),
        f"Each generation makes its own choice. Of {len(single)} single generations, {sum(g.median <= ALLOWED for g, _ in single)} meet "
        f"{ALLOWED} with their median, and {sum(g.low > ALLOWED for g, _ in single)} miss it with the whole interval. "
        f"The worst ratio is {_ratio(lucky[0])} ({lucky[1].title}).",
        "",
    ]
    lengths = _lengths(c for r in results for c in r.cells())
    lines += [_row(["model", "threads", *lengths]), _row(["---"] * (2 + len(lengths)))]
    for result in results:
        for threads in sorted({c.threads for c in result.cells()}):
            mine = {v.cell.length: v for v in verdicts if v.result is result and v.cell.threads == threads}
            cells = [_against(mine[n]) if n in mine else "" for n in lengths]
            lines.append(_row([_title(result), str(threads), *cells]))
    choices = [line for r in results for line in _choices(r)]
    return [*lines, "", *_heading("It made these choices, by length:", choices)]


def _choices_alone(verdicts: Sequence[Verdict]) -> list[str]:
    """How good the choices are, whatever memory the process of `fastest` got."""
    told = [v for v in verdicts if v.choice is not None]
    if not told:
        return []
    good = sum(v.choice is not None and v.choice.median <= ALLOWED for v in told)
    worst = max(told, key=lambda v: v.choice.median if v.choice else 0.0)
    same = [v.ratio.median for v in told if v.choice and v.choice.low == v.choice.high == 1.0]
    scatter = (
        f" Where this ratio is exactly 1 ({len(same)} cells), `fastest` itself took {min(same):.2f} to {max(same):.2f} of that column's "
        "time: two processes with the same file and engine differ by as much, for their whole lifetime."
        if same
        else ""
    )
    return (
        [
            "To judge only the choice, the column of the chosen file is divided by the best column (1 where they are the same): "
            f"{good} of {len(told)} cells meet {ALLOWED} with their median; the worst ratio is {_ratio(worst.choice)} ({worst.title}).{scatter}",
            "",
        ]
        if worst.choice
        else []
    )


def _against(verdict: Verdict) -> str:
    fit = verdict.fit
    cpu = f"CPU {_ratio(verdict.cpu)}<br>" if verdict.cell.threads == 1 else ""
    plain = f"<br>plain {fit.plain.median:.2f}" if f"{fit.plain.median:.2f}" != f"{fit.ratio.median:.2f}" else ""
    return f"{_ratio(fit.ratio)}<br>{cpu}{' / '.join(fit.names)}{plain}"


def _choices(result: Result) -> list[str]:
    """What `fastest` runs, one line for each thread count; generations that differ are counted."""
    lines = []
    for threads in sorted({o.threads for o in result.opened if o.choices}):
        told = [o for o in result.opened if o.name == FASTEST and o.threads == threads]
        mixed = f". Of mixed lengths: {_chosen([o.mixed for o in told])}" if any(o.mixed for o in told) else ""
        lines.append(
            f"- {result.model}, {_threads(threads)}: {_chosen([o.choices for o in told])}{mixed}.{_notes(told)}"
        )
    return lines


def _chosen(choices: Sequence[dict[str, str]]) -> str:
    out = []
    for length in dict.fromkeys(n for c in choices for n in c):
        counts = Counter(c[length] for c in choices if length in c).most_common()
        several = len(counts) > 1
        of = sum(k for _, k in counts)
        shown = [f"{name} ({k} of {of})" if several and k > 1 else name for name, k in counts]
        out.append(f"{length}: {', '.join(shown)}")
    return "; ".join(out)


def _notes(told: Sequence[Opened]) -> str:
    counts = Counter(o.note for o in told if o.note)
    return "".join(f" {k} of {len(told)} {note}." for note, k in counts.items())


def _goals(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        for cell in result.cells():
            wanted = GOALS.get(result.model, {}).get(cell.threads)
            if wanted and cell.length == GOAL_LENGTH and {BASELINE, RIVAL} <= set(cell.engines):
                wall, cpu = cell.ratio(RIVAL, BASELINE), cell.ratio(RIVAL, BASELINE, cpu=True)
                found = "yes" if wall.median >= wanted else "no"
                lines.append(_row([result.model, str(cell.threads), _ratio(wall), _ratio(cpu), f"{wanted}", found]))
    if not lines:
        return []
    return [
        f"## LiteRT int8 over ONNX Runtime int8, {GOAL_LENGTH} tokens",
        "",
        "The ratios say how many times as fast LiteRT is, both called directly. The goal applies to CPUs with VNNI.",
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
        f"Each cell has the wall time over that of {BASELINE} in the same rounds, with its interval (above 1: slower), and below it",
        "the median wall and CPU time in ms.",
        "",
    ]
    for result in results:
        for threads in sorted({c.threads for c in result.cells()}):
            cells = {c.length: c for c in result.cells() if c.threads == threads and BASELINE in c.engines}
            lengths = _lengths(cells.values())
            lines += [f"### {_title(result)}, {_threads(threads)}", ""]
            answers = ["same labels", "worst logit"] if result.weights == "trained" else ["worst logit"]
            lines += [_row(["engine", *lengths, *answers]), _row(["---"] * (1 + len(lengths) + len(answers)))]
            for name in (n for n in WHAT if any(n in c.engines for c in cells.values())):
                shown = [_cell(cells[n], name) if name in cells[n].engines else "" for n in lengths]
                lines.append(_row([name, *shown, *_answers(result, name)]))
            lines += ["", f"{_quietness(cells.values())} {_worst_after(cells.values())}", ""]
    return lines


def _cell(cell: Cell, name: str) -> str:
    ratio = "1" if name == BASELINE else _ratio(cell.ratio(name, BASELINE))
    return f"{ratio}<br>{cell.median(name):.3g} / {cell.median(name, cpu=True):.3g}"


def _answers(result: Result, name: str) -> list[str]:
    seen = result.agreement.get(name)
    if seen is None:
        return ["", ""] if result.weights == "trained" else [""]
    worst = f"{seen.worst:.1e}" if seen.worst < 0.01 else f"{seen.worst:.2f}"
    return [f"{seen.labels:.0%}", worst] if result.weights == "trained" else [worst]


def _quietness(cells: Iterable[Cell]) -> str:
    pairs = [(len(c.kept(*c.finalists)), len(c.rounds(*c.finalists))) for c in cells]
    return f"{sum(k for k, _ in pairs)} of {sum(m for _, m in pairs)} rounds of the finalists were used."


def _worst_after(cells: Iterable[Cell]) -> str:
    """Who still used the CPU when its turn was over."""
    after: dict[str, float] = {}
    for cell in cells:
        for name in cell.engines:
            after[name] = max(after.get(name, 0.0), cell.after(name))
    spinning = [f"{name} {ms:.0f} ms" for name, ms in after.items() if ms >= 1]
    return f"CPU time used after a turn (spinning): {', '.join(spinning) or 'below 1 ms everywhere'}."


def _lengths(cells: Iterable[Cell]) -> list[str]:
    found = {c.length for c in cells}
    return [*sorted(found - {TEXT}, key=int), *([TEXT] if TEXT in found else [])]


def _title(result: Result) -> str:
    return f"{result.model} ({result.weights})"


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _span(counts: Iterable[int], what: str = "round") -> str:
    low, high = min(found := list(counts)), max(found)
    return f"{low if low == high else f'{low} to {high}'} {what}{'s' * (high != 1)}"


def _heading(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "", *lines, ""] if lines else []


def _ratio(ratio: Ratio) -> str:
    return f"**{ratio.median:.2f}** [{ratio.low:.2f}, {ratio.high:.2f}]"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
