"""Read the rows of a run: labelled, tokenized and reported on before anything is trained.

`load_data` returns `RunData` with the splits train, eval and holdout. `check_files`, `check_head`, `check_threshold` and `check_before_run` find
mistakes of a recipe before that, without reading all rows. `max_length` returns the longest input of a run, `calibration_rows` the rows
on which static schemes measure ranges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.cells import iob2_tags
from pocketbert.core.data.examples import Example, drop_duplicates_of, hold_out, hold_out_share, read_examples
from pocketbert.core.data.files import check_source, guess_table_form, read_class_names
from pocketbert.core.data.labels import Labels, are_placeholder_names, resolve_labels
from pocketbert.core.data.source import DataSource
from pocketbert.core.data_report import (
    LANGUAGE_ROWS,
    DataReport,
    SplitReport,
    note_similar_labels,
    split_report,
    warn_about_language,
    warn_about_majority,
)
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.heads import Head, Prepared, make_head
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import DEMO_TEACHER, ModelFolder, list_weight_names
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.scores import LEAST_FIT_ROWS
from pocketbert.core.predict.sentence_settings import read_similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import CorpusSource, DataSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName, task_of
from pocketbert.pipeline.learn.corpora import is_prepared
from pocketbert.pipeline.reference import open_teacher, task_text

CALIBRATION_ROWS = 300
"""Rows on which ranges of static int8 are measured."""
_USUAL_LENGTH = 128
_LENGTH_WITH_CONTEXT = 384
"""Longest input if a context is read with a question (Devlin et al. 2019, section 4.2 and its code)."""
_HEAD_WEIGHTS = re.compile(
    r"classifier|score|qa_outputs|logits|(^|\.)cls\.|head|predictions|vocab|summary|start_|end_|answer"
)
"""Names of the weights of heads in the classes of transformers."""


@dataclass(frozen=True)
class RunData:
    """The tokenized rows of a run by split, with its labels, its task head and the report on the data.

    Attributes:
        head: The task, with the label order of data, teacher, student and files.
        labels: The labels in that order.
        splits: Tokenized rows by name of the split; empty without data.
        report: Report on the rows; None without data.
        pair: Whether rows are pairs.
        selection: Rows that chose the files inside a budget: confidence is fitted on them, scores are not measured.
    """

    head: Head
    labels: Labels
    splits: dict[str, Prepared]
    report: DataReport | None
    pair: bool = False
    selection: Sequence[EvalSet] = ()

    def read_by(self, tokenizer: TextTokenizer, *names: str) -> RunData:
        """Return a copy with the splits in `names` (default all) tokenized by another tokenizer; others are dropped."""
        task = self.head.task
        splits = {
            name: self.head.prepare(split.examples, tokenizer, name, labelled=is_labelled(task, name))
            for name, split in self.splits.items()
            if not names or name in names
        }
        return replace(self, splits=splits)

    def texts(self, rows: int, tokenizer: TextTokenizer) -> list[Text]:
        """Return up to `rows` eval texts or text pairs as the task's input; an empty list without eval data."""
        return self._texts("eval", rows, tokenizer) if "eval" in self.splits else []

    def calibration(self, tokenizer: TextTokenizer) -> list[Encoded]:
        """Return up to `CALIBRATION_ROWS` tokenized training rows on which activation ranges are measured."""
        if self.head.task.name is TaskName.FILL_MASK:
            return tokenizer.encode(self._texts("train", CALIBRATION_ROWS, tokenizer))
        split = self.splits["train"]
        rows = split.rows_of()  # several for one example: windows of a context, both texts of a scored pair
        chosen = sorted(range(len(split.examples)), key=lambda i: split.examples[i].digest)
        return [split.encoded[r] for i in chosen[:CALIBRATION_ROWS] for r in rows[i]][:CALIBRATION_ROWS]

    def _texts(self, split: str, rows: int, tokenizer: TextTokenizer) -> list[Text]:
        """Return up to `rows` texts of a split, those with the smallest hashes, so that file order does not matter."""
        chosen = sorted(self.splits[split].examples, key=lambda e: e.digest)[:rows]
        return [task_text(self.head.task, e.input, tokenizer) for e in chosen]


def calibration_rows(recipe: Recipe, data: RunData, tokenizer: TextTokenizer) -> list[Encoded]:
    """Return the training rows on which activation ranges are measured, tokenized as the exported model reads them.

    `data` is tokenized by the teacher's tokenizer; `tokenizer` is used only if the student's vocabulary is pruned.
    """
    own_vocabulary = recipe.student is not None and recipe.student.vocabulary is not None
    return (data.read_by(tokenizer, "train") if own_vocabulary else data).calibration(tokenizer)


def max_length(section: DataSection, model: ModelFolder, task: Task) -> int:
    """Return the maximum input length of a run in tokens: the recipe's, else a default within the model's limits.

    Raises:
        InputError: If the recipe sets more than the model's position table has.
    """
    length = section.max_length
    if length is None:
        usual = _LENGTH_WITH_CONTEXT if task.labels is LabelKind.ANSWERS else _USUAL_LENGTH
        length = usual if section.train or section.eval else model.positions
        return min(length, model.positions, model.tokenizer_length)
    if length > model.positions:
        what = f"{length} tokens, '{model.title}' takes at most {model.positions}."
        fix = f"Set data.max_length to {model.positions} or less."
        raise InputError(Problem("data.max_length", what, fix))
    return length


# --- reading ---


def load_data(recipe: Recipe, model: ModelFolder) -> RunData:
    """Read and tokenize all rows of a recipe, resolve the label order, and return both with a report on the data.

    Args:
        recipe: The recipe.
        model: The teacher, for the tokenizer and, if it has a trained head, for its labels.

    Raises:
        InputError: Listing the problems of all files.
    """
    section, task = recipe.data, _resolve_task(recipe, model)
    head_labels = None if recipe.teacher.finetune or not task.names_labels else model.labels
    if section.train is None and section.eval is None:
        return _make_data_without_rows(recipe, model, head_labels)
    parts, leaked = _read_parts(section, recipe.task)
    notes = _note_missing_headers(section)
    named_source = section.train or section.eval
    declared = section.labels or (read_class_names(named_source) if named_source is not None else None)
    labels = resolve_labels(declared, head_labels, parts.get("train") or parts["eval"], task.labels)
    if labels.note:
        notes.append(labels.note)
    _check_thresholds(recipe, labels)
    if section.holdout:
        _check_threshold_rows(recipe, len(parts.get("holdout", [])), "Give more rows to data.train")
    answer = recipe.answer
    if recipe.task is TaskName.FEATURE_EXTRACTION and answer.similarity is None:
        answer = answer.model_copy(update={"similarity": read_similarity(model.path)})
    head = make_head(task, labels, answer)
    tokenizer = TextTokenizer(model.tokenizer_folder, max_length(section, model, task))
    splits, reports = {}, []
    for name, rows in parts.items():
        source = section.eval_source if name == "eval" else section.train
        assert source is not None
        splits[name] = head.prepare(rows, tokenizer, source.title, labelled=is_labelled(task, name))
        reports.append(split_report(name, Path(source.title).name, splits[name], labels, task.labels))
    _check_classes(reports, recipe)
    some = sorted(next(iter(parts.values())), key=lambda row: row.digest)[:LANGUAGE_ROWS]
    if note := warn_about_language([row.text for row in some], tokenizer):
        notes.append(note)
    notes += [n for r in reports if (n := warn_about_majority(r, task.labels))] + note_similar_labels(reports[0])
    report = DataReport(max_length=tokenizer.max_length, splits=reports, train_in_eval=leaked, notes=notes)
    pair = any(e.pair is not None for e in parts["eval"]) if "eval" in parts else False
    return RunData(head, labels, splits, report, pair and task.labels is not LabelKind.SCORE_OR_NONE)


def _read_parts(section: DataSection, task: TaskName) -> tuple[dict[str, list[Example]], int]:
    """Read the labelled rows and divide them into train, eval and holdout, without rows in common.

    Returns:
        The rows of each part that has any, and the number of training rows that were dropped because they are in eval.

    Raises:
        InputError: If no row is left to train on or to score on.
    """
    raw = _read_sources(section, task)
    if section.eval is not None and section.eval.fraction is not None:
        raw["train"], raw["eval"] = _divide(raw["train"], section.eval.fraction)
    train, held = hold_out(raw.get("train", []), section.holdout)
    train, leaked = drop_duplicates_of(train, raw.get("eval", []))
    held, _ = drop_duplicates_of(held, raw.get("eval", []))
    if section.train is not None and not train:
        what = f"no training row is left: {leaked:,} also occur in eval and {len(held):,} are held out."
        fix = "Give other rows to data.train or data.eval, or a smaller data.holdout."
        raise InputError(Problem("data.train", what, fix))
    parts = {"train": train, "eval": raw.get("eval", []), "holdout": held}
    return {name: rows for name, rows in parts.items() if rows}, leaked


def _read_sources(section: DataSection, task: TaskName) -> dict[str, list[Example]]:
    """Read the rows of `data.train` and `data.eval`, by name; a source with neither file nor data set is left out.

    Raises:
        InputError: Listing the problems of both.
    """
    rows: dict[str, list[Example]] = {}
    problems: list[Problem] = []
    sources: Sequence[tuple[str, DataSource | None]] = (("train", section.train), ("eval", section.eval))
    for name, source in sources:
        if source is None or (source.path is None and source.dataset is None):
            continue
        try:
            rows[name] = read_examples(source, kind=task_of(task).labels)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return rows


def _divide(rows: list[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Divide rows into training rows and a fraction of evaluation rows; return both lists.

    Raises:
        InputError: If no row is left to score on.
    """
    train, held = hold_out_share(rows, fraction)
    if not held:
        what = f"{fraction:g} of {len(rows):,} training rows leaves no row to score on; rows whose label no other row has are trained on."
        fix = "Give more rows, a larger fraction, or a file of other rows: data.eval.path=dev.csv."
        raise InputError(Problem("data.eval.fraction", what, fix))
    return train, held


def _note_missing_headers(section: DataSection) -> list[str]:
    """Return a note for each table in which no header was found and whose source does not set `header`."""
    sources = [s for s in (section.train, section.eval) if s is not None and s.path is not None and s.header is None]
    forms = [(Path(source.title).name, guess_table_form(source)) for source in sources]
    return [
        f"{name}: no header was found, the first row is data (header: true in its source, if it names the columns)"
        for name, form in forms
        if form is not None and not form.header
    ]


def _make_data_without_rows(recipe: Recipe, model: ModelFolder, head_labels: list[str] | None) -> RunData:
    """Return the run data of a recipe without rows: no splits, and the labels that the recipe or the model names.

    Raises:
        InputError: If the task has labels and neither names them.
    """
    section, task = recipe.data, _resolve_task(recipe, model)
    if task.names_labels and not head_labels and not section.labels:
        what = "config.json names no labels (id2label) and there is no data."
        fix = "Add id2label to config.json, or data.labels to the recipe."
        raise InputError(Problem(str(model.path), what, fix))
    names = tuple(section.labels or head_labels or ()) if task.names_labels else ()
    if not section.labels and names and are_placeholder_names(names):
        print_note(
            f"{model.title}: its labels are called {names[0]} to {names[-1]}, which say nothing; --labels names them"
        )
    as_tags = task.labels is LabelKind.SPANS and set(names) != set(
        head_labels or ()
    )  # a model's labels are tags already
    labels = Labels(iob2_tags(names) if as_tags else names)
    return RunData(make_head(task, labels, recipe.answer), labels, {}, None, task.labels is LabelKind.ANSWERS)


def _resolve_task(recipe: Recipe, model: ModelFolder) -> Task:
    """Return the recipe's task; unless a new head is fine-tuned, its score function is that of the teacher's head."""
    return task_of(recipe.task) if recipe.teacher.finetune else model.task_row(recipe.task)


def is_labelled(task: Task, split: str) -> bool:
    """Return whether rows of a split need labels: training rows of fill-mask and feature extraction do not."""
    return split != "train" or task.labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)


def _check_thresholds(recipe: Recipe, labels: Labels) -> None:
    """Raise if the recipe lists another number of thresholds than there are labels."""
    thresholds = recipe.answer.thresholds
    if isinstance(thresholds, list) and len(thresholds) != len(labels):
        what = f"lists {len(thresholds)} thresholds for {len(labels)} labels."
        fix = "Give one per label, in the order of data.labels, or a single number."
        raise InputError(Problem("answer.thresholds", what, fix))


def _check_classes(reports: Sequence[SplitReport], recipe: Recipe) -> None:
    """Raise if a teacher is to be fine-tuned and a label has no training row."""
    train = next((r for r in reports if r.name == "train"), None)
    if train is None or not recipe.teacher.finetune:
        return
    if empty := [name for name, rows in train.labels.items() if not rows]:
        what = f"no training row has the label {', '.join(empty[:10])}."
        fix = "Add rows, or remove the label from data.labels."
        raise InputError(Problem("data.train", what, fix))


# --- checks before the rows are read ---


def check_threshold(recipe: Recipe, data: RunData | None) -> None:
    """Raise if an "unknown" threshold is to be fitted on too few held-out rows; `data` are the rows, if already read.

    Raises:
        InputError: If there are fewer than `LEAST_FIT_ROWS`.
    """
    if data is not None and data.selection:
        rows = sum(len(selection.rows.truth) for selection in data.selection)
        _check_threshold_rows(recipe, rows, "Give more rows to data.eval")
    else:
        _check_threshold_rows(recipe, recipe.data.holdout, "Set data.holdout to 500 or more in a recipe")


def _check_threshold_rows(recipe: Recipe, rows: int, fix: str) -> None:
    """Raise if an "unknown" threshold is to be fitted on fewer than `LEAST_FIT_ROWS` rows, with `fix` as advice."""
    if recipe.answer.unknown_accuracy is None or rows >= LEAST_FIT_ROWS:
        return
    what = f"a threshold is fitted on held-out rows, of which there are {rows}; at least {LEAST_FIT_ROWS} are needed."
    fix = f"{fix}, or give the threshold itself: answer.unknown=0.7"
    raise InputError(Problem("answer.unknown.accuracy", what, fix))


def check_files(section: DataSection) -> None:
    """Raise if a data or corpus file does not exist, is no regular file or has an unknown format; no file is read.

    Raises:
        InputError: Naming every one.
    """
    sources: dict[str, DataSource | None] = {"train": section.train, "eval": section.eval}
    sources |= {f"corpus.sources.{i}": s for i, s in enumerate(section.corpus.sources if section.corpus else [])}
    problems = []
    for key, source in sources.items():
        if source is None or (isinstance(source, CorpusSource) and is_prepared(source)):
            continue
        try:
            check_source(source)
        except InputError as error:
            problems += [Problem(f"data.{key}.path", f"{p.where}: {p.what}", p.fix) for p in error.problems]
    if problems:
        raise InputError(problems)


def check_head(recipe: Recipe, model: ModelFolder) -> None:
    """Raise if the teacher's weights have no trained head for the task and the recipe does not fine-tune one.

    Raises:
        InputError: If it is one.
    """
    if recipe.teacher.finetune is not None or recipe.task is TaskName.FEATURE_EXTRACTION:
        return
    if recipe.distill and all(stage.general for stage in recipe.distill):
        return
    is_encoder = str((model.config.get("architectures") or [""])[0]).endswith("Model")
    if is_encoder and not any(_HEAD_WEIGHTS.search(name) for name in list_weight_names(model.path)):
        what = f"'{model.title}' has no trained head for {recipe.task}, and the recipe does not train one."
        fix = "Add it to teacher, e.g. finetune: {epochs: 4, batch: 48, lr: 3.0e-4}; or name a fine-tuned model."
        raise InputError(Problem("teacher.finetune", what, fix))


def has_local_rows(section: DataSection) -> bool:
    """Return whether the recipe names train or eval rows and all are in local files, not on the Hub."""
    sources: list[DataSource] = [s for s in (section.train, section.eval_source) if s is not None]
    return bool(sources) and all(s.path is not None for s in sources)


def check_before_run(recipe: Recipe) -> None:
    """Check the local files, teacher and rows of a recipe as a run does before training; download nothing.

    Raises:
        InputError: Listing the problems.
    """
    check_files(recipe.data)
    model = _local_teacher(recipe)
    if model is not None:
        check_head(recipe, model)
    if not has_local_rows(recipe.data):
        return
    if model is None:
        _read_sources(recipe.data, recipe.task)
    else:
        load_data(recipe, model)


def _local_teacher(recipe: Recipe) -> ModelFolder | None:
    """Open the model that a recipe starts from, if it is a local folder or an installed package; None otherwise."""
    name = recipe.teacher.model
    if name != DEMO_TEACHER and name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return None  # a name on the Hub: a path of a folder is absolute in a loaded recipe
    try:
        return open_teacher(recipe)
    except MissingBackendError:
        return None
