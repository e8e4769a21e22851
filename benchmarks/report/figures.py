"""Everything that a report shows, and its figures as words and as numbers.

`ReportData` holds what the page and the final table of a run are made from. `make_summary_rows` and `make_summary_table` put the figures of
each model file into words; `collect_model_figures` returns them as numbers, for programs. The stamps (`measurement_stamp`,
`result_stamp`, `run_stamp`, `score_stamp`) are the lines under tables and plots that name the origin of the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import TEXT, Length
from pocketbert.benchmarks.statistics import Ratio, time_ratio
from pocketbert.core.artefacts.search import BudgetSearch, RoleRow, Sensitivities
from pocketbert.core.data_report import DataReport
from pocketbert.core.host.hardware import Machine
from pocketbert.core.metrics import METRICS, Metric
from pocketbert.core.predict.scores import Confidence, Score
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Provenance, Scheme, Status


class _Record(BaseModel):
    # A failed gate may hold NaN, which JSON has no word for; "NaN" reads back, null would not.
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class ModelRow(_Record):
    """A model file of the report's headline table: size, scores, gates.

    Attributes:
        name: As in the benchmark's variants (``student int8``): the two are joined by it.
        scheme: How its numbers are stored.
        bytes: Size of the file.
        parameters: Number of weights; None when unknown.
        eval_score: Score on the eval rows.
        holdout_score: Score on rows that no choice was made on.
        confidence: Temperature and calibration error of a classifier's probabilities.
        kept: Share of the teacher's eval score that is left, a fraction.
        status: Whether it passed the gates; None where none were checked.
        is_default: Whether `pocketbert.load` opens it.
        is_teacher: Whether it is the model that the others are compared with.
        path: Path of the file as the report shows it.
        sha256: Its digest.
        provenance: Where its scores come from.
        roles: How the weights of each role are stored; empty for a file that was exported as it is.
    """

    name: str
    scheme: Scheme | None = None
    bytes: int
    parameters: int | None = None
    eval_score: Score | None = None
    holdout_score: Score | None = None
    confidence: Confidence | None = None
    kept: float | None = None
    status: Status | None = None
    is_default: bool = False
    is_teacher: bool = False
    path: str = ""
    sha256: str = ""
    provenance: Provenance = Provenance.MEASURED
    roles: list[RoleRow] = []


class ParityRow(_Record):
    """How far one exported file's outputs are from those of the model that it was made from.

    Attributes:
        file: The file.
        worst: Largest difference of outputs, relative to the spread of the reference model's logits.
        bound: Most that is allowed.
        lengths: Lengths in tokens that were checked.
        passed: Whether it is within the bound.
        against: Name of the reference that the file is compared with.
    """

    file: str
    worst: float
    bound: float
    lengths: list[int]
    passed: bool
    against: str = "PyTorch"


class GateRow(_Record):
    """The outcome of one gate (a check that decides whether files may be packed) on one file.

    Attributes:
        name: Name of the gate.
        file: The file.
        passed: Whether the file passed.
        value: The checked figure, if it is a number.
        bound: The allowed bound, if it is a number.
        detail: Figure and bound as text.
        skipped: Whether it could not be checked here.
    """

    name: str
    file: str
    passed: bool
    value: float | None = None
    bound: float | None = None
    detail: str = ""
    skipped: bool = False


class ReportData(_Record):
    """Everything that the report shows. What is None or empty is left out, with a sentence that says why.

    Attributes:
        title: Heading.
        description: A sentence or two.
        task: Hub task name; decides how scores are printed.
        machine: CPU and ISA of all figures without a machine of their own.
        versions: Libraries.
        provenance: How scores, parity and gates came about.
        rows: Model files, the teacher first.
        benchmark: Latency and memory.
        parity: Files against their models.
        gates: Results of the checks that decide whether files may be packed.
        data: Facts about the data.
        scored_on: Name of the rows that `ModelRow.eval_score` is of.
        scored_by: Where the scores come from, in words; empty where they are of this run, on `describe_machine`.
        curves: (step, loss) by name: ``teacher``, ``student``; terms of a loss as ``student/logits``.
        confusion: Most confused labels: (gold, predicted, count).
        confusion_of: Which model and rows the confusions are of, in words.
        notes: Limits and honest statements.
        search: The files that were considered where these were chosen inside a budget.
        sensitivity: How far each role by itself takes smaller files from the exported ones, where that was measured.
        recipe: The resolved recipe, YAML.
        command: Command line that made the run.
        made: Time of the run, as text.
    """

    title: str
    description: str = ""
    task: TaskName
    machine: Machine
    versions: dict[str, str] = {}
    provenance: Provenance = Provenance.MEASURED
    rows: list[ModelRow]
    benchmark: BenchmarkResult | None = None
    parity: list[ParityRow] = []
    gates: list[GateRow] = []
    data: DataReport | None = None
    scored_on: str = "eval"
    scored_by: str = ""
    curves: dict[str, list[tuple[int, float]]] = {}
    confusion: list[tuple[str, str, int]] = []
    confusion_of: str = ""
    notes: list[str] = []
    search: BudgetSearch | None = None
    sensitivity: Sensitivities | None = None
    recipe: str = ""
    command: str = ""
    made: str = ""

    @property
    def timed(self) -> BenchmarkResult | None:
        """The benchmark; None where no device ran a file."""
        return self.benchmark if self.benchmark is not None and self.benchmark.sessions else None

    @property
    def metric(self) -> Metric:
        """The metric of the files' scores, which the data may decide; the task's own metric if nothing was scored."""
        scored = [s.metric for r in self.rows for s in (r.eval_score, r.holdout_score) if s is not None]
        return METRICS[scored[0]] if scored else TASKS[self.task].metric

    @property
    def reference(self) -> ModelRow | None:
        """The row that sizes and scores are compared with: the teacher, else the first row."""
        return next((r for r in self.rows if r.is_teacher), self.rows[0] if self.rows else None)

    @property
    def default(self) -> ModelRow | None:
        """The row of the file that is opened by default, else the last row."""
        return next((r for r in self.rows if r.is_default), self.rows[-1] if self.rows else None)


# --- in words --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DeviceFigures:
    """Latency or instruction cells of one model file on one device; a dash where there is no figure.

    Attributes:
        p50: Median latency in ms.
        p90: 90th percentile in ms.
        speed: Speed relative to the session's baseline, with its interval.
        same: Speed relative to the same file of the first folder, if several folders were measured.
        instructions: Instructions that an emulated processor executes per inference.
    """

    p50: str = wording.NONE
    p90: str = wording.NONE
    speed: str = wording.NONE
    same: str = wording.NONE
    instructions: str = wording.NONE


@dataclass(frozen=True)
class _SummaryRow:
    """A row of the headline table as text; a dash where there is no figure.

    Attributes:
        name: The model.
        size: Size of the file, e.g. ``12.4 MB``.
        smaller: How many times smaller than the reference (the teacher).
        score: Deciding metric on the eval rows, in points or with its unit.
        holdout: Deciding metric on rows that no choice was made on.
        kept: Share of the teacher's score that is left.
        headline: Figures of the device that is shown first.
        devices: Figures of every device of `shown_sessions`, in that order.
        status: ``passed``, ``failed``.
        is_default: Whether `pocketbert.load` opens it.
    """

    name: str
    size: str
    smaller: str
    score: str
    holdout: str
    kept: str
    headline: _DeviceFigures
    devices: tuple[_DeviceFigures, ...]
    status: str
    is_default: bool


def make_summary_table(data: ReportData) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of the final table of a run, as plain text.

    Args:
        data: The content of the report.

    Returns:
        Column titles, and one list of cells per model file. Columns without any figure are left out.
    """
    metric = data.metric.name
    rows = make_summary_rows(data)
    columns = [
        ("model", [r.name + (" *" if r.is_default else "") for r in rows]),
        ("size", [r.size for r in rows]),
        (metric, [r.score for r in rows]),
        (f"{metric} holdout", [r.holdout for r in rows]),
        ("kept", [r.kept for r in rows]),
    ]
    sessions = shown_sessions(data)
    for number, session in enumerate(sessions):
        device = f"{session.device}: " if len(sessions) > 1 or not session.timed else ""
        provenance = session.measurements[0].provenance
        origin = "" if provenance is Provenance.MEASURED else f", {provenance}"
        figures = [r.devices[number] for r in rows]
        columns += [
            (f"{device}p50 ms{origin} ({describe_condition(session)})", [f.p50 for f in figures]),
            (f"{device}vs {session.protocol.baseline}", [f.speed for f in figures]),
            (f"{device}guest instructions{origin} ({describe_condition(session)})", [f.instructions for f in figures]),
        ]
    columns.append(("gates", [r.status for r in rows]))
    shown = [(title, cells) for title, cells in columns if any(c != wording.NONE for c in cells)]
    return [title for title, _ in shown], [list(cells) for cells in zip(*(c for _, c in shown), strict=True)]


def make_summary_rows(data: ReportData) -> list[_SummaryRow]:
    """Return the headline table's row of each model file, in the order of `data.rows`."""

    def printed(score: Score | None) -> str:
        return wording.NONE if score is None else METRICS[score.metric].format(score.value)

    sessions, reference = shown_sessions(data), data.reference
    rows = []
    for row in data.rows:
        compared = reference is not None and reference is not row and row.bytes
        rows.append(
            _SummaryRow(
                name=row.name,
                size=wording.size(row.bytes),
                smaller=_size_ratio(reference.bytes / row.bytes) if reference and compared else wording.NONE,
                score=printed(row.eval_score),
                holdout=printed(row.holdout_score),
                kept=wording.share(row.kept),
                headline=_device_figures(row.name, data.timed.headline) if data.timed else _DeviceFigures(),
                devices=tuple(_device_figures(row.name, session) for session in sessions),
                status=str(row.status) if row.status else wording.NONE,
                is_default=row.is_default,
            )
        )
    return rows


def _size_ratio(ratio: float) -> str:
    """Return "3.21× smaller" or "larger" from old / new file size; a dash if it rounds to 1.00."""
    if wording.factor(max(ratio, 1 / ratio)) == wording.factor(1):
        return wording.NONE
    return f"{wording.factor(ratio)} smaller" if ratio >= 1 else f"{wording.factor(1 / ratio)} larger"


def _device_figures(name: str, session: BenchmarkResult) -> _DeviceFigures:
    """Return a file's latency cells at the threads and length that the session's tables show first."""
    threads, length = headline_condition(session)
    measured = session.find(name, threads, length)
    compared = session.compare(name, threads, length)
    if measured is None:
        return _DeviceFigures()
    work, same = measured.guest_instructions, same_file_ratio(session, measured)
    return _DeviceFigures(
        p50=wording.milliseconds(measured.wall.p50) if measured.wall else wording.NONE,
        p90=wording.milliseconds(measured.wall.p90) if measured.wall else wording.NONE,
        speed=wording.speed(compared.wall) if compared else wording.NONE,
        same=wording.speed(same) if same else wording.NONE,
        instructions=wording.count(round(work.p50)) if work else wording.NONE,
    )


def shown_sessions(data: ReportData) -> list[BenchmarkResult]:
    """Return the devices' sessions with files of the headline table, the one shown first in front.

    A Mac's variants are one file on several compute units; they have a section of their own instead.
    """
    if data.timed is None:
        return []
    names = {row.name for row in data.rows}
    first = data.timed.headline
    sessions = [first, *(s for s in data.timed.sessions if s is not first)]
    return [s for s in sessions if names & {v.name for v in s.variants}]


def headline_condition(result: BenchmarkResult) -> tuple[int, Length]:
    """Return (threads, length) of the latencies that tables show first: one thread and real text if measured.

    One thread, since a phone's other cores are used by other apps; real text, since that is what users type.
    """
    threads = min(result.protocol.threads)
    lengths = result.protocol.lengths
    return threads, TEXT if TEXT in lengths else lengths[0]


def describe_condition(result: BenchmarkResult) -> str:
    """Return the threads and length that tables show first as text: ``1 thread, real text, batch 1``."""
    threads, length = headline_condition(result)
    return f"{wording.threads(threads)}, {wording.length(length)}, batch 1"


def same_file_ratio(session: BenchmarkResult, m: Measurement) -> Ratio | None:
    """Return the time ratio of a file to the file of the same path in the first folder; below 1 it is faster.

    Args:
        session: The measurements of one device.
        m: One of its measurements.

    Returns:
        None for files of the first folder, for those that it does not have, and where nothing was timed.
    """

    def path_in_folder(variant: Variant) -> str:
        path, folder = variant.path, variant.tokenizer
        return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()

    by_name = {v.name: v for v in session.variants}
    variant, first = by_name.get(m.variant), session.variants[0].tokenizer
    if variant is None or variant.tokenizer == first or not m.wall_ms:
        return None
    path = path_in_folder(variant)
    others = {v.name for v in session.variants if v.tokenizer == first and path_in_folder(v) == path}
    condition = (m.threads, m.length, m.gap_ms)
    for other in session.measurements:
        if other.variant in others and (other.threads, other.length, other.gap_ms) == condition:
            turn = 1 if m.gap_ms else session.protocol.burst
            return time_ratio(m.wall_ms, other.wall_ms, turn, session.protocol.fresh)
    return None


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
        time_ratio: Time relative to the first model, below 1 for a faster one: the median of the rounds' ratios.
        time_ratio_low: Lower end of its 95 % interval.
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
    """Return size, scores and latency of every model file as numbers, in the order of the headline table."""
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
                time_ratio_low=ratio.low if ratio else None,
                time_ratio_high=ratio.high if ratio else None,
                passed=row.status is Status.PASSED if row.status is not None else None,
            )
        )
    return figures


# --- stamps ----------------------------------------------------------------------------------------------------------------------


def measurement_stamp(*shown: Measurement) -> str:
    """Return the origin of figures as one line: measured or emulated, engines, device, machine, load.

    Args:
        shown: Measurements of one device and one thread count.
    """
    first = shown[0]
    return f"{first.provenance} · {_engines(shown)} · {first.device}: {first.machine.summary} · {first.load.summary}"


def result_stamp(result: BenchmarkResult) -> str:
    """Return the origin of all figures of a session as one line, with the load at each thread count."""
    first = {m.threads: m for m in reversed(result.measurements)}
    m = first[result.protocol.threads[0]]
    loads = "; ".join(f"{wording.threads(t)}: {first[t].load.summary}" for t in result.protocol.threads)
    return f"{m.provenance} · {_engines(result.measurements)} · {m.device}: {m.machine.summary} · {loads}"


def run_stamp(data: ReportData) -> str:
    """Return the origin of the run's own figures (parity, gates, losses) as one line: provenance and machine."""
    return f"{data.provenance} · {data.machine.summary}"


def score_stamp(data: ReportData) -> str:
    """Return the origin of the scores as one line: the data's own text, else the run's origin."""
    return data.scored_by or run_stamp(data)


def _engines(measurements: Sequence[Measurement]) -> str:
    """Return the engines' names and versions without duplicates, comma-separated."""
    return ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in measurements))
