"""Score a trained model and write its folder, and return the labelled rows that it is scored on.

`score_and_save` writes a `TrainedModel`: weights, tokenizer, thresholds, pooling, and ``training.json`` (`Training`) with the score and
the losses of each stage (`Curve`). `LabelledRows` returns the rows that no weight was trained on: those that decide the score, those
that choose files inside a budget, and held-out rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.examples import Example, hold_out_share
from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY, family_of
from pocketbert.core.heads import Head, make_head
from pocketbert.core.heads.sequence_classification import fit_label_thresholds
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.metrics import METRICS
from pocketbert.core.models.checkpoints import apply_form, save_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.predict.predictor import Batching, Matrix, TorchPredictor, join_texts, run_rows
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, read_pooling, write_modules
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.reference import load_reference_model

EVAL, SELECTION, HOLDOUT = "eval", "selection", "holdout"
"""Names of labelled rows; see `LabelledRows.named`."""
_TRAINING_FILE = "training.json"
_VECTORS_FILE = "eval_vectors.npy"
"""The teacher's vectors of the eval rows, for feature extraction without scores."""
_TUNING_ROWS = 4000
"""Most rows that thresholds are chosen on."""
_BATCHING = Batching(64, 0.1)


class Curve(BaseModel):
    """The recorded losses of one training stage, with the number type and threads used.

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
    """The content of ``training.json`` next to a model's weights: losses, score, notes and label thresholds.

    Attributes:
        parameters: Number of weights.
        curves: Losses per stage.
        score: Score of the torch model on eval, in batches of rows of similar length.
        notes: What was done to labels, and other remarks for readers of the score.
        thresholds: For multi-label: probability from which each label is given, found on training rows.
    """

    parameters: int
    curves: list[Curve] = []
    score: Score | None = None
    notes: list[str] = []
    thresholds: list[float] | None = None


def read_training(folder: Path) -> Training:
    """Read ``training.json`` of a model folder; return a record without score and losses if there is no file."""
    path = folder / _TRAINING_FILE
    if not path.is_file():
        return Training(parameters=0)
    return Training.model_validate_json(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class TrainedModel:
    """A trained torch model with what `score_and_save` needs to score it and write its folder.

    Attributes:
        model: The torch model.
        recipe: The recipe.
        source: Folder of its tokenizer.
        data: The run's rows.
        length: Longest input in tokens.
        pooling: How token states become a vector.
        curves: Losses per stage.
        notes: What was done to labels, and other remarks for readers of the score.
    """

    model: Any
    recipe: Recipe
    source: ModelFolder
    data: RunData
    length: int
    pooling: Pooling
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()


def score_and_save(trained: TrainedModel, destination: Path, teacher: Path | None = None) -> None:
    """Score a trained model on eval and write its folder with ``training.json``; processes other than 0 do nothing.

    `teacher` is the folder of a student's teacher, whose recorded vectors score feature extraction without labels;
    None for the teacher itself.
    """
    if not current_process().main:
        return
    model, data, recipe, task = trained.model, trained.data, trained.recipe, trained.data.head.task
    family = family_of(model.config.model_type)
    tokenizer = TextTokenizer(trained.source.tokenizer_folder, trained.length, padding_side=family.padding_side)
    predictor = TorchPredictor(model, task, family.inputs, trained.pooling)
    thresholds = _tune_thresholds(trained, predictor, tokenizer) if task.labels is LabelKind.NAMES else None
    score = None
    if EVAL in data.splits:
        head, rows = head_with(recipe, data, thresholds), data.splits[EVAL]
        if not len(rows.truth):  # vectors without scores are compared with the teacher's
            if teacher is None:
                vectors = join_texts(run_rows(predictor, tokenizer, rows.encoded, task, _BATCHING))
                np.save(destination / _VECTORS_FILE, vectors)
            else:
                vectors = _read_teacher_vectors(teacher)
            rows = replace(rows, truth=vectors)
        score, _ = evaluate(predictor, tokenizer, EvalSet(EVAL, head, rows), batch=_choose_scoring_batch(task))
        metric = METRICS[score.metric]
        print_note(f"  {metric.name} on eval (torch): {metric.format(score.value)}")
    form = recipe.export.form or TEXT_ONLY
    entities = apply_form(model, trained.source, form, recipe.export.entities)
    if entities:
        write_json(destination / ENTITIES_FILE, {"entities": entities})
    save_model(model, trained.source, data.labels, trained.length, destination, form, task.score)
    if task.name is TaskName.FEATURE_EXTRACTION:
        write_modules(destination, trained.pooling, model.config.hidden_size, trained.length)
    training = Training(
        parameters=sum(p.numel() for p in model.parameters()),
        curves=[*trained.curves],
        score=score,
        notes=[*trained.notes],
        thresholds=thresholds,
    )
    write_json(destination / _TRAINING_FILE, json.loads(training.model_dump_json()))


def _tune_thresholds(trained: TrainedModel, predictor: TorchPredictor, tokenizer: TextTokenizer) -> list[float] | None:
    """Return the best probability threshold of each label, found on held-out or else training rows.

    Returns None if the recipe sets thresholds, there are no such rows, or nothing was trained.
    """
    data = trained.data
    split = data.splits.get(HOLDOUT) or data.splits.get("train")
    if trained.recipe.answer.thresholds is not None or split is None or not trained.curves:
        return None
    count = min(_TUNING_ROWS, len(split.encoded))
    logits = run_rows(predictor, tokenizer, split.encoded[:count], data.head.task, _BATCHING)
    return fit_label_thresholds(join_texts(logits), np.asarray(split.truth, bool)[:count])


def head_with(recipe: Recipe, data: RunData, thresholds: list[float] | None) -> Head:
    """Return the run's task head, which turns logits into answers, with `thresholds` per label unless None."""
    if thresholds is None:
        return data.head
    return make_head(data.head.task, data.labels, recipe.answer.model_copy(update={"thresholds": thresholds}))


def pooling_for(recipe: Recipe, folder: ModelFolder) -> Pooling:
    """Return the pooling of token states to a text vector: the recipe's, else the model folder's, else the default."""
    own = (
        read_pooling(folder.path) or DEFAULT_POOLING if recipe.task is TaskName.FEATURE_EXTRACTION else DEFAULT_POOLING
    )
    kind, unit = recipe.answer.pooling, recipe.answer.normalize
    return Pooling(own.kind if kind is None else kind, own.normalize if unit is None else unit)


def _choose_scoring_batch(task: Task) -> int:
    """Return the batch size for scoring a torch model: 2 for fill-mask, whose logits span the vocabulary, else 64."""
    return 2 if task.name is TaskName.FILL_MASK else 64


def _read_teacher_vectors(teacher: Path) -> Matrix:
    """Read the teacher's text vectors of the eval rows, [N, H], from the teacher's folder."""
    vectors: Matrix = np.load(teacher / _VECTORS_FILE)
    return vectors


@dataclass(frozen=True)
class LabelledRows:
    """The labelled rows of a run that no weight was trained on: those for scores, for file selection, and held out.

    Attributes:
        recipe: The recipe; `data.selection` divides the eval rows.
        data: The run's rows.
        run: The run folder, with the teacher.
        length: Longest input in tokens.
    """

    recipe: Recipe
    data: RunData
    run: Path
    length: int

    def named(self, name: str, weights: Path) -> EvalSet | None:
        """Return the rows of a name, tokenized by a model's tokenizer, with the model's head and thresholds.

        Args:
            name: ``eval`` for the rows that decide the score and choose nothing; ``selection`` for the eval rows that choose files
                inside a budget; ``holdout``.
            weights: Folder of the model, with its tokenizer.

        Returns:
            The rows; None if the recipe has none, or none with labels.

        Raises:
            InputError: If a part of the eval rows is empty.
        """
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        chosen = self._row_numbers(name, split.examples if split is not None else ())
        if split is None or not chosen:
            return None
        head = head_with(self.recipe, self.data, read_training(weights).thresholds)
        rows = head.prepare([split.examples[i] for i in chosen], TextTokenizer(weights, self.length), name)
        if not len(rows.truth):  # vectors without scores are compared with the teacher's, which has those of eval only
            if name == HOLDOUT:
                return None
            rows = replace(rows, truth=_read_teacher_vectors(self.run / "teacher")[chosen])
        return EvalSet(name, head, rows)

    def count(self, name: str) -> int:
        """Return the number of rows that `named` would return for a name, without tokenizing; 0 if it returns None."""
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        if split is None or (name == HOLDOUT and not len(split.truth)):
            return 0
        return len(self._row_numbers(name, split.examples))

    def _row_numbers(self, name: str, examples: Sequence[Example]) -> list[int]:
        """Return indices in their split of the rows that `name` stands for; `data.selection` divides eval in two."""
        share = self.recipe.data.selection
        if name == HOLDOUT or share is None:
            return [] if name == SELECTION else [*range(len(examples))]
        scored, choosing = hold_out_share(examples, share, SELECTION)
        if examples and not (scored and choosing):
            what = f"{len(examples):,} rows are too few for rows that choose files and rows that score these."
            fix = "Give more rows: some hundred of each label are better than ten."
            raise InputError(Problem("data.eval", what, fix))
        digests = {e.digest for e in (choosing if name == SELECTION else scored)}
        return [i for i, e in enumerate(examples) if e.digest in digests]

    def torch_score(self, name: str, weights: Path) -> Score | None:
        """Score a torch model of the run on the rows that `named` returns for a name; None if there are none.

        The score that ``training.json`` records is that of all eval rows; files of a run that divides them are compared with this one.
        """
        rows = self.named(name, weights)
        if rows is None:
            return None
        task = self.data.head.task
        predictor = load_reference_model(open_model_folder(str(weights)), task)
        tokenizer = TextTokenizer(weights, self.length)
        return evaluate(predictor, tokenizer, rows, _choose_scoring_batch(task), f"{weights.name} in torch on {name}")[
            0
        ]
