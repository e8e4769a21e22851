"""MobileBERT's published recipe as a stage of method `qat`: relu6 in the student and in its files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pocketbert.core.families.weight_records import read_learned_ranges
from pocketbert.core.types import Scheme
from pocketbert.pipeline.learn import quantized
from support.tiny_texts import vocabulary
from support.tiny_tokenizers import write_wordpiece

CLIPPED = (0.0, 6.0)
PARTS = 4
"""Feed-forward parts of the student."""


@pytest.fixture(scope="module")
def mobilebert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MobileBERT of two blocks, as published ones are: NoNorm, relu."""
    import torch
    import transformers

    words, folder = vocabulary(), tmp_path_factory.mktemp("mobilebert")
    config = transformers.MobileBertConfig(
        vocab_size=len(words),
        hidden_size=32,
        embedding_size=16,
        intra_bottleneck_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_feedforward_networks=2,
        max_position_embeddings=64,
        classifier_activation=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.MobileBertModel(config).save_pretrained(folder)
    write_wordpiece(folder, words)
    return folder


def recipe(task: Any, finished: Path, destination: Path, student: Path, format: str) -> Path:
    return Path(
        task.variant(
            destination,
            student={"model": str(student), "layers": None},
            teacher={"model": str(finished / "teacher"), "finetune": None},
            distill=[{"method": "qat", "steps": 4, "format": format, "activation": "relu6"}],
            export={"formats": [format]},
            # by themselves, TFLite and Core ML compute these products without ranges
            quantize={"files": ["a8w8"], "roles": {"ffn_down": "a8w8"}},
        )
    )


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tflite", marks=pytest.mark.slow), pytest.param("coreml", marks=pytest.mark.slow)]
)
def test_a_mobilebert_becomes_relu6_in_its_files(
    format: str,
    task: Any,
    finished: Path,
    mobilebert: Path,
    cli: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantized._Choice, "kept", True)  # four steps improve nothing
    run = tmp_path / "run"
    result = cli("distill", recipe(task, finished, tmp_path / "recipe.yaml", mobilebert, format), "-o", run)
    assert result.exit_code == 0, result.output
    student = run / "student"
    assert json.loads((student / "config.json").read_text())["hidden_act"] == "relu6"
    assert "after 4 steps with relu6" in json.loads((student / "training.json").read_text())["notes"][-1]
    learned = read_learned_ranges(student, Scheme.A8W8)
    assert learned is not None
    assert [p.inputs for p in learned.products.values()].count(CLIPPED) == PARTS
    words = ("--format", format, "--scheme", "a8w8", "--calibrate", task.folder / "train.jsonl", "--lengths", "16")
    words += ("--roles", "ffn_down=a8w8")
    made = cli("export", "-m", student, "-o", tmp_path / "phone", *words)
    assert made.exit_code == 0, f"a gate failed: {made.output}"
    if format == "onnx":
        model = onnx.load(tmp_path / "phone" / "onnx" / "model_a8w8.onnx")
        stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        scales = [float(stored[n.input[1]]) for n in model.graph.node if n.op_type == "QuantizeLinear"]
        assert sum(np.isclose(s, 6 / 255) for s in scales) == PARTS
        assert sum(n.op_type == "Clip" for n in model.graph.node) == PARTS


def test_another_activation_is_refused_before_anything_is_trained(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    path = recipe(task, finished, tmp_path / "recipe.yaml", finished / "student", "onnx")
    result = cli("distill", path, "-o", tmp_path / "run")
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert "distill.0.activation: relu6 takes the place of relu" in told
    assert "the student's activation is gelu" in told
    assert not (tmp_path / "run" / "data.json").exists()
