"""What `prepare` makes of a model: a copy with named inputs, fewer operations, and answers that pass the gate.

That the numbers stay the same in every family, head and format is in tests/families/test_table.py.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of, find_family
from pocketbert.core.predict.predictor import TorchPredictor, pool_embeddings
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, VectorLayer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.export import onnx as exporter
from pocketbert.export.adapters import ane, mask_4d
from pocketbert.export.adapters.lean import (
    AllRows,
    FirstRow,
    PostNormLayer,
    SpelledNorm,
    SpelledSegments,
    rewrite_layers,
)
from pocketbert.export.adapters.pooling import pool_states
from pocketbert.export.prepare import PreparedPredictor, prepare, prepare_with_shared_weights
from support.drawn import draw_inputs
from support.tiny import BASIC, ENTRIES, EXPORTED, NAMES, noisy_model, tiny_classifier

TASK, EMBED, FILL = (TASKS[n] for n in (TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION, TaskName.FILL_MASK))
READ_ALL = (TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING, FILL.name, EMBED.name)
LAYOUTS = [*((f, Layout.PLAIN) for f in Format), (Format.COREML, Layout.ANE)]


def model_of(family: str, task: TaskName = TASK.name, layers: int = 3, **changes: Any) -> Any:
    labels = NAMES[:2] if task is TaskName.QUESTION_ANSWERING else NAMES
    return noisy_model(family, layers, TASKS[task].auto_class, labels, **changes)


def batch(length: int, padding: tuple[int, ...] = (0,)) -> dict[str, NDArray[np.int64]]:
    """Rows for BERT; a family without segments takes the first two."""
    return {n: v.numpy() for n, v in draw_inputs("bert", length, padding).items()}


# What a prepared module is.


@pytest.mark.parametrize("name", EXPORTED)
def test_the_model_is_not_touched(name: str) -> None:
    row, model = find_family(name), model_of(name, layers=2)
    implementation = model.config._attn_implementation
    model.train()
    before, kinds = {k: v.clone() for k, v in model.state_dict().items()}, [type(m) for m in model.modules()]
    for format, layout in LAYOUTS if name in BASIC else LAYOUTS[:-1]:
        module = prepare(model, row, TASK, format, layout)
        assert not module.training
        assert tuple(inspect.signature(module.forward).parameters) == row.inputs
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    assert model.training
    assert model.config._attn_implementation == implementation
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", EXPORTED)
def test_weights_that_stay_as_they_are_can_be_shared_with_the_model(name: str) -> None:
    # in memory of its own, and with so many layers that Python uses the ids of dropped weights again
    row, model = find_family(name), copy.deepcopy(model_of(name, layers=6))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for format, layout in LAYOUTS if name in BASIC else LAYOUTS[:-1]:
        module = prepare_with_shared_weights(model, row, TASK, format, layout)
        own = {p.data_ptr() for p in model.parameters()}
        assert any(p.data_ptr() in own for p in module.parameters())
        apart = prepare(model, row, TASK, format, layout).state_dict()
        assert all(torch.equal(v, apart[k]) for k, v in module.state_dict().items())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_weights_in_a_mapped_file_are_copied(tmp_path: Path) -> None:
    model = model_of("bert", layers=2)
    model.save_pretrained(tmp_path)
    mapped = type(model).from_pretrained(tmp_path)
    before = {k: v.clone() for k, v in mapped.state_dict().items()}
    with torch.no_grad():
        for parameter in prepare(mapped, find_family("bert"), TASK).parameters():
            parameter.zero_()
    assert all(torch.equal(v, before[k]) for k, v in mapped.state_dict().items())


def test_a_family_that_no_exporter_writes_is_refused(open_tiny: Callable[..., Any]) -> None:
    model, folder, _ = open_tiny("ib-bert", 2)
    with pytest.raises(InputError, match=r"no exporter writes IB-BERT.*Distil a MobileBERT student"):
        prepare(model, folder.family, TASK)


_WIDTH = 3 * find_family("bert").tiny["hidden_size"]
_DRAWN = np.random.default_rng(5).normal(size=(48, _WIDTH)).astype("f")
_SEVERAL = Pooling(
    PoolingKind.MAX,
    False,
    (PoolingKind.LAST_TOKEN, PoolingKind.WEIGHTED_MEAN),
    (
        VectorLayer("Dense", 24, "Tanh", weights={"linear.weight": _DRAWN[:24], "linear.bias": _DRAWN[24, :24]}),
        VectorLayer("LayerNorm", weights={"norm.weight": _DRAWN[25, :24], "norm.bias": _DRAWN[26, :24]}),
        VectorLayer("Dense", 24, "GELU", True, {"linear.weight": _DRAWN[24:, :24]}),
    ),
)


_CUT = [replace(_SEVERAL, layers=(*_SEVERAL.layers, VectorLayer("Normalize"), VectorLayer("Cut", n))) for n in (7, 30)]
_POOLINGS = [*(Pooling(k, n) for k in PoolingKind for n in (True, False)), _SEVERAL, *_CUT]


@pytest.mark.parametrize("pooling", _POOLINGS, ids=str)
@pytest.mark.parametrize("layout", Layout)
def test_sentence_vectors_are_pooled_as_asked(layout: Layout, pooling: Pooling) -> None:
    row, model = family_of("bert"), model_of("bert", EMBED.name)
    prepared = PreparedPredictor(prepare(model, row, EMBED, Format.COREML, layout, pooling), row, EMBED)
    other = replace(pooling, kind=PoolingKind.MAX if pooling.kind is PoolingKind.CLS else PoolingKind.CLS)
    references = [TorchPredictor(model, EMBED, row.inputs, p) for p in (pooling, other)]
    for inputs in (batch(5), batch(13, (0, 4)), batch(40, (1, 0, 38))):
        found, wanted, wrong = (p.run(inputs)["sentence_embedding"] for p in (prepared, *references))
        assert (found.shape, found.dtype) == (wanted.shape, np.float32)
        np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())
        assert np.abs(found - wrong).max() > 1e-2 * np.abs(wrong).max()


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("length", "value"), [(8192, 100.0), (3000, 10.0), (40, 0.5)])
def test_weighted_means_fit_fp16(length: int, value: float, left: bool) -> None:
    states = torch.full((3, length, 4), value) + torch.linspace(-value, value, length)[None, :, None] / 2
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, slice(length - 7) if left else slice(7, None)] = 0
    mask[2] = 0
    found = pool_states(states.half(), mask, PoolingKind.WEIGHTED_MEAN, left).float().numpy()
    wanted = pool_embeddings(states.numpy(), mask.numpy(), Pooling(PoolingKind.WEIGHTED_MEAN, False))
    np.testing.assert_allclose(found, wanted, rtol=3e-3)


# What is wrong changes answers at real tokens.


def test_a_forgotten_mask_moves_the_answers_at_real_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    row, model, inputs = family_of("bert"), model_of("bert", FILL.name), batch(16, (8, 14))
    monkeypatch.setattr(mask_4d, "MASK_VALUE", 0.0)
    broken, right = PreparedPredictor(prepare(model, row, FILL), row, FILL), TorchPredictor(model, FILL, row.inputs)
    found, wanted = (p.run(inputs)["logits"][inputs["attention_mask"] == 1] for p in (broken, right))
    assert np.abs(found - wanted).max() > 1e-3 * np.abs(wanted).max()


# The cheaper graph.


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("name", BASIC)
def test_layers_norms_and_segments_are_rewritten(name: str, format: Format) -> None:
    row, tflite = family_of(name), format is Format.TFLITE
    kinds = [type(m) for m in prepare(model_of(name), row, TASK, format).modules()]
    assert (kinds.count(FirstRow), kinds.count(AllRows)) == (1, 2)
    assert kinds.count(SpelledSegments) == (tflite and row.uses_segments)
    norms = 7 * ENTRIES[name].normalized
    assert (kinds.count(SpelledNorm), kinds.count(nn.LayerNorm)) == ((norms, 0) if tflite else (0, norms))
    assert [k.__name__ for k in kinds].count("NoNorm") == (not norms)  # that of the embeddings
    for task in READ_ALL:
        kinds = [type(m) for m in prepare(model_of(name, task), row, TASKS[task], format).modules()]
        assert (kinds.count(FirstRow), kinds.count(AllRows)) == (0, 3)


def count_flops(module: nn.Module, inputs: Mapping[str, NDArray[np.int64]]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", BASIC)
def test_the_last_layer_costs_next_to_nothing(name: str) -> None:
    row = family_of(name)
    inputs = {n: v for n, v in batch(64).items() if n in row.inputs}

    def cost(layers: int, prepared: bool) -> int:
        model = model_of(name, layers=layers, **ENTRIES[name].even)
        model.set_attn_implementation("eager")
        return count_flops(prepare(model, row, TASK) if prepared else model, inputs)

    layer = cost(2, False) - cost(1, False)
    assert cost(2, False) - cost(2, True) > ENTRIES[name].saved * layer
    assert cost(2, True) - cost(1, True) == layer


@pytest.mark.parametrize("size", [16, 32])
def test_the_decoder_of_mobilebert_in_two_parts_is_exact(size: int) -> None:
    row, model = family_of("mobilebert"), model_of("mobilebert", FILL.name, embedding_size=size).double()
    inputs = {n: torch.from_numpy(v) for n, v in batch(13, (0, 4)).items()}
    with torch.inference_mode():
        expected, (found,) = model(**inputs).logits, prepare(model, row, FILL)(**inputs)
    assert float((found - expected).abs().max()) < 1e-12 * float(expected.abs().max())


def strangers() -> dict[str, Any]:
    """Models that BERT's row does not describe."""
    from transformers.models.bert.modeling_bert import BertLayer

    class Changed(BertLayer):  # type: ignore[misc]
        """Looks like BERT's layer and may compute anything."""

    subclassed = model_of("bert")
    subclassed.bert.encoder.layer[1] = Changed(subclassed.config)
    return {
        "another family": tiny_classifier("electra", 2, NAMES),
        "decoder": tiny_classifier("bert", 2, (), auto_class="AutoModelForCausalLM", is_decoder=True),
        "subclass": subclassed,
        "no transformer": nn.Linear(2, 2),
    }


@pytest.mark.parametrize("what", ["another family", "decoder", "subclass", "no transformer"])
def test_layers_that_are_not_known_are_left_as_they_are_and_refused_for_the_neural_engine(what: str) -> None:
    model, row = strangers()[what], family_of("bert")
    before, kinds = {k: v.clone() for k, v in model.state_dict().items()}, [type(m) for m in model.modules()]
    for format in Format:
        assert rewrite_layers(model, row, format) is model
    with pytest.raises(InputError) as caught:
        ane.rewrite_channels_first(model, row)
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    (problem,) = caught.value.problems
    assert problem.where == "export.coreml.layout"
    assert f"'{model.config.model_type if hasattr(model, 'config') else 'Linear'}'" in problem.what
    assert "plain" in problem.fix


@pytest.mark.parametrize("flat", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_onnx_runtime_keeps_its_fast_normalization_in_int8(flat: bool, tmp_path: Path) -> None:
    import onnxruntime

    from pocketbert.quantize import Plan, quantize

    row, module = family_of("bert"), prepare(model_of("bert", layers=1), family_of("bert"), TASK)
    for layer in (m for m in module.modules() if isinstance(m, PostNormLayer)):
        assert layer.flat_ffn
        layer.flat_ffn = flat
    source, int8, optimized = (tmp_path / f"{name}.onnx" for name in ("source", "int8", "optimized"))
    exporter.export(module, row, TASK, batch(16, (0, 3)), source)
    quantize(source, int8, Plan(Format.ONNX, Scheme.INT8))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(int8, options, providers=["CPUExecutionProvider"])
    operators = [n.op_type for n in onnx.load(optimized).graph.node]
    assert ("SkipLayerNormalization" in operators) != flat  # else the detour is no longer needed
    assert not flat or operators.count("LayerNormalization") == 3
