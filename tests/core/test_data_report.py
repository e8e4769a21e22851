from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.labels import Labels, join_head_labels
from pocketbert.core.data_report import DataReport, SplitReport, split_report, warn_about_language, warn_about_majority
from pocketbert.core.heads import Prepared, make_head
from pocketbert.core.predict.examples import Example, HeadLabels
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import LabelKind, several_task, task_of
from support.tiny import write_bert

LABELS = Labels(("no", "yes", "never"))


def encoded(length: int, truncated: bool = False) -> Encoded:
    return Encoded(np.ones(length, np.int64), np.zeros(length, np.int64), truncated)


def report(rows: list[tuple[str, int, int]]) -> SplitReport:
    """A report of (text, label id, tokens) rows; 10 tokens count as truncated."""
    examples = [Example(text, None, label, i) for i, (text, label, _) in enumerate(rows, 1)]
    prepared = Prepared(
        examples,
        [encoded(n, n == 10) for _, _, n in rows],
        np.arange(len(rows)),
        truth=np.array([r[1] for r in rows]),
    )
    return split_report("train", "a.jsonl", prepared, LABELS, LabelKind.NAME)


def test_numbers_of_a_small_split_and_their_lines() -> None:
    made = report([("a", 0, 3), ("b", 1, 10), ("A ", 0, 3), ("a", 1, 4), ("c", 1, 10)])
    assert (made.rows, made.duplicates, made.conflicting, made.truncated) == (5, 2, 1, 2)
    assert made.labels == {"no": 2, "yes": 3, "never": 0}
    assert made.tokens_mean == pytest.approx(6.0)
    assert (made.tokens_p50, made.tokens_p95, made.tokens_max) == (4, 10, 10)
    whole = DataReport(max_length=10, splits=[report([("a", 0, 3), ("a", 1, 10)])], train_in_eval=4, notes=["look out"])
    lines = whole.lines()
    assert lines[0].startswith("train: 2 rows, 1 duplicate (1 of them with another label), 1 truncated at 10")
    assert "3 labels with 0 to 1 rows each" in lines[0]
    assert lines[1:] == [
        "train rows that occur in eval or overlap with its texts: 4 (left out of training)",
        "look out",
    ]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=100))
def test_percentiles_are_nearest_rank(lengths: list[int]) -> None:
    made = report([(f"text {i}", 0, n) for i, n in enumerate(lengths)])
    ordered = sorted(lengths)
    assert made.tokens_p50 == np.percentile(ordered, 50, method="inverted_cdf")
    assert made.tokens_p95 == np.percentile(ordered, 95, method="inverted_cdf")


def test_a_majority_is_noted() -> None:
    names, several = task_of("text-classification"), task_of("multi-label")
    assert not warn_about_majority(report([(f"t{i}", 0 if i < 8 else 1, 3) for i in range(10)]), names)
    (note,) = warn_about_majority(report([(f"t{i}", 0 if i < 9 else 1, 3) for i in range(10)]), names)
    assert "train: one label holds 90%" in note
    # of labels that stand beside one another, one may well be on most rows
    assert not warn_about_majority(report([(f"t{i}", 0, 3) for i in range(10)]), several)


HEADS = several_task({"intent": "text-classification", "mood": "text-classification", "slots": "token-classification"})
HEAD_LABELS = join_head_labels(HEADS, [Labels(("a", "b")), Labels(("good", "bad")), Labels(("O", "B-x", "I-x"))])


def head_report(tmp_path: Path, rows: list[tuple[str, tuple[Any, ...]]]) -> SplitReport:
    """A report of rows with a label for each head, or None."""
    write_bert(tmp_path / "model")
    tokenizer = TextTokenizer(tmp_path / "model", 64)
    examples = [Example(text, None, HeadLabels(labels), i) for i, (text, labels) in enumerate(rows, 1)]
    head: Any = make_head(HEADS.with_columns(HEAD_LABELS.names), HEAD_LABELS)
    prepared = head.prepare(examples, tokenizer, "a.jsonl")
    return split_report("train", "a.jsonl", prepared, HEAD_LABELS, HEADS.labels, HEADS.heads)


def test_labels_of_several_heads_conflict_only_with_those_of_the_same_head(tmp_path: Path) -> None:
    merged = [(f"text {i}", ("a", None, None)) for i in range(40)] + [
        (f"text {i}", (None, "good", None)) for i in range(40)
    ]
    made = head_report(tmp_path, merged)
    assert (made.rows, made.duplicates, made.conflicting) == (80, 40, 0)
    assert made.unit == "rows or spans"
    assert made.labels == {"intent: a": 40, "intent: b": 0, "mood: good": 40, "mood: bad": 0, "slots: x": 0}
    spans = (Span(0, 4, "x"),)
    more = [
        ("text 0", ("b", None, None)),  # another intent than the first row of the text
        ("text 1", ("a", None, spans)),  # the first tags of the text
        ("text 1", ("a", "bad", None)),  # the same intent, another mood than the second row
        ("text 1", ("a", "good", ())),  # other tags
        ("text 2", ("a", "good", spans)),
    ]
    assert head_report(tmp_path, merged + more).conflicting == 3


def test_a_majority_is_noted_for_each_head(tmp_path: Path) -> None:
    rows = [(f"text {i}", ("ab"[i % 2], "bad" if i == 0 else "good" if i < 10 else None, ())) for i in range(20)]
    assert warn_about_majority(head_report(tmp_path, rows), HEADS) == [
        "train, head mood: one label holds 90% of the rows; look at macro F1 and accuracy"
    ]


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("please dim the lamp in the kitchen now", ""),
        ("wo bleibt meine neue karte denn nun schon wieder", "pieces of each word"),
        ("где моя карта", "unknown"),
    ],
)
def test_a_language_that_the_tokenizer_does_not_know(tmp_path: Path, text: str, warned: str) -> None:
    write_bert(tmp_path / "model")
    note = warn_about_language([text] * 20, TextTokenizer(tmp_path / "model", 64))
    assert (warned in note) if warned else not note
