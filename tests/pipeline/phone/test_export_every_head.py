"""`pocketbert export` of a ready model of every head: no data, no network, and the same answers from all three formats."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format

TEXTS = {
    TaskName.QUESTION_ANSWERING: [
        ("what is it", "the film was good and the restaurant was bad at night"),
        ("who", "a fox"),
    ],
    TaskName.FILL_MASK: ["play some [MASK] please", "[MASK] was a [MASK] film"],
}
DEFAULT = ["set an alarm for half past six", "the film was far better than I expected", "no"]
LABELS = {
    TaskName.QUESTION_ANSWERING: ("LABEL_0", "LABEL_1"),
    TaskName.REGRESSION: ("score",),
    TaskName.TOKEN_CLASSIFICATION: ("O", "B-time", "I-time", "B-place", "I-place"),
}
FP16 = 5e-3
"""What Core ML's half precision may differ by: probabilities of a random two-layer model, in fp16 from end to end."""


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a connection fails, instead of being served from a cache."""

    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError(f"a connection was opened: {arguments[1:]}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n is TaskName.FEATURE_EXTRACTION else pytest.mark.slow) for n in TASKS],
)
def test_a_ready_model_answers_alike_in_three_formats(
    name: TaskName,
    make_classifier: Callable[..., Any],
    make_tokenizer: Callable[..., None],
    cli: Callable[..., Any],
    no_network: None,
    tmp_path: Path,
) -> None:
    model, phone = tmp_path / "model", tmp_path / "phone"
    made = make_classifier("bert", 2, LABELS.get(name, ("bad", "good", "mixed")), auto_class=TASKS[name].auto_class)
    if name is TaskName.MULTI_LABEL:
        made.config.problem_type = "multi_label_classification"
    made.save_pretrained(model)
    make_tokenizer(model)

    # what transformers writes tells the task, but for an encoder that says nothing of its use
    told = [] if name is not TaskName.FEATURE_EXTRACTION else ["--task", name.value]
    done = cli("export", "-m", model, "-o", phone, "--max-length", 32, *told)

    assert done.exit_code == 0, done.output
    answers = {f: predicted(cli, phone, f, TEXTS.get(name, DEFAULT)) for f in Format}
    assert_alike(answers[Format.TFLITE], answers[Format.ONNX], 1e-5)
    assert_alike(answers[Format.COREML], answers[Format.ONNX], FP16)


def predicted(cli: Callable[..., Any], phone: Path, format: Format, texts: list[Any]) -> list[dict[str, Any]]:
    """What `pocketbert predict` says of some texts, with the file of a format that is not quantized."""
    pairs = isinstance(texts[0], tuple)
    said = cli(
        "predict",
        "-m",
        phone,
        "--format",
        format,
        "--scheme",
        "fp16" if format is Format.COREML else "fp32",
        "--json",
        "-q",
        *(["--text-pair", "context"] if pairs else []),
        *(t for text in texts for t in (text if pairs else [text])),
    )
    assert said.exit_code == 0, said.output
    answers = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(answers) == len(texts)
    return answers


def assert_alike(found: Any, expected: Any, bound: float) -> None:
    """The same words and places, and numbers within a bound."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other, bound)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=bound)
    else:
        assert found == expected
