from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.recipe.sections import Updates
from pocketbert.distill.methods.transfer import TransferCourse, TransferPhases, _layer_groups, progressive
from pocketbert.distill.training.optimizer import Lamb

OPTIMIZERS = [lambda groups: Lamb(groups), lambda groups: torch.optim.AdamW(groups, fused=True)]


def course(phases: TransferPhases) -> TransferCourse:
    return TransferCourse(phases, "encoder.layer", Updates(steps=phases.steps, lr=phases.lr))


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
    groups = _layer_groups(model, "encoder.layer", weight_decay=0.02)
    assert [(g["layer"], g["weight_decay"]) for g in groups] == [
        (0, 0.02),
        (0, 0.0),
        (1, 0.02),
        (1, 0.0),
        (2, 0.02),
        (2, 0.0),
        (None, 0.02),
    ]
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
        _layer_groups(student(), path)


def test_layers_that_share_a_parameter_are_refused() -> None:
    model = student()
    model.layers[2] = model.layers[1]
    with pytest.raises(ValueError, match="layers 1 and 2 share the parameter '0.weight'"):
        _layer_groups(model, "encoder.layer")


def short_run() -> TransferPhases:
    """Three phases of 10 steps for three layers, then 20 steps."""
    whole = progressive(3)
    return replace(
        whole, phases=(*(replace(p, steps=10) for p in whole.phases[:3]), replace(whole.phases[3], steps=20, warmup=2))
    )


def parts_of(model: Student) -> dict[str, list[Tensor]]:
    found = {f"layer {n}": list(layer.parameters()) for n, layer in enumerate(model.layers)}
    return {**found, "rest": [model.embeddings.weight, model.head.bias]}


def movement(before: list[Tensor], after: list[Tensor]) -> float:
    return max(float((a.detach() - b).norm()) for a, b in zip(after, before, strict=True))


def one_step(model: Student, optimizer: torch.optim.Optimizer, phases: TransferPhases, step: int) -> None:
    """As the training loop will do it; the loss also touches what is to be frozen."""
    ids, random = torch.arange(11)[None], torch.Generator().manual_seed(step)
    course(phases).prepare(optimizer, step)
    states, logits = model(ids)
    gates = phases.gates(step)
    loss = sum(
        (g * (s - torch.randn(s.shape, generator=random)).square().mean() for g, s in zip(gates, states, strict=True)),
        0.01 * logits.square().mean(),
    )
    assert isinstance(loss, Tensor)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["lamb", "adamw"])
def test_what_is_frozen_does_not_move_and_what_is_finished_moves_slowly(
    make: Callable[[object], torch.optim.Optimizer],
) -> None:
    model, phases = student(), short_run()
    optimizer = make(_layer_groups(model, "encoder.layer"))
    for turn in range(3):
        before = {name: [p.detach().clone() for p in params] for name, params in parts_of(model).items()}
        for step in range(10 * turn, 10 * turn + 10):
            one_step(model, optimizer, phases, step)
            asleep = [
                p for name in (*(f"layer {n}" for n in range(turn + 1, 3)), "rest") for p in parts_of(model)[name]
            ]
            assert not any(p in optimizer.state for p in asleep)  # moments too are at 0
        moved = {name: movement(before[name], [p.detach() for p in params]) for name, params in parts_of(model).items()}
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
    optimizer = make(_layer_groups(model, "encoder.layer"))
    for step in range(20):
        one_step(model, optimizer, backwards, step)
    before = {name: [p.detach().clone() for p in params] for name, params in parts_of(model).items()}
    for step in range(20, 30):
        one_step(model, optimizer, backwards, step)
    moved = {name: movement(before[name], params) > 0 for name, params in parts_of(model).items()}
    assert moved == {"layer 0": True, "layer 1": False, "layer 2": False, "rest": False}


def test_a_phase_begins_without_moments_and_keeps_them_after() -> None:
    model, phases = student(), short_run()
    optimizer = Lamb(_layer_groups(model, "encoder.layer"))
    weight = next(model.layers[0].parameters())
    counts = []
    for step in range(12):
        one_step(model, optimizer, phases, step)
        counts.append(float(optimizer.state[weight]["step"]))
    assert counts == [*range(1, 11), 1, 2]


def test_what_is_at_rest_gets_no_gradient_and_is_not_clipped_with_the_others() -> None:
    model, phases = student(), short_run()
    for step, awake in ((0, {"layer 0"}), (15, {"layer 0", "layer 1"}), (30, set(parts_of(model)))):
        own = course(phases)
        rate = own.prepare(own.optimizer(model), step)
        assert rate == max(group for group in (*phases.learning_rates(step).layers, phases.learning_rates(step).rest))
        states, logits = model(torch.arange(11)[None])
        (sum((s.square().mean() for s in states), logits.square().mean())).backward()
        reached = {name for name, params in parts_of(model).items() if any(p.grad is not None for p in params)}
        assert reached == awake
        model.zero_grad()
        model.requires_grad_(True)


def test_the_optimizer_is_lamb_with_the_stage_s_settings() -> None:
    settings = Updates(steps=50, lr=1e-2, weight_decay=0.1, beta2=0.9, eps=1e-5)
    optimizer = TransferCourse(short_run(), "encoder.layer", settings).optimizer(student())
    assert isinstance(optimizer, Lamb)
    assert {(g["betas"], g["eps"]) for g in optimizer.param_groups} == {((0.9, 0.9), 1e-5)}
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.1, 0.0}
    own = TransferCourse(short_run(), "encoder.layer", settings)
    assert own.prepare(optimizer, 1) == pytest.approx(3e-2, rel=0.02)
