"""The stage of method `qat` in a run: what the student's files will be like, and whether its result is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import agreement, rms_error
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, family_of
from pocketbert.core.families.config import CLIPPABLE, activation_of, not_clippable
from pocketbert.core.families.weight_records import LearnedRanges, write_learned
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.stages import QatStage
from pocketbert.core.tasks import Task
from pocketbert.pipeline.formats.base import place_of
from pocketbert.pipeline.formats.weight_roles import resolved, simulation_of, weights_of
from pocketbert.pipeline.reference import own_texts, sample_batches, sentence_batches

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.distill.methods.method import Carried, ExportedForm, Rival
    from pocketbert.quantize.rounding import Simulation

_LOG = logging.getLogger("pocketbert")
Feed = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Figure:
    """How far rounded answers are from the fp32 answers before the stage.

    Attributes:
        error: RMS of the difference over the spread of the fp32 answers.
        agree: Share of rows, or tokens, whose largest answer is the same.
    """

    error: float
    agree: float

    @property
    def shown(self) -> str:
        """Both numbers for people."""
        return f"off by {self.error:.4f} of the answers' spread, {100 * self.agree:.1f} % same largest answer"


@dataclass(frozen=True)
class Choice:
    """The figures that decide which student goes on.

    Attributes:
        former: Of the student before the stage, quantized after training.
        trained: Of the student that the stage trained.
        exact: Of the trained student without rounding.
        rows: Rows that nothing was trained on.
    """

    former: Figure
    trained: Figure
    exact: Figure
    rows: int

    @property
    def kept(self) -> bool:
        """Whether the trained student is better; NaN is not."""
        return self.trained.error < self.former.error


@dataclass(frozen=True)
class QuantizedStage:
    """One stage of method `qat` in a run.

    Attributes:
        stage: Its section.
        recipe: The recipe.
        task: What the model does.
        pooling: How token states become a vector.
        tokenizer: The student's tokenizer.
        where: Recipe key.
    """

    stage: QatStage
    recipe: Recipe
    task: Task
    pooling: Pooling
    tokenizer: TextTokenizer
    where: str

    def simulation(self, module: nn.Module) -> Simulation:
        """Tell how the scheme rounds in the stage's format, role by role.

        Args:
            module: What `prepare` made of a student.
        """
        from pocketbert.quantize import row_of

        stage, base = self.stage, place_of(self.stage.format).exported_scheme(self.recipe)
        form = stage.format, stage.scheme, stage.runtime
        row, section = row_of(*form), self.recipe.quantize.of(*form)
        assert row.simulation is not None
        weights = resolved(section, weights_of(module, base), row.scheme_of)
        return simulation_of(row, weights, base).of_lengths(len(self.recipe.export.lengths))

    def prepare(self, student: Any, divide: bool = True) -> nn.Module:
        """Rewrite a copy of a student as the exporter of the stage's format does.

        Args:
            student: The model.
            divide: Whether outlier channels are divided.
        """
        from pocketbert.export.prepare import prepare

        family, format = family_of(student.config.model_type), self.stage.format
        layout, samples = (
            place_of(format).layout(self.recipe),
            sample_batches(self.tokenizer, own_texts(self.task, self.tokenizer)),
        )
        sentences = sentence_batches(self.task, self.tokenizer) if divide else []
        return prepare(student, family, self.task, format, layout, self.pooling, samples, sentences)

    def choose(self, rival: Rival) -> Choice:
        """Compare both students as files of the scheme would answer, on rows that nothing was trained on."""
        former, student, learned = rival.former, rival.student, rival.learned
        family = family_of(student.config.model_type)
        calibration, selection = _arrays(rival.calibration), _arrays(rival.selection)
        trained = self.prepare(student)
        expected = self._answers(former, family, selection)
        return Choice(
            _figure(self._answers(former, family, selection, calibration), expected),
            _figure(self._answers(trained, family, selection, calibration, learned), expected),
            _figure(self._answers(trained, family, selection), expected),
            len(selection),
        )

    def _answers(
        self,
        module: nn.Module,
        family: Family,
        rows: Sequence[Feed],
        calibration: Sequence[Feed] | None = None,
        learned: LearnedRanges | None = None,
    ) -> list[NDArray[np.float32]]:
        """Answers [..., numbers] of each row; rounded where calibration rows are given."""
        from pocketbert.export.prepare import PreparedPredictor
        from pocketbert.quantize.simulated import SimulatedPredictor

        exact = PreparedPredictor(module, family, self.task)
        if calibration is None:
            return [_whole(exact.run(row)) for row in rows]
        how = self.simulation(module)
        method = self.recipe.quantize.calibration
        predictor = SimulatedPredictor(exact, how, calibration if how.static else (), learned, method)
        return [_whole(predictor.run(row)) for row in rows]


def exported_form(quantized: QuantizedStage, metrics: Path) -> ExportedForm:
    """What method `qat` trains for, and who decides whether the result is kept.

    Args:
        quantized: The stage.
        metrics: The .jsonl file of losses.
    """
    from pocketbert.distill.methods.method import ExportedForm, Verdict

    def judge(rival: Rival) -> Verdict:
        choice = quantized.choose(rival)
        return Verdict(choice.kept, _record(choice, quantized, metrics))

    return ExportedForm(quantized.prepare, quantized.simulation, judge)


def _record(choice: Choice, quantized: QuantizedStage, metrics: Path) -> str:
    """Tell which student goes on, in the log and in the file of metrics; return the sentence for the report."""
    stage, where = quantized.stage, quantized.where
    made_for = f" for {stage.runtime}" if stage.runtime else ""
    what = f"{stage.scheme} in {stage.format}{made_for}, simulated on {choice.rows} training rows that nothing was trained on"
    verdict = (
        "the trained student is kept"
        if choice.kept
        else "training for the scheme did not improve it, the student before the stage is kept"
    )
    clipped = f" with {stage.activation}" if stage.activation else ""
    note = (
        f"{where} ({what}): without training {choice.former.shown}; after {stage.steps} steps{clipped} {choice.trained.shown}: "
        f"{verdict}. The trained student in fp32 is {choice.exact.shown}."
    )
    say(f"  {note}")
    _LOG.info("%s", note)
    if not here().main:
        return note
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    name = f"{where}.choice"
    kept = [line for line in lines if line.strip() and json.loads(line)["stage"] != name]
    figures = {"former": choice.former, "trained": choice.trained, "exact": choice.exact}
    facts = {f"{k}_{n}": v for k, f in figures.items() for n, v in (("error", f.error), ("agree", f.agree))}
    line = json.dumps({"stage": name, "kept": choice.kept, "rows": choice.rows, **facts})
    write_atomic(metrics, "".join(f"{text}\n" for text in [*kept, line]))
    return note


def check_clipping(recipe: Recipe, teacher: ModelFolder) -> None:
    """Refuse stages that put relu6 in place of another activation than relu, before any model is trained.

    Args:
        recipe: The recipe.
        teacher: The model that it starts from.

    Raises:
        InputError: If the student will have another activation.
    """
    keys = [f"distill.{n}.activation" for n, s in enumerate(recipe.distill) if getattr(s, "activation", None)]
    wanted = recipe.student
    if not keys or wanted is None or wanted.size is not None:
        return
    start = teacher if wanted.model is None else open_model_folder(wanted.model, wanted.revision, "student.model")
    activation = activation_of(start.config)
    if activation not in CLIPPABLE:
        raise InputError([not_clippable(activation, key) for key in keys])


def write_carried(carried: Carried, folder: Path) -> None:
    """Write what a stage of method `qat` learned of ranges next to the finished student; nothing without one."""
    from pocketbert.distill.methods.qat import CARRIED

    if CARRIED in carried:
        learned = LearnedRanges.model_validate(carried[CARRIED].facts)
        if learned.products:
            write_learned(folder, learned)


def _arrays(feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, NDArray[np.int64]]]:
    return [{name: value.numpy() for name, value in feed.items()} for feed in feeds]


def _whole(outputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    """All answers of one row as [places, numbers]."""
    parts = [np.asarray(o, np.float32).reshape(-1, o.shape[-1]) for o in outputs.values()]
    wide = max(p.shape[1] for p in parts)
    return np.concatenate([p for p in parts if p.shape[1] == wide])


def _figure(answers: Sequence[NDArray[np.float32]], expected: Sequence[NDArray[np.float32]]) -> Figure:
    found, wanted = np.concatenate(answers), np.concatenate(expected)
    return Figure(rms_error(found, wanted), agreement(found, wanted))
