from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.examples import Example
from pocketbert.core.data.labels import Labels
from pocketbert.core.data_report import DataReport, SplitReport, split_report, warn_about_language, warn_about_majority
from pocketbert.core.heads import Prepared
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import LabelKind
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


def test_numbers_of_a_small_split() -> None:
    made = report([("a", 0, 3), ("b", 1, 10), ("A ", 0, 3), ("a", 1, 4), ("c", 1, 10)])
    assert (made.rows, made.duplicates, made.conflicting, made.truncated) == (5, 2, 1, 2)
    assert made.labels == {"no": 2, "yes": 3, "never": 0}
    assert made.tokens_mean == pytest.approx(6.0)
    assert (made.tokens_p50, made.tokens_p95, made.tokens_max) == (4, 10, 10)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=100))
def test_percentiles_are_nearest_rank(lengths: list[int]) -> None:
    made = report([(f"text {i}", 0, n) for i, n in enumerate(lengths)])
    ordered = sorted(lengths)
    assert made.tokens_p50 == np.percentile(ordered, 50, method="inverted_cdf")
    assert made.tokens_p95 == np.percentile(ordered, 95, method="inverted_cdf")


def test_the_lines_say_the_numbers() -> None:
    whole = DataReport(max_length=10, splits=[report([("a", 0, 3), ("a", 1, 10)])], train_in_eval=4, notes=["look out"])
    lines = whole.lines()
    assert lines[0].startswith("train: 2 rows, 1 duplicate (1 of them with another label), 1 truncated at 10")
    assert "3 labels with 0 to 1 rows each" in lines[0]
    assert lines[1:] == ["train rows that also occur in eval: 4 (left out of training)", "look out"]


def test_a_majority_is_noted() -> None:
    assert warn_about_majority(report([(f"t{i}", 0 if i < 8 else 1, 3) for i in range(10)]), LabelKind.NAME) is None
    note = warn_about_majority(report([(f"t{i}", 0 if i < 9 else 1, 3) for i in range(10)]), LabelKind.NAME)
    assert note is not None
    assert "90%" in note
    # of labels that stand beside one another, one may well be on most rows
    assert warn_about_majority(report([(f"t{i}", 0, 3) for i in range(10)]), LabelKind.NAMES) is None


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
