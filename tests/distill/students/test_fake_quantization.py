"""A student with the rounded numbers of a quantized file: ReLU6, the weights of the exported module, ranges, rounding."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Projection
from pocketbert.distill.students.fake_quantization import (
    Prepare,
    Ranges,
    RangeSite,
    RoundedModule,
    clip_activations,
    trace_prepared_weights,
)
from pocketbert.distill.students.projection import add_projection, attach_projection, detach_projection
from pocketbert.export.prepare import prepare
from pocketbert.quantize.rounding import Simulation, per_row, per_tensor, round_between
from support.tiny import BASIC

TASK = task_of("text-classification")
WHERE = "distill.0.activation"


# --- ReLU6 in place of ReLU -------------------------------------------------------------------------------------------


def answers(model: Any) -> Tensor:
    ids = torch.arange(5, 13)[None]
    with torch.inference_mode():
        return torch.as_tensor(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)


@pytest.mark.parametrize("family", ["mobilebert", "bert", "distilbert"])
def test_the_folder_builds_the_clipped_model(family, make_classifier, tmp_path):
    key = "activation" if family == "distilbert" else "hidden_act"
    model = make_classifier(family, 2, ("a", "b", "c"), **{key: "relu"})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "intermediate" in name or "lin1" in name:
                parameter.mul_(400)  # feed-forward numbers far beyond 6
    before, undo = answers(model), clip_activations(model, WHERE)
    clipped = answers(model)
    assert not any(type(m) is nn.ReLU for m in model.modules())
    assert family != "mobilebert" or (clipped - before).abs().max() > 1e-2, "numbers beyond 6 are cut"
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert getattr(again.config, key) == "relu6"
    torch.testing.assert_close(answers(again.eval()), clipped)
    clip_activations(model, WHERE)()
    assert torch.equal(answers(model), clipped), "a clipped model stays one"
    undo()
    assert torch.equal(answers(model), before)
    assert getattr(model.config, key) == "relu"


def test_a_relu_that_the_configuration_does_not_name_is_refused(make_classifier):
    model = make_classifier("mobilebert", 2, ("a", "b"))
    model.dropout = nn.ReLU()
    with pytest.raises(InputError, match="hidden_act is not read at every relu"):
        clip_activations(model, WHERE)
    assert model.config.hidden_act == "relu"
    assert not any(isinstance(m, nn.ReLU6) for m in model.modules())


# --- the weights of the exported module -------------------------------------------------------------------------------


def exporter(family: str) -> Prepare:
    return lambda model, divide: prepare(model, find_family(family), TASK)


def change_weights(model: nn.Module, names: set[str]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in names:
                parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize("family", BASIC)
def test_the_module_follows_its_student(family, make_classifier):
    model, how = make_classifier(family, 2, ("a", "b", "c")), exporter(family)
    found = trace_prepared_weights(model, how)
    assert found is not None
    change_weights(model, {origin.name for origin in found.origins.values()})
    again, computed = dict(how(model, True).named_parameters()), found.compute(model)
    assert computed.keys() == found.origins.keys()
    for name, weight in again.items():
        if name in computed:
            assert torch.allclose(computed[name], weight, rtol=1e-5, atol=1e-7), name
        else:
            assert torch.equal(weight, found.module.get_parameter(name)), "no student's weight, and changed with it"
    assert not any("embeddings.weight" in origin.name for origin in found.origins.values())


def test_divided_channels_are_multiplied_by_the_same_powers(make_classifier):
    model, plain = make_classifier("bert", 2, ("a", "b", "c")), exporter("bert")

    def divided(student: Any, divide: bool) -> nn.Module:
        made = plain(student, divide)
        if divide:
            with torch.no_grad():
                made.get_parameter("model.classifier.weight")[:, 3] *= 8
        return made

    found = trace_prepared_weights(model, divided)
    assert found is not None
    change_weights(model, {"classifier.weight"})
    weight = found.compute(model)["model.classifier.weight"]
    assert torch.equal(weight[:, 3], model.classifier.weight[:, 3] * 8)
    assert torch.equal(weight[:, 4], model.classifier.weight[:, 4])


def test_layers_behind_the_pooling_are_constants(make_classifier):
    model = make_classifier("bert", 2, (), auto_class="AutoModel")
    attach_projection(model, 48, Projection.SHARED, 0)
    projection = detach_projection(model)
    assert projection is not None
    pooling = add_projection(DEFAULT_POOLING, projection)
    found = trace_prepared_weights(
        model, lambda m, divide: prepare(m, find_family("bert"), task_of("feature-extraction"), pooling=pooling)
    )
    assert found is not None
    behind = [n for n, w in found.module.named_parameters() if w.shape == (48, 32)]
    assert behind and not found.origins.keys() & set(behind)
    assert len(found.origins) > 10


@pytest.mark.parametrize("family", ["deberta-v2", "xlnet", "bert"])
def test_a_rewriting_that_training_cannot_follow_is_refused(family, make_classifier):
    def rewrite(student: Any, divide: bool) -> nn.Module:
        made = exporter(family)(student, divide)
        if family == "bert":
            with torch.no_grad():
                made.get_parameter("model.classifier.weight").copy_(student.classifier.weight.square())
        return made

    assert trace_prepared_weights(make_classifier(family, 2, ("a", "b")), rewrite) is None


# --- ranges and rounding ----------------------------------------------------------------------------------------------


def rules(**more: Any) -> Simulation:
    return Simulation(**{"weights": per_row, "tables": per_tensor, "static": True, **more})


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


class Same(nn.Module):
    """Returns what it reads, by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.layer(x),)


class Two(nn.Module):
    """Two products that read one tensor, and a third that reads their sum."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(8, width), nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.last(self.left(x) + self.right(x)),)


def test_rounding_in_a_range_is_the_quantizers_and_gradients_reach_values_and_ends():
    module = Same().eval()
    rounded, values = RoundedModule(module, rules(small=1000)), torch.randn(50, 4)
    ranges = rounded.measure_ranges([(torch.tensor([[-1.3, 2.1, 0, 0]]),)])
    (made,) = rounded(weights_of(module), ranges, (values,))
    torch.testing.assert_close(made, round_between(values, -1.3, 2.1))
    values = torch.tensor([[-9.0, 0.5, 0.7, 9.0]], requires_grad=True)
    rounded(weights_of(module), ranges, (values,))[0].sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, 1, 1, 0]]))
    # what lies outside follows an end, of which the logarithm is trained
    assert ranges.lower.grad is not None and float(ranges.lower.grad) == pytest.approx(-1.3, abs=0.05)
    assert ranges.upper.grad is not None and float(ranges.upper.grad) == pytest.approx(2.1, abs=0.05)


def test_products_that_read_one_tensor_share_its_range():
    rounded = RoundedModule(Two().eval(), rules(outputs=True))
    rows = [(torch.randn(1, 5, 8),) for _ in range(4)]
    ranges = rounded.measure_ranges(rows)
    left, right = (rounded.sites[RangeSite(name, is_input=True)] for name in ("left", "right"))
    assert left == right
    assert (len(rounded.sites), len(set(rounded.sites.values()))) == (6, 5)
    assert float(ranges.low[left]) == float(torch.cat([r[0].flatten() for r in rows]).min())


def test_a_range_that_others_share_stays_and_a_narrowing_product_has_none():
    rounded = RoundedModule(Two(8).eval(), rules(outputs=True, narrowing=False, shared_inputs=True))
    rows = [(torch.randn(1, 5, 8),) for _ in range(4)]
    ranges = rounded.measure_ranges(rows)
    assert {site.layer for site in rounded.sites} == {"left", "right"}
    assert rounded.trained_sites("left") == [RangeSite("left", is_input=False)]
    read, made = (rounded.sites[RangeSite("left", is_input)] for is_input in (True, False))
    values, before = torch.cat([r[0].flatten() for r in rows]), float(ranges.low[made])
    with torch.no_grad():
        ranges.lower += 0.5
        ranges.upper += 0.5
    low, high = (end.detach() for end in ranges.ends())
    assert [float(low[read]), float(high[read])] == [float(values.min()), float(values.max())], "what the rows had"
    assert float(low[made]) < before


def test_a_module_runs_with_rounded_numbers_and_its_ranges_are_trained():
    module, x = Two().eval(), torch.randn(2, 5, 8)
    rounded = RoundedModule(module, rules(outputs=True))
    ranges = rounded.measure_ranges([(x,)])
    (made,), (exact,) = rounded(weights_of(module), ranges, (x,)), module(x)
    error = float((made - exact).detach().square().mean().sqrt() / exact.detach().std())
    assert 0 < error < 0.1
    made.square().sum().backward()
    for parameter in (*module.parameters(), ranges.upper):
        assert parameter.grad is not None and parameter.grad.ne(0).any()
    assert ranges.lower.grad is not None
    floats = RoundedModule(module, rules(static=False, small=1000))
    assert torch.equal(floats(weights_of(module), Ranges([]), (x,))[0], exact), "weights of at most `small` stay float"
    coarse = RoundedModule(module, rules(static=False))(weights_of(module), Ranges([]), (x,))[0]
    rough = {name: per_row(p) if p.ndim > 1 else p for name, p in module.named_parameters()}
    torch.testing.assert_close(coarse, torch.func.functional_call(module, rough, (x,))[0])
