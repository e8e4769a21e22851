"""A trained model into a folder: scored, with thresholds and pooling, and with the story of its training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.examples import Example, hold_out_share
from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY, family_of
from pocketbert.core.heads import Head, head_of
from pocketbert.core.heads.sequence_classification import best_thresholds
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.metrics import METRICS
from pocketbert.core.models.checkpoints import save_model, take_form
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.predict.predictor import Batching, Matrix, TorchPredictor, run_rows, whole
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, pooling_of, write_modules
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Updates
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.reference import reference_model

if TYPE_CHECKING:
    from pocketbert.distill.training.data import TrainData
    from pocketbert.distill.training.loop import Outcome


FILE_NAME = "training.json"
VECTORS = "eval_vectors.npy"
"""What a teacher of feature-extraction makes of the eval rows, where these have no scores."""
TUNING_ROWS = 4000
"""Most training rows that thresholds are chosen on."""


class Curve(BaseModel):
    """Losses of one training stage.

    Attributes:
        stage: ``finetune``, ``distill.0``, ...
        steps: Steps done at each record.
        loss: Mean weighted loss since the record before.
        terms: Mean of each unweighted term; None at records in which it was off.
        dtype: Number type of the matrix products.
        threads: Threads used.
    """

    stage: str
    steps: list[int]
    loss: list[float]
    terms: dict[str, list[float | None]]
    dtype: str
    threads: int


class Training(BaseModel):
    """How a folder of weights was made; ``training.json`` next to them.

    Attributes:
        parameters: Number of weights.
        curves: Losses per stage.
        score: Score of the torch model on eval, batch by length.
        notes: What was done to labels, and what a reader of the figures must know.
        thresholds: Of multi-label: probability from which each label is given, found on training rows.
    """

    parameters: int
    curves: list[Curve] = []
    score: Score | None = None
    notes: list[str] = []
    thresholds: list[float] | None = None


@dataclass(frozen=True)
class Finished:
    """A model that is ready to be saved.

    Attributes:
        model: The model.
        recipe: What was done.
        source: Where its tokenizer comes from.
        data: The run's data.
        length: Longest input in tokens.
        pooling: How token states become a vector.
        curves: Losses per stage.
        notes: What was done to labels, and what a reader of the figures must know.
    """

    model: Any
    recipe: Recipe
    source: ModelFolder
    data: RunData
    length: int
    pooling: Pooling
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()


def finish(made: Finished, destination: Path, teacher: Path | None = None) -> None:
    """Score a model on eval and write its folder.

    Args:
        made: The model.
        destination: The folder to fill.
        teacher: Folder of its teacher; None where it is the teacher.
    """
    if not here().main:
        return  # process 0 alone scores and writes
    model, data, task = made.model, made.data, made.data.head.task
    family = family_of(model.config.model_type)
    tokenizer = TextTokenizer(made.source.tokenizer_folder, made.length, padding_side=family.padding_side)
    predictor = TorchPredictor(model, task, family.inputs, made.pooling)
    thresholds = _tuned(made, predictor, tokenizer) if task.labels is LabelKind.NAMES else None
    score = None
    if "eval" in data.splits:
        head = head_with(made.recipe, data, thresholds)
        rows = EvalSet("eval", head, data.splits["eval"])
        if not len(rows.rows.truth):  # vectors without scores: the teacher's own are what is wanted
            vectors = (
                _own_vectors(made, predictor, tokenizer, destination) if teacher is None else teacher_vectors(teacher)
            )
            rows = EvalSet("eval", head, replace(rows.rows, truth=vectors))
        score, _ = evaluate(predictor, tokenizer, rows, batch=scoring_batch(task))
        metric = METRICS[score.metric]
        say(f"  {metric.name} on eval (torch): {metric.format(score.value)}")
    recipe = made.recipe
    form = recipe.export.form or TEXT_ONLY
    entities = take_form(model, made.source, form, recipe.export.entities)
    if entities:
        write_json(destination / ENTITIES_FILE, {"entities": entities})
    save_model(model, made.source, data.labels, made.length, destination, form, task.score)
    if task.name is TaskName.FEATURE_EXTRACTION:
        write_modules(destination, made.pooling, model.config.hidden_size, made.length)
    count = sum(p.numel() for p in model.parameters())
    training = Training(
        parameters=count, curves=[*made.curves], score=score, notes=[*made.notes], thresholds=thresholds
    )
    write_json(destination / FILE_NAME, json.loads(training.model_dump_json()))


def scoring_batch(task: Task) -> int:
    """Rows that a torch model is scored on at once: a larger batch of logits over a vocabulary would take a gigabyte."""
    return 2 if task.name is TaskName.FILL_MASK else 64


def _tuned(made: Finished, predictor: TorchPredictor, tokenizer: TextTokenizer) -> list[float] | None:
    """Thresholds that suit a model best on rows that do not decide its score; None where they are given, or no such rows."""
    data, given = made.data, made.recipe.answer.thresholds
    split = data.splits.get("holdout") or data.splits.get("train")
    if given is not None or split is None or not made.curves:
        return None
    count = min(TUNING_ROWS, len(split.encoded))
    some = run_rows(predictor, tokenizer, split.encoded[:count], data.head.task, Batching(64, 0.1))
    return best_thresholds(whole(some), np.asarray(split.truth, bool)[:count])


def head_with(recipe: Recipe, data: RunData, thresholds: list[float] | None) -> Head:
    """The task with the thresholds that a model was given."""
    if thresholds is None:
        return data.head
    return head_of(data.head.task, data.labels, recipe.answer.model_copy(update={"thresholds": thresholds}))


def _own_vectors(made: Finished, predictor: TorchPredictor, tokenizer: TextTokenizer, destination: Path) -> Matrix:
    """What a teacher makes of the eval rows; its folder keeps it."""
    rows = made.data.splits["eval"].encoded
    vectors = whole(run_rows(predictor, tokenizer, rows, made.data.head.task, Batching(64, 0.1)))
    np.save(destination / VECTORS, vectors)
    return vectors


def teacher_vectors(teacher: Path) -> Matrix:
    """What a teacher made of the eval rows, [N, H]."""
    vectors: Matrix = np.load(teacher / VECTORS)
    return vectors


def pooling_for(recipe: Recipe, folder: ModelFolder) -> Pooling:
    """How token states become a vector: as the recipe says, else as the model's own files do, else the default."""
    own = pooling_of(folder.path) or DEFAULT_POOLING if recipe.task is TaskName.FEATURE_EXTRACTION else DEFAULT_POOLING
    kind, unit = recipe.answer.pooling, recipe.answer.normalize
    return Pooling(own.kind if kind is None else kind, own.normalize if unit is None else unit)


def read_training(folder: Path) -> Training:
    """Read ``training.json``; empty facts where a folder has none."""
    path = folder / FILE_NAME
    if not path.is_file():
        return Training(parameters=0)
    return Training.model_validate_json(path.read_text(encoding="utf-8"))


# --- job ---
# What the training stages of one folder share: rows, and the one loop.


@dataclass(frozen=True)
class TrainingJob:
    """What the training stages of one folder share.

    Attributes:
        recipe: What to do.
        source: Where the tokenizer comes from.
        data: The run's data.
        length: Longest input in tokens.
        work: Where checkpoints go.
        metrics: A .jsonl file for losses.
    """

    recipe: Recipe
    source: ModelFolder
    data: RunData
    length: int
    work: Path
    metrics: Path

    def rows(self, purpose: str) -> TrainData:
        """Training rows as the task learns from them: of fill-mask with words hidden anew at every step.

        Args:
            purpose: What is trained; keys the random choices.
        """
        from pocketbert.distill.text.corpus import EncodedRows
        from pocketbert.distill.text.masking import Masking
        from pocketbert.distill.text.pairs import GeneralSet
        from pocketbert.distill.training.data import TrainSet

        rows = self.data.splits["train"]
        tokenizer = TextTokenizer(self.source.tokenizer_folder, self.length)
        if self.data.head.task.name is not TaskName.FILL_MASK:
            return TrainSet(rows, tokenizer)
        assert tokenizer.mask_id is not None
        encoded = EncodedRows(rows.encoded, tokenizer.vocabulary_size)
        masking = Masking(
            encoded.counts, tokenizer.mask_id, tokenizer.special_ids, self.recipe.seed, purpose, smoothing=0.0
        )
        return GeneralSet(encoded, tokenizer, masking)

    def train(self, model: Any, objective: Any, settings: Updates, purpose: str) -> Curve:
        """Train a model in place on the task's rows."""
        from pocketbert.distill.training.loop import train

        rows, seed = self.rows(purpose), self.recipe.seed
        settings = settings.for_rows(len(rows.lengths))
        return curve_of(purpose, train(model, objective, rows, settings, seed, purpose, self.work, self.metrics))


def curve_of(purpose: str, outcome: Outcome) -> Curve:
    """The losses of a stage as they are kept.

    Args:
        purpose: What was trained.
        outcome: What training left behind.
    """
    history = outcome.history
    return Curve(
        stage=purpose,
        steps=[r.step for r in history],
        loss=[r.loss for r in history],
        terms={k: [r.terms.get(k) for r in history] for k in dict.fromkeys(k for r in history for k in r.terms)},
        dtype=outcome.dtype,
        threads=outcome.threads,
    )


# --- labelled ---
# The labelled rows that no weight was trained on: those that are scored, and those that choose files inside a budget.


EVAL, SELECTION, HOLDOUT = "eval", "selection", "holdout"


@dataclass(frozen=True)
class LabelledRows:
    """The labelled rows of a run that no weight was trained on.

    Attributes:
        recipe: What is done; `data.selection` divides the eval rows.
        data: Its data.
        run: The run folder, with the teacher.
        length: Longest input in tokens.
    """

    recipe: Recipe
    data: RunData
    run: Path
    length: int

    def named(self, name: str, weights: Path) -> EvalSet | None:
        """Return some of the rows as a model reads them.

        Args:
            name: ``eval`` for the rows that decide the score and choose nothing; ``selection`` for the eval rows that choose files
                inside a budget; ``holdout``.
            weights: Folder of the model, with its tokenizer.

        Returns:
            The rows; None where the recipe has none, or none with labels.

        Raises:
            InputError: If a part of the eval rows is empty.
        """
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        places = self._places(name, split.examples if split is not None else ())
        if split is None or not places:
            return None
        head = head_with(self.recipe, self.data, read_training(weights).thresholds)
        rows = head.prepare([split.examples[i] for i in places], TextTokenizer(weights, self.length), name)
        if not len(rows.truth):  # vectors without scores: the teacher's are what is wanted, known on eval only
            if name == HOLDOUT:
                return None
            rows = replace(rows, truth=teacher_vectors(self.run / "teacher")[places])
        return EvalSet(name, head, rows)

    def count(self, name: str) -> int:
        """Count some of the rows without tokenizing them: as many as `named` returns, 0 where it returns None."""
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        if split is None or (name == HOLDOUT and not len(split.truth)):
            return 0
        return len(self._places(name, split.examples))

    def _places(self, name: str, examples: Sequence[Example]) -> list[int]:
        """Places of the rows in their split."""
        share = self.recipe.data.selection
        if name == HOLDOUT or share is None:
            return [] if name == SELECTION else [*range(len(examples))]
        scored, choosing = hold_out_share(examples, share, SELECTION)
        if examples and not (scored and choosing):
            what = f"{len(examples):,} rows are too few for rows that choose files and rows that score these."
            fix = "Give more rows: some hundred of each label are better than ten."
            raise InputError(Problem("data.eval", what, fix))
        wanted = {e.digest for e in (choosing if name == SELECTION else scored)}
        return [i for i, e in enumerate(examples) if e.digest in wanted]

    def torch_score(self, name: str, weights: Path) -> Score | None:
        """Score a torch model of the run on some of the rows; None where there are none.

        A model's recorded score is that of all eval rows: files of a run that divides them are compared with this one.

        Args:
            name: See `named`.
            weights: Folder of the model.
        """
        rows = self.named(name, weights)
        if rows is None:
            return None
        task = self.data.head.task
        predictor = reference_model(open_model_folder(str(weights)), task)
        tokenizer = TextTokenizer(weights, self.length)
        return evaluate(predictor, tokenizer, rows, scoring_batch(task), f"{weights.name} in torch on {name}")[0]
