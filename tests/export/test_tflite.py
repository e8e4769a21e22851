"""TFLite files: the untouched model's numbers at every length, shared weights, nothing of the machine, and files for MediaPipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("litert_torch", reason="needs pocketbert[tflite]", exc_type=ImportError)

from pocketbert.core.compare.parity import build_probe, compare_with_probe, measure_padding_effect
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families import family_of
from pocketbert.core.predict.predictor import TorchPredictor, feed
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format
from pocketbert.export import tflite as exporter
from pocketbert.export.prepare import prepare
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.runtime.tflite import TflitePredictor
from support.tiny import BASIC, tiny_classifier

CLASSIFY, EMBED = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FEATURE_EXTRACTION]
LENGTH = 16
TFLITE_LENGTHS = (16, 32, 40)
TRACES = (b"/work/", b"/root/", b"/home/", b"/tmp/", b"/usr/", b"site-packages", b".py", b"Traceback")
FAMILIES = ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in BASIC if f != "bert")]


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
            answers = (p.run(inputs)["logits"] for p in (predictor, reference))
            np.testing.assert_allclose(*answers, atol=family.parity_atol * found.spread)
    rows = tokenizer.encode(["a good film", "no", "what will the weather be like", "play music", "you", "is it"])
    if name != "mobilebert":  # its last token sees the embedding of the padding beside it, in torch as here
        assert measure_padding_effect(predictor, tokenizer, rows, CLASSIFY) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_names_and_types_are_those_of_the_tables_and_the_bytes_tell_nothing_of_the_machine(
    name: str, exported_tflite: Callable[[str], Path]
) -> None:
    path = exported_tflite(name)
    predictor, raw = TflitePredictor(path), path.read_bytes()
    signature = predictor.signature
    assert tuple(t.name for t in signature.inputs) == family_of(name).inputs == predictor.inputs
    assert {(t.dtype, *t.shape) for t in signature.inputs} == {("int32", 1, "sequence")}
    assert [(t.name, t.dtype, t.shape) for t in signature.outputs] == [("logits", "float32", [1, 3])]
    assert signature.lengths == list(predictor.lengths)
    assert predictor.signature_keys == {n: f"seq_{n}" for n in predictor.lengths}
    assert [trace for trace in TRACES if trace in raw] == []
    floats = np.concatenate([v.ravel() for _, v in TfliteGraph(path).stored() if v.dtype == np.float32])
    assert np.isfinite(floats).all()
    assert np.abs(floats).max() <= 1e4  # the mask's own


def test_signatures_share_their_weights(exported_tflite: Callable[[str], Path], open_tiny: Callable[..., Any]) -> None:
    graph = TfliteGraph(exported_tflite("bert"))
    weights = sum(p.numel() for p in open_tiny("bert", 2)[0].parameters())
    assert graph.subgraphs == len(TFLITE_LENGTHS) == 3
    assert sum(v.size for _, v in graph.stored() if v.dtype == np.float32) < 1.1 * weights


# Files for MediaPipe Tasks.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return TextTokenizer(folder, 48, 0)


def export_mediapipe(name: str, task: Task, path: Path) -> tuple[TorchPredictor, TflitePredictor]:
    """A random model, and its file for MediaPipe."""
    family = family_of(name)
    model = tiny_classifier(name, 1, ("a", "b", "c", "d"), 3, task.auto_class)
    exporter.export_mediapipe(prepare(model, family, task, Format.TFLITE), family, task, LENGTH, path)
    return TorchPredictor(model, task, family.inputs), TflitePredictor(path, 1)


def test_a_classifier_for_mediapipe_has_three_inputs_and_probabilities(
    tokenizer: TextTokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    model, predictor = export_mediapipe("distilbert", CLASSIFY, tmp_path / "a.tflite")
    assert tuple(capfd.readouterr()) == ("", "")
    assert not list(recwarn)
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a.tflite"]
    assert (predictor.inputs, predictor.lengths) == (exporter.MEDIAPIPE_INPUTS, (LENGTH,))
    assert [(t.name, t.shape) for t in predictor.signature.outputs] == [("probabilities", [1, 4])]
    # no number is free where there is one signature: MediaPipe reads the length off the inputs
    assert {(t.dtype, *t.shape) for t in predictor.signature.inputs} == {("int32", 1, LENGTH)}
    inputs = feed(predictor, tokenizer, tokenizer.encode(["a good film", "the weather"]))
    found = predictor.run(inputs)["probabilities"]
    expected = torch.from_numpy(model.run(inputs)["logits"]).softmax(-1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    segments = {**inputs, "token_type_ids": np.ones_like(inputs["token_type_ids"])}
    np.testing.assert_array_equal(predictor.run(segments)["probabilities"], found)  # the family has none


def test_an_embedder_for_mediapipe_gives_one_unit_vector(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    limit = sys.getrecursionlimit()
    model, predictor = export_mediapipe("bert", EMBED, tmp_path / "a.tflite")
    assert sys.getrecursionlimit() == limit, "deeply nested JSON would end this process from now on"
    assert predictor.outputs == ("sentence_embedding",)
    inputs = feed(predictor, tokenizer, tokenizer.encode(["a good film", "the weather"]))
    found, mask = predictor.run(inputs)["sentence_embedding"], inputs["attention_mask"]
    means = np.stack([s[m == 1].mean(0) for s, m in zip(model.run(inputs)["last_hidden_state"], mask, strict=True)])
    np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-4)
    segments = {**inputs, "token_type_ids": np.ones_like(inputs["token_type_ids"])}
    assert np.abs(predictor.run(segments)["sentence_embedding"] - found).max() > 1e-3


def test_a_missing_exporter_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exporter, "version_of", lambda name: None if name == "litert-torch" else "1")
    family, path = family_of("bert"), tmp_path / "a.tflite"
    for export, length in ((exporter.export, [LENGTH]), (exporter.export_mediapipe, LENGTH)):
        with pytest.raises(MissingBackendError, match=r"litert-torch is not installed.*'pocketbert\[tflite\]'"):
            export(torch.nn.Identity(), family, CLASSIFY, length, path)  # type: ignore[operator]
    assert not path.exists()
