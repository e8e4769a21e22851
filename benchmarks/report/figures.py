"""Everything that a report shows, and its figures as words.

`ReportData` holds what the page and the final table of a run are made from. `make_summary_rows` and `make_summary_table` put the figures of
each model file into words.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import TEXT, Length
from pocketbert.benchmarks.statistics import Ratio, time_ratio
from pocketbert.core.artefacts.search import BudgetSearch, RoleRow, Sensitivities, TriedStudents
from pocketbert.core.compare.diagnosis import StudentDiagnosis
from pocketbert.core.data_report import DataReport
from pocketbert.core.host.hardware import Machine
from pocketbert.core.metrics import MEAN_OF_HEADS, METRICS, Metric, describe_details
from pocketbert.core.predict.scores import Confidence, Score
from pocketbert.core.recipe.planned import PlannedFile
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
        platforms: Platforms whose apps open the file, as the model card names them; empty if that is not known.
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
    platforms: list[str] = []

    @property
    def file(self) -> str:
        """Path of the file as a user finds it in the folder; its name where no folder is known."""
        return self.path if "/" in self.path else self.name


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


class TrainingCourse(_Record):
    """How a training went besides its loss: learning rate, and scores on validation rows.

    Attributes:
        name: ``teacher``, ``student``, ``student 1``.
        metric: Name of the scores.
        rates: (step, learning rate).
        scores: (step, score); empty if the model was not scored while it trained.
        best_step: Step of the weights that were kept; 0 for the last one.
    """

    name: str
    metric: str = ""
    rates: list[tuple[int, float]] = []
    scores: list[tuple[int, float]] = []
    best_step: int = 0


class ReportData(_Record):
    """Everything that the report shows. What is None or empty is left out; for the main parts the page says why.

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
        scored_by: Where the scores come from, in words; empty where they are of this run.
        scored_machine: Machine that computed the scores; empty where it is that of `machine`.
        curves: (step, loss) by name: ``teacher``, ``student``; terms of a loss as ``student/logits``.
        courses: Learning rates and scores of the trainings.
        diagnosis: Where the student loses against its teacher, where that was measured.
        confusion: Most confused labels: (gold, predicted, count).
        confusion_of: Which model and rows the confusions are of, in words.
        notes: Limits and honest statements.
        tried: The students among which the run chose one, where the recipe left that to it.
        search: The files that were considered where these were chosen inside a budget.
        planned: The files of the student as a plan expected them before training.
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
    scored_machine: str = ""
    curves: dict[str, list[tuple[int, float]]] = {}
    courses: list[TrainingCourse] = []
    diagnosis: StudentDiagnosis | None = None
    confusion: list[tuple[str, str, int]] = []
    confusion_of: str = ""
    notes: list[str] = []
    tried: TriedStudents | None = None
    search: BudgetSearch | None = None
    planned: list[PlannedFile] = []
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
        return METRICS[scored[0]] if scored else TASKS[self.task].metric if self.task in TASKS else MEAN_OF_HEADS

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
    """Return (header, rows) of the table that is printed at the end of a run, as plain text.

    Args:
        data: Content of the report.

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
    """Return a row for each model file, for the table at the top of the report, in the order of `data.rows`."""

    def printed(score: Score | None) -> str:
        if score is None:
            return wording.NONE
        more = f" ({describe_details(score.others)})" if score.heads else ""
        return f"{METRICS[score.metric].format(score.value)}{more}"

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
    """Return the latency cells of file `name`, at the thread count and length that the session's tables show first."""
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
    """Return the results of each device that has files of the report's top table; the device shown first comes first.

    A Mac's variants are one file on several compute units, which have a section of their own.
    """
    if data.timed is None:
        return []
    names = {row.name for row in data.rows}
    first = data.timed.headline
    sessions = [first, *(s for s in data.timed.sessions if s is not first)]
    return [s for s in sessions if names & {v.name for v in s.variants}]


def headline_condition(result: BenchmarkResult) -> tuple[int, Length]:
    """Return (threads, length) of the latencies that tables show first: the fewest threads, and real text if it was measured.

    Few threads, since a phone's other cores are used by other apps; real text, since that is what users type. Without
    real text, it is the first length.
    """
    threads = min(result.protocol.threads)
    lengths = result.protocol.lengths
    return threads, TEXT if TEXT in lengths else lengths[0]


def describe_condition(result: BenchmarkResult) -> str:
    """Return the threads and length that tables show first as text: ``1 thread, real text, batch 1``."""
    threads, length = headline_condition(result)
    return f"{wording.threads(threads)}, {wording.length(length)}, batch 1"


def same_file_ratio(session: BenchmarkResult, m: Measurement) -> Ratio | None:
    """Return how a file's time compares with the file of the same path in the first folder; below 1 it is faster.

    Args:
        session: The measurements of one device.
        m: One of its measurements.

    Returns:
        The ratio. None for files of the first folder, for files that it does not have, and if nothing was timed, one of the
        two files lacks times of a repeat, as after an interruption, or all times are of one round: the files did not take turns.
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
    condition = (m.threads, m.length, m.gap_ms, [*map(len, m.wall_ms)])
    for other in (one for one in session.measurements if one.variant in others):
        if (other.threads, other.length, other.gap_ms, [*map(len, other.wall_ms)]) == condition:
            turn = 1 if m.gap_ms else session.protocol.burst
            ratio = time_ratio(m.wall_ms, other.wall_ms, turn, session.protocol.fresh)
            return ratio if ratio.pairs > 1 else None
    return None
