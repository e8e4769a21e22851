"""Report on the data of a run, made before the first training step.

`check_classes` refuses labels without a training row. `split_report` counts rows, duplicates, labels and tokens of one split, and `DataReport` holds the splits of a run.
`warn_about_majority`, `note_similar_labels` and `warn_about_language` warn about labels and languages that make a run pointless.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from pocketbert.core.data.files import guess_table_form
from pocketbert.core.data.labels import Labels
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem, shorten_repr
from pocketbert.core.heads import Prepared
from pocketbert.core.predict.examples import HeadLabels
from pocketbert.core.predict.spans import label_of_tag
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import LabelKind, NamedTask, Task


class SplitReport(BaseModel):
    """Statistics of one data split: rows, duplicates, labels and lengths in tokens.

    Attributes:
        name: ``train``, ``eval``, ``holdout`` or ``validation``.
        source: File or data set.
        rows: Rows read.
        duplicates: Rows whose texts occur earlier in the split.
        conflicting: Rows among the duplicates whose label differs from the first one of the text; of several heads, any label.
        truncated: Rows longer than the maximum length.
        labels: Count of each label, in the unit `unit`; empty if labels are numbers or choices, or there are none.
        tokens_mean: Mean length in tokens.
        tokens_p50: Median length in tokens.
        tokens_p95: 95th percentile of the length in tokens (nearest rank).
        tokens_max: Length in tokens of the longest row after truncation.
        unit: Unit of the counts in `labels`: rows, spans, questions, or rows or spans (of several heads).
    """

    name: str
    source: str
    rows: int
    duplicates: int
    conflicting: int
    truncated: int
    labels: dict[str, int]
    tokens_mean: float
    tokens_p50: int
    tokens_p95: int
    tokens_max: int
    unit: str = "rows"


class DataReport(BaseModel):
    """Statistics of all data splits of a run, with warnings.

    Attributes:
        max_length: Length in tokens at which rows are truncated.
        splits: One report per split.
        train_in_eval: Training rows that are left out because their text is in eval or, if eval was split from them, contains an eval
            text or is a part of one.
        unlabelled: Number of rows without a label, by the name of their file.
        taught: Names of the files whose unlabelled rows get their labels from the teacher; unlabelled rows of other
            files are left out.
        notes: Warnings and notes for the user.
    """

    max_length: int
    splits: list[SplitReport]
    train_in_eval: int = 0
    unlabelled: dict[str, int] = {}
    taught: list[str] = []
    notes: list[str] = []

    def lines(self) -> list[str]:
        """Format the statistics as lines for a terminal, followed by the notes."""
        lines = []
        for split in self.splits:
            counts = ""
            if split.labels:
                low, high = min(split.labels.values()), max(split.labels.values())
                each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                counts = f", {_counted(len(split.labels), 'label')} with {each} {split.unit} each"
            lines.append(
                f"{split.name}: {_counted(split.rows, 'row')}, {_counted(split.duplicates, 'duplicate')} "
                f"({split.conflicting:,} of them with another label), {split.truncated:,} truncated at {self.max_length}, "
                f"tokens mean {split.tokens_mean:.1f} p95 {split.tokens_p95}{counts}"
            )
        if any(split.name == "train" for split in self.splits):
            lines.append(
                f"train rows that occur in eval or overlap with its texts: {self.train_in_eval:,} (left out of training)"
            )
        lines += [
            f"{name}: {_counted(count, 'row')} without a label ({'the teacher labels them' if name in self.taught else 'left out'})"
            for name, count in self.unlabelled.items()
        ]
        return lines + self.notes


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def split_report(
    name: str, source: str, rows: Prepared, labels: Labels, kind: LabelKind, heads: Sequence[NamedTask] = ()
) -> SplitReport:
    """Collect the statistics of one data split: rows, duplicates, labels and lengths in tokens.

    Args:
        name: Split name.
        source: File or data set.
        rows: The rows, tokenized.
        labels: The label set.
        kind: Kind of the rows' labels.
        heads: The heads of a model with several; the names of their labels have the head's name in front.
    """
    first_labels: dict[str, list[object]] = {}
    conflicting = 0
    for example, own in zip(rows.examples, _list_row_labels(rows, kind, heads), strict=True):
        first = first_labels.setdefault(example.digest, own)
        pairs = [*zip(first, own, strict=True)]
        conflicting += any(a is not None and b is not None and a != b for a, b in pairs)
        first_labels[example.digest] = [b if a is None else a for a, b in pairs]
    lengths = np.sort([len(e) for e in rows.encoded])
    p50, p95 = (int(lengths[max(0, int(np.ceil(share * len(lengths))) - 1)]) for share in (0.50, 0.95))
    return SplitReport(
        name=name,
        source=source,
        rows=len(rows.examples),
        duplicates=len(rows.examples) - len(first_labels),
        conflicting=conflicting,
        truncated=sum(e.truncated for e in rows.encoded),
        labels=_count_head_labels(heads, rows, labels) if heads else _count_labels(rows, labels, kind),
        tokens_mean=float(lengths.mean()),
        tokens_p50=p50,
        tokens_p95=p95,
        tokens_max=int(lengths[-1]),
        unit=_UNITS.get(kind, "rows"),
    )


_UNITS = {LabelKind.SPANS: "spans", LabelKind.ANSWERS: "questions", LabelKind.SEVERAL: "rows or spans"}
"""What the labels of a split are counted in, if not in rows."""


def _list_row_labels(rows: Prepared, kind: LabelKind, heads: Sequence[NamedTask]) -> list[list[object]]:
    """Return the labels of each row, one for each head, such that equal labels are equal; None for a label that a row lacks.

    Names are compared as ids, because a number and its name are the same label.
    """
    if not heads and kind is LabelKind.NAME:
        return [[int(i)] for i in rows.truth]
    if not heads:
        return [[example.label] for example in rows.examples]
    given = [e.label.labels if isinstance(e.label, HeadLabels) else (None,) * len(heads) for e in rows.examples]
    by_id = [head.task.labels is LabelKind.NAME for head in heads]
    return [
        [i if is_id else label for is_id, i, label in zip(by_id, truth, own, strict=True)]
        for truth, own in zip(rows.truth, given, strict=True)
    ]


def _count_labels(rows: Prepared, labels: Labels, kind: LabelKind) -> dict[str, int]:
    """Count how often each label occurs in a data set; for question answering, how many questions have an answer.

    A row with several labels counts for each of them; of spans, each span counts. Labels that do not occur are listed
    with 0.

    Returns:
        The counts by label, or by ``answered`` and, if there are any, ``without answer``; empty for tasks whose labels are
        numbers or choices, or that have none.
    """
    if kind is LabelKind.NAME:
        ids = Counter(int(i) for i in rows.truth)
        return {label: ids.get(i, 0) for i, label in enumerate(labels.names)}
    if kind is LabelKind.NAMES:
        is_given = np.asarray(rows.truth, bool)
        return {label: int(is_given[:, i].sum()) for i, label in enumerate(labels.names)}
    if kind is LabelKind.SPANS:
        counts = Counter(span.label for spans in rows.truth for span in spans)
        known = dict.fromkeys(label for tag in labels.names if (label := label_of_tag(tag)))
        return {label: counts.get(label, 0) for label in known}
    if kind is LabelKind.ANSWERS:
        unanswered = sum(not example.label for example in rows.examples)
        answered = len(rows.examples) - unanswered
        return {"answered": answered, **({"without answer": unanswered} if unanswered else {})}
    return {}


def _count_head_labels(heads: Sequence[NamedTask], rows: Prepared, labels: Labels) -> dict[str, int]:
    """Count how often each label of each head occurs in a data set; the names have the head's name in front."""
    counts = dict[str, int]()
    for place, (head, own) in enumerate(zip(heads, labels.heads, strict=True)):
        part = replace(rows, truth=[truth[place] for truth in rows.truth if truth[place] is not None])
        counts |= {f"{head.label_prefix}{k}": n for k, n in _count_labels(part, own, head.task.labels).items()}
    return counts


def check_classes(reports: Sequence[SplitReport]) -> None:
    """Check that each label has a training row, if there are training rows; for runs that train a head.

    Raises:
        InputError: Naming the labels without one.
    """
    train = next((r for r in reports if r.name == "train"), None)
    if train is not None and (empty := [name for name, rows in train.labels.items() if not rows]):
        what = f"no training row has the label {', '.join(empty[:10])}."
        fix = "Add rows, or remove the label from data.labels."
        raise InputError(Problem("data.train", what, fix))


# --- notes ---


def note_missing_headers(sources: Sequence[DataSource | None]) -> list[str]:
    """Return a note for each table whose source does not set `header` and in which no header row was found."""
    tables = [s for s in sources if s is not None and s.path is not None and s.header is None]
    forms = [(Path(source.title).name, guess_table_form(source)) for source in tables]
    return [
        f"{name}: no header was found, the first row is data (header: true in its source, if it names the columns)"
        for name, form in forms
        if form is not None and not form.header
    ]


def warn_about_majority(report: SplitReport, task: Task) -> list[str]:
    """Return a warning for each head of which one label has over 80 % of the labelled rows, so that accuracy misleads.

    Only heads whose rows have one label each, out of several, are checked.
    """
    warnings = []
    heads = [(f"{report.name}, head {h.name}", h.label_prefix, h.task.labels) for h in task.heads]
    for title, prefix, kind in heads or [(report.name, "", task.labels)]:
        counts = [rows for name, rows in report.labels.items() if name.startswith(prefix)]
        share = max(counts, default=0) / max(sum(counts), 1)
        if share > 0.8 and kind is LabelKind.NAME and len(counts) > 1:
            warnings.append(f"{title}: one label holds {share:.0%} of the rows; look at macro F1 and accuracy")
    return warnings


def note_similar_labels(report: SplitReport) -> list[str]:
    """Return up to ten notes on labels that differ only in upper and lower case and may be meant as one."""
    groups: dict[str, list[str]] = {}
    for name in report.labels:
        groups.setdefault(name.casefold(), []).append(name)
    twins = [names for names in groups.values() if len(names) > 1]
    return [
        f"{report.name}: labels that differ only in case: "
        + ", ".join(f"{shorten_repr(name)} ({report.labels[name]:,} {report.unit})" for name in names[:10])
        for names in twins[:10]
    ]


LANGUAGE_ROWS = 500
"""Number of texts that `warn_about_language` needs."""
_MOST_PIECES = 2.0
"""Most tokens per word of a language that the tokenizer was trained on; docs/data.md has what was measured."""
_MOST_UNKNOWN = 0.05
_WORDS = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|[^\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
"""A character of a script that has no blanks between its words, or the characters between two blanks."""


def warn_about_language(texts: Sequence[str], tokenizer: TextTokenizer) -> str:
    """Return a warning if a tokenizer's pieces of words are so many, or so often unknown, that its model hardly knows the language.

    Args:
        texts: Some texts; those longer than the tokenizer's limit are left out.
        tokenizer: The tokenizer of the teacher.

    Returns:
        One sentence; empty if there is nothing to warn about.
    """
    special = set(tokenizer.special_ids)
    pieces = words = unknown = 0
    for text, row in zip(texts, tokenizer.encode(texts), strict=True):
        if not row.truncated:
            pieces += len(row) - tokenizer.special_count
            unknown += sum(int(i) in special for i in row.ids) - tokenizer.special_count
            words += len(_WORDS.findall(text))
    ratio, share = pieces / max(words, 1), unknown / max(pieces, 1)
    if not words or (ratio <= _MOST_PIECES and share <= _MOST_UNKNOWN):
        return ""
    what = f"{ratio:.1f} pieces of each word" + (f", {share:.0%} of them unknown" if share > _MOST_UNKNOWN else "")
    return (
        f"warning: the teacher's tokenizer makes {what}, so the teacher hardly knows this language: "
        "set teacher.model to a model that was trained on it"
    )
