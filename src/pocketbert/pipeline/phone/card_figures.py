"""The figures of a model card: files with sizes and scores, parity, latencies.

`measured_figures` reads what was measured from an artefact folder, `render_figures` writes the sections between two comment
lines, and `replace_figures` puts new ones into a card that a user may have edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.parity import Parity
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction
from pocketbert.core.tasks import TASKS
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.base import FormatPlace, format_place
from pocketbert.pipeline.make.model_files import read_parity

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult

TEACHER_SCORE = "teacher score"
"""Entry of `Artefacts.lineage` with the teacher's score in words."""
BENCHMARK_FILE = "benchmark.json"
_BEGIN = "<!-- pocketbert figures: begin -->"
_END = "<!-- pocketbert figures: end -->"
_REAL_TEXT = "real text"
"""Length of texts as they are, in the latency table."""


@dataclass(frozen=True)
class LatencyRow:
    """One row of the latency table.

    Attributes:
        file: Path of the file, or the name of a model that is not in the folder.
        threads: Threads that computed.
        length: Tokens of the inputs, or `_REAL_TEXT`, with the idle time where inferences came after one.
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
    """Measured figures that the card shows beside the scores in ``artifacts.json``.

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


def measured_figures(folder: Path, artefacts: Artefacts) -> CardFigures:
    """Read latencies and differences from the original model of a folder's files, as far as measured.

    They are in its ``benchmark.json`` and ``parity.json``.

    Args:
        folder: The artefact folder.
        artefacts: Content of the folder's ``artifacts.json``.
    """
    from pocketbert.benchmarks.measurement import BenchmarkResult

    benchmark = folder / BENCHMARK_FILE
    session = BenchmarkResult.read(benchmark).headline if benchmark.is_file() else None
    timed = session if session is not None and session.timed else None
    paths = {r.path for r in artefacts.models()}
    score = artefacts.lineage.get(TEACHER_SCORE)
    return CardFigures(
        latency=_latency_rows(artefacts, timed) if timed else (),
        condition=_describe_conditions(timed) if timed else "",
        teacher_score=f"Teacher: {score}." if score else "",
        parity=[p for p in read_parity(folder) if p.subject in paths],
    )


def render_figures(artefacts: Artefacts, figures: CardFigures) -> str:
    """Return the card's sections on files and latency as Markdown, between two comment lines that mark them.

    Args:
        artefacts: Content of the folder's ``artifacts.json``.
        figures: Measured latencies, scores and differences from the original model.
    """
    return "\n\n".join([_BEGIN, _render_files(artefacts, figures), _render_latency(artefacts, figures), _END])


def replace_figures(card: str, figures: str) -> str | None:
    """Replace the figures of a card, which stand between two comment lines, by new ones.

    Args:
        card: The card, which a user may have edited.
        figures: What `render_figures` returned.

    Returns:
        The card with the new figures; None where the two comment lines are gone.
    """
    before, begin, rest = card.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{before}{figures}{after}" if begin and end else None


def formats_of(artefacts: Artefacts) -> list[Format]:
    """List the formats of a folder's model files, in the order in which formats are registered."""
    there = {r.format for r in artefacts.models()}
    return [format for format in FORMATS if format in there]


def plain(text: str) -> str:
    """Escape a user's text for a table cell or list item of the card: one line, no Markdown or HTML that ends it."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())


def _render_files(artefacts: Artefacts, figures: CardFigures) -> str:
    """Return the Markdown table of model files with sizes and scores, and sentences on them."""
    measured_metrics = [s.metric for r in artefacts.models() for s in r.scores.values()]
    # the metric of feature extraction depends on the data
    metric = METRICS[measured_metrics[0]] if measured_metrics else TASKS[artefacts.task].metric
    better = ", lower is better" if metric.direction is Direction.LOWER else ""
    sets = list(dict.fromkeys(["eval", *(name for r in artefacts.models() for name in r.scores)]))
    columns = "".join(f" {metric.name} ({plain(name)}{better}) |" for name in sets)
    rows = [f"| file | scheme | bytes |{columns}", f"|---|---|---:|{'---:|' * len(sets)}"]
    # by format, files for one client last: a list that was read from a folder is sorted by path
    order = formats_of(artefacts)
    for record in sorted(artefacts.models(), key=lambda r: (order.index(r.format), r.client or "", r.path)):
        scores = "".join(
            f" {METRICS[s.metric].format(s.value) if (s := record.scores.get(name)) else 'not measured'} |"
            for name in sets
        )
        rows.append(f"| `{record.path}`{_file_remark(record)} | {record.scheme} | {record.bytes:,} |{scores}")
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
    text += _parity_lines(figures.parity)
    text += [f"`{r.path}` has the same content as `{r.alias_of}`." for r in artefacts.aliases()]
    return "\n".join([*text, *(f"No `{path}`: {reason}" for path, reason in artefacts.absent.items())])


def _file_remark(record: ModelRecord) -> str:
    """Return the words behind a file's name in the table: default, or the only client or runtime that takes it."""
    if record.default:
        return " (default of `pocketbert.load`)"
    only = record.client or record.runtime
    return f" (for {only})" if only else ""


def _parity_lines(parity: Sequence[Parity]) -> list[str]:
    """Return a line on how far the files' outputs are from the original model's; none if nothing was compared."""
    if not parity:
        return []
    each = ", ".join(f"`{p.subject}` {p.worst:.0e} (allowed {p.bound:.0e})" for p in parity)
    return [
        f"Largest difference from the original model, as a share of the outputs' spread: {each}; up to "
        f"{max(len(p.shapes) for p in parity)} input shapes, padded and unpadded."
    ]


def _render_latency(artefacts: Artefacts, figures: CardFigures) -> str:
    """Return the card's section on latency, or if nothing was measured the command that measures it."""
    if not figures.latency:
        ways = [format_place(format).timing for format in formats_of(artefacts)]
        return f"## Latency\n\nNot measured. {FormatPlace.timing if FormatPlace.timing in ways else ways[0]}."
    shown = _summary_rows(figures.latency)
    parts = ["## Latency", _latency_table(shown)]
    if len(shown) < len(figures.latency):
        every = f"<summary>All {len(figures.latency)} latencies</summary>"
        parts.append(f"<details>{every}\n\n{_latency_table(figures.latency)}\n\n</details>")
    return "\n\n".join([*parts, figures.condition])


def _summary_rows(rows: Sequence[LatencyRow]) -> list[LatencyRow]:
    """Return the latency rows to show unfolded: fewest threads, real text and the middle one of the fixed lengths."""
    threads = min(row.threads for row in rows)
    fixed = sorted({row.length for row in rows if row.length.isdecimal()}, key=int)
    middle = fixed[len(fixed) // 2] if fixed else ""
    return [
        row for row in rows if row.threads == threads and (row.length == middle or row.length.startswith(_REAL_TEXT))
    ]


def _latency_table(rows: Sequence[LatencyRow]) -> str:
    """Return rows of latencies as a Markdown table."""
    head = [
        "| file | threads | length | p50 ms | p90 ms | time relative to the first |",
        "|---|---:|---|---:|---:|---:|",
    ]
    body = [f"| {r.file} | {r.threads} | {r.length} | {r.p50:.2f} | {r.p90:.2f} | {r.ratio} |" for r in rows]
    return "\n".join([*head, *body])


def _latency_rows(artefacts: Artefacts, session: BenchmarkResult) -> Sequence[LatencyRow]:
    """Return the latency table's rows for one session; files of the folder are recognised by digest.

    Args:
        artefacts: Content of the folder's ``artifacts.json``.
        session: The measurements of one device.
    """
    from pocketbert.benchmarks.wording import idle, time_ratio

    paths = {r.sha256: r.path for r in artefacts.models()}
    names = {v.name: paths.get(v.sha256, v.name) for v in session.variants}
    out = []
    for m in session.measurements:
        if m.wall is None or (m.gap_ms and m.length != session.protocol.lengths[0]):
            continue  # the report has single calls at every length, too
        compared = session.compare(m.variant, m.threads, m.length, m.gap_ms)
        length = (_REAL_TEXT if m.length == "text" else str(m.length)) + idle(m.gap_ms)
        ratio = time_ratio(compared.wall if compared else None)
        out.append(LatencyRow(names.get(m.variant, m.variant), m.threads, length, m.wall.p50, m.wall.p90, ratio))
    return out


def _describe_conditions(session: BenchmarkResult) -> str:
    """Return sentences on how latency was measured: engine, machine, runs."""
    engines = ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in session.measurements))
    return (
        f"Provenance {session.measurements[0].provenance}, batch 1, {engines} on {session.machine.summary}; "
        f"the files took turns, {session.protocol.runs_made[0]} or more runs in each of {session.protocol.repeats} repeats. "
        f"Figures on a phone differ. Raw samples: `{BENCHMARK_FILE}`."
    )
