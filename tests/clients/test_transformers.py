"""The folder in transformers (torch), its ONNX files in optimum, its vectors in sentence-transformers: predictions are PocketBERT's."""

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
from pocketbert.core.tasks import TASKS, TaskName
from support.client_environments import SENTENCE_TRANSFORMERS, build
from support.clients import LENGTH, largest, own, texts_of

FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
SMALLER = ("onnx/model_small.onnx", "onnx/model_a8w8.onnx")
"""The files of `smaller_phone`, which is made for one task."""
EXACT = 2e-5
"""Of probabilities, of unit vectors, and of numbers near 1."""


def asked(task: str) -> list[Any]:
    """Long contexts left out: windows are not the client's; and the library's pipelines refuse the empty text."""
    return [t for t in texts_of(task, odd=task != TaskName.QUESTION_ANSWERING) if t]


def compare(found: Any, task: str, phone: Path, file: str) -> float:
    """A client's rows against the toolkit's answers with one file; the largest difference."""
    model = pocketbert.load(phone, file=file, threads=1)
    return max(difference(task, row, text, model) for text, row in zip(asked(task), found["rows"], strict=True))


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
        case TaskName.MULTIPLE_CHOICE:
            apart = largest(row, answer.scores)
        case _:
            raise ValueError(task)
    assert apart < bound, text
    return float(apart)


@pytest.mark.parametrize("task", [t.value for t in TASKS])
def test_transformers_with_torch(
    task: str, phones: Callable[[str], Path], ask: Callable[..., Any], measured: Callable[..., None]
) -> None:
    phone = phones(task)
    found = ask(Path(sys.executable), "ask_transformers", folder=str(phone), task=task, texts=asked(task))
    assert found["version"].startswith("5.")
    measured("transformers, torch", task, compare(found, task, phone, FP32))


@pytest.mark.parametrize(
    ("task", "file"),
    [
        *((t.value, file) for t in TASKS for file in (FP32, INT8)),
        *((TaskName.TEXT_CLASSIFICATION.value, file) for file in SMALLER),
    ],
)
def test_optimum(
    task: str,
    file: str,
    request: pytest.FixtureRequest,
    phones: Callable[[str], Path],
    optimum: Path,
    ask: Callable[..., Any],
    measured: Callable[..., None],
) -> None:
    phone = request.getfixturevalue("smaller_phone") if file in SMALLER else phones(task)
    found = ask(optimum, "ask_transformers", folder=str(phone), task=task, texts=asked(task), file=file)
    assert found["version"].startswith("4.")
    measured("optimum", task, compare(found, task, phone, file), file)


@pytest.mark.parametrize(
    ("version", "file"),
    [("6.", ""), ("5.", ""), ("5.", FP32), ("5.", INT8)],
    ids=["newest with torch", "5 with torch", "5 with onnx", "5 with int8"],
)
def test_sentence_transformers(
    version: str,
    file: str,
    phones: Callable[[str], Path],
    request: pytest.FixtureRequest,
    ask: Callable[..., Any],
    measured: Callable[..., None],
) -> None:
    newest = version == "6."
    python = build("sentence-transformers", SENTENCE_TRANSFORMERS) if newest else request.getfixturevalue("optimum")
    task = TaskName.FEATURE_EXTRACTION
    phone, texts = phones(task), texts_of(task)
    found = ask(python, "ask_sentence_transformers", folder=str(phone), texts=texts, file=file)
    assert found["version"].startswith(version)
    assert found["longest"] == LENGTH
    expected = np.array(own(phone, file or FP32, texts))
    # texts that say different things lie apart, else equal vectors would prove nothing
    assert np.abs(expected[:, None] - expected[None]).max(-1)[~np.eye(len(expected), dtype=bool)].min() > 1e-2
    # a batch, whose rows are padded, has one scale of activations, which changes dynamic int8 a little
    apart = max(largest(found[how], expected) for how in (("alone",) if file == INT8 else ("alone", "together")))
    assert apart < EXACT
    measured("sentence-transformers", task, apart, file or f"torch {version}")
