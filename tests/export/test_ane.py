from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, family_of
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.export.adapters import ane, mask_4d
from pocketbert.export.adapters.ane import ChannelNorm, ChannelsFirstLayer, PerHeadAttention, to_pointwise
from pocketbert.export.adapters.mask_4d import ExportPlan
from pocketbert.export.prepare import prepare
from support.tiny import BASIC as FAMILIES

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
READ_ALL = (TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING, TaskName.FILL_MASK, TaskName.FEATURE_EXTRACTION)
LABELS = ("negative", "neutral", "positive")
BOUND = 3e-6
"""In single precision, where the stock models are themselves up to 1e-6 off, by the number of threads too. In double it is 1e-12, and a mistake is larger."""

ODD: dict[str, list[dict[str, Any]]] = {
    "bert": [
        {"hidden_size": 36, "num_attention_heads": 12, "intermediate_size": 20},
        {"num_attention_heads": 1, "hidden_act": "relu", "type_vocab_size": 3},
        {"layer_norm_eps": 1e-3, "chunk_size_feed_forward": 1, "hidden_act": "gelu_new"},
    ],
    "roberta": [{"hidden_size": 24, "num_attention_heads": 3, "hidden_act": "silu"}],
    "distilbert": [{"dim": 36, "n_heads": 6, "hidden_dim": 20, "activation": "relu"}],
    "mobilebert": [
        {"normalization_type": "layer_norm", "num_feedforward_networks": 4},
        {"use_bottleneck": False, "trigram_input": False},
        {"use_bottleneck_attention": True},
        {"num_feedforward_networks": 1},
        {"classifier_activation": False},
    ],
}
"""Shapes and switches that no default has, by family."""

Models = Callable[..., Any]


@pytest.fixture
def random_model(make_classifier: Callable[..., Any]) -> Models:
    """`random_model(family, head, layers=2, seed=0, **config changes)`: no factor is 1 and no bias 0."""

    def build(family: str, head: str = CLASSIFY.head, layers: int = 2, seed: int = 0, **changes: Any) -> Any:
        import transformers

        config = make_classifier(family, layers, LABELS, **changes).config
        if head == "ForQuestionAnswering":
            config.num_labels = 2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(transformers, family_of(family).classes + head)(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(std=parameter.shape[-1] ** -0.5)
                    else:
                        parameter.add_(torch.randn_like(parameter) * 0.2)
                for module in model.modules():
                    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                        module.weight[module.padding_idx] = 0  # MobileBERT looks at neighbours
        return model.eval()

    return build


def wrapped(model: Any, name: str, task: TaskName = CLASSIFY.name) -> nn.Module:
    plan = ExportPlan(family_of(name), TASKS[task], Format.COREML, Layout.ANE)
    return mask_4d.with_additive_mask(copy.deepcopy(model), plan)


def batch(family: Family, rows: int, length: int, padding: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 90, (rows, length), generator=draw)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    for row, padded in enumerate(padding):
        if padded:
            ids[row, -padded:] = 1 if family.name == "roberta" else 0
            mask[row, -padded:] = types[row, -padded:] = 0
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: made[name] for name in family.inputs}


def batches(name: str) -> list[dict[str, torch.Tensor]]:
    family = family_of(name)
    return [
        batch(family, 1, 9),
        batch(family, 3, 16, (0, 5, 15)),
        batch(family, 2, 2),
        batch(family, 1, 60, (41,)),
    ]


def worst(model: Any, module: nn.Module, name: str, outputs: tuple[str, ...]) -> float:
    """Largest difference of an output over all batches, relative to its largest number."""
    off, largest = dict.fromkeys(outputs, 0.0), dict.fromkeys(outputs, 0.0)
    for inputs in batches(name):
        with torch.inference_mode():
            expected, answers = model(**inputs), module(**inputs)
        for output, answer in zip(outputs, answers, strict=True):
            right = (
                embedding(expected, inputs["attention_mask"]) if output == "sentence_embedding" else expected[output]
            )
            assert answer.shape == right.shape
            off[output] = max(off[output], float((answer - right).abs().max()))
            largest[output] = max(largest[output], float(right.abs().max()))
    return max(off[n] / largest[n] for n in outputs)


def embedding(expected: Any, attention_mask: torch.Tensor) -> torch.Tensor:
    rows = zip(expected["last_hidden_state"], attention_mask.bool(), strict=True)
    mean = torch.stack([states[mask].mean(0) for states, mask in rows])
    return mean / mean.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("task", [CLASSIFY.name, *READ_ALL])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_numbers_stay_the_same(name: str, task: TaskName, random_model: Models) -> None:
    model, outputs = random_model(name, TASKS[task].head, 3), TASKS[task].outputs
    assert worst(model, wrapped(model, name, task), name, outputs) < BOUND
    model.double()
    assert worst(model, wrapped(model, name, task), name, outputs) < 1e-12


@pytest.mark.parametrize(("name", "changes"), [(name, change) for name in FAMILIES for change in ODD.get(name, [])])
def test_odd_shapes_and_switches(name: str, changes: dict[str, Any], random_model: Models) -> None:
    for task in (CLASSIFY.name, TaskName.TOKEN_CLASSIFICATION):
        model = random_model(name, TASKS[task].head, **changes).double()
        assert worst(model, wrapped(model, name, task), name, ("logits",)) < 1e-12


@pytest.mark.parametrize("name", FAMILIES)
def test_padding_changes_nothing_and_the_mask_matters(name: str, random_model: Models) -> None:
    family, module = family_of(name), wrapped(random_model(name), name)
    padded = batch(family, 1, 20, (8,))
    short = {k: v[:, :12] for k, v in padded.items()}
    open_mask = {**padded, "attention_mask": torch.ones(1, 20, dtype=torch.long)}
    with torch.inference_mode():
        (expected,), (same,), (other,) = module(**short), module(**padded), module(**open_mask)
    assert float((same - expected).abs().max()) < 1e-6 * float(expected.abs().max())
    assert float((other - expected).abs().max()) > 1e-2 * float(expected.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forgotten_mask_is_caught(name: str, random_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(name)
    monkeypatch.setattr(mask_4d, "MASK_VALUE", 0.0)
    assert worst(model, wrapped(model, name), name, ("logits",)) > 1e-2


@pytest.mark.parametrize("name", FAMILIES)
def test_the_weights_are_the_models_own(name: str, random_model: Models) -> None:
    one, other = random_model(name), random_model(name, seed=1)
    assert worst(one, wrapped(other, name), name, ("logits",)) > 0.1
    module = wrapped(one, name)
    before = {k: v.clone() for k, v in one.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(v, before[k]) for k, v in one.state_dict().items())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_encoder_is_convolutions(name: str, random_model: Models) -> None:
    for task in (CLASSIFY.name, *READ_ALL):
        module = wrapped(random_model(name, TASKS[task].head, 3), name, task)
        assert not module.training
        assert tuple(inspect.signature(module.forward).parameters) == family_of(name).inputs
        (encoder,) = [m for m in module.modules() if isinstance(m, ane.ChannelsFirst)]
        kinds = [type(m) for m in encoder.modules()]
        assert not {nn.Linear, nn.LayerNorm} & set(kinds)
        assert kinds.count(PerHeadAttention) == 3
        assert kinds.count(nn.Conv2d) == (3 * 11 if name == "mobilebert" else 3 * 6)
        firsts = [m.first_token for m in encoder.modules() if isinstance(m, ChannelsFirstLayer)]
        assert firsts == ([] if name == "mobilebert" else [False, False, task is CLASSIFY.name])


def test_normalization_with_factors_of_zero() -> None:
    norm = nn.LayerNorm(6, eps=1e-12)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.5, 0.0, -0.7, 1e-14, -1e-20, 0.3]))
        norm.bias.copy_(torch.tensor([0.1, 5.0, 0.0, -2.0, 1.0, 0.0]))
        draw = torch.Generator().manual_seed(0)
        for scale in (1e-4, 1.0, 1e3):
            states = torch.randn(2, 7, 6, generator=draw) * scale
            found = ChannelNorm(norm)(states.transpose(1, 2)[:, :, None])[:, :, 0].transpose(1, 2)
            torch.testing.assert_close(found, norm(states), rtol=1e-6, atol=2e-6)
        assert torch.isfinite(ChannelNorm(norm)(torch.ones(1, 6, 1, 2))).all()
        norm.weight.zero_()
        found = ChannelNorm(norm)(torch.randn(1, 6, 1, 3, generator=draw))[0, :, 0].T
        torch.testing.assert_close(found, norm.bias.expand(3, 6), rtol=1e-6, atol=1e-7)


def test_a_linear_layer_without_bias() -> None:
    dense = nn.Linear(3, 5, bias=False)
    states = torch.randn(2, 4, 3)
    with torch.no_grad():
        found = to_pointwise(dense)(states.transpose(1, 2)[:, :, None])
        torch.testing.assert_close(found[:, :, 0].transpose(1, 2), dense(states))


@pytest.fixture(params=["another family", "decoder", "subclass", "no transformer"])
def stranger(request: pytest.FixtureRequest, random_model: Models) -> Any:
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
    if request.param == "another family":
        return transformers.ElectraForSequenceClassification(transformers.ElectraConfig(**sizes))
    if request.param == "decoder":
        return transformers.BertLMHeadModel(transformers.BertConfig(**sizes, is_decoder=True))
    if request.param == "subclass":
        model = random_model("bert")
        model.bert.encoder.layer[1] = Changed(model.config)
        return model
    return nn.Linear(2, 2)


def test_what_is_not_known_is_refused(stranger: Any) -> None:
    kinds = [type(m) for m in stranger.modules()]
    with pytest.raises(InputError) as caught:
        ane.rewrite_channels_first(stranger, family_of("bert"))
    (problem,) = caught.value.problems
    assert problem.where == "export.coreml.layout"
    family = stranger.config.model_type if hasattr(stranger, "config") else "Linear"
    assert f"'{family}'" in problem.what
    assert "plain" in problem.fix
    assert [type(m) for m in stranger.modules()] == kinds


FORMS = {
    "ios17-fixed": (17, Shapes.FIXED, (32,)),
    "ios17-ranged": (17, Shapes.RANGED, (48,)),
    "ios18-enumerated": (18, Shapes.ENUMERATED, (16, 32, 48)),
}
QUICK = [("bert", "ios17-fixed", Scheme.FP32), ("bert", "ios18-enumerated", Scheme.FP16)]
ALL = [(f, n, s) for f in FAMILIES for n in FORMS for s in (Scheme.FP32, Scheme.FP16)]
CONVERTED_BOUND = {Scheme.FP32: 1e-5, Scheme.FP16: 5e-3}
"""Largest difference to torch relative to the largest logit, by what the package computes in."""


def package(model: Any, name: str, form: str, scheme: Scheme, path: Path) -> Path:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.export import coreml

    ios, shapes, lengths = FORMS[form]
    module = prepare(model, family_of(name), CLASSIFY, Format.COREML, Layout.ANE)
    info = coreml.CoremlInfo("", "1", "", "")
    coreml.export(module, family_of(name), CLASSIFY, lengths, path, coreml.CoremlForm(ios, shapes, scheme), info)
    return path


def operations(path: Path) -> list[Any]:
    import coremltools as ct

    function = ct.utils.load_spec(str(path)).mlProgram.functions["main"]
    return list(function.block_specializations[function.opset].operations)


def constant(ops: list[Any], name: str) -> list[int]:
    """The integers of a constant."""
    (found,) = [o for o in ops if o.type == "const" and o.outputs[0].name == name]
    return list(found.attributes["val"].immediateValue.tensor.ints.values)


def argument(ops: list[Any], op: Any, name: str) -> list[int]:
    return constant(ops, op.inputs[name].arguments[0].name)


def epsilon(ops: list[Any], op: Any) -> float:
    (found,) = [o for o in ops if o.outputs and o.outputs[0].name == op.inputs["epsilon"].arguments[0].name]
    tensor = found.attributes["val"].immediateValue.tensor
    return float(tensor.floats.values[0] if tensor.floats.values else np.frombuffer(tensor.bytes.values, np.float16)[0])


def check_operations(ops: list[Any], name: str) -> None:
    kinds = Counter(o.type for o in ops)
    layers, heads, mobile = 2, 4, name == "mobilebert"
    assert kinds["conv"] == layers * (11 if mobile else 6)
    assert kinds["einsum"] == 2 * layers * heads
    assert kinds["linear"] == (3 if mobile else 2)  # embeddings of MobileBERT and the head's two
    assert kinds["matmul"] == 0
    softmax = [o for o in ops if o.type == "softmax"]
    assert len(softmax) == layers * heads
    assert all(argument(ops, o, "axis") == [1] for o in softmax)
    norms = [argument(ops, o, "axes") for o in ops if o.type == "layer_norm"]
    assert norms == ([] if mobile else [[-1], *[[1]] * (2 * layers)])
    assert all(epsilon(ops, o) > 0 for o in ops if o.type == "layer_norm")  # 1e-12 is 0 in fp16
    assert not {"reduce_mean", "rsqrt"} & set(kinds)


def compare_with_torch(path: Path, model: Any, name: str, form: str, bound: float) -> None:
    from pocketbert.runtime.coreml.evaluator import Evaluator, Precision

    evaluator = Evaluator(path, Precision.DECLARED)
    _, shapes, lengths = FORMS[form]
    for length in (8, 21, 48) if shapes is Shapes.RANGED else lengths:
        for padded in (0, length // 3):
            inputs = batch(family_of(name), 1, length, (padded,))
            feed: Mapping[str, Any] = {k: v.numpy().astype(np.int32) for k, v in inputs.items()}
            with torch.inference_mode():
                expected = model(**inputs).logits.numpy()
            found = np.asarray(evaluator.run(feed)["logits"], np.float32)
            assert found.shape == expected.shape
            assert float(np.abs(found - expected).max() / np.abs(expected).max()) < bound


@pytest.mark.parametrize(
    ("name", "form", "scheme"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK)],
)
def test_the_package_keeps_layout_and_numbers(
    name: str, form: str, scheme: Scheme, random_model: Models, tmp_path: Path
) -> None:
    model = random_model(name)
    path = package(model, name, form, scheme, tmp_path / "Model.mlpackage")
    check_operations(operations(path), name)
    compare_with_torch(path, model, name, form, CONVERTED_BOUND[scheme])
