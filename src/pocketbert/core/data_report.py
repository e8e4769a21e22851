"""What is in the data, looked at before the first training step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from pydantic import BaseModel

from pocketbert.core.data.cells import label_of_tag
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import shown
from pocketbert.core.heads import Prepared
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import LabelKind


class SplitReport(BaseModel):
    """Facts about one split.

    Attributes:
        name: ``train``, ``eval`` or ``holdout``.
        source: File or data set.
        rows: Rows read.
        duplicates: Rows whose texts occur earlier in the split.
        conflicting: Rows among those whose label differs from the first occurrence.
        truncated: Rows longer than the maximum length.
        labels: Rows (spans, questions) per label name; empty for tasks without labels.
        tokens_mean: Mean length in tokens.
        tokens_p50: Median length.
        tokens_p95: 95th percentile of the length (nearest rank).
        tokens_max: Longest row after truncation.
        unit: What `labels` counts.
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
    """Facts about all splits of a run.

    Attributes:
        max_length: Length in tokens at which rows are truncated.
        splits: One report per split.
        train_in_eval: Training rows that also occur in eval; they are left out of training.
        notes: Things the user should know.
    """

    max_length: int
    splits: list[SplitReport]
    train_in_eval: int = 0
    notes: list[str] = []

    def lines(self) -> list[str]:
        """The report for a terminal."""
        out = []
        for s in self.splits:
            shares = sorted(s.labels.values())
            counts = f", {_counted(len(s.labels), 'label')} with {_span(shares)} {s.unit} each" if shares else ""
            out.append(
                f"{s.name}: {_counted(s.rows, 'row')}, {_counted(s.duplicates, 'duplicate')} ({s.conflicting:,} of them with another label), "
                f"{s.truncated:,} truncated at {self.max_length}, tokens mean {s.tokens_mean:.1f} p95 {s.tokens_p95}{counts}"
            )
        if any(s.name == "train" for s in self.splits):
            out.append(f"train rows that also occur in eval: {self.train_in_eval:,} (left out of training)")
        return out + self.notes


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _span(ordered: list[int]) -> str:
    """The smallest and the largest of some sorted numbers; one number where they are equal."""
    low, high = ordered[0], ordered[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def split_report(name: str, source: str, rows: Prepared, labels: Labels, kind: LabelKind) -> SplitReport:
    """Describe one split.

    Args:
        name: Split name.
        source: File or data set.
        rows: The rows, tokenized.
        labels: The label set.
        kind: What the rows are labelled with.
    """
    first: dict[str, Hashable] = {}
    conflicting = 0
    # a number and its name are the same label
    own_labels = map(int, rows.truth) if kind is LabelKind.NAME else (example.label for example in rows.examples)
    for example, own in zip(rows.examples, own_labels, strict=True):
        if first.setdefault(example.digest, own) != own:
            conflicting += 1
    lengths = np.sort([len(e) for e in rows.encoded])
    return SplitReport(
        name=name,
        source=source,
        rows=len(rows.examples),
        duplicates=len(rows.examples) - len(first),
        conflicting=conflicting,
        truncated=sum(e.truncated for e in rows.encoded),
        labels=_counts(rows, labels, kind),
        tokens_mean=float(lengths.mean()),
        tokens_p50=int(_rank(lengths, 0.50)),
        tokens_p95=int(_rank(lengths, 0.95)),
        tokens_max=int(lengths[-1]),
        unit=_UNITS.get(kind, "rows"),
    )


_UNITS = {LabelKind.SPANS: "spans", LabelKind.ANSWERS: "questions"}


LANGUAGE_ROWS = 500
"""Texts that tell whether a tokenizer knows a language."""
MOST_PIECES = 2.0
"""Pieces for each word above which it does not; docs/data.md has what was measured."""
_MOST_UNKNOWN = 0.05
_WORDS = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|[^\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
"""A character of a script that has no blanks between its words, or what stands between blanks."""


def language_note(texts: Sequence[str], tokenizer: TextTokenizer) -> str:
    """Warn where a tokenizer breaks words into many pieces: its model cannot know the language of the rows.

    Args:
        texts: Some texts.
        tokenizer: The teacher's.

    Returns:
        One sentence; nothing where all is well.
    """
    special = set(tokenizer.special_ids)
    pieces = words = unknown = 0
    for text, row in zip(texts, tokenizer.encode(texts), strict=True):
        if not row.truncated:
            pieces += len(row) - tokenizer.special_count
            unknown += sum(int(i) in special for i in row.ids) - tokenizer.special_count
            words += len(_WORDS.findall(text))
    ratio, share = pieces / max(words, 1), unknown / max(pieces, 1)
    if not words or (ratio <= MOST_PIECES and share <= _MOST_UNKNOWN):
        return ""
    what = f"{ratio:.1f} pieces of each word" + (f", {share:.0%} of them unknown" if share > _MOST_UNKNOWN else "")
    return (
        f"warning: the teacher's tokenizer makes {what}, so the teacher hardly knows this language: "
        "set teacher.model to a model that was trained on it"
    )


def _counts(rows: Prepared, labels: Labels, kind: LabelKind) -> dict[str, int]:
    """How often each label occurs."""
    values = [e.label for e in rows.examples]
    if kind is LabelKind.NAME:
        ids = Counter(int(i) for i in rows.truth)
        return {label: ids.get(i, 0) for i, label in enumerate(labels.names)}
    if kind is LabelKind.NAMES:
        sets = np.asarray(rows.truth, bool)
        return {label: int(sets[:, i].sum()) for i, label in enumerate(labels.names)}
    if kind is LabelKind.SPANS:
        found = Counter(s.label for spans in rows.truth for s in spans)
        known = dict.fromkeys(label for tag in labels.names if (label := label_of_tag(tag)))
        return {label: found.get(label, 0) for label in known}
    if kind is LabelKind.ANSWERS:
        none = sum(not v for v in values)
        return {"answered": len(values) - none, **({"without answer": none} if none else {})}
    return {}


def _rank(ordered: np.ndarray, share: float) -> int:
    return int(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)])


def majority_note(report: SplitReport, kind: LabelKind) -> str | None:
    """A warning when one label of several that exclude each other holds most rows, so that accuracy by itself would mislead."""
    share = max(report.labels.values(), default=0) / report.rows
    if share > 0.8 and kind is LabelKind.NAME and len(report.labels) > 1:
        return f"{report.name}: one label holds {share:.0%} of the rows; look at macro F1 and accuracy"
    return None


def twin_notes(report: SplitReport) -> list[str]:
    """Notes on labels that differ only in case, which are two classes and may be meant as one; at most ten."""
    groups: dict[str, list[str]] = {}
    for name in report.labels:
        groups.setdefault(name.casefold(), []).append(name)
    twins = [names for names in groups.values() if len(names) > 1]
    return [
        f"{report.name}: labels that differ only in case: "
        + ", ".join(f"{shown(name)} ({report.labels[name]:,} {report.unit})" for name in names[:10])
        for names in twins[:10]
    ]
