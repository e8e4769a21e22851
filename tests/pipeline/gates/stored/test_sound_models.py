"""No false alarm: files of every family pass, also where an exporter merged constants or multiplied them by powers of two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.export import coreml, onnx
from pocketbert.export.adapters import half_range
from pocketbert.export.prepare import is_rescaled_to_fp16, prepare
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.gates.stored import PreparedModels, ReferenceConstants, compare_constants
from pocketbert.pipeline.gates.torch_constants import example_inputs, trace_constants
from pocketbert.quantize import Plan, quantize
from support.half_range import FAMILY, HEADS, ordinary, planted
from support.stored_models import CLASSIFY, write_model
from support.tiny import BASIC, EXPORTED, tiny_classifier


def problems(file: Path, models: PreparedModels, format: Format, lengths: tuple[int, ...] = ()) -> list[str]:
    graphs = format_place(format).constants(file)
    assert graphs is not None
    return compare_constants(graphs, models.reference(format, Layout.PLAIN), lengths).problems


@pytest.mark.parametrize(
    "family", [*BASIC, *(pytest.param(f, marks=pytest.mark.slow) for f in EXPORTED if f not in BASIC)]
)
def test_files_of_every_family(
    family: str,
    exported: Callable[[str], Path],
    exported_tflite: Callable[[str], Path],
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    models = PreparedModels(open_tiny(family, 2)[1].path, CLASSIFY, 40)
    smaller = tmp_path / "small.onnx"
    quantize(exported(family), smaller, Plan(Format.ONNX, Scheme.INT8))
    assert problems(exported(family), models, Format.ONNX) == []
    assert problems(smaller, models, Format.ONNX) == []
    assert problems(exported_tflite(family), models, Format.TFLITE, (16, 40)) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_fifty_seeds_of_every_family(family: str, tmp_path: Path) -> None:
    alarms = []
    for seed in range(50):
        folder = open_model_folder(str(write_model(tmp_path / f"model-{seed}", family, seed)))
        tokenizer = TextTokenizer(folder.path, 40)
        batch = tokenizer.pad(tokenizer.encode(list(SENTENCES[:2])), 32)
        file, smaller = tmp_path / f"{seed}.onnx", tmp_path / f"{seed}-int8.onnx"
        module = prepare(load_model(folder, CLASSIFY), folder.family, CLASSIFY)
        onnx.export(module, folder.family, CLASSIFY, batch, file)
        quantize(file, smaller, Plan(Format.ONNX, Scheme.INT8))
        models = PreparedModels(folder.path, CLASSIFY, 40)
        alarms += [(seed, p) for path in (file, smaller) for p in problems(path, models, Format.ONNX)]
    assert alarms == []


def test_powers_of_two_that_other_texts_lead_to_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.arange(60, dtype=np.int64).reshape(2, 30)
    samples = [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}]
    task = HEADS[0]
    model, inputs = planted(ordinary(task)), example_inputs(FAMILY.inputs, 8)
    written = trace_constants(prepare(model, FAMILY, task, samples=samples), inputs)
    monkeypatch.setattr(half_range, "ROOM", 4 * half_range.ROOM)  # as if larger numbers had been measured
    constants = trace_constants(prepare(model, FAMILY, task, samples=samples), inputs)
    assert is_rescaled_to_fp16(model, FAMILY, task, samples)
    assert compare_constants([written], ReferenceConstants(constants, True), ()).problems == []
    assert compare_constants([written], ReferenceConstants(constants), ()).problems


def test_a_model_of_ordinary_numbers_may_not_be_multiplied() -> None:
    assert not is_rescaled_to_fp16(ordinary(HEADS[0]), FAMILY, HEADS[0])
    assert not is_rescaled_to_fp16(tiny_classifier("bert", 1, ("a", "b")), find_family("bert"), CLASSIFY)


def test_long_tables_of_places_and_numbers_too_small_for_fp16(tmp_path: Path) -> None:
    model = tiny_classifier("bert", 1, ("a", "b"), max_position_embeddings=512)
    family = find_family("bert")
    batch = {n: np.full((2, 16), 1, np.int64) for n in family.inputs}
    with torch.no_grad():
        model.bert.encoder.layer[0].output.LayerNorm.weight[:3] = torch.tensor([1e-33, -1e-33, 1e-9])
    written = {Format.ONNX: tmp_path / "a.onnx", Format.COREML: tmp_path / "a.mlpackage"}
    modules = {f: prepare(model, family, CLASSIFY, f) for f in written}
    onnx.export(modules[Format.ONNX], family, CLASSIFY, batch, written[Format.ONNX])
    info = coreml.CoremlInfo("a", "1", "b", "c")
    coreml.export(modules[Format.COREML], family, CLASSIFY, (16,), written[Format.COREML], coreml.CoremlForm(), info)
    for format, path in written.items():
        reference = ReferenceConstants(trace_constants(modules[format], example_inputs(family.inputs, 8)))
        graphs = format_place(format).constants(path)
        assert graphs is not None
        assert compare_constants(graphs, reference, (16,) if format is Format.COREML else ()).problems == []


def test_the_folds_of_the_adapters_are_those_that_are_declared(tmp_path: Path) -> None:
    """Of BERT: the attention's scale into the query, and nothing else; recomputed from the untouched weights."""
    folder = open_model_folder(str(write_model(tmp_path / "model", "bert")))
    stock = {name: p.detach() for name, p in load_model(folder, CLASSIFY).named_parameters()}
    models = PreparedModels(folder.path, CLASSIFY, 40)
    depth = stock["bert.encoder.layer.0.attention.self.query.weight"].shape[0] // 4
    for format in Format:
        found = models.reference(format, Layout.PLAIN).constants
        for constant in (
            c for c in found if c.used and not c.covers and not c.tensor.name.endswith(("own", "probing"))
        ):
            value = torch.from_numpy(np.asarray(constant.tensor.value))
            scaled = value * depth**0.5 if ".query." in constant.tensor.name else value
            forms = [scaled, scaled.mT] if scaled.ndim == 2 else [scaled]
            tables = [*stock.values(), *_with_segments(stock)]
            same = any(t.shape == v.shape and torch.allclose(t, v, 1e-6, 0) for t in tables for v in forms)
            assert same, (format, constant.tensor.name)


def _with_segments(stock: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """TFLite: segment 0 is added to the positions, and segment 1 is a difference."""
    segments = stock["bert.embeddings.token_type_embeddings.weight"]
    return [stock["bert.embeddings.position_embeddings.weight"] + segments[0], segments[1] - segments[0]]
