"""The demo's folder, real weights, in the real MediaPipe Tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

import pocketbert
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES
from pocketbert.core.tasks import task_of
from pocketbert.pipeline.formats.tflite import measure_tokenizer_effect

RUNS = Path(__file__).resolve().parents[2] / "runs"


@pytest.fixture(scope="module")
def phone() -> Path:
    """The folder that `make demo` packs; made here where nobody has made it yet."""
    with FileLock(RUNS.parent / ".venv-clients" / ".demo.lock"):
        if not (RUNS / "demo" / "phone" / "tflite" / "mediapipe.tflite").is_file():
            command = [
                sys.executable,
                "-m",
                "pocketbert.cli.main",
                "demo",
                "-o",
                str(RUNS / "demo"),
                "--overwrite",
            ]
            subprocess.run(command, check=True, capture_output=True)
    return RUNS / "demo" / "phone"


@pytest.fixture(scope="module")
def mediapipe(environment: Callable[..., Path], ask: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """`mediapipe(file, texts)`: probabilities in the order of the labels."""
    python = environment("mediapipe", ["mediapipe==1.2.2"])

    def call(file: Path, texts: Sequence[str]) -> np.ndarray:
        answer = ask(python, "mediapipe_client.py", {"verb": "classify", "model": str(file), "texts": list(texts)})
        return np.array([r["scores"] for r in answer["rows"]])

    return call


def ours(phone: Path, file: str, texts: Sequence[str]) -> np.ndarray:
    return np.array([list(p.scores.values()) for p in pocketbert.load(phone, file=file).predict(list(texts))])


def test_the_fp32_file_gives_the_toolkits_probabilities(phone: Path, mediapipe: Callable[..., np.ndarray]) -> None:
    seen = mediapipe(phone / "tflite" / "mediapipe.tflite", ASCII_SENTENCES)
    for file in ("tflite/mediapipe.tflite", "tflite/model.tflite", "onnx/model.onnx"):
        np.testing.assert_allclose(seen, ours(phone, file, ASCII_SENTENCES), atol=1e-5, err_msg=file)


def test_the_int8_file_gives_the_toolkits_labels(phone: Path, mediapipe: Callable[..., np.ndarray]) -> None:
    seen = mediapipe(phone / "tflite" / "mediapipe_int8.tflite", ASCII_SENTENCES)
    own = ours(phone, "tflite/mediapipe_int8.tflite", ASCII_SENTENCES)
    assert seen.argmax(-1).tolist() == own.argmax(-1).tolist()
    assert len(set(seen.argmax(-1))) > 5  # a file that always says the same would agree as well


def test_the_card_states_what_mediapipe_really_changes(phone: Path, mediapipe: Callable[..., np.ndarray]) -> None:
    file = phone / "tflite" / "mediapipe.tflite"
    effect = measure_tokenizer_effect(file, phone, task_of("text-classification"))
    seen, own = mediapipe(file, UNICODE_SENTENCES), ours(phone, "tflite/mediapipe.tflite", UNICODE_SENTENCES)
    assert effect.scores == np.mean(np.abs(seen - own).max(-1) > 1e-5)
    assert effect.labels == np.mean(seen.argmax(-1) != own.argmax(-1))
    assert effect.summary in (phone / "README.md").read_text()
