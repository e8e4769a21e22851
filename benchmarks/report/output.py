"""What `pocketbert benchmark` prints and writes of a result, all its sessions included, and the figures of a run as numbers.

`make_latency_table` and `describe_sessions` are for the terminal. `check_output` refuses an output that could not be written before
anything is measured; `write_result` writes ``benchmark.json`` or a page, on which files have the scores that their artefact
folders record, or those of the benchmark's labelled rows. `collect_model_figures` returns a report's figures as numbers, for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.report.figures import GateRow, ModelRow, ReportData, headline_condition, same_file_ratio
from pocketbert.benchmarks.report.page import write_report
from pocketbert.benchmarks.results import BUSY
from pocketbert.core.artefacts import ARTEFACTS_FILE, Artefacts, read_artefacts
from pocketbert.core.devices import LOCAL
from pocketbert.core.disk.destination import resolve_output_file
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.scores import Score
from pocketbert.core.types import Provenance, Status

_PAGE = ".html"
_EVAL = "eval"


def make_latency_table(result: BenchmarkResult) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of the latency table: one row per measurement, grouped by device.

    Ratios compare files on the same device. Columns without any figure are left out, and so is the column of the device if that
    is this machine.
    """
    none = wording.NONE
    several = {m.device for s in result.sessions for m in s.measurements} != {LOCAL}
    baseline = "the device's first" if several else "the first"
    header = ["file", "device", "threads", "length", "p50 ms", "p90 ms", "CPU ms", f"time ratio to {baseline}"]
    header += ["time ratio to the same file of the first folder", "guest instructions"]
    rows = [
        [
            m.variant,
            m.device if m.provenance is Provenance.MEASURED else f"{m.device} ({m.provenance})",
            wording.thread_count(m.threads),
            f"{m.length}{wording.idle(m.gap_ms)}",
            wording.milliseconds(m.wall.p50) if m.wall else none,
            wording.milliseconds(m.wall.p90) if m.wall else none,
            wording.milliseconds(m.cpu.p50) if m.cpu else none,
            _baseline_ratio(session, m),
            wording.time_ratio(same) if (same := same_file_ratio(session, m)) else none,
            wording.count(round(m.guest_instructions.p50)) if m.guest_instructions else none,
        ]
        for session in result.sessions
        for m in session.measurements
    ]
    shown = [
        i
        for i, title in enumerate(header)
        if (several if title == "device" else i < 4 or any(row[i] != none for row in rows))
    ]
    return [header[i] for i in shown], [[row[i] for i in shown] for row in rows]


def _baseline_ratio(session: BenchmarkResult, m: Measurement) -> str:
    """Return a measurement's time ratio to the session's baseline as text; a dash if not timed or not compared."""
    compared = session.compare(m.variant, m.threads, m.length, m.gap_ms)
    if m.wall is None or (compared is None and m.variant != session.protocol.baseline):
        return wording.NONE
    return wording.time_ratio(compared.wall if compared else None)


def describe_sessions(result: BenchmarkResult) -> list[str]:
    """Return the lines below the latency table: for each device where its figures come from, load, notes and times of other steps.

    Checks of answers that a device passed follow, unless it is this machine, and last the runs for minutes.
    """
    lines = []
    for session in result.sessions:
        first = session.measurements[0]
        lines.append(f"{first.provenance} on {session.machine.summary}; {session.protocol.description}")
        busiest = max(session.measurements, key=lambda m: m.load.others or 0.0).load
        lines.append(f"load of {first.device}: {busiest.summary}")
        if (busiest.others or 0.0) > BUSY and session.timed:
            lines.append(f"Warning: {first.device} was busy with other work: read the ratios rather than the times.")
        lines += session.protocol.notes
        steps = [("tokenizer", t.texts, t.tokens_mean, t.per_text) for t in session.tokenizers]
        steps += [(f"post-processing ({t.task})", t.texts, t.tokens_mean, t.per_text) for t in session.post_processing]
        lines += [
            f"{name}, not in the times above: p50 {wording.milliseconds(took.p50)} ms, p90 {wording.milliseconds(took.p90)} ms a text; "
            f"{texts} texts of {tokens:.0f} tokens on average"
            for name, texts, tokens, took in steps
        ]
        if first.device != LOCAL:
            lines += [f"{a.variant}: {a.words}" for a in session.answers if a.passed]
    return [*lines, *_sustained_lines(result)]


def _sustained_lines(result: BenchmarkResult) -> list[str]:
    """Return a line for each file that ran for minutes: how its time changed, and clock rate, temperature and energy at the end."""
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
    """Check that a result can be written to a path, before anything is measured; return the resolved path.

    Args:
        path: The path that the user named.
        folders: The measured artefact folders; an HTML page needs at least one.
        overwrite: Whether an existing file may be replaced.
        read: Files that are read.

    Returns:
        The file; where `path` is a link, what it leads to.

    Raises:
        InputError: If the path cannot be used, or an HTML page is asked for without an artefact folder.
        MissingBackendError: If a package that the HTML page needs is not installed.
    """
    output = resolve_output_file(path, overwrite, *read)
    if output.suffix != _PAGE:
        return output
    if not folders:
        raise InputError(Problem("-o/--output", "a page shows an artefact folder's files.", "Give the folder with -m."))
    from pocketbert.benchmarks.report import plots

    plots.require_report_packages()
    return output


def write_result(result: BenchmarkResult, path: Path, folders: Sequence[Path]) -> None:
    """Write a benchmark's result: an HTML page if the name ends in ``.html``, else JSON.

    Args:
        result: The result of the benchmark.
        path: Where to write.
        folders: The measured artefact folders; an HTML page needs at least one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != _PAGE:
        result.write(path)
        return
    artefacts = {folder: read_artefacts(folder) for folder in folders}
    first, scores = artefacts[folders[0]], _file_scores(artefacts, result)
    names = " and ".join(wording.short_names(folders).values()) if len(folders) > 1 else first.name
    rows = [
        row.model_copy(update=scores.of_digest(row.sha256)) for row in _model_rows(result, first.default_model().sha256)
    ]
    gates = [
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
    ]
    data = ReportData(
        title=f"Benchmark of {names}",
        task=first.task,
        machine=result.machine,
        versions=result.versions,
        rows=rows,
        scored_on=scores.rows,
        scored_by=scores.source,
        scored_machine=scores.machine,
        gates=gates,
        benchmark=result,
    )
    write_report(data, path)


def _model_rows(result: BenchmarkResult, default: str) -> list[ModelRow]:
    """Return a row of the report's top table for each file that was timed, compiled, or reported in a saved output.

    Args:
        result: The result of the benchmark.
        default: Digest of the file that is opened by default.
    """
    sessions = result.sessions or [result]  # nothing was timed: the files are those that were compiled
    first = {(v.name, v.sha256) for v in sessions[0].variants}
    # a Mac's variants are one file on several compute units, told apart in its own section
    variants = {
        v.name if (v.name, v.sha256) in first or v.path.as_posix().endswith(v.name) else str(v.path): v
        for s in sessions
        for v in s.variants
    }
    rows = [
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
    sizes = [(r.variant, r.bytes, r.sha256) for r in result.reported]
    sizes += [(c.variant, c.bytes, c.sha256) for c in result.compilations]
    others = {name: (size, sha256) for name, size, sha256 in sizes if name not in variants}
    rows += [
        ModelRow(name=name, bytes=size, path=Path(name).name, sha256=sha256) for name, (size, sha256) in others.items()
    ]
    return rows


@dataclass(frozen=True)
class _FileScores:
    """Scores of model files on one set of rows, all by one metric.

    Attributes:
        rows: Name of the rows that were scored.
        source: Where the scores come from, in words; empty where there are none.
        machine: Machine that computed them; empty if that is not known, or this one.
        by_digest: Score by sha256 of the file.
        emulated: Digests of files that the project's evaluator computed, since their engine runs elsewhere.
    """

    rows: str = _EVAL
    source: str = ""
    machine: str = ""
    by_digest: Mapping[str, Score] = field(default_factory=dict)
    emulated: frozenset[str] = frozenset()

    def of_digest(self, sha256: str) -> dict[str, object]:
        """Return the fields `eval_score` and `provenance` for the file with this digest; {} without a score."""
        if sha256 not in self.by_digest:
            return {}
        provenance = Provenance.EMULATED if sha256 in self.emulated else Provenance.MEASURED
        return {"eval_score": self.by_digest[sha256], "provenance": provenance}


def _file_scores(folders: Mapping[Path, Artefacts], result: BenchmarkResult) -> _FileScores:
    """Return the scores recorded in the folders, else those of emulated rows; the two are never mixed."""
    return _recorded_scores(folders) or _emulated_scores(result) or _FileScores()


def _recorded_scores(folders: Mapping[Path, Artefacts]) -> _FileScores | None:
    """Return the files' scores that the artifacts.json of the folders record on one set of rows; None if there are none.

    It is the eval rows, or the set on which most files were scored. Scores by another metric than the first are left out.
    """
    records = [record for artefacts in folders.values() for record in artefacts.models()]
    sets = Counter(name for record in records for name in record.scores)
    if not sets:
        return None
    rows = _EVAL if _EVAL in sets else sets.most_common(1)[0][0]
    scored = [(record, record.scores[rows]) for record in records if rows in record.scores]
    metric = scored[0][1].metric
    machines = dict.fromkeys(artefacts.machine for artefacts in folders.values() if artefacts.machine)
    return _FileScores(
        rows=rows,
        source=f"recorded in {ARTEFACTS_FILE}",
        machine="; ".join(machines) or f"a machine that {ARTEFACTS_FILE} does not name",
        by_digest={record.sha256: score for record, score in scored if score.metric == metric},
        emulated=frozenset(record.sha256 for record, _ in scored if record.emulated),
    )


def _emulated_scores(result: BenchmarkResult) -> _FileScores | None:
    """Return the scores that this machine computed on the rows of `benchmark --data` run in an emulator; None if there are none."""
    scores: dict[str, Score] = {}
    for one in result.compilations:
        score = one.answers.score_here if one.answers is not None else None
        if score is not None and (one.sha256 not in scores or score.rows > scores[one.sha256].rows):
            scores[one.sha256] = score
    if not scores:
        return None
    source = "the rows of --data that were emulated"
    return _FileScores("rows of --data", source, result.machine.summary, scores)


# --- as numbers ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one model file as numbers; None where a figure was not measured.

    Attributes:
        name: As in the tables.
        file: Path of the file; of the teacher's that in the run folder.
        default: Whether `pocketbert.load` opens it.
        bytes: Size of the file.
        metric: Name of the metric of the scores.
        score: Score on the evaluation rows, in the metric's unit: a fraction for accuracy.
        holdout_score: Score on rows that no choice was made on.
        kept: Share of the teacher's score that is left, a fraction.
        p50_ms: Median latency in ms, in the condition that the tables show first.
        p90_ms: 90th percentile in ms.
        time_ratio: Time relative to the benchmark's baseline, below 1 for a faster file, as `statistics.time_ratio` computes it.
        time_ratio_low: Lower end of its interval.
        time_ratio_high: Upper end of that interval.
        passed: Whether every gate passed.
    """

    name: str
    file: str
    default: bool
    bytes: int
    metric: str
    score: float | None = None
    holdout_score: float | None = None
    kept: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    time_ratio: float | None = None
    time_ratio_low: float | None = None
    time_ratio_high: float | None = None
    passed: bool | None = None


def collect_model_figures(data: ReportData) -> list[ModelFigures]:
    """Return size, scores and latency of every model file as numbers, in the order of the report's top table."""
    session = data.timed.headline if data.timed is not None else None
    figures = []
    for row in data.rows:
        wall = ratio = None
        if session is not None:
            threads, length = headline_condition(session)
            measured, compared = session.find(row.name, threads, length), session.compare(row.name, threads, length)
            wall, ratio = measured.wall if measured else None, compared.wall if compared else None
        figures.append(
            ModelFigures(
                name=row.name,
                file=row.path,
                default=row.is_default,
                bytes=row.bytes,
                metric=data.metric.name,
                score=row.eval_score.value if row.eval_score else None,
                holdout_score=row.holdout_score.value if row.holdout_score else None,
                kept=row.kept,
                p50_ms=wall.p50 if wall else None,
                p90_ms=wall.p90 if wall else None,
                time_ratio=ratio.median if ratio else None,
                time_ratio_low=ratio.low if ratio and ratio.has_interval else None,
                time_ratio_high=ratio.high if ratio and ratio.has_interval else None,
                passed=row.status is Status.PASSED if row.status is not None else None,
            )
        )
    return figures
