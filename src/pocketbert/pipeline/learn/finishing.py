"""A trained model into a folder: scored, with thresholds and pooling, and with the story of its training."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.disk.files import write_json
from pocketbert.core.families import TEXT_ONLY, family_of
from pocketbert.core.heads import Head, head_of
from pocketbert.core.heads.multi_label import best_thresholds
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.metrics import METRICS
from pocketbert.core.models.checkpoints import save_model, take_form
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.column_reader import ENTITIES_FILE
from pocketbert.core.predict.pooling import DEFAULT_POOLING, Pooling, pooling_of, write_modules
from pocketbert.core.predict.readout import Batching, Matrix, run_rows, whole
from pocketbert.core.predict.score import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.pipeline.learn.data import RunData

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
