"""What the report and the final table of a run are made from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.core.artefacts.role_table import RoleRow
from pocketbert.core.artefacts.search import BudgetSearch
from pocketbert.core.artefacts.sensitivity import Sensitivities
from pocketbert.core.data_report import DataReport
from pocketbert.core.host.hardware import Machine
from pocketbert.core.metrics import METRICS, Metric
from pocketbert.core.predict.confidence import Confidence
from pocketbert.core.predict.score import Score
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Provenance, Scheme, Status


class _Record(BaseModel):
    # A failed gate may hold NaN, which JSON has no word for; "NaN" reads back, null would not.
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class ModelRow(_Record):
    """One model file in the headline table.

    Attributes:
        name: As in the benchmark's variants (``student int8``): the two are joined by it.
        scheme: How its numbers are stored.
        bytes: Size of the file.
        parameters: Number of weights; None when unknown.
        eval_score: Score on the eval rows.
        holdout_score: Score on rows that no choice was made on.
        confidence: Temperature and calibration error of a classifier's probabilities.
        kept: Share of the teacher's eval score that is left, a fraction.
        status: What the gates said.
        is_default: Whether `pocketbert.load` opens it.
        is_teacher: Whether it is the model that the others are compared with.
        path: The file, as the reader knows it.
        sha256: Its digest.
        provenance: Where its scores come from.
        roles: What became of the weights of each role; empty for a file that was exported as it is.
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
    """One file compared with the model it was made from.

    Attributes:
        file: The file.
        worst: Largest difference, relative to the spread of the reference's logits.
        bound: Most that is allowed.
        lengths: Lengths in tokens that were checked.
        passed: Whether it is within the bound.
        against: What it was compared with.
    """

    file: str
    worst: float
    bound: float
    lengths: list[int]
    passed: bool
    against: str = "PyTorch"


class GateRow(_Record):
    """One gate on one file.

    Attributes:
        name: What the gate asks.
        file: The file.
        passed: Its answer.
        value: What was found, if it is a number.
        bound: What is allowed, if it is a number.
        detail: The same in words.
        skipped: Whether it could not be asked here.
    """

    name: str
    file: str
    passed: bool
    value: float | None = None
    bound: float | None = None
    detail: str = ""
    skipped: bool = False


class ReportData(_Record):
    """Everything the report shows. What is None or empty is left out, with a sentence that says why.

    Attributes:
        title: Heading.
        description: A sentence or two.
        task: Hub task name; decides how scores are printed.
        machine: CPU and ISA of all figures without a machine of their own.
        versions: Libraries.
        provenance: Of scores, parity and gates.
        rows: Model files, the teacher first.
        benchmark: Latency and memory.
        parity: Files against their models.
        gates: What decided whether files may be packed.
        data: Facts about the data.
        scored_on: Name of the rows that `ModelRow.eval_score` is of.
        scored_by: Where the scores come from, in words; empty where they are of this run, on `machine`.
        curves: (step, loss) by name: ``teacher``, ``student``; terms of a loss as ``student/logits``.
        confusion: Most confused labels: (gold, predicted, count).
        confusion_of: Which model and rows the confusions are of, in words.
        notes: Limits and honest statements.
        search: The files that were considered where these were chosen inside a budget.
        sensitivity: How far each role by itself takes smaller files from the exported ones, where that was measured.
        recipe: The resolved recipe, YAML.
        command: Command line that made the run.
        made: When, as text.
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
        """The metric that the files were scored with: the data may decide it; the task's own where nothing was scored."""
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
