from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("litert_torch", reason="needs pocketbert[tflite]", exc_type=ImportError)

from pocketbert.core.compare.parity import build_probe, compare_with_probe, measure_padding_effect
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families import Family, family_of
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import TorchPredictor, feed
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, ScoreFunction, Task, TaskName
from pocketbert.core.types import Format
from pocketbert.export import onnx as onnx_exporter
from pocketbert.export import tflite as exporter
from pocketbert.export.prepare import prepare
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor
from support.tiny import BASIC as FAMILIES
from support.tiny import tiny_classifier

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
EMBED = TASKS[TaskName.FEATURE_EXTRACTION]
LENGTH = 16


@pytest.mark.parametrize("name", FAMILIES)
def test_the_file_computes_what_the_untouched_model_computes(
    name: str, open_tiny: Callable[..., Any], exported_tflite: Callable[[str], Path]
) -> None:
    model, folder, tokenizer = open_tiny(name, 2)
    family, predictor = folder.family, TflitePredictor(exported_tflite(name))
    reference = TorchPredictor(model, CLASSIFY, family.inputs)
    texts = [*SENTENCES, *(sample_pairs()[:8] if family.uses_segments else [])]
    probe = build_probe(reference, tokenizer, texts, [16, 32, 48], CLASSIFY, ["logits"], predictor.lengths)
    found = compare_with_probe(predictor, "model.tflite", "model", probe, ["logits"], family.parity_atol)
    assert found.passed, found
    assert found.mask_effect > 0.1
    assert {length for _, length in found.shapes} == set(predictor.lengths)
    for length in predictor.lengths:  # no padding at all, and nothing but padding beside the shortest text
        full = tokenizer.pad(TextTokenizer(folder.path, length).encode(["good day " * 40]))
        short = tokenizer.pad(tokenizer.encode(["a"]), length)
        assert full["attention_mask"].all()
        assert short["attention_mask"].sum() == 3
        for inputs in (full, short):
            np.testing.assert_allclose(
                predictor.run(inputs)["logits"],
                reference.run(inputs)["logits"],
                atol=family.parity_atol * found.spread,
            )
    rows = tokenizer.encode(["a good film", "no", "what will the weather be like", "play music", "you", "is it"])
    if name != "mobilebert":  # its last token sees the embedding of the padding beside it, in torch as here
        assert measure_padding_effect(predictor, tokenizer, rows, CLASSIFY) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_and_outputs_are_those_of_the_tables(name: str, exported_tflite: Callable[[str], Path]) -> None:
    predictor = TflitePredictor(exported_tflite(name))
    signature = predictor.signature
    assert tuple(t.name for t in signature.inputs) == family_of(name).inputs == predictor.inputs
    assert {t.dtype for t in signature.inputs} == {"int32"}
    assert [(t.name, t.dtype, t.shape) for t in signature.outputs] == [("logits", "float32", [1, 3])]
    assert signature.lengths == list(predictor.lengths)
    assert all(t.shape == [1, "sequence"] for t in signature.inputs)
    assert list(interpreter(exported_tflite(name)).get_signature_list()) == [f"seq_{n}" for n in predictor.lengths]


def interpreter(path: Path) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_path=str(path), num_threads=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_bytes_tell_nothing_of_the_machine_and_the_mask_is_finite(
    name: str, exported_tflite: Callable[[str], Path]
) -> None:
    raw = exported_tflite(name).read_bytes()
    for trace in (
        b"/work/",
        b"/root/",
        b"/home/",
        b"/tmp/",
        b"/usr/",
        b"site-packages",
        b".py",
        b"Traceback",
    ):
        assert trace not in raw, trace
    floats = np.concatenate(
        [v.ravel() for _, v in TfliteGraph(exported_tflite(name)).stored() if v.dtype == np.float32]
    )
    assert np.isfinite(floats).all()
    assert np.abs(floats).max() <= 1e4


def test_signatures_share_their_weights(make_classifier: Callable[..., Any], tmp_path: Path) -> None:
    # 8,192 words, so that it is the weights and not the graphs that decide the size
    family = family_of("bert")
    module = prepare(make_classifier("bert", 1, ("no", "yes"), vocab_size=8192), family, CLASSIFY, Format.TFLITE)
    exporter.export(module, family, CLASSIFY, [16], tmp_path / "one.tflite")
    exporter.export(module, family, CLASSIFY, [40, 16, 32, 16], tmp_path / "three.tflite")
    one, three = ((tmp_path / f"{n}.tflite").stat().st_size for n in ("one", "three"))
    assert 8192 * 32 * 4 < one < three < 1.3 * one
    assert TfliteGraph(tmp_path / "three.tflite").subgraphs == 3
    assert TflitePredictor(tmp_path / "three.tflite").lengths == (16, 32, 40)  # sorted, each once


# Every task through the wrappers that all formats share.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return TextTokenizer(folder, 48, 0)


@cache
def tiny(task: Task, family: str = "bert", labels: int = 4) -> Any:
    """A random model with the head of a task, as transformers builds it."""
    outputs = {TaskName.REGRESSION: 1, TaskName.QUESTION_ANSWERING: 2}.get(task.name, labels)
    names = [f"LABEL_{i}" for i in range(outputs)]
    sizes = {"vocab_size": 200, "max_position_embeddings": 48}
    model = tiny_classifier(family, 1, names, 3, task.auto_class, **sizes)
    assert type(model).__name__.endswith(task.head)
    return model


def answers(task: Task, inputs: dict[str, np.ndarray], family: str = "bert") -> dict[str, np.ndarray]:
    """What the untouched model answers; sentence embeddings by their textbook definition."""
    feed = {n: torch.from_numpy(inputs[n]) for n in family_of(family).inputs}
    with torch.inference_mode():
        out = tiny(task, family)(**feed)
    found = {n: out[n].numpy() for n in task.outputs if n != "sentence_embedding"}
    if "sentence_embedding" in task.outputs:
        states, mask = found["last_hidden_state"], inputs["attention_mask"]
        means = np.stack([s[m == 1].mean(0) for s, m in zip(states, mask, strict=True)])
        found["sentence_embedding"] = means / np.linalg.norm(means, axis=1, keepdims=True)
    return found


def close(found: dict[str, Any], want: dict[str, np.ndarray]) -> None:
    assert list(found) == list(want)
    for name, value in want.items():
        assert found[name].shape == value.shape, name
        assert found[name].dtype == np.float32, name
        np.testing.assert_allclose(found[name], value, atol=2e-4 * max(1.0, float(np.abs(value).max())))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_answers_as_torch_does(name: TaskName, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    task, family = TASKS[name], family_of("bert")
    encoded = tokenizer.encode(["a good film", ("what will the", "weather be"), "play music " * 30])
    rows = [*encoded[:2], Encoded(encoded[2].ids[:LENGTH], encoded[2].type_ids[:LENGTH], True)]
    inputs = tokenizer.pad(rows, LENGTH)
    assert set(inputs["attention_mask"].sum(1)) == {5, 8, LENGTH}
    want = answers(task, inputs)
    assert all(np.abs(v).max() > 1e-3 for v in want.values())

    module = prepare(tiny(task), family, task, Format.TFLITE)
    exporter.export(module, family, task, [LENGTH], tmp_path / "model.tflite")
    tflite = TflitePredictor(tmp_path / "model.tflite", 1)
    assert tflite.outputs == task.outputs
    close(tflite.run(inputs), want)

    module = prepare(tiny(task), family, task, Format.ONNX)
    onnx_exporter.export(module, family, task, inputs, tmp_path / "model.onnx")
    onnx = OnnxPredictor(tmp_path / "model.onnx", 1)
    assert onnx.outputs == task.outputs
    close(onnx.run(inputs), want)
    shorter = tokenizer.pad(rows[:2])  # both axes are free
    close(onnx.run(shorter), answers(task, shorter))


# Files for MediaPipe Tasks.


def mediapipe(task: Task, family: Family, path: Path) -> TflitePredictor:
    module = prepare(tiny(task, family.name), family, task, Format.TFLITE)
    exporter.export_mediapipe(module, family, task, LENGTH, path)
    return TflitePredictor(path, 1)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_classifier_for_mediapipe_has_three_inputs_and_probabilities(
    name: str, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    family = family_of(name)
    predictor = mediapipe(CLASSIFY, family, tmp_path / "a.tflite")
    assert predictor.inputs == exporter.MEDIAPIPE_INPUTS
    assert predictor.lengths == (LENGTH,)
    assert [(t.name, t.shape) for t in predictor.signature.outputs] == [("probabilities", [1, 4])]
    # no number is free where there is one signature: MediaPipe reads the length off the inputs
    assert {(t.dtype, *t.shape) for t in predictor.signature.inputs} == {("int32", 1, LENGTH)}
    inputs = feed(predictor, tokenizer, tokenizer.encode(["a good film", "the weather"]))
    found = predictor.run(inputs)["probabilities"]
    logits = torch.from_numpy(answers(CLASSIFY, inputs, name)["logits"])
    assert CLASSIFY.score is ScoreFunction.SOFTMAX
    np.testing.assert_allclose(found, logits.softmax(-1).numpy(), atol=1e-4)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    segments = {**inputs, "token_type_ids": np.ones_like(inputs["token_type_ids"])}
    moved = np.abs(predictor.run(segments)["probabilities"] - found).max()
    assert moved > 1e-3 if family.uses_segments else moved == 0


def test_an_embedder_for_mediapipe_gives_one_unit_vector(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    predictor = mediapipe(EMBED, family_of("bert"), tmp_path / "a.tflite")
    assert predictor.outputs == ("sentence_embedding",)
    inputs = feed(predictor, tokenizer, tokenizer.encode(["a good film", "the weather"]))
    found = predictor.run(inputs)["sentence_embedding"]
    assert found.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found, answers(EMBED, inputs)["sentence_embedding"], atol=1e-4)


# The converter and the terminal.


def test_nothing_is_printed(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder, tmp_path: Path
) -> None:
    family = family_of("distilbert")
    module = prepare(tiny(CLASSIFY, "distilbert"), family, CLASSIFY, Format.TFLITE)
    capfd.readouterr()
    recwarn.clear()
    exporter.export(module, family, CLASSIFY, [LENGTH], tmp_path / "a.tflite")
    assert TflitePredictor(tmp_path / "a.tflite").lengths == (LENGTH,)
    assert tuple(capfd.readouterr()) == ("", "")
    assert not list(recwarn)
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a.tflite"]


def test_a_missing_exporter_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exporter, "version_of", lambda name: None if name == "litert-torch" else "1")
    family, path = family_of("bert"), tmp_path / "a.tflite"
    said = r"litert-torch is not installed.*pip install 'pocketbert\[tflite\]'"
    with pytest.raises(MissingBackendError, match=said):
        exporter.export(torch.nn.Identity(), family, CLASSIFY, [LENGTH], path)
    with pytest.raises(MissingBackendError, match=said):
        exporter.export_mediapipe(torch.nn.Identity(), family, CLASSIFY, LENGTH, path)
    assert not path.exists()
