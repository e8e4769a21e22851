from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.distill.lamb import Lamb
from pocketbert.distill.transfer_phases import (
    Rates,
    TransferPhases,
    auxiliary,
    drop_gradients_at_rest,
    joint,
    layer_groups,
    prepare_step,
    progressive,
)

PUBLISHED = progressive()
STRATEGIES: list[Callable[[int], TransferPhases]] = [progressive, joint, auxiliary]
OPTIMIZERS = [lambda groups: Lamb(groups), lambda groups: torch.optim.AdamW(groups, fused=True)]


def test_the_published_schedule() -> None:
    assert [phase.steps for phase in PUBLISHED.phases] == [10_000] * 24 + [500_000]
    assert PUBLISHED.steps == PUBLISHED.published == 740_000
    assert PUBLISHED.depth == 24
    assert PUBLISHED.lr == 1.5e-3
    assert PUBLISHED.phases[-1].warmup == 10_000
    assert PUBLISHED.name == "progressive"


@pytest.mark.parametrize("turn", [0, 1, 11, 23])
@pytest.mark.parametrize("offset", [0, 1, 5_000, 9_999])
def test_one_layer_after_the_other(turn: int, offset: int) -> None:
    step = turn * 10_000 + offset
    assert PUBLISHED.phase_of(step).name == f"layer {turn}"
    assert PUBLISHED.number_of(step) == turn
    assert PUBLISHED.begins(step) == (offset == 0)
    assert PUBLISHED.gates(step) == tuple(1 / 24 if n == turn else 0.0 for n in range(24))
    multipliers = tuple(0.3 if n < turn else 3.0 if n == turn else 0.0 for n in range(24))
    assert PUBLISHED.rates(step) == Rates(multipliers, 0.0)
    assert not PUBLISHED.phase_of(step).pretraining
    absolute = PUBLISHED.learning_rates(step)
    assert absolute.rest == 0
    factor = absolute.layers[turn] / (3.0 * 1.5e-3)
    assert 0 < factor <= 1
    assert absolute.layers == pytest.approx([1.5e-3 * factor * rate for rate in multipliers])


@pytest.mark.parametrize("step", [240_000, 249_999, 739_999])
def test_then_everything_learns_the_guesses(step: int) -> None:
    phase = PUBLISHED.phase_of(step)
    assert phase.pretraining
    assert phase.name == "pre-training distillation"
    assert PUBLISHED.gates(step) == (0.0,) * 24
    assert PUBLISHED.rates(step) == Rates((1.0,) * 24, 1.0)


def test_the_background_of_transfer() -> None:
    """min of a line from 0 to 10 and of 0.9 + 0.1 sqrt(1 - s), as the released code's two decays have it."""
    phase = PUBLISHED.phases[3]
    assert phase.background(0) == pytest.approx(0.001)
    assert phase.background(499) == pytest.approx(0.5)
    assert phase.background(1_999) == pytest.approx(0.9 + 0.1 * sqrt(0.8))
    assert phase.background(9_999) == pytest.approx(0.9)
    course = [phase.background(step) for step in range(phase.steps)]
    top = course.index(max(course))
    assert 980 < top < 1_000
    assert max(course) == pytest.approx(1, abs=0.01)
    rises = [a < b for a, b in pairwise(course)]
    assert rises == [True] * top + [False] * (len(course) - 1 - top)


def test_the_course_of_pretraining_distillation() -> None:
    phase = PUBLISHED.phases[-1]
    assert phase.background(0) == pytest.approx(1e-4)
    assert phase.background(4_999) == pytest.approx(0.5)
    assert phase.background(9_999) == 1.0
    assert phase.background(249_999) == pytest.approx(0.5, rel=1e-3)
    assert phase.background(499_999) == pytest.approx(1e-4)
    assert PUBLISHED.learning_rates(249_999).rest == pytest.approx(1.5e-3)


def test_joint_transfer() -> None:
    phases = joint(24)
    assert [phase.steps for phase in phases.phases] == [240_000, 500_000]
    assert phases.gates(0) == phases.gates(239_999) == (1 / 24,) * 24
    assert phases.rates(0) == Rates((1.0,) * 24, 0.0)
    assert [phases.phase_of(step).pretraining for step in (0, 239_999, 240_000)] == [False, False, True]
    assert phases.gates(240_000) == (0.0,) * 24


def test_auxiliary_transfer() -> None:
    phases = auxiliary(24)
    assert [phase.steps for phase in phases.phases] == [740_000]
    assert phases.phase_of(739_999).pretraining
    assert phases.gates(0) == phases.gates(739_999) == (1 / 24,) * 24
    assert phases.rates(0) == Rates((1.0,) * 24, 1.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_outside_are_refused(strategy: Callable[[int], TransferPhases]) -> None:
    phases = strategy(2)
    for step in (-1, phases.steps):
        with pytest.raises(ValueError, match="there are steps 0 to"):
            phases.gates(step)


@given(st.sampled_from(STRATEGIES), st.integers(1, 24), st.data())
def test_a_reduced_schedule_keeps_the_proportions(
    strategy: Callable[[int], TransferPhases], depth: int, data: st.DataObject
) -> None:
    whole = strategy(depth)
    least = -(-whole.steps // min(phase.steps for phase in whole.phases))
    steps = data.draw(st.integers(least, whole.steps - 1))
    less = whole.reduced(steps)
    assert less.steps == sum(phase.steps for phase in less.phases) == steps
    assert less.published == whole.steps
    assert less.name == f"{whole.name}, reduced to {steps:,} of {whole.steps:,} steps"
    share = steps / whole.steps
    for short, long in zip(less.phases, whole.phases, strict=True):
        assert short.steps >= 1
        assert abs(short.steps - share * long.steps) <= 1
        assert (short.layers, short.rates, short.pretraining) == (long.layers, long.rates, long.pretraining)
        if long.warmup is None:
            assert short.warmup is None
        else:
            assert short.warmup is not None
            assert short.warmup == max(1, round(long.warmup * short.steps / long.steps))
    for step in (0, steps - 1):
        rates = less.learning_rates(step)
        assert all(0 <= rate <= 3 * whole.lr for rate in (*rates.layers, rates.rest))
        assert max(rates.layers) > 0


def test_as_many_steps_as_published_are_not_called_reduced() -> None:
    assert PUBLISHED.reduced(740_000) == PUBLISHED
    assert PUBLISHED.reduced(7_400).phases[0].steps == 100


@pytest.mark.parametrize("steps", [0, 73, 740_001])
def test_steps_that_do_not_divide_are_refused(steps: int) -> None:
    with pytest.raises(InputError, match=r"distill.0.steps: .*25 phases.*Set steps from 74 to 740,000"):
        PUBLISHED.reduced(steps, "distill.0.steps")
    assert min(phase.steps for phase in PUBLISHED.reduced(74).phases) == 1


class Student(nn.Module):
    """Embeddings, three layers, a head that is tied to the embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(11, 4)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3))
        self.head = nn.Linear(4, 11)
        self.head.weight = self.embeddings.weight

    @property
    def layers(self) -> nn.ModuleList:
        found = self.encoder.layer
        assert isinstance(found, nn.ModuleList)
        return found

    def forward(self, ids: Tensor) -> tuple[list[Tensor], Tensor]:
        x, states = self.embeddings(ids), list[Tensor]()
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            states.append(x)
        return states, self.head(x)


def student() -> Student:
    torch.manual_seed(0)
    return Student()


def test_groups_hold_every_trained_parameter_once() -> None:
    model = student()
    model.head.bias.requires_grad_(False)
    groups = layer_groups(model, "encoder.layer", weight_decay=0.02)
    assert [(g["layer"], g["weight_decay"]) for g in groups] == [
        (0, 0.02), (0, 0.0), (1, 0.02), (1, 0.0), (2, 0.02), (2, 0.0), (None, 0.02),
    ]  # fmt: skip
    held = [id(p) for g in groups for p in g["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {id(p) for p in model.parameters() if p.requires_grad}
    for group in groups:
        assert all((p.ndim > 1) == (group["weight_decay"] > 0) for p in group["params"])
        if group["layer"] is not None:
            own = {id(p) for p in model.layers[group["layer"]].parameters()}
            assert {id(p) for p in group["params"]} <= own


@pytest.mark.parametrize("path", ["encoder", "encoder.layers", "bert.encoder.layer"])
def test_a_path_without_layers_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"no list of layers at '{path}' of Student"):
        layer_groups(student(), path)


def test_layers_that_share_a_parameter_are_refused() -> None:
    model = student()
    model.layers[2] = model.layers[1]
    with pytest.raises(ValueError, match="layers 1 and 2 share the parameter '0.weight'"):
        layer_groups(model, "encoder.layer")


def short_run() -> TransferPhases:
    """Three phases of 10 steps for three layers, then 20 steps."""
    whole = progressive(3)
    return replace(whole, phases=(*(replace(p, steps=10) for p in whole.phases[:3]),
                                  replace(whole.phases[3], steps=20, warmup=2)))  # fmt: skip


def parts_of(model: Student) -> dict[str, list[Tensor]]:
    found = {f"layer {n}": list(layer.parameters()) for n, layer in enumerate(model.layers)}
    return {**found, "rest": [model.embeddings.weight, model.head.bias]}


def movement(before: list[Tensor], after: list[Tensor]) -> float:
    return max(float((a.detach() - b).norm()) for a, b in zip(after, before, strict=True))


def one_step(model: Student, optimizer: torch.optim.Optimizer, phases: TransferPhases, step: int) -> None:
    """As the training loop will do it; the loss also touches what is to be frozen."""
    ids, random = torch.arange(11)[None], torch.Generator().manual_seed(step)
    prepare_step(optimizer, phases, step)
    states, logits = model(ids)
    gates = phases.gates(step)
    loss = sum((g * (s - torch.randn(s.shape, generator=random)).square().mean() for g, s in zip(gates, states, strict=True)),
               0.01 * logits.square().mean())  # fmt: skip
    assert isinstance(loss, Tensor)
    loss.backward()
    drop_gradients_at_rest(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["lamb", "adamw"])
def test_what_is_frozen_does_not_move_and_what_is_finished_moves_slowly(
    make: Callable[[object], torch.optim.Optimizer],
) -> None:
    model, phases = student(), short_run()
    optimizer = make(layer_groups(model, "encoder.layer"))
    for turn in range(3):
        before = {name: [p.detach().clone() for p in params] for name, params in parts_of(model).items()}
        for step in range(10 * turn, 10 * turn + 10):
            one_step(model, optimizer, phases, step)
            asleep = [
                p
                for name in (*(f"layer {n}" for n in range(turn + 1, 3)), "rest")
                for p in parts_of(model)[name]
            ]
            assert not any(p in optimizer.state for p in asleep)  # moments too are at 0
        moved = {
            name: movement(before[name], [p.detach() for p in params])
            for name, params in parts_of(model).items()
        }
        assert moved.pop("rest") == 0
        for n in range(turn + 1, 3):
            assert moved[f"layer {n}"] == 0
        assert moved[f"layer {turn}"] > 0
        for n in range(turn):
            assert 0 < moved[f"layer {n}"] < 0.5 * moved[f"layer {turn}"]
    before = {name: [p.detach().clone() for p in params] for name, params in parts_of(model).items()}
    for step in range(30, 50):
        one_step(model, optimizer, phases, step)
    assert all(movement(before[name], params) > 0 for name, params in parts_of(model).items())


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["lamb", "adamw"])
def test_momentum_of_an_earlier_phase_does_not_move_what_is_frozen_later(
    make: Callable[[object], torch.optim.Optimizer],
) -> None:
    model, whole = student(), short_run()
    backwards = replace(whole, phases=(whole.phases[3], whole.phases[0]))
    optimizer = make(layer_groups(model, "encoder.layer"))
    for step in range(20):
        one_step(model, optimizer, backwards, step)
    before = {name: [p.detach().clone() for p in params] for name, params in parts_of(model).items()}
    for step in range(20, 30):
        one_step(model, optimizer, backwards, step)
    moved = {name: movement(before[name], params) > 0 for name, params in parts_of(model).items()}
    assert moved == {"layer 0": True, "layer 1": False, "layer 2": False, "rest": False}


def test_a_phase_begins_without_moments_and_keeps_them_after() -> None:
    model, phases = student(), short_run()
    optimizer = Lamb(layer_groups(model, "encoder.layer"))
    weight = next(model.layers[0].parameters())
    counts = []
    for step in range(12):
        one_step(model, optimizer, phases, step)
        counts.append(float(optimizer.state[weight]["step"]))
    assert counts == [*range(1, 11), 1, 2]


def test_gradients_at_rest_are_not_clipped_with_the_others() -> None:
    model, phases = student(), short_run()
    optimizer = Lamb(layer_groups(model, "encoder.layer"))
    prepare_step(optimizer, phases, 0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    drop_gradients_at_rest(optimizer)
    left = {name: [p.grad is not None for p in params] for name, params in parts_of(model).items()}
    assert {name: set(found) for name, found in left.items()} == {
        "layer 0": {True}, "layer 1": {False}, "layer 2": {False}, "rest": {False},
    }  # fmt: skip
