"""Compare two models on the rows of a data file: artefact folders, their single files, run folders, Hugging Face models.

`diff_models` opens both (`_open_side`), reads the rows once (`_read_rows`), asks both models (`pocketbert.core.compare.answers`), compares
their answers (`pocketbert.core.compare.differences`) and times both in turns (`_time_in_turns`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pocketbert.core.artefacts import ARTEFACTS_FILE, find_artefact_folder
from pocketbert.core.compare.answers import RowAnswer, answer_rows
from pocketbert.core.compare.differences import ComparedModel, ModelDiff, check_limits, compare_answers
from pocketbert.core.data.columns import guess_and_report_columns, guess_columns
from pocketbert.core.data.labels import Labels, are_placeholder_names, match_label_numbers
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.ownership import is_marked
from pocketbert.core.errors import InputError, Problem, shorten_list
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import AnswerSettings, Head, Prepared, make_head
from pocketbert.core.heads.feature_extraction import are_scored_pairs
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import print_note, report_waiting
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.predictor import Predictor, feed
from pocketbert.core.predict.sentence_settings import read_similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.options import DiffOptions
from pocketbert.pipeline.reference import load_reference_model
from pocketbert.pipeline.run_folder import RUN_FOLDER_KIND
from pocketbert.runtime.model import check_texts, load

if TYPE_CHECKING:
    from pocketbert.benchmarks.statistics import Ratio

_TIMED_TEXTS = 24
_TURNS = 8
_TIMED_S = 6.0
"""Most seconds of the short measurement; `pocketbert benchmark` measures thoroughly."""
_LABEL_FIX = "Name the column of the labels with --label, or judge the answers without labels by --fail-on-flips."
_UNSURE_KINDS = (LabelKind.NONE, LabelKind.SCORE_OR_NONE)
"""Kinds of label that rows may lack without being incomplete."""


@dataclass(frozen=True)
class _Side:
    """An opened model of the comparison.

    Attributes:
        where: ``OLD`` or ``NEW``, for errors.
        model: Description of the model for the result.
        predictor: The opened file or module.
        tokenizer: Tokenizer of the model. It cuts texts at the model's longest input.
        head: Task head that turns outputs into answers.
        settings: The settings that `head` was made with.
        labels: Label names in order of their ids; empty for tasks without labels.
        temperature: Number by which outputs are divided.
    """

    where: str
    model: ComparedModel
    predictor: Predictor
    tokenizer: TextTokenizer
    head: Head
    settings: AnswerSettings
    labels: tuple[str, ...]
    temperature: float = 1.0


def diff_models(old: str, new: str, source: DataSource, options: DiffOptions | None = None) -> ModelDiff:
    """Return how the answers of two models to the rows of a data file differ, and their latencies; see `pocketbert.api.diff`.

    Args:
        old: The model to compare with: a folder or Hub name, or ``FOLDER:WHAT`` with a scheme, a format or a file.
        new: The other model, named in the same way.
        source: The rows.
        options: Limits, and how the models are opened and timed; None for the defaults.

    Raises:
        InputError: If a model cannot be opened, both cannot be compared on these rows, or an option does not fit: a limit on
            flips for answers that are numbers or vectors, or a limit on the score for rows without labels.
        MissingBackendError: If the library that opens a model is not installed.
    """
    options = options or DiffOptions()
    with report_waiting("opening both models"):
        first = _open_side(old, "OLD", options.threads)
        second = _open_side(new, "NEW", options.threads, first.head.task.name)
    _check_same_task(first, second)
    examples, labelled = _read_rows(first, source, options.max_drop is not None)
    before, after = _prepare_rows(first, second, examples, labelled, source.title)
    old_answers, new_answers = _answer(first, before, labelled), _answer(second, after, labelled)
    differences = compare_answers(
        old_answers, new_answers, examples, first.head.task, labelled=labelled, seed=options.seed
    )
    if options.max_flips is not None and differences.mean_distance is not None:
        what = f"{first.head.task.name} has numbers or vectors as answers, which do not flip."
        raise InputError(
            Problem("--fail-on-flips", what, "Leave it out; --fail-on-drop judges the score of labelled rows.")
        )
    diff = ModelDiff(
        first.model,
        second.model,
        first.head.task.name,
        Path(source.title).name,
        differences,
        machine=describe_machine().summary,
        failures=tuple(check_limits(differences, options.max_drop, options.max_flips)),
    )
    return _add_latency(diff, (first, before), (second, after), options) if options.latency else diff


def _answer(side: _Side, prepared: Prepared, labelled: bool) -> list[RowAnswer]:
    """Return a model's answers to the prepared rows."""
    return answer_rows(
        side.predictor,
        side.tokenizer,
        side.head,
        prepared,
        labelled=labelled,
        temperature=side.temperature,
        label=f"{side.where} {side.model.kind}",
    )


# --- the models -------------------------------------------------------------------------------------------------------


def _open_side(name: str, where: str, threads: int | None, task: TaskName | None = None) -> _Side:
    """Open a model by the name that the user gave.

    Args:
        name: The name: a folder, a Hub name, or ``FOLDER:WHAT``.
        where: ``OLD`` or ``NEW``, for errors.
        threads: Threads of the model; None for as many as its engine takes by itself.
        task: Task of the other model, which is used for a Hugging Face model that names none itself.

    Raises:
        InputError: If there is no such model, it names no task, or the folder is a run without a packed artefact folder.
    """
    path, words = _split_name(name)
    folder = find_artefact_folder(Path(path).expanduser())
    if (folder / ARTEFACTS_FILE).is_file():
        return _open_artefact(name, folder, words, where, threads)
    if is_marked(folder, RUN_FOLDER_KIND):
        what = f"the run {path} has packed no artefact folder: it is not finished, or a gate failed."
        raise InputError(Problem(where, what, f"Name one of its models, such as {path}/student or {path}/teacher."))
    if words:
        what = f"'{':'.join(words)}' names a file of an artefact folder, and {path} has no {ARTEFACTS_FILE}."
        raise InputError(Problem(where, what, "Leave it out, or name an artefact folder in front of it."))
    return _open_torch(name, where, threads, task)


def _split_name(name: str) -> tuple[str, list[str]]:
    """Split ``FOLDER:WORD:WORD`` into folder and words; a name that exists as a path has no words."""
    if Path(name).exists():
        return name, []
    path, *words = name.split(":")
    return path, words


def _open_artefact(name: str, folder: Path, words: Sequence[str], where: str, threads: int | None) -> _Side:
    """Open a file of an artefact folder, chosen by words that are a format, a scheme or a path in the folder.

    Without words it is the folder's default file.

    Raises:
        InputError: If two words are of one kind, or the folder has no such file.
    """
    chosen: dict[str, str] = {}
    for word in words:
        key = "file" if "/" in word or "." in word else "format" if word in set(Format) else "scheme"
        if key in chosen:
            raise InputError(Problem(where, f"'{chosen[key]}' and '{word}' both name a {key}.", "Name one of them."))
        chosen[key] = word
    model = load(folder, chosen.get("scheme"), threads, format=chosen.get("format"), file=chosen.get("file"))
    record, predictor = model.record, model.predictor
    return _Side(
        where,
        ComparedModel(
            name,
            record.path,
            f"{FORMATS[record.format].title} {record.scheme}",
            f"{predictor.engine} {predictor.engine_version}",
            record.bytes,
            model.max_length,
        ),
        predictor,
        model.tokenizer,
        model.head,
        model.artefacts.processing.settings(),
        tuple(model.labels),
        record.temperature,
    )


def _open_torch(name: str, where: str, threads: int | None, other_task: TaskName | None) -> _Side:
    """Open a Hugging Face model with PyTorch, as a run opens its teacher. `threads` sets PyTorch's threads for the process.

    Raises:
        InputError: If there is no such model, or neither this model nor the other one names a task.
        MissingBackendError: If torch or transformers is not installed.
    """
    folder = open_model_folder(name, where=where)
    task = folder.task or other_task
    if task is None:
        what = f"{name} names no task: its config.json has no class with a head."
        raise InputError(Problem(where, what, "Give a fine-tuned model, or an artefact folder first."))
    row = folder.task_row(task)
    labels = Labels(tuple(folder.labels or ()) if row.names_labels else ())
    settings = AnswerSettings()
    if task is TaskName.FEATURE_EXTRACTION:
        settings = settings.model_copy(update={"similarity": read_similarity(folder.path)})
    predictor = load_reference_model(folder, row, remember=False)  # it is timed
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    length = min(folder.positions, folder.tokenizer_length)
    return _Side(
        where,
        ComparedModel(
            name,
            ", ".join(file.name for file in folder.weight_files),
            "PyTorch fp32",
            f"torch {predictor.engine_version}",
            folder.fp32_bytes,
            length,
        ),
        predictor,
        TextTokenizer(folder.tokenizer_folder, length),
        make_head(row, labels, settings),
        settings,
        labels.names,
    )


def _check_same_task(old: _Side, new: _Side) -> None:
    """Check that two models have one head each, the same task and the same set of labels, in any order.

    Raises:
        InputError: If a model has several heads, or if tasks or labels differ.
    """
    tasks = [side.head.task.name for side in (old, new)]
    for side in (old, new):
        if side.head.task.heads:
            what = "has several heads; answers of one head are compared."
            raise InputError(
                Problem(side.where, what, "Score both on labelled rows: pocketbert verify -m FOLDER --data FILE")
            )
    if tasks[0] is not tasks[1]:
        what = f"its task is {tasks[1]}, that of OLD is {tasks[0]}."
        raise InputError(Problem("NEW", what, "Compare two models of one task."))
    only_old, only_new = (sorted({*a.labels} - {*b.labels}) for a, b in ((old, new), (new, old)))
    if only_old or only_new:
        what = (
            f"its labels differ from those of OLD: only in OLD [{shorten_list(only_old, 8)}], "
            f"only in NEW [{shorten_list(only_new, 8)}]."
        )
        fix = "Labels are matched by name: name them alike (id2label in config.json; pocketbert export --labels), or compare models of one label set."
        raise InputError(Problem("NEW", what, fix))


# --- the rows ---------------------------------------------------------------------------------------------------------


def _read_rows(side: _Side, source: DataSource, must_be_labelled: bool) -> tuple[list[Example], bool]:
    """Return the rows that both models answer, and whether the answers can be scored on them.

    They can be if the rows have labels or, for fill-mask, in any case. If no column of labels is found, the rows are read
    without labels and a note is printed, unless the user named a label column or labels are needed.

    Args:
        side: One of the models, whose task decides what a label is.
        source: The rows.
        must_be_labelled: Whether labels are needed, because a limit on the score is set.

    Raises:
        InputError: If the file cannot be read, the rows must have labels and have none, or a text does not fit the task.
    """
    kind, name = side.head.task.labels, Path(source.title).name
    columns = side.tokenizer.reader.form.columns if side.tokenizer.reader else ()
    labelled = kind not in _UNSURE_KINDS
    try:
        found = guess_columns(source, kind, _LABEL_FIX if must_be_labelled else "")
        print_note(f"{name}: {found.note}")
        chosen = found.source
        labelled = labelled and (kind is not LabelKind.CHOICE or "label" in chosen.model_fields_set)
    except InputError:
        if must_be_labelled or "label" in source.model_fields_set or not labelled:
            raise
        kind, labelled = kind if kind is LabelKind.CHOICE else LabelKind.NONE, False
        chosen = guess_and_report_columns(source, kind)
    examples = read_examples(chosen, labelled, kind, columns)
    if side.head.task.labels in _UNSURE_KINDS:  # masks are drawn for any text, and pairs may have scores
        labelled = kind is LabelKind.NONE or are_scored_pairs(examples)
    if must_be_labelled and not labelled:
        what = f"a score can only drop on rows with labels, and {name} has none."
        raise InputError(Problem("--fail-on-drop", what, _LABEL_FIX))
    if not labelled:
        print_note(
            f"{name}: no labels, so that the models are only compared with each other (--label COLUMN names them)"
        )
    if kind is not LabelKind.SCORE_OR_NONE:  # of pairs, both texts get a vector
        check_texts(side.head.task, [(e.text, e.choices) if e.choices else e.input for e in examples])
    return examples, labelled


def _prepare_rows(
    old: _Side, new: _Side, examples: list[Example], labelled: bool, title: str
) -> tuple[Prepared, Prepared]:
    """Tokenize the rows for each model, with the gold labels in the order of the model's own labels.

    Raises:
        InputError: If a label is not in the set, or two fill-mask models do not split the texts alike.
    """
    task = old.head.task
    head = old.head
    if labelled and task.names_labels:
        ordered = are_placeholder_names(old.labels)
        labels = match_label_numbers(Labels(old.labels), examples, task.labels, ordered=ordered)
        if labels.numbers:
            print_note(f"{Path(title).name}: {labels.note}")
            head = make_head(task, labels, old.settings)
    before = head.prepare(examples, old.tokenizer, title, labelled)
    if labelled and task.labels is LabelKind.NAME:  # a number in the data may be a position in the old order
        examples = [replace(e, label=old.labels[int(i)]) for e, i in zip(examples, before.truth, strict=True)]
    elif labelled and task.labels is LabelKind.NAMES:
        names = [tuple(old.labels[i] for i in np.flatnonzero(row)) for row in before.truth]
        examples = [replace(e, label=given) for e, given in zip(examples, names, strict=True)]
    after = new.head.prepare(examples, new.tokenizer, title, labelled)
    if task.name is TaskName.FILL_MASK and any(
        not np.array_equal(a.ids, b.ids) for a, b in zip(before.encoded, after.encoded, strict=True)
    ):
        what = "the two models split the texts into different tokens, so that their guesses are about different things."
        raise InputError(Problem("NEW", what, "Compare fill-mask models with one vocabulary and one longest input."))
    return before, after


# --- latency ----------------------------------------------------------------------------------------------------------


def _add_latency(
    diff: ModelDiff, old: tuple[_Side, Prepared], new: tuple[_Side, Prepared], options: DiffOptions
) -> ModelDiff:
    """Measure the latencies of both models briefly on the same texts, and return a copy of `diff` with them."""
    from pocketbert.benchmarks.statistics import paired_ratio

    with report_waiting("timing both models in turns"):
        times, texts = _time_in_turns(old, new)
    ratio: Ratio = paired_ratio(times[1], times[0])
    threads = (
        f"{options.threads} thread{'s' * (options.threads > 1)}" if options.threads else "the engines' own threads"
    )
    return replace(
        diff,
        old=replace(diff.old, p50_ms=float(np.median(times[0]))),
        new=replace(diff.new, p50_ms=float(np.median(times[1]))),
        time_ratio=(ratio.median, ratio.low, ratio.high),
        latency=(
            f"short measurement, {len(times[0])} single unpadded inferences of each model in turns on {texts} texts of the file, "
            f"{threads}, without the tokenizer; pocketbert benchmark measures thoroughly"
        ),
    )


def _time_in_turns(
    old: tuple[_Side, Prepared], new: tuple[_Side, Prepared]
) -> tuple[tuple[list[float], list[float]], int]:
    """Time single inferences of both models in turns on the same texts, after a warm-up, for about `_TIMED_S` seconds at most.

    Returns:
        The times in ms of each model, in the order in which they were taken, and the number of texts.
    """
    chosen = old[1].first_by_hash(_TIMED_TEXTS)
    runs = []
    for side, prepared in (old, new):
        rows = prepared.rows_of()
        encoded = [prepared.encoded[rows[i][0]] for i in chosen]
        runs.append((side.predictor, [feed(side.predictor, side.tokenizer, [row]) for row in encoded]))
    for predictor, inputs in runs:
        for values in inputs:
            predictor.run(values)
    times: tuple[list[float], list[float]] = ([], [])
    end = time.monotonic() + _TIMED_S
    for turn in range(_TURNS):
        for i in range(len(chosen)):
            for number in (0, 1) if (turn + i) % 2 else (1, 0):
                predictor, inputs = runs[number]
                began = time.perf_counter()
                predictor.run(inputs[i])
                times[number].append((time.perf_counter() - began) * 1000)
            if time.monotonic() > end:
                return times, len(chosen)
    return times, len(chosen)
