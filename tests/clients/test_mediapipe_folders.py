"""MediaPipe Tasks on the files of packed folders, for the tasks that it has: the predictions are PocketBERT's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.tasks import TaskName

FILES = {"tflite/mediapipe.tflite": 1e-5, "tflite/mediapipe_int8.tflite": 1e-4}
SERVED = (TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION)


@pytest.fixture(scope="module")
def mediapipe(environment: Callable[..., Path], ask: Callable[..., Any]) -> Callable[..., list[Any]]:
    """`mediapipe(verb, file, texts)`: the rows that MediaPipe answers."""
    python = environment("mediapipe", ["mediapipe==1.2.2"])

    def call(verb: str, file: Path, texts: list[str]) -> list[Any]:
        answer = ask(python, "mediapipe_client.py", {"verb": verb, "model": str(file), "texts": texts})
        rows: list[Any] = answer["rows"]
        return rows

    return call


@pytest.mark.parametrize("file", FILES)
def test_the_text_classifier(
    file: str, phones: Callable[[str], Path], mediapipe: Callable[..., list[Any]], kit: SimpleNamespace,
    measured: Callable[..., None],
) -> None:  # fmt: skip
    phone, texts = phones(TaskName.TEXT_CLASSIFICATION), list(kit.TEXTS)
    rows = mediapipe("classify", phone / file, texts)
    assert rows[0]["names"] == list(kit.LABELS[TaskName.TEXT_CLASSIFICATION])
    expected = [list(scores.values()) for scores in kit.own(phone, file, texts)]
    apart = kit.largest([row["scores"] for row in rows], expected)
    assert apart < FILES[file]
    measured("MediaPipe", TaskName.TEXT_CLASSIFICATION, apart, file)


@pytest.mark.parametrize("file", FILES)
def test_the_text_embedder(
    file: str, phones: Callable[[str], Path], mediapipe: Callable[..., list[Any]], kit: SimpleNamespace,
    measured: Callable[..., None],
) -> None:  # fmt: skip
    phone, texts = phones(TaskName.FEATURE_EXTRACTION), list(kit.TEXTS)
    vectors = mediapipe("embed", phone / file, texts)
    apart = kit.largest(vectors, kit.own(phone, file, texts))
    assert apart < FILES[file]
    measured("MediaPipe", TaskName.FEATURE_EXTRACTION, apart, file)
    card = (phone / "README.md").read_text(encoding="utf-8")
    assert f'TextEmbedder.createFromFile(context, "{list(FILES)[-1]}")' in card


@pytest.mark.parametrize("task", [t for t in TaskName if t not in SERVED])
def test_limit_other_tasks_have_no_file_and_the_folder_says_why(
    task: str, phones: Callable[[str], Path]
) -> None:
    phone = phones(task)
    reason = read_artefacts(phone).absent["tflite/mediapipe.tflite"]
    assert reason.startswith("MediaPipe ")
    assert reason in (phone / "README.md").read_text(encoding="utf-8")
    assert not list((phone / "tflite").glob("mediapipe*"))
