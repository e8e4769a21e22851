"""The study's page: what it was made with, the arms, the differences, and a sentence for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from study.arms import ARMS
from study.bootstrap import bootstrap
from study.comparisons import COMPARISONS, difference
from study.records import TEACHER, ArmRecord

_NOTES = (
    "The teacher has no masked-language-model head: augmentation replaces words by neighbours in the teacher's embedding "
    "table alone, which is half of TinyBERT's (its single-piece words come from BERT's guesses).",
    "Arms that are compared have equal steps x batch on the task; a general stage comes on top, its time apart.",
    "Where fewer task rows are seen than there are, augmentation gives copies in place of rows never seen: it was made for small sets.",
    "CPU time is that of the whole process of an arm; of a general stage what the run had used up to its last step, reading "
    "data included. The teacher's is in its own row.",
    "Intervals: two-way bootstrap over dev rows and seeds, 10,000 replicates, percentiles. Where two seeds are all there are, "
    "they say little about a third one.",
)


def page(records: Sequence[ArmRecord], data: str) -> str:
    """The page as Markdown.

    Args:
        records: Finished arms.
        data: The data in words.
    """
    seeds = sorted({r.seed for r in records})
    made = list(dict.fromkeys(r.made_with.line for r in records))
    dates = sorted(r.date[:10] for r in records)
    rows = sorted({len(r.correct) for r in records})
    lines = [
        "# What each stage is worth on SST-2",
        "",
        f"Seeds {', '.join(map(str, seeds))}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}; "
        f"{', '.join(f'{n:,}' for n in rows)} dev rows; {data}.",
        "",
        *(f"Made with: {line}." for line in made),
        "",
        *(f"- {note}" for note in _NOTES),
        "",
        *_table(records),
        "",
        "## Differences, with minus without",
        "",
        *_differences(records),
    ]
    return "\n".join(lines) + "\n"


def _table(records: Sequence[ArmRecord]) -> list[str]:
    out = [
        "| arm | seeds | steps per stage | task rows seen, of | CPU-s per seed (of it general) | peak MiB | accuracy per seed, % | mean, % | 95 % interval |",
        "|---|---|---|---:|---:|---:|---|---:|---|",
    ]
    for name in (TEACHER, *(a.name for a in ARMS)):
        own = sorted((r for r in records if r.arm == name), key=lambda r: r.seed)
        if not own:
            continue
        estimate = bootstrap(np.stack([r.hits for r in own]))
        stages = own[0].stages
        cells = [
            name,
            ", ".join(str(r.seed) for r in own),
            " + ".join(f"{s.steps:,} {s.method}" for s in stages),
            f"{sum(s.steps * s.batch for s in stages if not s.general):,} of {own[0].train_rows:,}",
            ", ".join(map(_seconds, own)),
            f"{max(r.peak_mib for r in own):,.0f}",
            ", ".join(f"{100 * r.accuracy:.2f}" for r in own),
            f"{100 * estimate.mean:.2f}",
            f"[{100 * estimate.low:.2f}, {100 * estimate.high:.2f}]",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _seconds(record: ArmRecord) -> str:
    """CPU seconds; a lower bound where an earlier process had begun."""
    at_least = "≥ " if record.resumed else ""
    general = [s.cpu_s for s in record.stages if s.general]
    known = [s for s in general if s is not None]
    apart = f" ({sum(known):,.0f})" if known else ""
    return f"{at_least}{record.cpu_s:,.0f}{apart}"


def _differences(records: Sequence[ArmRecord]) -> list[str]:
    table = ["| with | without | seeds | difference, points | 95 % interval |", "|---|---|---|---:|---|"]
    sentences = []
    for comparison in COMPARISONS:
        found = difference(comparison, records)
        if found is None:
            sentences.append(
                f"- {comparison.what} was not measured: {comparison.having} and {comparison.lacking} have no seed in common."
            )
            continue
        e, seeds = found.estimate, ", ".join(map(str, found.seeds))
        table.append(
            f"| {comparison.having} | {comparison.lacking} | {seeds} | {100 * e.mean:+.2f} "
            f"| [{100 * e.low:+.2f}, {100 * e.high:+.2f}] |"
        )
        sentences.append(f"- {found.sentence}")
    return [*table, "", *sentences]
