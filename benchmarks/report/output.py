"""What `pocketbert benchmark` shows and writes of a result, all its sessions included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.report.figures import GateRow, ModelRow, ReportData, same_file_ratio
from pocketbert.benchmarks.report.page import write_report
from pocketbert.benchmarks.results import BUSY
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.artefacts import FILE_NAME, Artefacts, read_artefacts
from pocketbert.core.devices import LOCAL
from pocketbert.core.disk.destination import file_destination
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.scores import Score
from pocketbert.core.types import Provenance

# --- recorded ---
# Scores of the files that a benchmark's page shows: those that artefact folders record, else those of its labelled rows.


EVAL = "eval"


@dataclass(frozen=True)
class FileScores:
    """Scores of files, all by one metric.

    Attributes:
        rows: Name of the rows that were scored.
        source: Where the scores come from, in words; empty where there are none.
        by_digest: Score by sha256 of the file.
        emulated: Digests of files that the project's evaluator computed, since their engine runs elsewhere.
    """

    rows: str = EVAL
    source: str = ""
    by_digest: Mapping[str, Score] = field(default_factory=dict)
    emulated: frozenset[str] = frozenset()

    def scored(self, row: ModelRow) -> ModelRow:
        """A row with the score of its file, where there is one."""
        score = self.by_digest.get(row.sha256)
        if score is None:
            return row
        provenance = Provenance.EMULATED if row.sha256 in self.emulated else Provenance.MEASURED
        return row.model_copy(update={"eval_score": score, "provenance": provenance})


def file_scores(folders: Mapping[Path, Artefacts], result: BenchmarkResult) -> FileScores:
    """The scores that there are; figures of two sets of rows are not mixed.

    Args:
        folders: The lists of the measured folders.
        result: What was measured.
    """
    return _recorded(folders) or _of_emulated_rows(result) or FileScores()


def _recorded(folders: Mapping[Path, Artefacts]) -> FileScores | None:
    """What `pocketbert run` and `verify --record` have written into the folders' lists."""
    records = [record for artefacts in folders.values() for record in artefacts.models()]
    sets = Counter(name for record in records for name in record.scores)
    if not sets:
        return None
    rows = EVAL if EVAL in sets else sets.most_common(1)[0][0]
    scored = [(record, record.scores[rows]) for record in records if rows in record.scores]
    metric = scored[0][1].metric
    machines = dict.fromkeys(artefacts.machine for artefacts in folders.values() if artefacts.machine)
    return FileScores(
        rows=rows,
        source=" · ".join([Provenance.MEASURED, f"recorded in {FILE_NAME}", *machines]),
        by_digest={record.sha256: score for record, score in scored if score.metric == metric},
        emulated=frozenset(record.sha256 for record, _ in scored if record.emulated),
    )


def _of_emulated_rows(result: BenchmarkResult) -> FileScores | None:
    """The scores of `benchmark --data` on this machine's CPU, each on the rows that there was time to emulate."""
    found: dict[str, Score] = {}
    for one in result.compilations:
        here = one.answers.score_here if one.answers is not None else None
        if here is not None and (one.sha256 not in found or here.rows > found[one.sha256].rows):
            found[one.sha256] = here
    if not found:
        return None
    source = f"{Provenance.MEASURED} on the rows of --data that were emulated · {result.machine.summary}"
    return FileScores("rows of --data", source, found)


PAGE = ".html"


def latency_table(result: BenchmarkResult) -> tuple[list[str], list[list[str]]]:
    """Header and cells: one row per measurement, grouped by device; ratios are within one device's session.

    Columns without any figure are left out, and so is the device where it is this machine only.
    """
    several = {m.device for s in result.sessions for m in s.measurements} != {LOCAL}
    baseline = "the device's first" if several else "the first"
    header = ["file", "device", "threads", "length", "p50 ms", "p90 ms", "CPU ms", f"time ratio to {baseline}"]
    rows = [
        [
            m.variant,
            m.device if m.provenance is Provenance.MEASURED else f"{m.device} ({m.provenance})",
            wording.thread_count(m.threads),
            f"{m.length}{wording.idle(m.gap_ms)}",
            _milliseconds(m.wall, "p50"),
            _milliseconds(m.wall, "p90"),
            _milliseconds(m.cpu, "p50"),
            _ratio(session, m),
            wording.time_ratio(same) if (same := same_file_ratio(session, m)) else wording.NONE,
            wording.count(round(m.guest_instructions.p50)) if m.guest_instructions else wording.NONE,
        ]
        for session in result.sessions
        for m in session.measurements
    ]
    header += ["time ratio to the same file of the first folder", "guest instructions"]
    kept = [
        i
        for i, title in enumerate(header)
        if (several if title == "device" else i < 4 or any(row[i] != wording.NONE for row in rows))
    ]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _milliseconds(of: Statistics | None, percentile: str) -> str:
    return wording.milliseconds(getattr(of, percentile)) if of else wording.NONE


def session_lines(result: BenchmarkResult) -> list[str]:
    """Where the figures of each session come from, and what the reader of imported ones should know."""
    out = []
    for session in result.sessions:
        first = session.measurements[0]
        out.append(f"{first.provenance} on {session.machine.summary}; {session.protocol.description}")
        busiest = max(session.measurements, key=lambda m: m.load.others or 0.0).load
        out.append(f"load of {first.device}: {busiest.summary}")
        if (busiest.others or 0.0) > BUSY and session.timed:
            out.append(f"Warning: {first.device} was busy with other work: read the ratios rather than the times.")
        out += [*session.protocol.notes, *step_lines(session)]
        if first.device != LOCAL:
            out += [f"{a.variant}: {a.words}" for a in session.answers if a.passed]
    return [*out, *sustained_lines(result)]


def step_lines(session: BenchmarkResult) -> list[str]:
    """Tell what the steps before and after an inference take, which no time of the table contains."""
    steps = [("tokenizer", t.texts, t.tokens_mean, t.per_text) for t in session.tokenizers]
    steps += [(f"post-processing ({t.task})", t.texts, t.tokens_mean, t.per_text) for t in session.post_processing]
    return [
        f"{name}, not in the times above: p50 {wording.milliseconds(took.p50)} ms, p90 {wording.milliseconds(took.p90)} ms a text; "
        f"{texts} texts of {tokens:.0f} tokens on average"
        for name, texts, tokens, took in steps
    ]


def sustained_lines(result: BenchmarkResult) -> list[str]:
    """Tell how the time of each file changed that ran for minutes."""
    return [
        f"sustained: {s.variant} on {s.device}, {wording.threads(s.threads)}, {wording.length(s.length)}, {s.minutes:g} min: p50 "
        f"{wording.milliseconds(s.slices[0].wall.p50)} → {wording.milliseconds(s.slices[-1].wall.p50)} ms, last slice to the first "
        f"{wording.time_ratio(s.drift)}; "
        + (
            ", ".join(x for x in (s.slices[-1].clock, s.slices[-1].thermal, s.slices[-1].energy) if x)
            or "clock and temperature cannot be read"
        )
        for session in result.sessions
        for s in session.sustained
    ]


def check_output(path: Path, folders: Sequence[Path], overwrite: bool = False, *read: Path) -> Path:
    """Refuse an output that could not be written, before anything is measured.

    Args:
        path: What the user named.
        folders: The artefact folders; a page needs one.
        overwrite: Whether an existing file may be replaced.
        read: Files that are read.

    Returns:
        The file; where `path` is a link, what it leads to.

    Raises:
        InputError: If it cannot be used, or a page is asked for without an artefact folder.
        MissingBackendError: If the page needs what is not installed.
    """
    output = file_destination(path, overwrite, *read)
    if output.suffix != PAGE:
        return output
    if not folders:
        raise InputError(Problem("-o/--output", "a page shows an artefact folder's files.", "Give the folder with -m."))
    from pocketbert.benchmarks.report import plots

    plots.require_report_packages()
    return output


def write_result(result: BenchmarkResult, path: Path, folders: Sequence[Path]) -> None:
    """Write the result: a page where the name ends in ``.html``, else ``benchmark.json``.

    Args:
        result: What was measured.
        path: Where to write.
        folders: The artefact folders; a page needs one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != PAGE:
        result.write(path)
        return
    listed = {folder: read_artefacts(folder) for folder in folders}
    artefacts, scores = listed[folders[0]], file_scores(listed, result)
    write_report(
        ReportData(
            title=f"Benchmark of {' and '.join(wording.short_names(folders).values()) if len(folders) > 1 else artefacts.name}",
            task=artefacts.task,
            machine=result.machine,
            versions=result.versions,
            rows=[scores.scored(row) for row in _rows(result, artefacts.default_model().sha256)],
            scored_on=scores.rows,
            scored_by=scores.source,
            gates=[
                GateRow(
                    name="answers on the device",
                    file=a.variant,
                    passed=a.passed,
                    value=a.largest if a.finite else None,
                    bound=a.tolerance,
                    detail=a.words,
                )
                for s in result.sessions
                for a in s.answers
            ],
            benchmark=result,
        ),
        path,
    )


def _rows(result: BenchmarkResult, default: str) -> list[ModelRow]:
    """One row for each file that was run, compiled, or measured by a program whose text was imported.

    Args:
        result: What was measured.
        default: Digest of the file that is opened by default.
    """
    sessions = result.sessions or [result]  # nothing was timed: the files are those that were compiled
    here = {(v.name, v.sha256) for v in sessions[0].variants}
    # a Mac's variants are one file on several compute units, told apart in its own section
    variants = {
        v.name if (v.name, v.sha256) in here or v.path.as_posix().endswith(v.name) else str(v.path): v
        for s in sessions
        for v in s.variants
    }
    sizes = [(r.variant, r.bytes, r.sha256) for r in result.reported]
    sizes += [(c.variant, c.bytes, c.sha256) for c in result.compilations]
    others = {one[0]: one for one in sizes if one[0] not in variants}
    measured = [
        ModelRow(
            name=name,
            scheme=v.scheme,
            bytes=v.bytes,
            path=v.path.name,
            sha256=v.sha256,
            is_default=v.sha256 == default,
        )
        for name, v in variants.items()
    ]
    return measured + [
        ModelRow(name=name, bytes=size, path=Path(name).name, sha256=sha256) for name, size, sha256 in others.values()
    ]


def _ratio(session: BenchmarkResult, m: Measurement) -> str:
    if m.wall is None:
        return wording.NONE
    compared = session.compare(m.variant, m.threads, m.length, m.gap_ms)
    if compared is None and m.variant != session.protocol.baseline:
        return wording.NONE
    return wording.time_ratio(compared.wall if compared else None)
