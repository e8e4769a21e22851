"""The page and the words of a comparison of two models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pocketbert.benchmarks.report.difference import describe_difference, write_difference
from pocketbert.core.compare.differences import (
    ComparedModel,
    Differences,
    Flip,
    LabelChange,
    LabelFlip,
    ModelDiff,
    Outcomes,
    ScoreChange,
)

SCRIPT = "<script>alert(1)</script>"
LABELS = [f"label {i} with a long name {'x' * 60}" for i in range(150)]


@pytest.fixture
def diff() -> ModelDiff:
    """A comparison with 150 long labels, many flips and a text that is no harmless HTML."""
    flips = [Flip(i, (f"{SCRIPT} {'word ' * 400}",), "a", "a", "b", 0.9, 0.8, "lost") for i in range(1, 1001)]
    differences = Differences(
        rows=5000,
        flipped=1000,
        flips=tuple(flips),
        label_flips=tuple(LabelFlip(a, b, 2, 1, 0) for a in LABELS[:30] for b in LABELS[30:40]),
        by_label=tuple(LabelChange(name, 30, 20, 10, 10, 0) for name in LABELS),
        score=ScoreChange("accuracy", 0.9, 0.8, 0.1, 0.08, 0.12),
        outcomes=Outcomes(3000, 900, 100, 1000, 1e-9, exact=True),
    )
    return ModelDiff(
        ComparedModel("runs/a/phone", "onnx/model.onnx", "ONNX fp32", "onnxruntime 1", 40_000_000, 64, 2.0),
        ComparedModel("runs/b/phone", "onnx/model_int8.onnx", "ONNX int8", "onnxruntime 1", 10_000_000, 64, 1.0),
        "text-classification",
        "rows.csv",
        differences,
        "short measurement, 10 single inferences",
        (0.5, 0.45, 0.55),
        "a CPU",
        ("accuracy 80.00 against 90.00",),
    )


def test_the_page_is_small_safe_and_complete(diff: ModelDiff, words: Callable[[str], str], tmp_path: Path) -> None:
    write_difference(diff, tmp_path / "new" / "diff.html")
    page = (tmp_path / "new" / "diff.html").read_text("utf-8")
    assert len(page.encode()) < 2_000_000
    assert SCRIPT not in page
    assert not any(mark in page for mark in ("://", "<link", "src=", "<script src"))
    text = words(page)
    for part in (
        "b against a",
        "10.00 points worse",
        "900 lost",
        "100 gained",
        LABELS[149],
        "4.00× smaller",
        "2.00× faster (1.82–2.22)",
        "short measurement",
        "first 300 of 1,000 rows",
        "failed accuracy 80.00 against 90.00",
    ):
        assert part in text, part


def test_agreement_alone_and_numbers_have_sentences_of_their_own(diff: ModelDiff, tmp_path: Path) -> None:
    bare = replace(diff.differences, score=None, outcomes=None, by_label=())
    assert describe_difference(replace(diff, differences=bare, time_ratio=None)) == [
        "1,000 of 5,000 answers differ (20.00 %)."
    ]
    numbers = Differences(3, 0, (Flip(1, ("a",), "", "1.0", "2.0", distance=1.0),), mean_distance=0.5, correlation=0.9)
    shown = replace(diff, differences=numbers, time_ratio=None)
    assert describe_difference(shown) == ["3 rows: mean difference of the two numbers 0.5; correlation 0.9000."]
    write_difference(shown, tmp_path / "numbers.html")
    assert "Answers that differ most" in (tmp_path / "numbers.html").read_text("utf-8")
