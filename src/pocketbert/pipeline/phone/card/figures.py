"""The part of the card that measurements change: sizes, scores and latencies, between two comment lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.parity import Parity
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction
from pocketbert.core.tasks import TASKS
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.place import FormatPlace, place_of
from pocketbert.pipeline.phone.card.plain import plain

BEGIN = "<!-- pocketbert figures: begin -->"
END = "<!-- pocketbert figures: end -->"
REAL_TEXT = "real text"
"""Name of the length of texts as they are."""


@dataclass(frozen=True)
class LatencyRow:
    """One row of the latency table.

    Attributes:
        file: Path of the file, or the name of a model that is not in the folder.
        threads: Threads that computed.
        length: Tokens of the inputs, or `REAL_TEXT`, with the idle time where inferences came after one.
        p50: Median in ms.
        p90: 90th percentile in ms.
        ratio: Time relative to the first file, in words.
    """

    file: str
    threads: int
    length: str
    p50: float
    p90: float
    ratio: str


@dataclass(frozen=True)
class CardFigures:
    """What was measured, in addition to the scores of `Artefacts`.

    Attributes:
        latency: Rows of the latency table.
        condition: How latency was measured, in one sentence.
        teacher_score: The teacher's score in words; empty where there is none.
        parity: Comparisons of the files with the original model.
    """

    latency: Sequence[LatencyRow] = ()
    condition: str = ""
    teacher_score: str = ""
    parity: Sequence[Parity] = ()


def render_figures(artefacts: Artefacts, figures: CardFigures) -> str:
    """Write the sections on files and latency, framed by the two comment lines.

    Args:
        artefacts: The folder's list.
        figures: What was measured.
    """
    return "\n\n".join([BEGIN, _files(artefacts, figures), _latency(artefacts, figures), END])


def replace_figures(card: str, figures: str) -> str | None:
    """Replace the figures of a card.

    Args:
        card: The card, which a user may have edited.
        figures: What `render_figures` returned.

    Returns:
        The card with the new figures; None where the two comment lines are gone.
    """
    before, begin, rest = card.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{figures}{after}" if begin and end else None


def formats_of(artefacts: Artefacts) -> list[Format]:
    """List the formats of a folder's files, in the order in which formats are registered."""
    there = {r.format for r in artefacts.models()}
    return [format for format in FORMATS if format in there]


def _in_order(artefacts: Artefacts) -> list[ModelRecord]:
    """The model files by format, those for one client last; a list that was read from a folder is sorted by path."""
    order = formats_of(artefacts)
    return sorted(artefacts.models(), key=lambda r: (order.index(r.format), r.client or "", r.path))


def _files(artefacts: Artefacts, figures: CardFigures) -> str:
    found = [s.metric for r in artefacts.models() for s in r.scores.values()]
    # of feature-extraction the data decide which metric it is
    metric = METRICS[found[0]] if found else TASKS[artefacts.task].metric
    better = ", lower is better" if metric.direction is Direction.LOWER else ""
    sets = list(dict.fromkeys(["eval", *(name for r in artefacts.models() for name in r.scores)]))
    columns = "".join(f" {metric.name} ({plain(name)}{better}) |" for name in sets)
    rows = [f"| file | scheme | bytes |{columns}", f"|---|---|---:|{'---:|' * len(sets)}"]
    for record in _in_order(artefacts):
        scores = "".join(
            f" {METRICS[s.metric].format(s.value) if (s := record.scores.get(name)) else 'not measured'} |"
            for name in sets
        )
        rows.append(f"| `{record.path}`{_purpose(record)} | {record.scheme} | {record.bytes:,} |{scores}")
    text = ["## Files", "", *rows, ""]
    if figures.teacher_score:
        text.append(figures.teacher_score)
    text.append(
        f"Scores: provenance measured, on the file itself, one row at a time without padding. Machine: {artefacts.machine}."
    )
    if emulated := [f"`{r.path}`" for r in artefacts.models() if r.emulated]:
        text.append(
            f"Scores of {', '.join(emulated)}: provenance emulated; the project's evaluator computed them, not Core ML."
        )
    text += _parity(figures.parity)
    text += [f"`{r.path}` has the same content as `{r.alias_of}`." for r in artefacts.aliases()]
    return "\n".join([*text, *(f"No `{path}`: {reason}" for path, reason in artefacts.absent.items())])


def _purpose(record: ModelRecord) -> str:
    if record.default:
        return " (default of `pocketbert.load`)"
    only = record.client or record.runtime
    return f" (for {only})" if only else ""


def _parity(parity: Sequence[Parity]) -> list[str]:
    """One sentence on all files."""
    if not parity:
        return []
    each = ", ".join(f"`{p.subject}` {p.worst:.0e} (allowed {p.bound:.0e})" for p in parity)
    return [
        f"Largest difference from the original model, as a share of the outputs' spread: {each}; up to "
        f"{max(len(p.shapes) for p in parity)} input shapes, padded and unpadded."
    ]


def _latency(artefacts: Artefacts, figures: CardFigures) -> str:
    if not figures.latency:
        ways = [place_of(format).timing for format in formats_of(artefacts)]
        return f"## Latency\n\nNot measured. {FormatPlace.timing if FormatPlace.timing in ways else ways[0]}."
    shown = _first_look(figures.latency)
    parts = ["## Latency", _table(shown)]
    if len(shown) < len(figures.latency):
        every = f"<summary>All {len(figures.latency)} latencies</summary>"
        parts.append(f"<details>{every}\n\n{_table(figures.latency)}\n\n</details>")
    return "\n\n".join([*parts, figures.condition])


def _first_look(rows: Sequence[LatencyRow]) -> list[LatencyRow]:
    """The rows at the smallest number of threads, of real text and of the middle one of the other lengths."""
    threads = min(row.threads for row in rows)
    fixed = sorted({row.length for row in rows if row.length.isdecimal()}, key=int)
    middle = fixed[len(fixed) // 2] if fixed else ""
    return [
        row for row in rows if row.threads == threads and (row.length == middle or row.length.startswith(REAL_TEXT))
    ]


def _table(rows: Sequence[LatencyRow]) -> str:
    head = [
        "| file | threads | length | p50 ms | p90 ms | time relative to the first |",
        "|---|---:|---|---:|---:|---:|",
    ]
    body = [f"| {r.file} | {r.threads} | {r.length} | {r.p50:.2f} | {r.p90:.2f} | {r.ratio} |" for r in rows]
    return "\n".join([*head, *body])
