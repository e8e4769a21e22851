"""The feature-extraction folder in sentence-transformers, with torch and by its ONNX files: the vectors are PocketBERT's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

from pocketbert.core.tasks import TaskName
from support.client_environments import SENTENCE_TRANSFORMERS
from support.clients import LENGTH, largest, own, texts_of

TASK = TaskName.FEATURE_EXTRACTION
EXACT = 2e-5
"""Of unit vectors."""
FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"


def vectors(found: Any, phone: Path, file: str, together: bool) -> float:
    """Assert that the client's vectors are the toolkit's; the largest difference.

    `together` also those of one batch, whose rows are padded.
    """
    expected = np.array(own(phone, file, texts_of(TASK)))
    assert found["longest"] == LENGTH
    # texts that say different things lie apart, else equal vectors would prove nothing
    assert np.abs(expected[:, None] - expected[None]).max(-1)[~np.eye(len(expected), dtype=bool)].min() > 1e-2
    apart = max(largest(found[how], expected) for how in (("alone", "together") if together else ("alone",)))
    assert apart < EXACT
    return float(apart)


def test_the_newest_with_torch(
    phones: Callable[[str], Path],
    environment: Callable[..., Path],
    ask: Callable[..., Any],
    measured: Callable[..., None],
) -> None:
    phone = phones(TASK)
    python = environment("sentence-transformers", SENTENCE_TRANSFORMERS)
    question = {"folder": str(phone), "texts": texts_of(TASK)}
    found = ask(python, "sentence_transformers_client.py", question)
    assert found["version"].startswith("6.")
    measured("sentence-transformers", TASK, vectors(found, phone, FP32, together=True), "torch 6")


@pytest.mark.parametrize("file", ["", FP32, INT8])
def test_version_5_with_torch_and_onnx(
    file: str,
    phones: Callable[[str], Path],
    optimum: Path,
    ask: Callable[..., Any],
    measured: Callable[..., None],
) -> None:
    phone = phones(TASK)
    question = {"folder": str(phone), "texts": texts_of(TASK), "file": file}
    found = ask(optimum, "sentence_transformers_client.py", question)
    assert found["version"].startswith("5.")
    # a batch has one scale of activations, which changes dynamic int8 a little
    apart = vectors(found, phone, file or FP32, together=file != INT8)
    measured("sentence-transformers", TASK, apart, file or "torch 5")
