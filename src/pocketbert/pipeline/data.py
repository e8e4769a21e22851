"""The data of a run: read, labelled, tokenized and reported on before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data import Example, read_examples
from pocketbert.core.data_report import DataReport, SplitReport, majority_note, split_report
from pocketbert.core.data_source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.evaluate import EvalSet
from pocketbert.core.labels import Labels, resolve_labels
from pocketbert.core.model_folder import ModelFolder
from pocketbert.core.progress import say
from pocketbert.core.recipe import DataSection, Recipe
from pocketbert.core.split import hold_out, without
from pocketbert.core.tokenization import Encoded, Text, TextTokenizer

DEFAULT_LENGTH = 128


@dataclass(frozen=True)
class Split:
    """Rows of one split, ready to use.

    Attributes:
        name: ``train``, ``eval`` or ``holdout``.
        examples: N rows.
        encoded: The same rows tokenized.
        gold: Label ids, shape [N].
    """

    name: str
    examples: list[Example]
    encoded: list[Encoded]
    gold: NDArray[np.int64]

    def eval_set(self, labels: int) -> EvalSet:
        """The split as the metric loop takes it."""
        return EvalSet(name=self.name, encoded=self.encoded, gold=self.gold, labels=labels)


@dataclass(frozen=True)
class RunData:
    """All data of a run.

    Attributes:
        labels: The label order of data, teacher, student and files.
        splits: By name; empty without data.
        report: What is in them; None without data.
        pair: Whether rows are pairs.
    """

    labels: Labels
    splits: dict[str, Split]
    report: DataReport | None
    pair: bool = False

    def texts(self, rows: int) -> list[Text]:
        """Some eval texts, chosen by hash so that the file's order does not matter."""
        if "eval" not in self.splits:
            return []
        chosen = sorted(self.splits["eval"].examples, key=lambda e: e.digest)[:rows]
        return [e.input for e in chosen]


def max_length(section: DataSection, model: ModelFolder) -> int:
    """Longest input of a run in tokens.

    Raises:
        InputError: If the recipe asks for more than the model's position table has.
    """
    wanted = section.max_length
    if wanted is None:
        wanted = DEFAULT_LENGTH if section.train or section.eval else model.positions
        return min(wanted, model.positions, model.tokenizer_length)
    if wanted > model.positions:
        raise InputError(Problem("data.max_length", f"{wanted} tokens, '{model.title}' takes at most {model.positions}.",
                                 f"Set data.max_length to {model.positions} or less."))  # fmt: skip
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
    section = recipe.data
    theirs = None if recipe.teacher.finetune else model.labels
    if section.train is None and section.eval is None:
        if not theirs and not section.labels:
            raise InputError(Problem(str(model.path), "config.json names no labels (id2label) and there is no data.",
                                     "Add id2label to config.json, or data.labels to the recipe."))  # fmt: skip
        return RunData(Labels(tuple(section.labels or theirs or ())), {}, None)
    raw = _read(section)
    notes = []
    train, held = hold_out(raw.get("train", []), section.holdout)
    train, leaked = without(train, raw.get("eval", []))
    held, _ = without(held, raw.get("eval", []))
    parts = {"train": train, "eval": raw.get("eval", []), "holdout": held}
    parts = {name: rows for name, rows in parts.items() if rows}
    labels = resolve_labels(section.labels, theirs, parts.get("train") or parts["eval"])
    if labels.note:
        notes.append(labels.note)
    tokenizer = TextTokenizer(model.path, max_length(section, model))
    splits, reports = {}, []
    for name, rows in parts.items():
        source = section.eval if name == "eval" else section.train
        assert source is not None
        gold = labels.ids(rows, source.title)
        encoded = tokenizer.encode([e.input for e in rows])
        splits[name] = Split(name, rows, encoded, gold)
        reports.append(split_report(name, Path(source.title).name, rows, encoded, labels, gold.tolist()))
    _check_classes(reports, recipe)
    notes += [n for r in reports if (n := majority_note(r))]
    report = DataReport(max_length=tokenizer.max_length, splits=reports, train_in_eval=leaked, notes=notes)
    for line in report.lines():
        say(f"  {line}")
    return RunData(
        labels,
        splits,
        report,
        pair=any(e.pair is not None for e in parts["eval"]) if "eval" in parts else False,
    )


def _read(section: DataSection) -> dict[str, list[Example]]:
    out: dict[str, list[Example]] = {}
    problems: list[Problem] = []
    sources: Sequence[tuple[str, DataSource | None]] = (("train", section.train), ("eval", section.eval))
    for name, source in sources:
        if source is None:
            continue
        try:
            out[name] = read_examples(source)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return out


def _check_classes(reports: Sequence[SplitReport], recipe: Recipe) -> None:
    train = next((r for r in reports if r.name == "train"), None)
    if train is None or not (recipe.teacher.finetune or recipe.distill):
        return
    empty = [name for name, rows in train.labels.items() if not rows]
    if empty and recipe.teacher.finetune:
        raise InputError(Problem("data.train", f"no training row has the label {', '.join(empty[:10])}.",
                                 "Add rows, or remove the label from data.labels."))  # fmt: skip
