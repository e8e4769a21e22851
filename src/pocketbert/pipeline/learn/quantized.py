"""Connect training for a scheme (method `qat`) with the export of the run.

`make_export_functions` returns what the method needs: functions that prepare a student as the exporter does, simulate the scheme's rounding, and decide
whether the trained student is kept. `check_clipping` refuses a wrong activation before anything is trained; `write_carried` stores the
learned ranges next to the finished student.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import label_agreement, rms_error
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, family_of
from pocketbert.core.families.config import CLIPPABLE_ACTIVATIONS, read_activation, relu6_problem
from pocketbert.core.families.weight_records import LearnedRanges, write_learned_ranges
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.stages import QatStage
from pocketbert.core.tasks import Task
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.formats.weight_roles import list_weights, resolve_schemes, simulation_of_file
from pocketbert.pipeline.reference import project_text_batches, project_texts, tokenize_batches

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.core.predict.predictor import Predictor
    from pocketbert.distill.methods.method import CarriedParts, ExportFunctions, TrainedCandidate
    from pocketbert.quantize.rounding import Simulation

_LOG = logging.getLogger("pocketbert")
_Feed = Mapping[str, NDArray[np.int64]]
"""Input arrays of one row, by name."""


def make_export_functions(
    stage: QatStage,
    recipe: Recipe,
    task: Task,
    pooling: Pooling,
    tokenizer: TextTokenizer,
    key: str,
    metrics: Path,
) -> ExportFunctions:
    """Return the functions with which a `qat` stage prepares a student for export, simulates its scheme and judges it.

    Args:
        stage: The stage.
        recipe: The recipe.
        task: The task of the model.
        pooling: How token states become a text vector.
        tokenizer: The student's tokenizer.
        key: Recipe key of the stage.
        metrics: The .jsonl file that the losses are written to.
    """
    from pocketbert.distill.methods.method import CandidateDecision, ExportFunctions

    form = _QuantizedForm(stage, recipe, task, pooling, tokenizer)

    def judge(rival: TrainedCandidate) -> CandidateDecision:
        choice = form.compare(rival)
        return CandidateDecision(choice.kept, _record_choice(choice, stage, key, metrics))

    return ExportFunctions(form.prepare, form.simulation, judge)


@dataclass(frozen=True)
class _Difference:
    """The difference of quantized outputs from the fp32 outputs of the student before a `qat` stage.

    Attributes:
        error: RMS of the difference over the spread of the fp32 outputs.
        agree: Share of rows, or tokens, whose largest output is the same.
    """

    error: float
    agree: float

    def __str__(self) -> str:
        return f"off by {self.error:.4f} of the answers' spread, {100 * self.agree:.1f} % same largest answer"


@dataclass(frozen=True)
class _Choice:
    """The output differences that decide whether the student before or after a `qat` stage is kept.

    Attributes:
        former: Difference of the student before the stage, quantized after training.
        trained: Difference of the student that the stage trained, quantized.
        exact: Difference of the trained student without rounding.
        rows: Number of rows that were compared. Nothing was trained on them.
    """

    former: _Difference
    trained: _Difference
    exact: _Difference
    rows: int

    @property
    def kept(self) -> bool:
        """Whether the trained student has the smaller error; false if its error is NaN."""
        return self.trained.error < self.former.error


@dataclass(frozen=True)
class _QuantizedForm:
    """The file format and scheme that a `qat` stage trains for: prepares students for it and simulates its rounding.

    The fields are the arguments of `make_export_functions`.
    """

    stage: QatStage
    recipe: Recipe
    task: Task
    pooling: Pooling
    tokenizer: TextTokenizer

    def prepare(self, student: Any, divide: bool = True) -> nn.Module:
        """Return a copy of a student rewritten for export to the stage's format.

        Args:
            student: The student.
            divide: Whether outlier channels are divided by a factor, as before quantization.
        """
        from pocketbert.export.prepare import prepare

        family, format = family_of(student.config.model_type), self.stage.format
        layout = format_place(format).layout(self.recipe)
        samples = tokenize_batches(self.tokenizer, project_texts(self.task, self.tokenizer))
        sentences = project_text_batches(self.task, self.tokenizer) if divide else []
        return prepare(student, family, self.task, format, layout, self.pooling, samples, sentences)

    def simulation(self, module: nn.Module) -> Simulation:
        """Return how the stage's scheme rounds the weights and activations of a prepared module."""
        from pocketbert.quantize import find_row

        stage, base = self.stage, format_place(self.stage.format).exported_scheme(self.recipe)
        form = stage.format, stage.scheme, stage.runtime
        row, section = find_row(*form), self.recipe.quantize.of(*form)
        assert row.simulation is not None
        weights = resolve_schemes(section, list_weights(module, base), row.scheme_of)
        return simulation_of_file(row, weights, base).of_lengths(len(self.recipe.export.lengths))

    def compare(self, rival: TrainedCandidate) -> _Choice:
        """Simulate the quantized students before and after the stage in torch, and return how far both are from fp32.

        The outputs on rows that nothing was trained on are compared with those of the fp32 student before the stage.
        """
        former, student = rival.former, rival.student
        family = family_of(student.config.model_type)
        calibration, selection = _to_numpy(rival.calibration), _to_numpy(rival.selection)
        trained = self.prepare(student)
        expected = self._outputs(former, family, selection)
        return _Choice(
            _measure_difference(self._outputs(former, family, selection, calibration), expected),
            _measure_difference(self._outputs(trained, family, selection, calibration, rival.learned), expected),
            _measure_difference(self._outputs(trained, family, selection), expected),
            len(selection),
        )

    def _outputs(
        self,
        module: nn.Module,
        family: Family,
        rows: Sequence[_Feed],
        calibration: Sequence[_Feed] | None = None,
        learned: LearnedRanges | None = None,
    ) -> NDArray[np.float32]:
        """Run a prepared module on rows and return its outputs [N, values].

        Args:
            module: The module.
            family: Model family of the module.
            rows: The rows.
            calibration: Rows on which a static scheme measures ranges; None to compute without quantization.
            learned: Activation ranges from training, which replace those measured on the calibration rows.
        """
        from pocketbert.export.prepare import PreparedPredictor
        from pocketbert.quantize.simulated import SimulatedPredictor

        exact = PreparedPredictor(module, family, self.task)
        predictor: Predictor = exact
        if calibration is not None:
            simulation, method = self.simulation(module), self.recipe.quantize.calibration
            static_rows = calibration if simulation.static else ()
            predictor = SimulatedPredictor(exact, simulation, static_rows, learned, method)
        return np.concatenate([_join_outputs(predictor.run(row)) for row in rows])


def _to_numpy(feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, NDArray[np.int64]]]:
    return [{name: value.numpy() for name, value in feed.items()} for feed in feeds]


def _join_outputs(outputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    """Join the outputs of one row to one array [positions, values]; outputs narrower than the widest are left out."""
    parts = [np.asarray(o, np.float32).reshape(-1, o.shape[-1]) for o in outputs.values()]
    widest = max(p.shape[1] for p in parts)
    return np.concatenate([p for p in parts if p.shape[1] == widest])


def _measure_difference(outputs: NDArray[np.float32], expected: NDArray[np.float32]) -> _Difference:
    return _Difference(rms_error(outputs, expected), label_agreement(outputs, expected))


def _record_choice(choice: _Choice, stage: QatStage, key: str, metrics: Path) -> str:
    """Print, log and append to the metrics file whether the student before or after a `qat` stage is kept.

    Only the first of several processes writes to the file.

    Args:
        choice: The differences of both students from fp32.
        stage: The stage.
        key: Recipe key of the stage.
        metrics: The .jsonl file of losses. A record of an earlier choice of this stage is replaced.

    Returns:
        The sentence for the report.
    """
    made_for = f" for {stage.runtime}" if stage.runtime else ""
    what = f"{stage.scheme} in {stage.format}{made_for}, simulated on {choice.rows} training rows that nothing was trained on"
    verdict = (
        "the trained student is kept"
        if choice.kept
        else "training for the scheme did not improve it, the student before the stage is kept"
    )
    clipped = f" with {stage.activation}" if stage.activation else ""
    note = (
        f"{key} ({what}): without training {choice.former}; after {stage.steps} steps{clipped} {choice.trained}: "
        f"{verdict}. The trained student in fp32 is {choice.exact}."
    )
    print_note(f"  {note}")
    _LOG.info("%s", note)
    if not current_process().main:
        return note
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    name = f"{key}.choice"
    kept = [line for line in lines if line.strip() and json.loads(line)["stage"] != name]
    differences = {"former": choice.former, "trained": choice.trained, "exact": choice.exact}
    values = {f"{k}_{n}": v for k, d in differences.items() for n, v in (("error", d.error), ("agree", d.agree))}
    line = json.dumps({"stage": name, "kept": choice.kept, "rows": choice.rows, **values})
    write_atomic(metrics, "".join(f"{text}\n" for text in [*kept, line]))
    return note


def check_clipping(recipe: Recipe, teacher: ModelFolder) -> None:
    """Check that a student's activation is relu or relu6, if a `qat` stage is to clip it to relu6.

    A student of its own size (`student.size`) is not checked.

    Args:
        recipe: The recipe.
        teacher: The model that the student is made from, unless the recipe names another.

    Raises:
        InputError: If the student will have another activation.
    """
    keys = [f"distill.{n}.activation" for n, s in enumerate(recipe.distill) if getattr(s, "activation", None)]
    student = recipe.student
    if not keys or student is None or student.size is not None:
        return
    start = teacher if student.model is None else open_model_folder(student.model, student.revision, "student.model")
    activation = read_activation(start.config)
    if activation not in CLIPPABLE_ACTIVATIONS:
        raise InputError([relu6_problem(activation, key) for key in keys])


def write_carried(carried: CarriedParts, folder: Path) -> None:
    """Write the activation ranges that a `qat` stage has learned to the finished student's folder, if there are any.

    Args:
        carried: Tensors and facts that the methods of all stages have passed on.
        folder: The student's folder.
    """
    from pocketbert.distill.methods.qat import LEARNED_RANGES_PART

    if LEARNED_RANGES_PART in carried:
        learned = LearnedRanges.model_validate(carried[LEARNED_RANGES_PART].facts)
        if learned.products:
            write_learned_ranges(folder, learned)
