"""MediaPipe Tasks on the files of packed folders, for the tasks that it has: the predictions are PocketBERT's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.tasks import TaskName
from support.clients import LABELS, TEXTS, largest, own

PACKAGE = "mediapipe==1.2.2"
CLIENT = Path(__file__).with_name("mediapipe_client.py")
CONTACTS = Path(__file__).resolve().parents[2] / "scripts" / "contacts.py"
FILES = {"tflite/mediapipe.tflite": 1e-5, "tflite/mediapipe_int8.tflite": 1e-4}
SERVED = (TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION)


@pytest.fixture(scope="module")
def mediapipe(environment: Callable[..., Path], ask: Callable[..., Any]) -> Callable[..., list[Any]]:
    """`mediapipe(verb, file, texts)`: the rows that MediaPipe answers."""
    python = environment("mediapipe", [PACKAGE])

    def call(verb: str, file: Path, texts: list[str]) -> list[Any]:
        answer = ask(python, "mediapipe_client.py", {"verb": verb, "model": str(file), "texts": texts}, offline=True)
        rows: list[Any] = answer["rows"]
        return rows

    return call


@pytest.mark.parametrize("file", FILES)
def test_the_text_classifier(
    file: str,
    phones: Callable[[str], Path],
    mediapipe: Callable[..., list[Any]],
    measured: Callable[..., None],
) -> None:
    phone, texts = phones(TaskName.TEXT_CLASSIFICATION), list(TEXTS)
    rows = mediapipe("classify", phone / file, texts)
    assert rows[0]["names"] == list(LABELS[TaskName.TEXT_CLASSIFICATION])
    expected = [list(scores.values()) for scores in own(phone, file, texts)]
    apart = largest([row["scores"] for row in rows], expected)
    assert apart < FILES[file]
    measured("MediaPipe", TaskName.TEXT_CLASSIFICATION, apart, file)


@pytest.mark.parametrize("file", FILES)
def test_the_text_embedder(
    file: str,
    phones: Callable[[str], Path],
    mediapipe: Callable[..., list[Any]],
    measured: Callable[..., None],
) -> None:
    phone, texts = phones(TaskName.FEATURE_EXTRACTION), list(TEXTS)
    vectors = mediapipe("embed", phone / file, texts)
    apart = largest(vectors, own(phone, file, texts))
    assert apart < FILES[file]
    measured("MediaPipe", TaskName.FEATURE_EXTRACTION, apart, file)
    card = (phone / "README.md").read_text(encoding="utf-8")
    assert f'TextEmbedder.createFromFile(context, "{list(FILES)[-1]}")' in card


@pytest.mark.skipif(sys.platform != "linux", reason="contacts are watched on Linux")
def test_limit_it_reports_to_google_when_a_task_is_closed(
    phones: Callable[[str], Path], environment: Callable[..., Path], tmp_path: Path
) -> None:
    phone, seen, question = (
        phones(TaskName.TEXT_CLASSIFICATION),
        tmp_path / "seen.json",
        tmp_path / "question.json",
    )
    question.write_text(
        json.dumps({"verb": "classify", "model": str(phone / next(iter(FILES))), "texts": ["the film was good"]})
    )
    client = [environment("mediapipe", [PACKAGE]), CLIENT, question, tmp_path / "answer.json"]
    subprocess.run([sys.executable, CONTACTS, "--json", seen, "--", *client], check=False)
    report = json.loads(seen.read_text())
    assert (report["exit_code"], report["contacts"][-1]) == (0, "name lookup of play.googleapis.com")
    assert "metrics of their use to Google" in (phone / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", [t for t in TaskName if t not in SERVED])
def test_limit_other_tasks_have_no_file_and_the_folder_says_why(task: str, phones: Callable[[str], Path]) -> None:
    phone = phones(task)
    reason = read_artefacts(phone).absent["tflite/mediapipe.tflite"]
    assert reason.startswith("MediaPipe ")
    assert reason in (phone / "README.md").read_text(encoding="utf-8")
    assert not list((phone / "tflite").glob("mediapipe*"))
