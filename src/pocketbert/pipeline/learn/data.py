"""The data of a run: read, labelled, tokenized and reported on before the first step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.cells import tags_of
from pocketbert.core.data.examples import Example, hold_out, hold_out_share, read_examples, without
from pocketbert.core.data.files import check_source, class_names, table_form
from pocketbert.core.data.labels import Labels, placeholder_names, resolve_labels
from pocketbert.core.data.source import DataSource
from pocketbert.core.data_report import (
    LANGUAGE_ROWS,
    DataReport,
    SplitReport,
    language_note,
    majority_note,
    split_report,
    twin_notes,
)
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.heads import AnswerSettings, Head, Prepared, head_of
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import DEMO_TEACHER, ModelFolder, weight_names
from pocketbert.core.predict.scores import LEAST_ROWS
from pocketbert.core.predict.sentence_settings import similarity_of
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.recipe.data import CorpusSource, DataSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName, task_of
from pocketbert.pipeline.learn.corpora import is_prepared
from pocketbert.pipeline.reference import open_teacher, task_text

DEFAULT_LENGTH = 128
CALIBRATION_ROWS = 300
"""Rows that ranges of static int8 are measured on."""
LONG = 384
"""Where a context is read beside a question (Devlin et al. 2019, section 4.2 and its code)."""


@dataclass(frozen=True)
class RunData:
    """All data of a run.

    Attributes:
        head: The task, with the label order of data, teacher, student and files.
        labels: That order.
        splits: Tokenized rows by name; empty without data.
        report: What is in them; None without data.
        pair: Whether rows are pairs.
        selection: Rows that chose the files inside a budget: confidences are fitted on them, scores are not measured.
    """

    head: Head
    labels: Labels
    splits: dict[str, Prepared]
    report: DataReport | None
    pair: bool = False
    selection: Sequence[EvalSet] = ()

    def read_by(self, tokenizer: TextTokenizer, *names: str) -> RunData:
        """Return the same rows as another tokenizer reads them.

        Args:
            tokenizer: The tokenizer.
            *names: Which splits; all by default.
        """
        task = self.head.task
        splits = {
            name: self.head.prepare(split.examples, tokenizer, name, labelled=is_labelled(task, name))
            for name, split in self.splits.items()
            if not names or name in names
        }
        return replace(self, splits=splits)

    def texts(self, rows: int, tokenizer: TextTokenizer) -> list[Text]:
        """Some eval texts as the task takes them, chosen by hash so that the file's order does not matter."""
        if "eval" not in self.splits:
            return []
        return self._texts("eval", rows, tokenizer)

    def calibration(self, tokenizer: TextTokenizer) -> list[Encoded]:
        """Training rows to measure ranges on, as the model reads them; no evaluation row is among them."""
        if self.head.task.name is TaskName.FILL_MASK:
            return tokenizer.encode(self._texts("train", CALIBRATION_ROWS, tokenizer))
        split = self.splits["train"]
        rows = split.rows_of()  # several for one example: windows of a context, both texts of a scored pair
        chosen = sorted(range(len(split.examples)), key=lambda i: split.examples[i].digest)
        return [split.encoded[r] for i in chosen[:CALIBRATION_ROWS] for r in rows[i]][:CALIBRATION_ROWS]

    def _texts(self, split: str, rows: int, tokenizer: TextTokenizer) -> list[Text]:
        chosen = sorted(self.splits[split].examples, key=lambda e: e.digest)[:rows]
        return [task_text(self.head.task, e.input, tokenizer) for e in chosen]


def calibration_rows(recipe: Recipe, data: RunData, tokenizer: TextTokenizer) -> list[Encoded]:
    """Return the training rows that ranges are measured on, in the pieces that the exported model reads.

    Args:
        recipe: What was done: the student may have a vocabulary that is not the teacher's.
        data: Its data, as the teacher reads them.
        tokenizer: The exported model's tokenizer.
    """
    own = recipe.student is not None and recipe.student.vocabulary is not None
    return (data.read_by(tokenizer, "train") if own else data).calibration(tokenizer)


def check_files(section: DataSection) -> None:
    """Refuse the data files of a recipe that are not there, are no regular files or of an unknown kind; none is read.

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


def max_length(section: DataSection, model: ModelFolder, task: Task) -> int:
    """Longest input of a run in tokens.

    Raises:
        InputError: If the recipe asks for more than the model's position table has.
    """
    wanted = section.max_length
    if wanted is None:
        usual = LONG if task.labels is LabelKind.ANSWERS else DEFAULT_LENGTH
        wanted = usual if section.train or section.eval else model.positions
        return min(wanted, model.positions, model.tokenizer_length)
    if wanted > model.positions:
        raise InputError(
            Problem(
                "data.max_length",
                f"{wanted} tokens, '{model.title}' takes at most {model.positions}.",
                f"Set data.max_length to {model.positions} or less.",
            )
        )
    return wanted


def load_data(recipe: Recipe, model: ModelFolder) -> RunData:
    """Read all splits of a recipe.

    Args:
        recipe: What to read.
        model: The teacher; gives the tokenizer and, when it has a head, its labels.

    Returns:
        Labels, splits and report.

    Raises:
        InputError: Listing the problems of all files.
    """
    section, task = recipe.data, task_for(recipe, model)
    theirs = None if recipe.teacher.finetune or not task.names_labels else model.labels
    if section.train is None and section.eval is None:
        return _no_rows(recipe, model, theirs)
    raw = read_splits(section, recipe.task)
    notes = _header_notes(section)
    if section.eval is not None and section.eval.fraction is not None:
        raw["train"], raw["eval"] = _divided(raw["train"], section.eval.fraction)
    train, held = hold_out(raw.get("train", []), section.holdout)
    train, leaked = without(train, raw.get("eval", []))
    held, _ = without(held, raw.get("eval", []))
    if section.train is not None and not train:
        raise InputError(
            Problem(
                "data.train",
                f"no training row is left: {leaked:,} also occur in eval and {len(held):,} are held out.",
                "Give other rows to data.train or data.eval, or a smaller data.holdout.",
            )
        )
    parts = {"train": train, "eval": raw.get("eval", []), "holdout": held}
    parts = {name: rows for name, rows in parts.items() if rows}
    declared = section.labels or _named(section)
    labels = resolve_labels(declared, theirs, parts.get("train") or parts["eval"], task.labels)
    if labels.note:
        notes.append(labels.note)
    check_settings(recipe, labels)
    if section.holdout:
        _check_rows(recipe, len(held), "Give more rows to data.train")
    head = head_of(task, labels, _answer_settings(recipe, model))
    tokenizer = TextTokenizer(model.tokenizer_folder, max_length(section, model, task))
    splits, reports = {}, []
    for name, rows in parts.items():
        source = section.eval_source if name == "eval" else section.train
        assert source is not None
        splits[name] = head.prepare(rows, tokenizer, source.title, labelled=is_labelled(task, name))
        reports.append(split_report(name, Path(source.title).name, splits[name], labels, task.labels))
    _check_classes(reports, recipe)
    some = sorted(next(iter(parts.values())), key=lambda row: row.digest)[:LANGUAGE_ROWS]
    if note := language_note([row.text for row in some], tokenizer):
        notes.append(note)
    notes += [n for r in reports if (n := majority_note(r, task.labels))] + twin_notes(reports[0])
    report = DataReport(max_length=tokenizer.max_length, splits=reports, train_in_eval=leaked, notes=notes)
    pair = any(e.pair is not None for e in parts["eval"]) if "eval" in parts else False
    return RunData(head, labels, splits, report, pair and task.labels is not LabelKind.SCORE_OR_NONE)


def _no_rows(recipe: Recipe, model: ModelFolder, theirs: list[str] | None) -> RunData:
    """What is known without data: the labels that the recipe or the model names."""
    section, task = recipe.data, task_for(recipe, model)
    if task.names_labels and not theirs and not section.labels:
        raise InputError(
            Problem(
                str(model.path),
                "config.json names no labels (id2label) and there is no data.",
                "Add id2label to config.json, or data.labels to the recipe.",
            )
        )
    names = tuple(section.labels or theirs or ()) if task.names_labels else ()
    if not section.labels and names and placeholder_names(names):
        say(f"{model.title}: its labels are called {names[0]} to {names[-1]}, which say nothing; --labels names them")
    tagged = task.labels is LabelKind.SPANS and set(names) != set(theirs or ())  # a model's labels are tags already
    labels = Labels(tags_of(names) if tagged else names)
    return RunData(head_of(task, labels, recipe.answer), labels, {}, None, task.labels is LabelKind.ANSWERS)


def _answer_settings(recipe: Recipe, model: ModelFolder) -> AnswerSettings:
    """The settings of answers, with the similarity that the teacher's own files name where the recipe names none."""
    if recipe.task is not TaskName.FEATURE_EXTRACTION or recipe.answer.similarity is not None:
        return recipe.answer
    return recipe.answer.model_copy(update={"similarity": similarity_of(model.path)})


def task_for(recipe: Recipe, model: ModelFolder) -> Task:
    """Return the row of a recipe's task, with the score function that the teacher's own head has; a new head has the task's."""
    return task_of(recipe.task) if recipe.teacher.finetune else model.task_row(recipe.task)


def is_labelled(task: Task, split: str) -> bool:
    """Whether rows of a split get labels: fill-mask and vectors need only the text."""
    return split != "train" or task.labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)


def check_threshold(recipe: Recipe, data: RunData | None) -> None:
    """Refuse an "unknown" threshold that no rows are there to fit, before a row is read.

    Args:
        recipe: May ask for one.
        data: Its rows, where they were read already.

    Raises:
        InputError: If there are too few.
    """
    if data is not None and data.selection:
        _check_rows(recipe, sum(len(rows.rows.truth) for rows in data.selection), "Give more rows to data.eval")
    else:
        _check_rows(recipe, recipe.data.holdout, "Set data.holdout to 500 or more in a recipe")


def _check_rows(recipe: Recipe, rows: int, fix: str) -> None:
    if recipe.answer.unknown_accuracy is None or rows >= LEAST_ROWS:
        return
    what = f"a threshold is fitted on held-out rows, of which there are {rows}; at least {LEAST_ROWS} are needed."
    raise InputError(
        Problem("answer.unknown.accuracy", what, f"{fix}, or give the threshold itself: answer.unknown=0.7")
    )


def check_settings(recipe: Recipe, labels: Labels) -> None:
    """Refuse thresholds that do not fit the labels."""
    given = recipe.answer.thresholds
    if isinstance(given, list) and len(given) != len(labels):
        raise InputError(
            Problem(
                "answer.thresholds",
                f"lists {len(given)} thresholds for {len(labels)} labels.",
                "Give one per label, in the order of data.labels, or a single number.",
            )
        )


def _named(section: DataSection) -> list[str] | None:
    """Label names that a data set declares itself."""
    source = section.train or section.eval
    return class_names(source) if source is not None else None


def read_splits(section: DataSection, task: TaskName) -> dict[str, list[Example]]:
    """Read the rows of all files and data sets of a recipe.

    Args:
        section: Where from.
        task: What the label columns hold.

    Raises:
        InputError: Listing the problems of all of them.
    """
    kind = task_of(task).labels
    out: dict[str, list[Example]] = {}
    problems: list[Problem] = []
    sources: Sequence[tuple[str, DataSource | None]] = (("train", section.train), ("eval", section.eval))
    for name, source in sources:
        if source is None or (source.path is None and source.dataset is None):
            continue
        try:
            out[name] = read_examples(source, kind=kind)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return out


def _header_notes(section: DataSection) -> list[str]:
    """Name the files in which no header was found, for each file whose source does not decide that."""
    sources = [s for s in (section.train, section.eval) if s is not None and s.path is not None and s.header is None]
    forms = [(Path(source.title).name, table_form(source)) for source in sources]
    return [
        f"{name}: no header was found, the first row is data (header: true in its source, if it names the columns)"
        for name, form in forms
        if form is not None and not form.header
    ]


def _divided(rows: list[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Training rows and evaluation rows of one source.

    Raises:
        InputError: If no row is left to score on.
    """
    train, held = hold_out_share(rows, fraction)
    if not held:
        what = f"{fraction:g} of {len(rows):,} training rows leaves no row to score on"
        fix = "Give more rows, a larger fraction, or a file of other rows: data.eval.path=dev.csv."
        raise InputError(
            Problem("data.eval.fraction", f"{what}; rows whose label no other row has are trained on.", fix)
        )
    return train, held


def _check_classes(reports: Sequence[SplitReport], recipe: Recipe) -> None:
    train = next((r for r in reports if r.name == "train"), None)
    if train is None or not (recipe.teacher.finetune or recipe.distill):
        return
    empty = [name for name, rows in train.labels.items() if not rows]
    if empty and recipe.teacher.finetune:
        raise InputError(
            Problem(
                "data.train",
                f"no training row has the label {', '.join(empty[:10])}.",
                "Add rows, or remove the label from data.labels.",
            )
        )


# --- first_look ---
# What a run would find in its first minute, found before it: a missing head, missing columns, labels that do not fit.


_HEAD = re.compile(r"classifier|score|qa_outputs|logits|(^|\.)cls\.|head|predictions|vocab|summary|start_|end_|answer")
"""Weights of heads, under the names that the systems' classes have for them."""


def look(recipe: Recipe) -> None:
    """Find what a run would find before it trains, as far as the files are here: nothing is loaded from the Hub.

    Raises:
        InputError: Listing the problems.
    """
    check_files(recipe.data)
    model = _local_teacher(recipe)
    if model is not None:
        check_head(recipe, model)
    if not is_local(recipe.data):
        return
    if model is None:
        read_splits(recipe.data, recipe.task)
    else:
        load_data(recipe, model)


def check_head(recipe: Recipe, model: ModelFolder) -> None:
    """Refuse a teacher without a trained head that is not fine-tuned, where its files are those of a bare encoder.

    Raises:
        InputError: If it is one.
    """
    if recipe.teacher.finetune is not None or recipe.task is TaskName.FEATURE_EXTRACTION:
        return
    if recipe.distill and all(stage.general for stage in recipe.distill):
        return
    bare = str((model.config.get("architectures") or [""])[0]).endswith("Model")
    if bare and not any(_HEAD.search(name) for name in weight_names(model.path)):
        raise InputError(
            Problem(
                "teacher.finetune",
                f"'{model.title}' has no trained head for {recipe.task}, and the recipe does not train one.",
                "Add it to teacher, e.g. finetune: {epochs: 4, batch: 48, lr: 3.0e-4}; or name a fine-tuned model.",
            )
        )


def is_local(section: DataSection) -> bool:
    """Whether a recipe has rows, and all of them are in files."""
    sources: list[DataSource] = [s for s in (section.train, section.eval_source) if s is not None]
    return bool(sources) and all(s.path is not None for s in sources)


def _local_teacher(recipe: Recipe) -> ModelFolder | None:
    """The model that a recipe starts from, where it is a folder or installed."""
    name = recipe.teacher.model
    if name != DEMO_TEACHER and name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return None  # a name on the Hub: a folder here has an absolute path by now
    try:
        return open_teacher(recipe)
    except MissingBackendError:
        return None
