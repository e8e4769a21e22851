"""Read the rows of a run: labelled, tokenized and reported on before anything is trained.

`load_data` returns `RunData` with the splits train, eval, holdout and validation. `check_files`, `check_head`, `check_threshold` and `check_before_run` find
mistakes of a recipe before a run; only the last of them reads the rows. `max_length` returns the longest input of a run, `calibration_rows` the rows
on which static schemes measure ranges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.files import check_source, read_class_names
from pocketbert.core.data.labels import Labels, are_placeholder_names, resolve_labels
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.unlabelled import PairDrawing, TransferCounts, read_transfer_rows
from pocketbert.core.data_report import (
    LANGUAGE_ROWS,
    DataReport,
    SplitReport,
    check_classes,
    note_missing_headers,
    note_similar_labels,
    split_report,
    warn_about_language,
    warn_about_majority,
)
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families.table import list_weight_names
from pocketbert.core.heads import Head, Prepared, make_head
from pocketbert.core.heads.several import check_head_rows, read_head_rows, resolve_head_labels
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import DEMO_TEACHER, NEXT_SENTENCE_HEAD, ModelFolder
from pocketbert.core.predict.examples import (
    Example,
    drop_duplicates_of,
    drop_overlapping,
    hold_out,
    hold_out_share,
)
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.scores import LEAST_FIT_ROWS
from pocketbert.core.predict.sentence_settings import read_similarity
from pocketbert.core.predict.spans import iob2_tags
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import CorpusSource, DataSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.pipeline.learn.answers import name_head_labels, name_labels
from pocketbert.pipeline.learn.corpora import is_prepared
from pocketbert.pipeline.learn.heads import add_head_answers, check_trained_heads
from pocketbert.pipeline.learn.validation import VALIDATION, add_validation, divide_by_own_label, with_column
from pocketbert.pipeline.reference import label_by_model, open_teacher, task_text

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
        head: The task's head, with the label order of data, teacher, student and files.
        labels: The labels in that order.
        splits: Tokenized rows by name of the split; empty without data.
        report: Report on the rows; None without data.
        pair: Whether the model reads pairs of texts.
        selection: Rows by which files inside a budget were chosen. Confidence is fitted on them, no score is measured.
        unlabelled: Training rows without a label that the teacher labels for the student.
        labelled: Whether the rows of the split ``train`` have gold labels.
        scores_agreement: Whether the labels of the evaluation rows are the teacher's answers.
    """

    head: Head
    labels: Labels
    splits: dict[str, Prepared]
    report: DataReport | None
    pair: bool = False
    selection: Sequence[EvalSet] = ()
    unlabelled: Sequence[Example] = ()
    labelled: bool = True
    scores_agreement: bool = False

    def needs_labels(self, split: str) -> bool:
        """Return whether labels are read from the rows of a split."""
        return is_labelled(self.head.task, split) and (self.labelled or split != "train")

    def with_head_answers(self, recipe: Recipe, teacher: Path) -> RunData:
        """Return a copy with the answers that models of the recipe's heads have stored in the teacher's folder."""
        return replace(self, splits=add_head_answers(recipe, self.splits, teacher))

    def read_by(self, tokenizer: TextTokenizer, *names: str) -> RunData:
        """Return a copy in which the rows of some splits are tokenized by another tokenizer.

        Args:
            tokenizer: The other tokenizer.
            names: Names of the splits to keep; the others are dropped. Without names all are kept.
        """
        splits = {
            name: self.head.prepare(split.examples, tokenizer, name, labelled=self.needs_labels(name))
            for name, split in self.splits.items()
            if not names or name in names
        }
        return replace(self, splits=splits)

    def texts(self, rows: int, tokenizer: TextTokenizer) -> list[Text]:
        """Return up to `rows` texts or text pairs of eval as inputs of the task; an empty list without eval data."""
        return self._texts("eval", rows, tokenizer) if "eval" in self.splits else []

    def calibration(self, tokenizer: TextTokenizer) -> list[Encoded]:
        """Return up to `CALIBRATION_ROWS` tokenized training rows, on which activation ranges are measured."""
        if self.head.task.name is TaskName.FILL_MASK:
            return tokenizer.encode(self._texts("train", CALIBRATION_ROWS, tokenizer))
        split = self.splits["train"]
        rows = split.rows_of()  # several for one example: windows of a context, both texts of a scored pair
        chosen = split.first_by_hash(CALIBRATION_ROWS)
        return [split.encoded[r] for i in chosen for r in rows[i]][:CALIBRATION_ROWS]

    def _texts(self, split: str, rows: int, tokenizer: TextTokenizer) -> list[Text]:
        """Return up to `rows` texts of a split: those with the smallest hashes, so that file order does not matter."""
        chosen = sorted(self.splits[split].examples, key=lambda e: e.digest)[:rows]
        return [task_text(self.head.task, e.input, tokenizer) for e in chosen]


def calibration_rows(recipe: Recipe, data: RunData, tokenizer: TextTokenizer) -> list[Encoded]:
    """Return the training rows on which activation ranges are measured, tokenized as the exported model reads them.

    Args:
        recipe: The recipe.
        data: The run's rows, tokenized by the teacher's tokenizer.
        tokenizer: The exported model's tokenizer. It is used only if it may be another one.
    """
    has_own = recipe.student is not None and (recipe.student.vocabulary or recipe.student.model) is not None
    return (data.read_by(tokenizer, "train") if has_own else data).calibration(tokenizer)


def max_length(section: DataSection, model: ModelFolder, task: Task) -> int:
    """Return the maximum input length of a run in tokens.

    It is what the recipe sets. Else it is 128 (384 for question answering) if there are rows, and without rows what the
    model's position table has, in both cases cut to what model and tokenizer take.

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
    """Read and tokenize all rows of a recipe, fix the order of its labels, and make a report on the data.

    If no row of eval, holdout or validation has a label, the teacher labels the rows of that split.

    Args:
        recipe: The recipe.
        model: The teacher. Its tokenizer is used and, if it has a trained head, its labels are.

    Raises:
        InputError: Listing the problems of all files.
    """
    section, task = recipe.data, _resolve_task(recipe, model)
    trains_head = recipe.teacher.finetune or not recipe.asks_model
    head_labels = None if trains_head or not task.names_labels else model.labels
    if section.train is None and section.eval is None and section.transfer is None:
        return _make_data_without_rows(recipe, model, head_labels)
    parts, leaked, unlabelled = _read_parts(recipe)
    notes, length = (
        [*note_missing_headers([section.train, section.eval]), *add_validation(parts, recipe)],
        max_length(section, model, task),
    )
    has_labels = task.labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)
    lacking = [name for name, rows in parts.items() if has_labels and all(row.label is None for row in rows)]
    answered = [name for name in lacking if name != "train"]
    for name in answered:
        parts[name] = label_by_model(recipe, model, task, parts[name], length)
    if "eval" in answered:
        notes.append(AGREEMENT)
    labels = _choose_labels(recipe, model, head_labels, {n: rows for n, rows in parts.items() if n not in lacking})
    if labels.note:
        notes.append(labels.note)
    _check_thresholds(recipe, labels)
    if section.holdout:
        _check_threshold_rows(recipe, len(parts.get("holdout", [])), "Give more rows to data.train")
    answer = recipe.answer
    if recipe.task is TaskName.FEATURE_EXTRACTION and answer.similarity is None:
        answer = answer.model_copy(update={"similarity": read_similarity(model.path)})
    data = RunData(make_head(task, labels, answer), labels, {}, None, labelled="train" not in lacking)
    tokenizer = TextTokenizer(model.tokenizer_folder, length)
    reports = _prepare_splits(data, section, parts, tokenizer)
    if recipe.teacher.finetune:
        check_classes(reports)
    some = sorted(next(iter(parts.values())), key=lambda row: row.digest)[:LANGUAGE_ROWS]
    if note := warn_about_language([row.text for row in some], tokenizer):
        notes.append(note)
    notes += [n for r in reports for n in warn_about_majority(r, task)] + note_similar_labels(reports[0])
    names = {name: Path(source.title).name for name, source in _named_sources(section)}
    taught = unlabelled.get("train", []) if recipe.learns_without_labels else []
    report = DataReport(
        max_length=tokenizer.max_length,
        splits=reports,
        train_in_eval=leaked,
        unlabelled={names[name]: len(rows) for name, rows in unlabelled.items()},
        taught=[names["train"]] if taught else [],
        notes=notes,
    )
    pair = task.pairs_only or any(e.pair is not None for e in parts.get("eval", ()))
    new, _ = drop_duplicates_of(taught, [row for rows in parts.values() for row in rows])
    is_pair = pair and task.labels is not LabelKind.SCORE_OR_NONE
    return replace(data, report=report, pair=is_pair, unlabelled=new, scores_agreement="eval" in answered)


def _prepare_splits(
    data: RunData, section: DataSection, parts: Mapping[str, list[Example]], tokenizer: TextTokenizer
) -> list[SplitReport]:
    """Tokenize the rows of each part, store them in `data.splits`, and return a report on each part."""
    reports, task = [], data.head.task
    for name, rows in parts.items():
        source = {"eval": section.eval_source, VALIDATION: section.validation_source}.get(name, section.train)
        title = source.title if source is not None else "data.transfer"
        data.splits[name] = data.head.prepare(rows, tokenizer, title, labelled=data.needs_labels(name))
        kind = task.labels if data.labelled or name != "train" else LabelKind.NONE
        reports.append(split_report(name, Path(title).name, data.splits[name], data.labels, kind, task.heads))
    return reports


AGREEMENT = (
    "the evaluation rows have no labels: every score is the agreement with the teacher's answers, not with the truth"
)
"""Note of runs without labelled rows."""


def _choose_labels(
    recipe: Recipe, model: ModelFolder, head_labels: list[str] | None, parts: Mapping[str, list[Example]]
) -> Labels:
    """Return the labels of a run: those in the rows, in the order that the recipe, the data set or the model gives.

    Args:
        recipe: The recipe.
        model: The teacher.
        head_labels: Labels of the teacher's trained head; None if its labels are not used.
        parts: The rows with labels, by split. If there are none, the labels are those that the recipe or the model
            names.
    """
    section, task = recipe.data, _resolve_task(recipe, model)
    if task.heads and parts:
        check_head_rows(task, parts)
        by_head = {name: head.labels for name, head in (recipe.tasks or {}).items()}
        trained = Labels(tuple(head_labels)) if head_labels else None
        rows = parts.get("train") or next(iter(parts.values()))
        return resolve_head_labels(task, by_head, trained, [*rows, *name_head_labels(recipe, task, rows, trained)])
    if not parts:
        return _labels_without_rows(recipe, model, head_labels)
    named_source = section.train or section.eval
    declared = section.labels or (read_class_names(named_source) if named_source is not None else None)
    label_rows: Sequence[Example] = parts.get("train") or parts.get("eval") or next(iter(parts.values()))
    if recipe.column is not None and section.train is not None and parts.get("train"):
        label_rows = [*label_rows, *name_labels(label_rows, recipe.column, declared, section.train.title, task)]
    return resolve_labels(declared, head_labels, label_rows, task.labels)


def _read_parts(recipe: Recipe) -> tuple[dict[str, list[Example]], int, dict[str, list[Example]]]:
    """Read the rows and divide them into train, eval and holdout, so that no row is in two of them.

    Returns:
        The rows of each part that has any, the number of training rows that were dropped because they are in eval (or, if eval was
        divided from them, overlap with its texts), and, for files in which only some rows have a label, the rows without one, by part.

    Raises:
        InputError: If no row is left to train on or to score on.
    """
    section = recipe.data
    raw, unlabelled = _read_sources(recipe)
    if section.train is None and section.transfer is not None:
        raw["train"] = _read_texts(recipe, raw.get("eval", []))
    if section.eval is not None and section.eval.fraction is not None:
        raw["train"], raw["eval"] = _divide(raw["train"], section.eval.share_of(len(raw["train"])), recipe.task)
        judging, others = divide_by_own_label(raw["eval"])
        raw["train"] += others
        raw["eval"] = judging
    elif "eval" in raw:  # rows of a file of their own are not trained on
        raw["eval"], _ = divide_by_own_label(raw["eval"])
    train, held = hold_out(raw.get("train", []), section.holdout)
    train, leaked = drop_duplicates_of(train, raw.get("eval", []))
    held, _ = drop_duplicates_of(held, raw.get("eval", []))
    if section.eval is not None and section.eval.fraction is not None:
        train, overlapping = drop_overlapping(train, raw["eval"])
        leaked += overlapping
    if "train" in raw and not train:
        what = f"no training row is left: {leaked:,} occur in eval or overlap with its texts and {len(held):,} are held out."
        fix = "Give other rows to data.train or data.eval, or a smaller data.holdout."
        raise InputError(Problem("data.train", what, fix))
    parts = {"train": train, "eval": raw.get("eval", []), "holdout": held}
    return {name: rows for name, rows in parts.items() if rows}, leaked, unlabelled


def _read_texts(recipe: Recipe, held_out: Sequence[Example]) -> list[Example]:
    """Read the texts of `data.transfer` as training rows, for a recipe without `data.train`; print how many were read.

    Args:
        recipe: The recipe.
        held_out: Rows whose texts are left out.
    """
    section, counts, task = recipe.data.transfer, TransferCounts(), recipe.task_row
    assert section is not None
    is_pair = any(source.text_pair for source in section.sources)
    pair = (task.pairs_only or is_pair) and task.labels is not LabelKind.SCORE_OR_NONE
    drawing = PairDrawing(section.pairs, section.near, recipe.seed) if pair else None
    texts = list(read_transfer_rows(section.sources, task.labels, counts, drawing, held_out=held_out))
    print_note(f"  {counts.line}")
    return texts


def _named_sources(section: DataSection) -> list[tuple[str, DataSource]]:
    """Return `data.train` and `data.eval` by name, without a source that names neither file nor data set."""
    sources: Sequence[tuple[str, DataSource | None]] = (("train", section.train), ("eval", section.eval))
    return [(name, s) for name, s in sources if s is not None and (s.path is not None or s.dataset is not None)]


def _read_sources(recipe: Recipe) -> tuple[dict[str, list[Example]], dict[str, list[Example]]]:
    """Read the rows of `data.train` and `data.eval`, by name. A source with neither file nor data set is left out.

    A file of which no row has a label is allowed only if the teacher can label its rows and no training reads gold
    labels.

    Returns:
        The rows, and, for files in which only some rows have a label, the rows without one.

    Raises:
        InputError: Listing the problems of both.
    """
    rows, unlabelled = dict[str, list[Example]](), dict[str, list[Example]]()
    problems, task = list[Problem](), recipe.task_row
    needs_labels = recipe.teacher.finetune is not None or any(s.needs_labels(recipe.task) for s in recipe.distill)
    may_lack = recipe.learns_without_labels and not needs_labels
    for name, source in _named_sources(recipe.data):
        try:
            if task.heads:
                labelled = read_head_rows(source, task, recipe.label_columns, recipe.head_columns)
                empty = list[Example]()
            else:
                own = with_column(source, recipe)
                labelled, empty = read_labelled_examples(own, kind=task.labels, without_labels=may_lack)
        except InputError as error:
            problems += error.problems
        else:
            rows[name] = labelled or empty
            if labelled and empty:
                unlabelled[name] = empty
    if problems:
        raise InputError(problems)
    return rows, unlabelled


def _divide(rows: list[Example], fraction: float, task: TaskName) -> tuple[list[Example], list[Example]]:
    """Divide rows into training rows and evaluation rows, and return both lists.

    Args:
        rows: The rows.
        fraction: Share of the rows that become evaluation rows.
        task: The task; of vectors, pairs with the same first text go together.

    Raises:
        InputError: If the evaluation rows would be empty.
    """
    train, held = hold_out_share(rows, fraction, by_first=task is TaskName.FEATURE_EXTRACTION)
    if not held:
        what = f"{fraction:g} of {len(rows):,} training rows leaves no row to score on; rows whose label no other row has are trained on."
        fix = "Give more rows, a larger fraction (or at_most), or a file of other rows: data.eval.path=dev.csv."
        raise InputError(Problem("data.eval.fraction", what, fix))
    return train, held


def _make_data_without_rows(recipe: Recipe, model: ModelFolder, head_labels: list[str] | None) -> RunData:
    """Return the run data of a recipe without rows: no splits, and the labels that the recipe or the model names."""
    task, labels = _resolve_task(recipe, model), _labels_without_rows(recipe, model, head_labels)
    is_pair = task.pairs_only or (model.has_head(NEXT_SENTENCE_HEAD) and task.name is TaskName.TEXT_CLASSIFICATION)
    return RunData(make_head(task, labels, recipe.answer), labels, {}, None, is_pair)


def _labels_without_rows(recipe: Recipe, model: ModelFolder, head_labels: list[str] | None) -> Labels:
    """Return the labels that the recipe or the model names. They are empty for tasks without labels.

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
    return Labels(iob2_tags(names) if as_tags else names)


def _resolve_task(recipe: Recipe, model: ModelFolder) -> Task:
    """Return the recipe's task; if the teacher's own head is used, with the score function of that head.

    Raises:
        InputError: If the recipe lists several heads, trains none of them, and the model has others.
    """
    if recipe.teacher.finetune or not recipe.asks_model:
        return recipe.task_row
    if recipe.tasks is not None:
        check_trained_heads(recipe.task_row, model)
        return recipe.task_row
    return model.task_row(recipe.task)


def is_labelled(task: Task, split: str) -> bool:
    """Return whether rows of a split need labels: training rows of fill-mask and feature extraction do not."""
    return split != "train" or task.labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)


def _check_thresholds(recipe: Recipe, labels: Labels) -> None:
    """Check that the recipe lists as many thresholds as there are labels, if it lists any.

    Raises:
        InputError: If it lists more or fewer.
    """
    thresholds = recipe.answer.thresholds
    if isinstance(thresholds, list) and len(thresholds) != len(labels):
        what = f"lists {len(thresholds)} thresholds for {len(labels)} labels."
        fix = "Give one per label, in the order of data.labels, or a single number."
        raise InputError(Problem("answer.thresholds", what, fix))


# --- checks before the rows are read ---


def check_threshold(recipe: Recipe, data: RunData | None) -> None:
    """Check that there are enough rows to fit an "unknown" threshold on, if the recipe asks for that.

    Args:
        recipe: The recipe.
        data: The rows, if they have been read. If some of them chose files, the threshold is fitted on those, else on
            held-out rows.

    Raises:
        InputError: If there are fewer than `LEAST_FIT_ROWS`.
    """
    if data is not None and data.selection:
        rows = sum(len(selection.rows.truth) for selection in data.selection)
        _check_threshold_rows(recipe, rows, "Give more rows to data.eval")
    else:
        _check_threshold_rows(recipe, recipe.data.holdout, "Set data.holdout to 500 or more in a recipe")


def _check_threshold_rows(recipe: Recipe, rows: int, fix: str) -> None:
    """Check that there are enough rows to fit an "unknown" threshold on, if the recipe asks for that.

    Args:
        recipe: The recipe.
        rows: Number of rows.
        fix: First part of the advice in the error.

    Raises:
        InputError: If there are fewer than `LEAST_FIT_ROWS`.
    """
    if recipe.answer.unknown_accuracy is None or rows >= LEAST_FIT_ROWS:
        return
    what = f"a threshold is fitted on held-out rows, of which there are {rows}; at least {LEAST_FIT_ROWS} are needed."
    fix = f"{fix}, or give the threshold itself: answer.unknown=0.7"
    raise InputError(Problem("answer.unknown.accuracy", what, fix))


def check_files(section: DataSection) -> None:
    """Check that the files of rows, corpora and texts without labels exist, are regular files and have a known suffix.

    Their content is not read. Tokenized corpora are not checked.

    Raises:
        InputError: Naming every file that fails.
    """
    sources: dict[str, DataSource | None] = {"train": section.train, "eval": section.eval}
    sources["validation"] = section.validation
    sources |= {f"corpus.sources.{i}": s for i, s in enumerate(section.corpus.sources if section.corpus else [])}
    sources |= {f"transfer.sources.{i}": s for i, s in enumerate(section.transfer.sources if section.transfer else [])}
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
    """Check that the teacher is not a bare encoder, if the recipe needs one with a trained head.

    No head is needed if `teacher.finetune` trains one, if a column of answers is the teacher, for feature
    extraction, or if all stages distill on plain text. The teacher counts as an encoder without a head if its
    architecture's name ends with ``Model`` and no weight is named like one of a head. Whether a head fits the
    task is not checked.

    Raises:
        InputError: If a head is needed and the teacher has none.
    """
    if recipe.teacher.finetune is not None or not recipe.asks_model or recipe.task is TaskName.FEATURE_EXTRACTION:
        return
    if recipe.distill and all(stage.general for stage in recipe.distill):
        return
    is_encoder = str((model.config.get("architectures") or [""])[0]).endswith("Model")
    if is_encoder and not any(_HEAD_WEIGHTS.search(name) for name in list_weight_names(model.path)):
        what = f"'{model.title}' has no trained head for {recipe.task}, and the recipe does not train one."
        fix = "Add it to teacher, e.g. finetune: {epochs: 4, batch: 48, lr: 3.0e-4}; or name a fine-tuned model."
        raise InputError(Problem("teacher.finetune", what, fix))


def has_local_rows(section: DataSection) -> bool:
    """Return whether the recipe names train, eval or validation rows, and all of these are local files."""
    named = (section.train, section.eval_source, section.validation_source)
    sources: list[DataSource] = [s for s in named if s is not None]
    return bool(sources) and all(s.path is not None for s in sources)


def check_before_run(recipe: Recipe) -> None:
    """Check the files of a recipe and, as far as they are local, its teacher and its rows, as a run does before training.

    Nothing is downloaded. Rows are read only if all of them are in local files.

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
        _read_sources(recipe)
    else:
        load_data(recipe, model)


def _local_teacher(recipe: Recipe) -> ModelFolder | None:
    """Open the model that a recipe starts from; None if it is on the Hub or its package is not installed."""
    name = recipe.teacher.model
    if name != DEMO_TEACHER and name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return None  # a name on the Hub: a path of a folder is absolute in a loaded recipe
    try:
        return open_teacher(recipe)
    except MissingBackendError:
        return None
