"""Diagnose the student of a run: ask it and its teacher about rows that neither was trained on, and about training rows.

`diagnose_run` does so for a finished run folder, or returns what the run has recorded; `write_diagnosis` records it next to the
student's weights as the run scores them. Nothing is downloaded, and a finished folder is not changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.diagnosis import ComparedAnswers, StudentDiagnosis, diagnose_answers
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Batching, Matrix, run_rows
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind
from pocketbert.pipeline.learn.data import RunData, load_data, max_length
from pocketbert.pipeline.learn.finishing import EVAL, head_with, read_training
from pocketbert.pipeline.reference import load_reference_model, open_teacher

_FILE = "diagnosis.json"
_RECIPE_FILE = "recipe.resolved.yaml"
_MOST_UNSEEN, _MOST_SEEN = 2000, 500
"""Rows that both models are asked about, the first ones by hash."""
_BATCH = 64
_RISING = 0.005
"""Least gain of the last score on validation rows over the best one before from which more steps are advised."""


def diagnose_run(run: Path, rows: int | None = None) -> StudentDiagnosis:
    """Compare the student of a finished run with its teacher; see `pocketbert.api.diagnose`.

    Both models answer evaluation rows, which neither was trained on, and up to 500 training rows.

    Args:
        run: The run folder.
        rows: Largest number of evaluation rows that both models answer. None returns the diagnosis that the
            run has recorded, or compares the models on up to 2,000 rows if it has recorded none.

    Returns:
        The diagnosis.

    Raises:
        InputError: If `rows` is less than 1, if `run` has no recipe, teacher or student, its teacher is a column of answers instead of
            a model, its models have several heads, or there are no labelled evaluation and training rows.
    """
    if rows is not None and rows < 1:
        what = f"{rows} is no number of rows to answer; allowed: 1 or more."
        raise InputError(Problem("rows", what, "Leave it out for what the run has recorded."))
    missing = [name for name in (_RECIPE_FILE, "teacher", "student") if not (run / name).exists()]
    if missing:
        what = f"has no {', '.join(missing)}: a diagnosis compares the student of a run with its teacher."
        raise InputError(
            Problem(str(run), what, "Name the folder of a run that trained a student: pocketbert run -o FOLDER")
        )
    if rows is None and (recorded := read_diagnosis(run)) is not None:
        return recorded
    recipe = load_recipe(run / _RECIPE_FILE)
    if recipe.column is not None:
        what = "its teacher is a column of answers (data.train.teacher), which says nothing about unseen rows."
        raise InputError(Problem(str(run), what, "Diagnose a run whose teacher is a model."))
    if recipe.tasks is not None:
        what = "its models have several heads; a diagnosis is of one."
        raise InputError(Problem(str(run), what, "See the scores of each head in the report of the run."))
    model = open_teacher(recipe)
    data = load_data(recipe, model)
    length = max_length(recipe.data, model, data.head.task)
    diagnosis = _diagnose(recipe, data, run / "teacher", run / "student", length, rows or _MOST_UNSEEN)
    if diagnosis is None:
        what = "the recipe has no labelled rows in data.eval and data.train, on which student and teacher could be compared."
        raise InputError(Problem(str(run), what))
    return diagnosis


def read_diagnosis(run: Path) -> StudentDiagnosis | None:
    """Read the diagnosis that a run has recorded; None if it has none."""
    path = run / "student" / _FILE
    return StudentDiagnosis.model_validate(read_json(path)) if path.is_file() else None


def write_diagnosis(recipe: Recipe, data: RunData, teacher: Path, student: Path, length: int) -> None:
    """Compare a student with its teacher, write the diagnosis next to the student, and print its first advice.

    Nothing is written if eval or training rows have no labels, if the models have several heads, or if the teacher is a
    column of answers.
    """
    diagnosis = _diagnose(recipe, data, teacher, student, length, _MOST_UNSEEN)
    if diagnosis is None:
        return
    write_json(student / _FILE, json.loads(diagnosis.model_dump_json()))
    for advice in diagnosis.advice[:1]:
        print_note(f"  diagnosis: {advice.figure}: {advice.what} ({advice.key})")


def _diagnose(
    recipe: Recipe, data: RunData, teacher: Path, student: Path, length: int, most: int
) -> StudentDiagnosis | None:
    """Let student and teacher answer eval rows and up to 500 training rows, and compare their answers.

    Args:
        recipe: The recipe.
        data: The run's rows.
        teacher: Folder of the teacher.
        student: Folder of the student.
        length: Longest input in tokens.
        most: Most eval rows to ask about.

    Returns:
        The diagnosis; None if eval or training rows have no labels, if the models have several heads, or if a column of answers is
        the teacher, since no model can be asked about unseen rows then.
    """
    if recipe.column is not None or recipe.tasks is not None:
        return None
    eval_rows, train_rows = data.splits.get(EVAL), data.splits.get("train")
    if eval_rows is None or not len(eval_rows.truth) or train_rows is None or not len(train_rows.truth):
        return None
    head = head_with(recipe, data, read_training(student).thresholds)
    chosen = [(eval_rows, most), (train_rows, _MOST_SEEN)]
    asked = [rows.only(sorted(rows.first_by_hash(count))) for rows, count in chosen]
    answers = [_ask_both(head, rows, teacher, student, length) for rows in asked]
    tokenizer = TextTokenizer(teacher, length)
    ids = np.concatenate([e.ids for e in train_rows.encoded])
    pieces = np.bincount(ids, minlength=tokenizer.vocabulary_size)
    return diagnose_answers(head, data.labels.names, answers[0], answers[1], pieces, _describe_stage(recipe, student))


def _ask_both(head: Head, rows: Prepared, teacher: Path, student: Path, length: int) -> ComparedAnswers:
    """Run teacher and student on rows, each with its own tokenizer, and return the answers of both.

    For tasks with one label, tags or answers in a context, the result also holds the teacher's confidence in each answer.
    """
    asked: list[tuple[Prepared, list[Matrix], NDArray[np.floating]]] = []
    for folder in (teacher, student):
        opened = open_model_folder(str(folder))
        tokenizer = TextTokenizer(folder, length, padding_side=opened.family.padding_side)
        prepared = head.prepare(rows.examples, tokenizer, folder.name)
        confidence = np.ones(len(prepared.encoded))

        def keep(i: int, matrix: Matrix, own: Prepared = prepared, sure: NDArray[np.floating] = confidence) -> Matrix:
            """Return what the score needs of a row's output, and store how sure the model is."""
            reduced = head.reduce(i, matrix, own)
            sure[i] = _confidence(head, matrix, reduced)
            return reduced

        predictor = load_reference_model(opened, head.task)
        outputs = run_rows(
            predictor,
            tokenizer,
            prepared.encoded,
            head.task,
            Batching(_BATCH, 0.1),
            f"diagnose {folder.name}",
            reduce=keep,
        )
        asked.append((prepared, outputs, confidence))
    (theirs, taught, sure), (ours, given, _) = asked
    has_confidence = head.task.labels in (LabelKind.NAME, LabelKind.SPANS, LabelKind.ANSWERS)
    by_example = np.array([sure[own].min() for own in theirs.rows_of()]) if has_confidence else np.empty(0)
    return ComparedAnswers(theirs, ours, taught, given, by_example)


def _confidence(head: Head, matrix: Matrix, reduced: Matrix) -> float:
    """Return how sure a model is of its answer to a row, as a probability.

    It is the probability of the predicted label. If tokens have labels, it is that of the least sure token, and for an
    answer in a context that of the answer's span. For other tasks it is 1.

    Args:
        head: The task's head.
        matrix: The model's output for the row.
        reduced: What the head keeps of that output to score it.
    """
    if head.task.labels is LabelKind.ANSWERS:
        return float(reduced[0, 3])
    if head.task.labels in (LabelKind.NAME, LabelKind.SPANS):
        return float(apply_score_function(matrix, head.task.score).max(-1).min())
    return 1.0


def _describe_stage(recipe: Recipe, student: Path) -> dict[str, str]:
    """Return the recipe key of the last stage and, if its score was still rising at its end, a text on how much.

    The keys of the result are ``stage`` and ``rising``; see `diagnose_answers`.
    """
    facts = {"stage": f"distill.{max(len(recipe.distill) - 1, 0)}"}
    curves = read_training(student).curves
    if curves and len(curves[-1].scores) > 2 and curves[-1].best_step == curves[-1].steps[-1]:
        *before, (step, last) = curves[-1].scores
        best = max(score for _, score in before)
        if last - best > _RISING:
            facts["rising"] = f"{curves[-1].metric} {best:.4f} at best before, {last:.4f} at the last step, {step:,}"
    return facts
