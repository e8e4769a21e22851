"""The folder in transformers (torch), and its ONNX files in optimum.onnxruntime: the predictions are PocketBERT's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

import pocketbert
from pocketbert.core.tasks import TaskName
from support.clients import largest, texts_of

ALL = [t.value for t in TaskName]
EXACT = 2e-5
"""Of probabilities, and of numbers near 1."""


def compare(task: str, rows: list[Any], phone: Path, file: str, texts: list[Any]) -> float:
    """A client's rows against the toolkit's answers with one file; the largest difference."""
    model = pocketbert.load(phone, file=file, threads=1)
    return max(difference(task, row, text, model) for text, row in zip(texts, rows, strict=True))


def difference(task: str, row: Any, text: Any, model: Any) -> float:
    """Largest difference of a client's row from the toolkit's answer, within its bound; the rest is equal."""
    answer, bound = model.predict([text])[0], EXACT
    match task:
        case TaskName.TEXT_CLASSIFICATION | TaskName.MULTI_LABEL:
            assert row.keys() == answer.scores.keys()
            apart = max(abs(row[name] - score) for name, score in answer.scores.items())
        case TaskName.REGRESSION:
            assert list(row) == ["LABEL_0"]
            apart, bound = abs(row["LABEL_0"] - answer.value), EXACT * max(1.0, abs(answer.value))
        case TaskName.TOKEN_CLASSIFICATION:
            logits = model.outputs([text])[0][1:-1].astype(np.float64)
            scores = np.exp(logits - logits.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            assert [tag for tag, *_ in row] == [model.labels[i] for i in logits.argmax(-1)]
            apart = largest([score for _, score, *_ in row], scores.max(-1))
            # the places of the client's tokens are those of the toolkit's spans
            assert {s.start for s in answer.spans} <= {start for *_, start, _ in row}
            assert {s.end for s in answer.spans} <= {end for *_, end in row}
        case TaskName.QUESTION_ANSWERING:
            apart, bound = largest(np.transpose(row), model.outputs([text])[0]), EXACT * 50
        case TaskName.FILL_MASK:
            assert [token for token, _ in row] == [g.text for g in answer.places[0]]
            apart = largest([score for _, score in row], [g.score for g in answer.places[0]])
        case TaskName.FEATURE_EXTRACTION:
            apart = largest(row, answer.vector)
        case _:
            raise ValueError(task)
    assert apart < bound, text
    return float(apart)


@pytest.mark.parametrize("task", ALL)
def test_transformers_with_torch(
    task: str,
    phones: Callable[[str], Path],
    ask: Callable[..., Any],
    measured: Callable[..., None],
) -> None:
    phone, texts = phones(task), asked(task)
    found = ask(Path(sys.executable), "transformers_client.py", {"folder": str(phone), "task": task, "texts": texts})
    assert found["version"].startswith("5.")
    measured("transformers, torch", task, compare(task, found["rows"], phone, "onnx/model.onnx", texts))


@pytest.mark.parametrize("file", ["onnx/model.onnx", "onnx/model_int8.onnx"])
@pytest.mark.parametrize("task", ALL)
def test_optimum(
    task: str,
    file: str,
    phones: Callable[[str], Path],
    optimum: Path,
    ask: Callable[..., Any],
    measured: Callable[..., None],
) -> None:
    phone, texts = phones(task), asked(task)
    question = {"folder": str(phone), "task": task, "texts": texts, "file": file}
    found = ask(optimum, "transformers_client.py", question)
    assert found["version"].startswith("4.")
    measured("optimum", task, compare(task, found["rows"], phone, file, texts), file)


@pytest.mark.parametrize("file", ["onnx/model_small.onnx", "onnx/model_a8w8.onnx"])
def test_optimum_opens_smaller_files(
    file: str, smaller_phone: Path, optimum: Path, ask: Callable[..., Any], measured: Callable[..., None]
) -> None:
    task, texts = TaskName.TEXT_CLASSIFICATION, asked(TaskName.TEXT_CLASSIFICATION)
    question = {"folder": str(smaller_phone), "task": task, "texts": texts, "file": file}
    found = ask(optimum, "transformers_client.py", question)
    measured("optimum", task, compare(task, found["rows"], smaller_phone, file, texts), file)


def asked(task: str) -> list[Any]:
    """Long contexts left out: windows are not the client's; and the library's pipelines refuse the empty text."""
    return [t for t in texts_of(task, odd=task != TaskName.QUESTION_ANSWERING) if t]
