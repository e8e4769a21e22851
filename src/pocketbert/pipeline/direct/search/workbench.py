"""Writes the candidates of one format and measures them; what the ledger knows is not done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pocketbert.core.compare.evaluate import evaluate
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.versions import installed
from pocketbert.core.metrics import METRICS
from pocketbert.core.types import Format
from pocketbert.pipeline.direct.search.bench import Bench
from pocketbert.pipeline.direct.search.ledger import Figure, Ledger
from pocketbert.pipeline.direct.search.material import Material
from pocketbert.pipeline.direct.search.trial import Trial
from pocketbert.pipeline.formats.model_files import ModelFile, smaller_file
from pocketbert.pipeline.gates.stored.gate import stored_gate
from pocketbert.pipeline.gates.verify import subject_of
from pocketbert.pipeline.make.measuring import measure


class Checked(Figure):
    """Whether the numbers in a candidate are those of the model.

    Attributes:
        failure: What is wrong; empty where nothing is.
    """

    failure: str


class Scored(Figure):
    """The score of a file on the rows that choose.

    Attributes:
        metric: The deciding metric.
        value: Its value.
    """

    metric: str
    value: float


class Timed(Figure):
    """Latencies of files that were measured together.

    Attributes:
        p90_ms: 90th percentile by name.
    """

    p90_ms: dict[str, float]


class Workbench(Bench):
    """The candidates of one format, as a search measures them.

    Args:
        material: What they are made from and measured on.
        format: The format.
        folder: A folder that this process holds; candidates are written below it.
        ledger: Keeps the figures.
    """

    reference: Workbench

    def __init__(self, material: Material, format: Format, folder: Path, ledger: Ledger) -> None:
        super().__init__(material, format, folder, ledger)
        self.material, other = material, material.against
        self.reference = self if other is None else Workbench(other, format, folder, ledger)

    def checked(self, trial: Trial) -> Checked:
        """Compare the numbers in a candidate with the model's."""

        def check() -> Checked:
            subject = subject_of(self.material.model, trial.file, self.there(trial))
            gate = stored_gate(subject, self.material.prepared)
            return Checked(failure="" if gate.passed else f"gate 'stored' failed: {gate.detail}")

        return self.measured(Checked, trial, [], check)

    def drop(self, trial: Trial) -> float:
        """Return what a candidate loses of the deciding metric on the rows that choose, as a fraction; NaN-sticky."""
        other = self.reference
        before = other._scored(other.base, lambda: other.source)
        after = self._scored(trial, lambda: self.there(trial))
        return METRICS[before.metric].drop(before.value, after.value)

    @property
    def metric(self) -> str:
        """Name of the deciding metric."""
        return self._scored(self.base, lambda: self.source).metric

    def _scored(self, trial: Trial, path: Callable[[], Path]) -> Scored:
        def score() -> Scored:
            subject = subject_of(self.material.model, trial.file, path())
            rows = self.material.choosing.within(subject.tokenizer.max_length)
            found, _ = evaluate(subject.predictor, subject.tokenizer, rows, label=f"{trial.name} on {rows.name}")
            return Scored(metric=found.metric, value=found.value)

        return self.measured(Scored, trial, [self.material.choosing_digest], score)

    def timed(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Measure the 90th percentile of the latency of candidates, in interleaved rounds; in ms, by name."""
        from pocketbert.benchmarks.measurement import Variant
        from pocketbert.benchmarks.options import BenchmarkOptions

        model = self.material.model

        def measure_all() -> Timed:
            variants = [
                Variant.of(
                    t.name, self.there(t), model.weights, model.length, t.file.scheme, self.format, t.file.runtime
                )
                for t in trials
            ]
            options = BenchmarkOptions(runs=50, repeats=3, budget_s=60.0, profile=False, label="latency")
            result = measure(variants, self.material.texts, options)
            found = {t.name: result.find(t.name, 1, "text") for t in trials}
            return Timed(p90_ms={name: m.wall.p90 for name, m in found.items() if m is not None and m.wall is not None})

        digests = [self.written(t).sha256 for t in trials]
        decides = [digests, self.material.choosing_digest, machine().summary, installed()]
        return self.ledger.recall(Timed, decides, measure_all).p90_ms


def every_candidate(format: Format) -> list[ModelFile]:
    """List the files for any runtime that the quantizer makes of a format's exported one."""
    from pocketbert.quantize import door  # noqa: F401  the back ends register their rows
    from pocketbert.quantize.table import all_rows

    rows = [r for r in all_rows() if r.format is format and r.runtime is None and r.write is not None]
    return [smaller_file(format, r.scheme) for r in rows if FORMATS[format].smaller(r.scheme) is r.scheme]
