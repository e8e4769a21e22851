"""Score a trained model and write its folder, and return the labelled rows that it is scored on.

`score_and_save` writes a `TrainedModel`: weights, tokenizer, thresholds, pooling, and ``training.json`` (`Training`) with the score and
the losses of each stage (`Curve`). `LabelledRows` returns the rows that no weight was trained on: those that decide the score, those
that choose files inside a budget, and held-out rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from pocketbert.core.compare.answers import RowAnswer, answer_rows
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY, family_of
from pocketbert.core.heads import Head, Prepared, make_head
from pocketbert.core.heads.sequence_classification import fit_label_thresholds
from pocketbert.core.heads.several import SeveralHeads, take_rows_of_head
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.metrics import METRICS, Direction, describe_details
from pocketbert.core.models.checkpoints import apply_form, read_model_config, save_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.examples import Example, hold_out_share
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.predict.predictor import Batching, Matrix, TorchPredictor, join_texts, run_rows
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    Pooling,
    Similarity,
    add_dense,
    check_width,
    read_pooling,
    read_similarity,
    vector_width,
    write_dimensions,
    write_modules,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.column import column_key
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import SENTENCE_EMBEDDING, LabelKind, Task, TaskName
from pocketbert.pipeline.learn.answers import (
    ColumnSettings,
    column_outputs,
    find_vector_map,
    fit_vectors,
    score_answers,
)
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.validation import VALIDATION, metric_value
from pocketbert.pipeline.reference import load_reference_model

if TYPE_CHECKING:
    from pocketbert.distill.training.loop import Outcome

EVAL, SELECTION, HOLDOUT = "eval", "selection", "holdout"
"""Names of labelled rows; see `LabelledRows.named`."""
_TRAINING_FILE = "training.json"
_VECTORS_FILE = "eval_vectors.npy"
"""The teacher's vectors of the eval rows, for feature extraction without scores."""
_ROTATION_ROWS = 4000
"""Most rows whose vectors decide how a teacher's vectors are rotated."""
_TUNING_ROWS = 4000
"""Most rows that thresholds are chosen on."""
_BATCHING = Batching(64, 0.1)


class Curve(BaseModel):
    """The recorded losses of one training stage, with the number type and threads used.

    Attributes:
        stage: ``finetune``, ``distill.0``, ...
        steps: Steps done at each record.
        loss: Mean weighted loss since the record before.
        terms: Mean of each unweighted term of the loss; None at records where the term was off.
        dtype: Number type of the matrix products.
        threads: Threads used.
        rates: Learning rate at each record.
        scores: Steps and scores on validation rows, if the model was scored while it was trained.
        metric: Name of the metric of `scores`.
        best_step: Step whose weights were kept, because their score is the best; 0 if those of the last step were kept.
    """

    stage: str
    steps: list[int]
    loss: list[float]
    terms: dict[str, list[float | None]]
    dtype: str
    threads: int
    rates: list[float] = []
    scores: list[tuple[int, float]] = []
    metric: str = ""
    best_step: int = 0


def make_curve(stage: str, outcome: Outcome) -> Curve:
    """Return a stage's training history as the `Curve` stored in ``stage.json`` and ``training.json``."""
    history = outcome.history
    return Curve(
        stage=stage,
        steps=[r.step for r in history],
        loss=[r.loss for r in history],
        terms={k: [r.terms.get(k) for r in history] for k in dict.fromkeys(k for r in history for k in r.terms)},
        dtype=outcome.dtype,
        threads=outcome.threads,
        rates=[r.lr for r in history],
        scores=[(r.step, r.score) for r in history if r.score is not None and isfinite(r.score)],
        metric=outcome.metric,
        best_step=outcome.best_step,
    )


class SeedScore(BaseModel):
    """The scores of the student that was trained with one of several seeds.

    Attributes:
        seed: The seed.
        validation: Score on validation rows, by which one of the students was chosen.
        value: Score on eval, in the task's deciding metric.
        metric: Name of that metric.
        chosen: Whether this student was chosen.
    """

    seed: int
    validation: float
    value: float
    metric: str
    chosen: bool = False


class Training(BaseModel):
    """The content of ``training.json`` next to a model's weights: losses, score, notes and label thresholds.

    Attributes:
        parameters: Number of weights.
        curves: Losses per stage.
        score: Score of the torch model on eval, in batches of rows of similar length.
        notes: What was done to labels, and other remarks for readers of the score.
        thresholds: For multi-label: probability from which each label is given, found on held-out or training rows.
        seeds: Scores of the students of several seeds; empty for one seed.
    """

    parameters: int
    curves: list[Curve] = []
    score: Score | None = None
    notes: list[str] = []
    thresholds: list[float] | None = None
    seeds: list[SeedScore] = []


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
        source: Folder with the model's tokenizer.
        data: The run's rows.
        length: Longest input in tokens.
        pooling: How token states become a vector.
        curves: Losses per stage.
        notes: What was done to labels, and other remarks for readers of the score.
        seeds: Scores of the students of several seeds, of which this is one.
    """

    model: Any
    recipe: Recipe
    source: ModelFolder
    data: RunData
    length: int
    pooling: Pooling
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()
    seeds: tuple[SeedScore, ...] = ()

    def open(self) -> tuple[TorchPredictor, TextTokenizer]:
        """Return the model as a predictor, and its tokenizer."""
        family = family_of(self.model.config.model_type)
        tokenizer = TextTokenizer(self.source.tokenizer_folder, self.length, padding_side=family.padding_side)
        return TorchPredictor(self.model, self.data.head.task, family.inputs, self.pooling), tokenizer


def score_seed(trained: TrainedModel, seed: int) -> SeedScore:
    """Score the student that was trained with one seed, on all validation rows and on eval, with the thresholds that it would ship."""
    data, task = trained.data, trained.data.head.task
    predictor, tokenizer = trained.open()
    head = head_with(trained.recipe, data, _tune_thresholds(trained, predictor, tokenizer))
    sets = [EvalSet(name, head, data.splits[name]) for name in (VALIDATION, EVAL)]
    validation, reported = (evaluate(predictor, tokenizer, rows, _choose_scoring_batch(task))[0] for rows in sets)
    name = trained.recipe.training.metric or validation.metric
    return SeedScore(seed=seed, validation=metric_value(validation, name), value=reported.value, metric=reported.metric)


def answer_validation(trained: TrainedModel, most: int, thresholds: Sequence[float] | None = None) -> list[RowAnswer]:
    """Return a trained model's answers to up to `most` validation rows, those with the smallest hashes, for `compare_scores`.

    Args:
        trained: The model.
        most: Most rows.
        thresholds: For multi-label: probability from which each label is given; None to find them on held-out or training
            rows, unless the recipe sets them.
    """
    data, task = trained.data, trained.data.head.task
    predictor, tokenizer = trained.open()
    if thresholds is None:
        thresholds = _tune_thresholds(trained, predictor, tokenizer)
    head = head_with(trained.recipe, data, [*thresholds] if thresholds is not None else None)
    rows = data.splits[VALIDATION]
    chosen = rows.only(sorted(rows.first_by_hash(most)))
    labelled = bool(len(chosen.truth))
    batching = Batching(_choose_scoring_batch(task), _BATCHING.slack)
    return answer_rows(
        predictor, tokenizer, head, chosen, labelled=labelled, label="validation rows", batching=batching
    )


def choose_seed(scores: Sequence[SeedScore], recipe: Recipe) -> list[SeedScore]:
    """Mark the score of the best student on validation rows as chosen, and print the scores of all.

    If several are equally good, the first is chosen. A score that is not a finite number is never chosen if another is
    finite.
    """
    metric = METRICS.get(recipe.training.metric or scores[0].metric)
    sign = -1 if metric is not None and metric.direction is Direction.LOWER else 1
    finite = [s for s in scores if isfinite(s.validation)]
    best = max(finite or scores, key=lambda s: sign * s.validation if isfinite(s.validation) else 0.0)
    for score in scores:
        kept = "; kept" if score is best else ""
        value = METRICS[score.metric].format(score.value)
        print_note(
            f"  seed {score.seed}: {score.validation:.4f} on validation rows, {score.metric} {value} on eval{kept}"
        )
    return [s.model_copy(update={"chosen": s is best}) for s in scores]


def score_and_save(trained: TrainedModel, destination: Path, teacher: Path | None = None) -> None:
    """Score a trained model on the evaluation rows, and write its folder with ``training.json``, in process 0 only.

    Without evaluation rows there is no score. If a column of answers is the teacher, or that of a head, the teacher's score is that of
    the answers.

    Args:
        trained: The model.
        destination: The folder to fill.
        teacher: Folder of the student's teacher; None if the trained model is the teacher itself. For feature
            extraction without labels, the student's vectors are compared with those that this folder records, or with
            those of the column of answers if that is the teacher.
    """
    if not current_process().main:
        return
    model, data, recipe, task = trained.model, trained.data, trained.recipe, trained.data.head.task
    predictor, tokenizer = trained.open()
    thresholds, score = _tune_thresholds(trained, predictor, tokenizer), None

    if teacher is None and not recipe.asks_model:  # the model is only what the student starts from
        score = _score_column(recipe, data)
    elif EVAL in data.splits:
        head, rows = head_with(recipe, data, thresholds), data.splits[EVAL]
        if not len(rows.truth):  # vectors without scores are compared with the teacher's
            if teacher is None:
                vectors = join_texts(run_rows(predictor, tokenizer, rows.encoded, task, _BATCHING))
                np.save(destination / _VECTORS_FILE, vectors)
            elif recipe.column is not None:
                vectors = _read_column_vectors(trained)
                np.save(destination / _VECTORS_FILE, vectors)
            else:
                vectors = _read_teacher_vectors(teacher)
            rows = replace(rows, truth=vectors)
        score, _ = evaluate(predictor, tokenizer, EvalSet(EVAL, head, rows), batch=_choose_scoring_batch(task))
        metric = METRICS[score.metric]
        more = f" ({found})" if (found := describe_details(score.others)) else ""
        print_note(f"  {metric.name} on eval (torch): {metric.format(score.value)}{more}")
        if teacher is None and recipe.head_columns:
            score = _score_column(recipe, data, of_model=score)
    save_trained(trained, destination)
    training = Training(
        parameters=sum(p.numel() for p in model.parameters()),
        curves=[*trained.curves],
        score=score,
        notes=[*trained.notes],
        thresholds=thresholds,
        seeds=[*trained.seeds],
    )
    write_json(destination / _TRAINING_FILE, json.loads(training.model_dump_json()))


def save_trained(trained: TrainedModel, destination: Path) -> None:
    """Write the folder of a trained model, in the export form that the recipe names: weights, tokenizer, labels, pooling."""
    model, data, recipe = trained.model, trained.data, trained.recipe
    form = recipe.export.form or TEXT_ONLY
    entities = apply_form(model, trained.source, form, recipe.export.entities)
    if entities:
        write_json(destination / ENTITIES_FILE, {"entities": entities})
    save_model(model, trained.source, data.labels, trained.length, destination, form, data.head.task.score)
    if data.head.task.name is TaskName.FEATURE_EXTRACTION:
        write_modules(destination, trained.pooling, model.config.hidden_size, trained.length)
        if trained.pooling.dimensions:
            write_dimensions(destination, trained.pooling.dimensions)


def column_settings(recipe: Recipe, data: RunData) -> ColumnSettings:
    """Return the settings with which the answers in a recipe's column are read."""
    train, column = recipe.data.train, recipe.column
    assert train is not None
    assert column is not None
    return ColumnSettings(column, data.labels, data.head.task, train.title, data.splits["train"].examples)


def read_head_column_settings(recipe: Recipe, data: RunData) -> dict[int, ColumnSettings]:
    """Return the settings with which the answers of each head with a column are read, by the place of the head."""
    task, labels, settings = data.head.task, data.labels.split(data.head.task), dict[int, ColumnSettings]()
    for place, head in enumerate(task.heads):
        if (column := recipe.head_columns.get(head.name)) is not None and recipe.data.train is not None:
            training, key = take_rows_of_head(task, place, data.splits["train"]).examples, column_key(head.name)
            if column.model is not None and all(row.answer is None for row in training):
                continue  # the model has not answered yet
            settings[place] = ColumnSettings(column, labels[place], head.task, recipe.data.train.title, training, key)
    return settings


def _score_column(
    recipe: Recipe, data: RunData, rows: Prepared | None = None, of_model: Score | None = None
) -> Score | None:
    """Score the answers in a recipe's column, or in those of its heads, against the labels of the rows.

    Args:
        recipe: The recipe.
        data: The run's rows.
        rows: The rows to score; None for eval.
        of_model: Score of the model that teaches the heads without a column; None without one.

    Returns:
        The score; None if a row has no answer or no label of its own, or if there are no rows. A head to which that applies has a
        score of 0 rows.
    """
    rows = data.splits.get(EVAL) if rows is None else rows
    if rows is None:
        return None
    if isinstance(head := data.head, SeveralHeads):
        scores = {name: own for name, own in (of_model.heads if of_model else {}).items() if own.rows}
        for place, settings in read_head_column_settings(recipe, data).items():
            name, labelled = head.task.heads[place].name, [i for i, t in enumerate(rows.truth) if t[place] is not None]
            scores.pop(name, None)
            own_rows = take_rows_of_head(head.task, place, rows.only(labelled)) if labelled else None
            if own_rows is not None and (own := score_answers(head.heads[name], own_rows, settings)) is not None:
                scores[name] = own
        is_finite = of_model is None or of_model.finite
        score = head.join_scores(scores, len(rows.examples), is_finite) if scores else None
    else:
        score = score_answers(head, rows, column_settings(recipe, data))
    if score is not None:
        metric = METRICS[score.metric]
        whose = "the heads' teachers" if recipe.tasks else "the answers in the column"
        print_note(f"  {metric.name} of {whose} on eval: {metric.format(score.value)}")
    return score


def _tune_thresholds(trained: TrainedModel, predictor: TorchPredictor, tokenizer: TextTokenizer) -> list[float] | None:
    """Find the best probability threshold of each label on held-out rows or, without those, on training rows.

    Returns:
        The thresholds; None if the task is not multi-label, the recipe sets them, there are no such rows with labels, or nothing was
        trained.
    """
    data = trained.data
    if data.head.task.labels is not LabelKind.NAMES:
        return None
    split = data.splits.get(HOLDOUT) or data.splits.get("train")
    if trained.recipe.answer.thresholds is not None or split is None or not trained.curves or not len(split.truth):
        return None
    count = min(_TUNING_ROWS, len(split.encoded))
    logits = run_rows(predictor, tokenizer, split.encoded[:count], data.head.task, _BATCHING)
    return fit_label_thresholds(join_texts(logits), np.asarray(split.truth, bool)[:count])


def head_with(recipe: Recipe, data: RunData, thresholds: list[float] | None) -> Head:
    """Return the run's task head, which turns logits into answers.

    Args:
        recipe: The recipe.
        data: The run's rows.
        thresholds: Probability from which each label is given, in place of the recipe's; None to keep those.
    """
    if thresholds is None:
        return data.head
    return make_head(data.head.task, data.labels, recipe.answer.model_copy(update={"thresholds": thresholds}))


def pooling_for(recipe: Recipe, folder: ModelFolder) -> Pooling:
    """Return how a model's token states become a text vector.

    What the recipe says counts, else for feature extraction what the model folder says, else the default.

    Raises:
        InputError: If the model's layers do not fit the pooling, or vectors cannot be cut to the recipe's `answer.dimensions`.
    """
    own = (
        read_pooling(folder.path) or DEFAULT_POOLING if recipe.task is TaskName.FEATURE_EXTRACTION else DEFAULT_POOLING
    )
    kind, unit = recipe.answer.pooling, recipe.answer.normalize
    if kind is not None and own.kinds != (kind,):
        own = replace(own, kind=kind, further=())
    pooling = own if unit is None else replace(own, normalize=unit)
    if pooling.layers:
        check_width(
            pooling, read_model_config(folder).hidden_size, "answer.pooling" if kind is not None else str(folder.path)
        )
    lengths = recipe.answer.dimensions
    if lengths and recipe.task is TaskName.FEATURE_EXTRACTION:
        similarity = recipe.answer.similarity or read_similarity(folder.path)
        if similarity is Similarity.MANHATTAN and recipe.distill:
            what = "vectors compared by the Manhattan distance cannot be rotated so that they may be cut."
            raise InputError(
                Problem("answer.dimensions", what, "Leave it out, or set answer.similarity to another one.")
            )
        if lengths[-1] > (width := vector_width(pooling, read_model_config(folder).hidden_size)):
            what = f"{lengths[-1]} is more than the {width} numbers of a vector."
            raise InputError(Problem("answer.dimensions", what, f"Give numbers up to {width}."))
        pooling = replace(pooling, dimensions=tuple(lengths))
    return pooling


def student_width(recipe: Recipe, teacher: ModelFolder) -> int:
    """Return the width of the token states of a recipe's student. The teacher's folder gives it where the recipe does not."""
    section = recipe.student
    assert section is not None
    if section.model is not None:
        teacher = open_model_folder(section.model, section.revision, "student.model")
    return section.dimensions or section.hidden or int(read_model_config(teacher).hidden_size)


def map_teacher_vectors(trained: TrainedModel) -> TrainedModel:
    """Return a teacher with a layer behind its pooling that maps its vectors to what the student's are to be.

    With ``student.projection: drop`` they get the student's width: see `find_vector_map`. For lengths in `answer.dimensions` (Matryoshka)
    they are rotated so that their first numbers tell most: see `learn_rotation`. Both are learned from the vectors of
    up to 4,000 training rows. The teacher is returned as it is if neither is set, if no
    student is distilled, if there are no training rows, if the student learns from a column of answers and only starts
    from this model, and in all processes but the first.
    """
    recipe = trained.recipe
    is_taught = bool(recipe.distill) and recipe.column is None and "train" in trained.data.splits
    is_mapped = bool(trained.pooling.dimensions) or recipe.drops_projection
    if not is_mapped or not is_taught or not current_process().main:
        return trained
    task = trained.data.head.task
    predictor, tokenizer = trained.open()
    rows = trained.data.splits["train"].encoded[:_ROTATION_ROWS]
    vectors = join_texts(run_rows(predictor, tokenizer, rows, task, _BATCHING, "vectors"))
    width = vectors.shape[1]
    if recipe.drops_projection:
        width = vector_width(replace(trained.pooling, layers=()), student_width(recipe, trained.source))
        print_note(f"  the teacher's vectors of {vectors.shape[1]} numbers are mapped to the student's {width}")
    weight = find_vector_map([*vectors], width, trained.pooling, recipe.seed).astype(np.float32)
    return replace(trained, pooling=add_dense(trained.pooling, {"linear.weight": weight}))


def _read_column_vectors(trained: TrainedModel) -> Matrix:
    """Return the vectors that a column of answers holds for the eval rows, mapped to the student's width: [N, H]."""
    splits, settings = trained.data.splits, column_settings(trained.recipe, trained.data)
    own, training = (column_outputs(splits[name], settings)[SENTENCE_EMBEDDING] for name in (EVAL, "train"))
    hidden = trained.model.config.hidden_size
    return np.stack(fit_vectors(own, training, trained.pooling, hidden, trained.recipe.seed))


def _choose_scoring_batch(task: Task) -> int:
    """Return the batch size for scoring a torch model: 2 for fill-mask, whose logits span the vocabulary, else 64."""
    return 2 if task.name is TaskName.FILL_MASK else 64


def _read_teacher_vectors(teacher: Path) -> Matrix:
    """Read the teacher's text vectors of the eval rows, [N, H], from the teacher's folder."""
    vectors: Matrix = np.load(teacher / _VECTORS_FILE)
    return vectors


@dataclass(frozen=True)
class LabelledRows:
    """The labelled rows of a run that no weight was trained on: for scores, for the choice of files, and held out.

    Attributes:
        recipe: The recipe. Its `data.selection` divides the eval rows into those for scores and those that choose
            files.
        data: The run's rows.
        run: The run folder, with the teacher.
        length: Longest input in tokens.
    """

    recipe: Recipe
    data: RunData
    run: Path
    length: int

    def named(self, name: str, weights: Path) -> EvalSet | None:
        """Return the labelled rows of one purpose, tokenized for a model, with the model's head and thresholds.

        Args:
            name: ``eval`` for rows that decide the score and are used for no choice; ``selection`` for the evaluation
                rows that choose files inside a budget; ``holdout`` for rows held out of training.
            weights: Folder of the model, with its tokenizer.

        Returns:
            The rows; None if the recipe has no such rows, or none with labels. Eval rows of feature extraction without
            scores get the teacher's vectors as labels.

        Raises:
            InputError: If `data.selection` leaves no row for one of the two parts of the evaluation rows.
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
            folder = weights if self.recipe.column is not None else self.run / "teacher"
            rows = replace(rows, truth=_read_teacher_vectors(folder)[chosen])
        return EvalSet(name, head, rows)

    def count(self, name: str) -> int:
        """Return the number of rows that `named` returns for a name, without tokenizing them; 0 if it returns None."""
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        if split is None or (name == HOLDOUT and not len(split.truth)):
            return 0
        return len(self._row_numbers(name, split.examples))

    def _row_numbers(self, name: str, examples: Sequence[Example]) -> list[int]:
        """Return the indices of the rows of a split that belong to one purpose.

        `data.selection` is the share of the evaluation rows that are for ``selection``; if it is not set, all are for
        ``eval``.

        Args:
            name: The purpose: ``eval``, ``selection`` or ``holdout``.
            examples: All rows of the holdout split for ``holdout``, else all rows of the eval split.

        Raises:
            InputError: If `data.selection` is set, and so few rows are given that ``eval`` or ``selection`` would get
                none.
        """
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
        """Score a torch model of the run, from its folder `weights`, on the rows called `name`; None if there are no such rows.

        If the teacher is a column of answers, its score is that of the answers, or None if they cannot be scored. If the evaluation rows are divided, the files of the run are compared with this score, since ``training.json``
        has the score on all of them.
        """
        rows = self.named(name, weights)
        if rows is None:
            return None
        recipe, is_teacher = self.recipe, weights.name == "teacher"
        if is_teacher and not recipe.asks_model:
            return _score_column(recipe, self.data, rows.rows)
        task = self.data.head.task
        predictor = load_reference_model(open_model_folder(str(weights)), task)
        tokenizer, label = TextTokenizer(weights, self.length), f"{weights.name} in torch on {name}"
        score, _ = evaluate(predictor, tokenizer, rows, _choose_scoring_batch(task), label)
        return _score_column(recipe, self.data, rows.rows, score) if is_teacher and recipe.head_columns else score
