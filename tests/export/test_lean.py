from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pocketbert.core.families import Family, family_of
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.export import onnx as exporter
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.lean import (
    AllRows,
    FirstRow,
    PostNormLayer,
    SpelledNorm,
    SpelledSegments,
    rewrite_layers,
)
from pocketbert.export.adapters.mask_4d import ExportPlan
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import BASIC as FAMILIES
from support.tiny import ENTRIES, NAMES, noisy_model

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
BOUND = 1e-5

CASES = [(name, {}) for name in FAMILIES] + [(name, shape) for name in FAMILIES for shape in ENTRIES[name].shapes]


def random_model(family: str, layers: int = 3, task: TaskName = TASK.name, **changes: Any) -> Any:
    labels = NAMES[:2] if task is TaskName.QUESTION_ANSWERING else NAMES
    return noisy_model(family, layers, TASKS[task].auto_class, labels, **changes)


def slimmed(model: Any, family: Family, format: Format, task: TaskName = TASK.name) -> nn.Module:
    first = replace(TASKS[task], outputs=TASKS[task].outputs[:1])
    return mask_4d.with_additive_mask(copy.deepcopy(model), ExportPlan(family, first, format))


def batch(family: Family, rows: int, length: int, padding: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 90, (rows, length), generator=draw)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    for row, padded in enumerate(padding):
        if padded:
            mask[row, -padded:] = 0
            types[row, -padded:] = 0
            ids[row, -padded:] = family.tiny["pad_token_id"]
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: made[name] for name in family.inputs}


def batches(family: Family) -> list[dict[str, torch.Tensor]]:
    return [
        batch(family, 1, 9),
        batch(family, 3, 16, (0, 5, 15)),
        batch(family, 2, 1),
        batch(family, 1, 64, (41,)),
    ]


def difference(model: Any, module: nn.Module, inputs: dict[str, torch.Tensor], output: str) -> float:
    with torch.inference_mode():
        expected, found = model(**inputs)[output], module(**inputs)[0]
    assert found.shape == expected.shape
    # random heads may answer all rows alike, so what a difference is relative to is never below a tenth of the logits
    return float((found - expected).abs().max() / max(expected.std(), 0.1 * expected.abs().max()))


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize(("name", "changes"), CASES)
def test_the_numbers_stay_the_same(name: str, changes: dict[str, Any], format: Format) -> None:
    family, model = family_of(name), random_model(name, **changes).double()
    module = slimmed(model, family, format)
    assert max(difference(model, module, b, "logits") for b in batches(family)) < 1e-10


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("name", FAMILIES)
def test_single_precision_is_enough(name: str, format: Format) -> None:
    family, model = family_of(name), random_model(name)
    module = slimmed(model, family, format)
    assert max(difference(model, module, b, "logits") for b in batches(family)) < BOUND


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "task",
    [TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING, TaskName.FILL_MASK, TaskName.FEATURE_EXTRACTION],
)
def test_heads_that_read_every_token_get_every_token(task: TaskName, name: str, format: Format) -> None:
    family, model = family_of(name), random_model(name, task=task).double()
    module = slimmed(model, family, format, task)
    assert not [m for m in module.modules() if isinstance(m, FirstRow)]
    assert len([m for m in module.modules() if isinstance(m, AllRows)]) == 3
    for inputs in batches(family):
        assert difference(model, module, inputs, TASKS[task].outputs[0]) < 1e-10


@pytest.mark.parametrize("name", FAMILIES)
def test_the_original_is_not_touched(name: str) -> None:
    model = random_model(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    for format in Format:
        with torch.no_grad():
            for parameter in rewrite_layers(copy.deepcopy(model), family_of(name), format).parameters():
                parameter.zero_()
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_rewrites_happen(name: str, format: Format) -> None:
    copied = rewrite_layers(random_model(name), family_of(name), format)
    kinds = [type(m) for m in copied.modules()]
    assert kinds.count(FirstRow) == 1
    assert kinds.count(AllRows) == 2
    tflite = format is Format.TFLITE
    assert kinds.count(SpelledSegments) == (tflite and family_of(name).uses_segments)
    normalized = ENTRIES[name].normalized
    norms = 7 * normalized
    assert kinds.count(SpelledNorm) == tflite * norms
    assert kinds.count(nn.LayerNorm) == (not tflite) * norms
    no_norms = [m for m in copied.modules() if type(m).__name__ == "NoNorm"]
    assert len(no_norms) == (not normalized)  # that of the embeddings
    layers = [m for m in copied.modules() if isinstance(m, PostNormLayer)]
    assert [m.first_row for m in layers] == ([False, False, True] if normalized else [])
    assert all(m.flat_ffn == (format is Format.ONNX) for m in layers)


def flops(module: nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(**inputs)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_layer_costs_next_to_nothing(name: str) -> None:
    family = family_of(name)
    inputs = batch(family, 1, 64)

    def cost(layers: int, format: Format | None) -> int:
        model = random_model(name, layers, **ENTRIES[name].even)
        model.set_attn_implementation("eager")
        return flops(model if format is None else slimmed(model, family, format), inputs)

    layer = cost(2, None) - cost(1, None)
    saved = cost(2, None) - cost(2, Format.ONNX)
    assert saved > ENTRIES[name].saved * layer
    assert cost(2, Format.ONNX) - cost(1, Format.ONNX) == layer


def test_slimming_twice_is_slimming_once() -> None:
    model = rewrite_layers(random_model("bert"), family_of("bert"), Format.TFLITE)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    assert rewrite_layers(model, family_of("bert"), Format.TFLITE) is model
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def strangers() -> list[Any]:
    import transformers
    from transformers.models.bert.modeling_bert import BertLayer

    class Changed(BertLayer):  # type: ignore[misc]
        """Looks like BERT's layer and may compute anything."""

    sizes = {
        "vocab_size": 90,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    subclassed = random_model("bert")
    subclassed.bert.encoder.layer[1] = Changed(subclassed.config)
    return [
        transformers.ElectraForSequenceClassification(transformers.ElectraConfig(**sizes)),
        transformers.BertLMHeadModel(transformers.BertConfig(**sizes, is_decoder=True)),
        subclassed,
        nn.Linear(2, 2),
    ]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("format", Format)
def test_what_is_not_known_is_left_as_it_is(place: int, format: Format) -> None:
    model = strangers()[place]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    assert rewrite_layers(model, family_of("bert"), format) is model
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def onnx_file(module: nn.Module, family: Family, path: Path) -> Path:
    example = {k: v.numpy() for k, v in batch(family, 2, 16).items()}
    exporter.export(module, family, TASK, example, path)
    return path


@pytest.mark.parametrize("name", ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES if f != "bert")])
def test_the_onnx_file_computes_what_the_model_computes(name: str, tmp_path: Path) -> None:
    family, model = family_of(name), random_model(name)
    path = onnx_file(slimmed(model, family, Format.ONNX), family, tmp_path / "model.onnx")
    predictor = OnnxPredictor(path)
    for inputs in batches(family):
        found = torch.from_numpy(np.asarray(predictor.run({k: v.numpy() for k, v in inputs.items()})["logits"]))
        with torch.inference_mode():
            expected = model(**inputs).logits
        assert float((found - expected).abs().max()) < BOUND * max(expected.std(), 0.1 * expected.abs().max())
    graph = onnx.load(path).graph
    assert [n.op_type for n in graph.node].count("ReduceSum") == 1  # the heads of the first row
    small = [onnx.numpy_helper.to_array(t) for t in graph.initializer if not t.dims or max(t.dims) == 1]
    scale = ENTRIES[name].head_size ** -0.5
    assert not any(np.isclose(np.abs(v), scale).any() for v in small)


def test_onnx_runtime_keeps_its_fast_normalization_in_int8(tmp_path: Path) -> None:
    import onnxruntime

    from pocketbert.quantize import Plan, quantize

    family, model = family_of("bert"), random_model("bert")
    operators = {}
    for flat in (True, False):
        module = slimmed(model, family, Format.ONNX)
        for layer in (m for m in module.modules() if isinstance(m, PostNormLayer)):
            layer.flat_ffn = flat
        source = onnx_file(module, family, tmp_path / f"{flat}.onnx")
        int8, optimized = tmp_path / f"{flat}_int8.onnx", tmp_path / f"{flat}_optimized.onnx"
        quantize(source, int8, Plan(Format.ONNX, Scheme.INT8))
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(optimized)
        onnxruntime.InferenceSession(int8, options, providers=["CPUExecutionProvider"])
        operators[flat] = [n.op_type for n in onnx.load(optimized).graph.node]
    assert operators[True].count("LayerNormalization") == 7
    assert "SkipLayerNormalization" not in operators[True]
    assert "SkipLayerNormalization" in operators[False]  # else the detour is no longer needed
