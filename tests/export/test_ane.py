"""The layout for the Neural Engine: convolutions on [B, C, 1, L], in torch and in the package, with the model's own numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pocketbert.core.families import family_of, find_family
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.export.adapters import ane
from pocketbert.export.adapters.ane import ChannelNorm, ChannelsFirstLayer, PerHeadAttention, to_pointwise
from pocketbert.export.adapters.lean import find_layer_parts
from pocketbert.export.prepare import prepare
from support.drawn import draw_inputs
from support.tiny import BASIC, ENTRIES, EXPORTED, NAMES, noisy_model
from support.tiny_tokenizers import vocabulary

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
READ_ALL = (TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING, TaskName.FILL_MASK, TaskName.FEATURE_EXTRACTION)


def has_layout(name: str) -> bool:
    parts = find_layer_parts(find_family(name))
    return parts is not None and (parts.post_norm is not None or parts.channels_first is not None)


FAMILIES = [name for name in EXPORTED if has_layout(name)]
SIZES = [(9, (0,)), (16, (0, 5, 15)), (2, (0, 0)), (60, (41,))]
"""Length, and padded tokens of each row."""
CASES: list[tuple[str, TaskName, dict[str, Any]]] = [
    *((name, CLASSIFY.name, shape) for name in FAMILIES for shape in ({}, *ENTRIES[name].shapes)),
    *((name, task, {}) for name in BASIC for task in READ_ALL),
]


def model_of(name: str, task: TaskName = CLASSIFY.name, layers: int = 2, **changes: Any) -> Any:
    labels = NAMES[:2] if task is TaskName.QUESTION_ANSWERING else NAMES
    words = len(vocabulary(find_family(name).tiny["pad_token_id"]))
    return noisy_model(name, layers, TASKS[task].auto_class, labels, **{"vocab_size": words, **changes})


def prepare_layout(model: Any, name: str, task: TaskName = CLASSIFY.name) -> nn.Module:
    return prepare(model, find_family(name), TASKS[task], Format.COREML, Layout.ANE)


def average_unpadded(expected: Any, attention_mask: torch.Tensor) -> torch.Tensor:
    rows = zip(expected["last_hidden_state"], attention_mask.bool(), strict=True)
    mean = torch.stack([states[mask].mean(0) for states, mask in rows])
    return mean / mean.norm(dim=-1, keepdim=True)


@torch.inference_mode()
def worst(model: Any, module: nn.Module, name: str, task: TaskName = CLASSIFY.name) -> float:
    """Largest difference of an output over some batches, relative to its largest number."""
    off = []
    for inputs in (draw_inputs(name, n, padding) for n, padding in SIZES):
        expected, answers = model(**inputs), module(**inputs)
        for output, answer in zip(TASKS[task].outputs, answers, strict=True):
            pooled = output == "sentence_embedding"
            right = average_unpadded(expected, inputs["attention_mask"]) if pooled else expected[output]
            assert answer.shape == right.shape
            off.append(float((answer - right).abs().max() / right.abs().max()))
    return max(off)


@pytest.mark.parametrize(("name", "task", "changes"), CASES)
def test_the_numbers_stay_the_same(name: str, task: TaskName, changes: dict[str, Any]) -> None:
    model = model_of(name, task, **changes)
    if not changes:
        assert worst(model, prepare_layout(model, name, task), name, task) < 1e-5
    model.double()
    assert worst(model, prepare_layout(model, name, task), name, task) < 1e-12


@pytest.mark.parametrize("task", [CLASSIFY.name, READ_ALL[0]])
@pytest.mark.parametrize("name", BASIC)
def test_the_encoder_is_convolutions(name: str, task: TaskName) -> None:
    module = prepare_layout(model_of(name, task, 3), name, task)
    (encoder,) = [m for m in module.modules() if isinstance(m, ane.ChannelsFirst)]
    kinds = [type(m) for m in encoder.modules()]
    assert not {nn.Linear, nn.LayerNorm} & set(kinds)
    assert kinds.count(PerHeadAttention) == 3
    assert kinds.count(nn.Conv2d) == 3 * (11 if name == "mobilebert" else 6)
    firsts = [m.first_token for m in encoder.modules() if isinstance(m, ChannelsFirstLayer)]
    assert firsts == ([] if name == "mobilebert" else [False, False, task is CLASSIFY.name])


@torch.no_grad()
def test_normalization_with_factors_of_zero() -> None:
    norm = nn.LayerNorm(6, eps=1e-12)
    norm.weight.copy_(torch.tensor([1.5, 0.0, -0.7, 1e-14, -1e-20, 0.3]))
    norm.bias.copy_(torch.tensor([0.1, 5.0, 0.0, -2.0, 1.0, 0.0]))
    for scale in (1e-4, 1.0, 1e3):
        states = torch.randn(2, 7, 6) * scale
        found = ChannelNorm(norm)(states.transpose(1, 2)[:, :, None])[:, :, 0].transpose(1, 2)
        torch.testing.assert_close(found, norm(states), rtol=1e-6, atol=2e-6)
    assert torch.isfinite(ChannelNorm(norm)(torch.ones(1, 6, 1, 2))).all()
    norm.weight.zero_()
    found = ChannelNorm(norm)(torch.randn(1, 6, 1, 3))[0, :, 0].T
    torch.testing.assert_close(found, norm.bias.expand(3, 6), rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_a_linear_layer_without_bias() -> None:
    dense, states = nn.Linear(3, 5, bias=False), torch.randn(2, 4, 3)
    found = to_pointwise(dense)(states.transpose(1, 2)[:, :, None])
    torch.testing.assert_close(found[:, :, 0].transpose(1, 2), dense(states))


# The package.

FORMS = {
    "ios17-fixed": (17, Shapes.FIXED, (32,), (32,)),
    "ios17-ranged": (17, Shapes.RANGED, (48,), (8, 21, 48)),
    "ios18-enumerated": (18, Shapes.ENUMERATED, (16, 32, 48), (16, 32, 48)),
}
"""Version of iOS, kind of shapes, lengths of the package, lengths to try."""
QUICK = [("bert", "ios18-enumerated", Scheme.FP16)]
ALL = [(f, n, s) for f in BASIC for n in FORMS for s in (Scheme.FP32, Scheme.FP16)]
BOUNDS = {Scheme.FP32: 1e-5, Scheme.FP16: 2e-2}
"""Largest difference to torch relative to the largest logit, by what the package computes in. Sums of fp16 numbers round to other
sides on other processors: up to 0.8 % on an AMD EPYC, below 0.5 % on a Xeon."""


def read_operations(path: Path) -> list[Any]:
    import coremltools as ct

    function = ct.utils.load_spec(str(path)).mlProgram.functions["main"]
    return list(function.block_specializations[function.opset].operations)


def read_argument(operations: list[Any], operation: Any, name: str) -> Any:
    """The constant that an operation reads."""
    source = operation.inputs[name].arguments[0].name
    (found,) = [o for o in operations if o.type == "const" and o.outputs[0].name == source]
    return found.attributes["val"].immediateValue.tensor


def read_epsilon(operations: list[Any], norm: Any) -> float:
    tensor = read_argument(operations, norm, "epsilon")
    return float(tensor.floats.values[0] if tensor.floats.values else np.frombuffer(tensor.bytes.values, np.float16)[0])


def check_operations(operations: list[Any], name: str) -> None:
    kinds = Counter(o.type for o in operations)
    layers, heads, mobile = 2, 4, name == "mobilebert"
    assert kinds["conv"] == layers * (11 if mobile else 6)
    assert kinds["einsum"] == 2 * layers * heads
    assert kinds["linear"] == (3 if mobile else 2)  # embeddings of MobileBERT and the head's two
    assert kinds["matmul"] == 0
    softmax, norms = ([o for o in operations if o.type == kind] for kind in ("softmax", "layer_norm"))
    axes = [list(read_argument(operations, o, "axis").ints.values) for o in softmax]
    assert axes == [[1]] * (layers * heads)
    axes = [list(read_argument(operations, o, "axes").ints.values) for o in norms]
    assert axes == ([] if mobile else [[-1], *[[1]] * (2 * layers)])
    assert all(read_epsilon(operations, o) > 0 for o in norms)  # 1e-12 is 0 in fp16
    assert not {"reduce_mean", "rsqrt"} & set(kinds)


@pytest.mark.parametrize(
    ("name", "form", "scheme"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK)],
)
def test_the_package_keeps_layout_and_numbers(name: str, form: str, scheme: Scheme, tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.export import coreml
    from pocketbert.runtime.coreml.evaluator import Evaluator, EvaluatorPrecision

    model, path, family = model_of(name), tmp_path / "Model.mlpackage", family_of(name)
    ios, shapes, lengths, tried = FORMS[form]
    about = coreml.CoremlInfo("", "1", "", "")
    coreml.export(
        prepare_layout(model, name), family, CLASSIFY, lengths, path, coreml.CoremlForm(ios, shapes, scheme), about
    )
    check_operations(read_operations(path), name)
    evaluator = Evaluator(path, EvaluatorPrecision.DECLARED)
    for inputs in (draw_inputs(name, n, (padded,)) for n in tried for padded in (0, n // 3)):
        fed: Mapping[str, Any] = {k: v.numpy().astype(np.int32) for k, v in inputs.items()}
        with torch.inference_mode():
            expected = model(**inputs).logits.numpy()
        found = np.asarray(evaluator.run(fed)["logits"], np.float32)
        assert found.shape == expected.shape
        assert float(np.abs(found - expected).max() / np.abs(expected).max()) < BOUNDS[scheme]
