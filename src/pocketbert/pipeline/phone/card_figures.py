"""The figures of a model card: the file to take on each platform, files with sizes and scores, parity, latencies.

`measured_figures` reads what was measured from an artefact folder, `render_headline` and `render_figures` write the parts of the card that
stand between two comment lines, and `replace_figures` puts new ones into a card that a user may have edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.parity import Parity
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction, describe_details
from pocketbert.core.types import Client, Format, Provenance
from pocketbert.pipeline.formats.base import FormatPlace, ModelFile, format_place
from pocketbert.pipeline.formats.snippets.parts import CHECKED_SCHEMES, Platform
from pocketbert.pipeline.make.model_files import read_parity

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.report.choice import Times
    from pocketbert.benchmarks.report.figures import ModelRow

TEACHER_SCORE = "teacher score"
"""Entry of `Artefacts.lineage` with the teacher's score in words."""
BENCHMARK_FILE = "benchmark.json"
_BEGIN = "<!-- pocketbert figures: begin -->"
_END = "<!-- pocketbert figures: end -->"
_HEADLINE_BEGIN = "<!-- pocketbert headline: begin -->"
_HEADLINE_END = "<!-- pocketbert headline: end -->"
_REAL_TEXT = "real text"
"""Length of texts as they are, in the latency table."""

_OPENED_BY = {
    (Format.ONNX, None): (Platform.ANDROID_ONNX, Platform.IOS_ONNX, Platform.WEB, Platform.PYTHON),
    (Format.TFLITE, None): (Platform.ANDROID_LITERT, Platform.PYTHON),
    (Format.TFLITE, Client.MEDIAPIPE): (Platform.ANDROID_SIMPLE,),
    (Format.COREML, None): (Platform.IOS,),
}
"""Platforms that open a format's files; of several formats the first one has the platform's row in the card."""


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
        medians: Latencies by device, as `collect_times` of the report returns them; files are named by their path.
    """

    latency: Sequence[LatencyRow] = ()
    condition: str = ""
    teacher_score: str = ""
    parity: Sequence[Parity] = ()
    medians: Times = field(default_factory=dict)


def measured_figures(folder: Path, artefacts: Artefacts) -> CardFigures:
    """Read the measured latencies of a folder's files, their differences from the original model, and the teacher's score.

    They are in ``benchmark.json``, ``parity.json`` and ``artifacts.json``; what was not measured stays empty.

    Args:
        folder: The artefact folder.
        artefacts: Content of the folder's ``artifacts.json``.
    """
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.report.choice import collect_times

    benchmark = folder / BENCHMARK_FILE
    result = BenchmarkResult.read(benchmark) if benchmark.is_file() else None
    session = result.headline if result is not None else None
    timed = session if session is not None and session.timed else None
    paths = {r.path for r in artefacts.models()}
    score = artefacts.lineage.get(TEACHER_SCORE)
    return CardFigures(
        latency=_latency_rows(artefacts, timed) if timed else (),
        condition=_describe_conditions(timed) if timed else "",
        teacher_score=f"Teacher: {score}." if score else "",
        parity=[p for p in read_parity(folder) if p.subject in paths],
        medians=collect_times(_report_rows(artefacts), result),
    )


def render_headline(artefacts: Artefacts, figures: CardFigures) -> str:
    """Return the first lines of the card as Markdown: the file to take on each platform, with score, size and latency.

    The files are chosen by the rule of the report, and the lines stand between two comment lines. Empty if no platform opens a file of the
    folder.

    Args:
        artefacts: Content of the folder's ``artifacts.json``.
        figures: Measured latencies.
    """
    from pocketbert.benchmarks.report.choice import RULE, choose_files, describe_choice, list_files

    rows = [row for row in _report_rows(artefacts) if row.platforms]
    choices = choose_files(rows, figures.medians)
    if not rows:
        return ""
    scored = next((row.eval_score for row in rows if row.eval_score is not None), None)
    metric = f" {scored.metric} ({plain(_last_set(artefacts))}) |" if scored is not None else ""
    takes = " ".join(f"Take `{row.path}` on {'; '.join(places)}." for row, places in list_files(choices))
    lines = [
        _HEADLINE_BEGIN,
        "",
        f"**{takes}**",
        "",
        f"| platform | file |{metric} size | p50 ms |",
        f"|---|---|{'---:|' * bool(metric)}---:|---:|",
    ]
    for choice in choices:
        score, size, time = describe_choice(choice, None)
        assert choice.row is not None
        emulated = " (emulated)" if choice.row.provenance is Provenance.EMULATED and choice.row.eval_score else ""
        reason = f" ({choice.reason})" if choice.reason else ""
        device = f" ({plain(choice.device)})" if choice.device not in ("", "local") else ""
        shown = f" {score}{emulated} |" if metric else ""
        lines.append(f"| {choice.place} | `{choice.row.path}`{reason} |{shown} {size} | {time}{device} |")
    teacher = [figures.teacher_score] if figures.teacher_score else []
    sources = "Where the figures come from stands below, with all files and latencies; times on another device differ."
    return "\n".join([*lines, "", " ".join([RULE, *teacher, sources]), "", _HEADLINE_END])


def _report_rows(artefacts: Artefacts) -> list[ModelRow]:
    """Return the model files of a folder as rows of the report, with their path as name and the scores that were recorded last."""
    from pocketbert.benchmarks.report.figures import ModelRow

    platforms, rows = list_platforms(artefacts.models(), text_only=artefacts.form is None), _last_set(artefacts)
    return [
        ModelRow(
            name=record.path,
            scheme=record.scheme,
            bytes=record.bytes,
            eval_score=record.scores.get(rows),
            is_default=bool(record.default),
            path=record.path,
            sha256=record.sha256,
            provenance=Provenance.EMULATED if record.emulated else Provenance.MEASURED,
            platforms=platforms.get(record.path, []),
        )
        for record in artefacts.models()
    ]


def _last_set(artefacts: Artefacts) -> str:
    """Return the name of the rows on which the files were scored last; empty if none was scored."""
    return next((list(record.scores)[-1] for record in artefacts.models() if record.scores), "")


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
        figures: What `render_figures` or `render_headline` returned.

    Returns:
        The card with the new figures; None where the two comment lines are gone.
    """
    first, *_, last = figures.splitlines()
    before, begin, rest = card.partition(first)
    _, end, after = rest.partition(last)
    return f"{before}{figures}{after}" if begin and end else None


def list_platforms(files: Sequence[ModelRecord | ModelFile], text_only: bool) -> dict[str, list[str]]:
    """List for each file the platforms of the card's table for which it is the file to take, by the file's path.

    If files of several formats suit a platform, the format that comes first in `_OPENED_BY` has it. With a Core ML file
    there is no platform for ONNX Runtime on iOS.

    Args:
        files: Model files of a folder or a run. Left out are files for a single runtime, and files for a client app in a
            scheme that was not checked with it.
        text_only: Whether the model takes texts only; if not, no file has the web, since transformers.js makes no other inputs.
    """
    opened = [f for f in files if f.runtime is None and (f.client is None or f.scheme in CHECKED_SCHEMES)]
    there = {(f.format, f.client) for f in opened}
    kind_by_platform: dict[Platform, tuple[Format, Client | None]] = {}
    for kind, platforms in _OPENED_BY.items():
        for platform in platforms if kind in there else ():
            kind_by_platform.setdefault(platform, kind)
    if Platform.IOS in kind_by_platform:
        kind_by_platform.pop(Platform.IOS_ONNX, None)
    if not text_only:
        kind_by_platform.pop(Platform.WEB, None)
    return {f.path: [p.value for p, kind in kind_by_platform.items() if kind == (f.format, f.client)] for f in opened}


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
    metric = METRICS[measured_metrics[0]] if measured_metrics else artefacts.task_row.metric
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
    default = artefacts.default_model()
    for name, score in default.scores.items():
        if score.heads:
            each = [
                f"`{r.path}` {describe_details(own.others)}" for r in artefacts.models() if (own := r.scores.get(name))
            ]
            text.append(f"By head on {plain(name)}: {'; '.join(each)}.")
        elif found := describe_details(score.others):
            text.append(f"Search on {plain(name)}, `{default.path}`: {found}.")
    if emulated := [f"`{r.path}`" for r in artefacts.models() if r.emulated]:
        text.append(
            f"Scores of {', '.join(emulated)}: provenance emulated; the project's evaluator computed them, not Core ML."
        )
    text += _parity_lines(figures.parity)
    text += [f"`{r.path}` has the same content as `{r.alias_of}`." for r in artefacts.aliases()]
    return "\n".join([*text, *(f"No `{path}`: {reason}" for path, reason in artefacts.absent.items())])


def _file_remark(record: ModelRecord) -> str:
    """Return the words after a file's name in the table: default, or the only client or runtime that takes it."""
    if record.default:
        return " (default of `pocketbert.load`)"
    only = record.client or record.runtime
    return f" (for {only})" if only else ""


def _parity_lines(parity: Sequence[Parity]) -> list[str]:
    """Return a list of one line on how far each file's outputs are from the original model's; empty if nothing was compared.

    The largest difference is given as a share of the outputs' spread (standard deviation).
    """
    if not parity:
        return []
    each = ", ".join(f"`{p.subject}` {p.worst:.0e} (allowed {p.bound:.0e})" for p in parity)
    return [
        f"Largest difference from the original model, as a share of the outputs' spread: {each}; up to "
        f"{max(len(p.shapes) for p in parity)} input shapes, padded and unpadded."
    ]


def _render_latency(artefacts: Artefacts, figures: CardFigures) -> str:
    """Return the model card's section on latency; if nothing was measured, it gives the command that measures."""
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
    """Select the latency rows that are shown first: fewest threads, real text and the middle one of the fixed lengths."""
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
    """Return the latency table's rows for one device; files of the folder are recognized by their digest.

    Of single calls after idle times only those at the first length are shown.

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
    """Return sentences on how one device's latencies were measured: engine, machine, runs."""
    engines = ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in session.measurements))
    return (
        f"Provenance {session.measurements[0].provenance}, batch 1, {engines} on {session.machine.summary}; "
        f"the files took turns, {session.protocol.runs_made[0]} or more runs in each of {session.protocol.repeats} repeats. "
        f"Figures on a phone differ. Raw samples: `{BENCHMARK_FILE}`."
    )
