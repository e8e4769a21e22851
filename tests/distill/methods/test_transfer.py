"""MobileBERT's knowledge transfer: its phases, and the optimizer that follows them."""

from dataclasses import replace
from itertools import pairwise
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.sections import Updates
from pocketbert.distill.methods.transfer import (
    STRATEGIES,
    Rates,
    TransferCourse,
    TransferPhases,
    auxiliary,
    joint,
    progressive,
)
from pocketbert.distill.training.optimizer import Lamb

PUBLISHED = progressive()
EACH = (1 / 24,) * 24
NONE, ALL = (0.0,) * 24, (1.0,) * 24


# --- phases -----------------------------------------------------------------------------------------------------------


def test_the_published_schedule():
    assert [phase.steps for phase in PUBLISHED.phases] == [10_000] * 24 + [500_000]
    assert (PUBLISHED.steps, PUBLISHED.published, PUBLISHED.depth) == (740_000, 740_000, 24)
    assert (PUBLISHED.lr, PUBLISHED.phases[-1].warmup, PUBLISHED.name) == (1.5e-3, 10_000, "progressive")
    assert {name: make(3).strategy for name, make in STRATEGIES.items()} == {name: name.value for name in STRATEGIES}


def one_layer(turn: int) -> tuple[int, bool, tuple[float, ...], Rates]:
    """What holds in the last step of a layer's turn: its gate alone is open, those below learn slowly."""
    multipliers = tuple(0.3 if n < turn else 3.0 if n == turn else 0.0 for n in range(24))
    return turn * 10_000 + 9_999, False, tuple(1 / 24 if n == turn else 0.0 for n in range(24)), Rates(multipliers, 0.0)


@pytest.mark.parametrize(
    ("phases", "step", "pretraining", "gates", "rates"),
    [
        *((PUBLISHED, *one_layer(turn)) for turn in (0, 1, 23)),
        (PUBLISHED, 240_000, True, NONE, Rates(ALL, 1.0)),
        (PUBLISHED, 739_999, True, NONE, Rates(ALL, 1.0)),
        (joint(), 0, False, EACH, Rates(ALL, 0.0)),
        (joint(), 239_999, False, EACH, Rates(ALL, 0.0)),
        (joint(), 240_000, True, NONE, Rates(ALL, 1.0)),
        (auxiliary(), 0, True, EACH, Rates(ALL, 1.0)),
        (auxiliary(), 739_999, True, EACH, Rates(ALL, 1.0)),
    ],
)
def test_layers_guesses_and_rates_of_the_phases(phases, step, pretraining, gates, rates):
    assert phases.phase_of(step).pretraining is pretraining
    assert phases.gates(step) == gates
    assert phases.rates(step) == rates
    ended = sum(phase.steps for phase in phases.phases[: phases.number_of(step)])
    assert phases.begins(step) == (step == ended)
    factor, absolute = phases.phase_of(step).background(step - ended), phases.learning_rates(step)
    assert absolute.layers == pytest.approx([1.5e-3 * factor * rate for rate in rates.layers])
    assert absolute.rest == pytest.approx(1.5e-3 * factor * rates.rest)


def test_the_course_of_transfer_and_of_pretraining():
    """min of a line from 0 to 10 and of 0.9 + 0.1 sqrt(1 - s), as the released code's two decays have it; then a warm-up."""
    transfer, guesses = PUBLISHED.phases[3], PUBLISHED.phases[-1]
    for phase, step, factor in (
        (transfer, 0, 0.001),
        (transfer, 499, 0.5),
        (transfer, 1_999, 0.9 + 0.1 * sqrt(0.8)),
        (transfer, 9_999, 0.9),
        (guesses, 0, 1e-4),
        (guesses, 4_999, 0.5),
        (guesses, 9_999, 1.0),
        (guesses, 249_999, 0.50005),
        (guesses, 499_999, 1e-4),
    ):
        assert phase.background(step) == pytest.approx(factor), (phase.name, step)
    course = [transfer.background(step) for step in range(transfer.steps)]
    top = course.index(max(course))
    assert 980 < top < 1_000
    assert [a < b for a, b in pairwise(course)] == [True] * top + [False] * (len(course) - 1 - top)


@settings(max_examples=25)
@given(st.sampled_from([progressive, joint, auxiliary]), st.integers(1, 24), st.data())
def test_a_reduced_schedule_keeps_the_proportions(strategy, depth, data):
    whole = strategy(depth)
    least = -(-whole.steps // min(phase.steps for phase in whole.phases))
    steps = data.draw(st.integers(least, whole.steps - 1))
    less = whole.reduced(steps)
    assert less.steps == sum(phase.steps for phase in less.phases) == steps
    assert less.name == f"{whole.name}, reduced to {steps:,} of {whole.steps:,} steps"
    for short, long in zip(less.phases, whole.phases, strict=True):
        assert short.steps >= 1
        assert abs(short.steps - steps / whole.steps * long.steps) <= 1
        warmup = None if long.warmup is None else max(1, round(long.warmup * short.steps / long.steps))
        assert short == replace(long, steps=short.steps, warmup=warmup)
    for step in (0, steps - 1):
        rates = less.learning_rates(step)
        assert all(0 <= rate <= 3 * whole.lr for rate in (*rates.layers, rates.rest))
        assert max(rates.layers) > 0
    with pytest.raises(ValueError, match="there are steps 0 to"):
        less.gates(steps)


def test_steps_of_transfer_and_of_the_guesses_can_be_given_apart():
    less = progressive(6).reduced(1000, 600)
    assert [phase.steps for phase in less.phases] == [100] * 6 + [400]
    assert less.phases[-1].warmup == 8  # 10,000 of 500,000
    assert less.name == "progressive, reduced to 1,000 of 560,000 steps"
    assert [phase.steps for phase in joint(6).reduced(1000, 600).phases] == [600, 400]
    assert PUBLISHED.reduced(740_000) == PUBLISHED


@pytest.mark.parametrize(
    ("phases", "steps", "transfer", "message"),
    [
        *(
            (PUBLISHED, n, None, r"distill.0.steps: .*25 phases.*Set steps from 74 to 740,000")
            for n in (0, 73, 740_001)
        ),
        (progressive(6), 100, 5, r"distill.0.transfer_steps: 5 steps .* Set transfer_steps from 6 to 60,000"),
        (PUBLISHED, 740_000, 24, r"739,976 steps do not divide .* Set steps from 1 to 500,000"),
    ],
)
def test_steps_that_do_not_divide_are_refused(phases, steps, transfer, message):
    with pytest.raises(InputError, match=message):
        phases.reduced(steps, transfer)
    assert min(phase.steps for phase in PUBLISHED.reduced(74).phases) == 1


def test_embeddings_may_learn_at_the_rates_of_the_first_layer():
    made = progressive(3).with_embeddings()
    assert [phase.rates.rest for phase in made.phases] == [3.0, 0.3, 0.3, 1.0]


# --- the optimizer ----------------------------------------------------------------------------------------------------


class Student(nn.Module):
    """Embeddings, three layers, a head that is tied to the embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.Embedding(11, 4)
        self.encoder = nn.Module()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3))
        self.encoder.layer = self.layers
        self.head = nn.Linear(4, 11)
        self.head.weight = self.embeddings.weight

    def forward(self, ids: Tensor) -> tuple[list[Tensor], Tensor]:
        x, states = self.embeddings(ids), list[Tensor]()
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            states.append(x)
        return states, self.head(x)

    def parts(self) -> dict[str, list[nn.Parameter]]:
        found = {f"layer {n}": list(layer.parameters()) for n, layer in enumerate(self.layers)}
        return found | {"rest": [self.embeddings.weight, self.head.bias]}


def shorten(*turns: int) -> TransferPhases:
    """Phases of three layers by their numbers, 10 steps each; number 3 is the last, of 20."""
    chosen = [progressive(3).phases[turn] for turn in turns]
    last = {"steps": 20, "warmup": 2}
    phases = tuple(replace(p, **last) if p.pretraining else replace(p, steps=10) for p in chosen)
    return replace(progressive(3), phases=phases)


def start(phases: TransferPhases, path: str = "encoder.layer", model: Student | None = None) -> tuple:
    """A student, its course, its optimizer."""
    model = model or Student()
    course = TransferCourse(phases, path, Updates(steps=phases.steps, lr=1.5e-3, weight_decay=0.02))
    return model, course, course.optimizer(model)


def follow(model: Student, course: TransferCourse, optimizer: torch.optim.Optimizer, steps: range) -> dict[str, float]:
    """Steps as the loop makes them, with a loss that reaches everything; how far each part of the student moved."""
    before = {name: [p.detach().clone() for p in parameters] for name, parameters in model.parts().items()}
    for step in steps:
        random = torch.Generator().manual_seed(step)
        course.prepare(optimizer, step)
        states, logits = model(torch.arange(11)[None])
        losses = [(s - torch.randn(s.shape, generator=random)).square().mean() for s in (*states, logits)]
        torch.stack(losses).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {
        name: max(float((a.detach() - b).norm()) for a, b in zip(model.parts()[name], old, strict=True))
        for name, old in before.items()
    }


def test_groups_hold_every_trained_parameter_once_and_have_the_stages_settings():
    model = Student()
    model.head.bias.requires_grad_(False)
    settings_of_stage = Updates(steps=50, lr=1e-2, weight_decay=0.1, beta2=0.9, eps=1e-5)
    course = TransferCourse(shorten(0, 1, 2, 3), "encoder.layer", settings_of_stage)
    optimizer = course.optimizer(model)
    assert isinstance(optimizer, Lamb)
    groups = optimizer.param_groups
    numbers = [(n, decay) for n in (0, 1, 2) for decay in (0.1, 0.0)]
    assert [(g["layer"], g["weight_decay"]) for g in groups] == [*numbers, (None, 0.1)]
    assert {(g["betas"], g["eps"]) for g in groups} == {((0.9, 0.9), 1e-5)}
    held = [id(p) for g in groups for p in g["params"]]
    assert sorted(held) == sorted({id(p) for p in model.parameters() if p.requires_grad})
    for group in groups:
        assert all((p.ndim > 1) == (group["weight_decay"] > 0) for p in group["params"])
        if group["layer"] is not None:
            assert {id(p) for p in group["params"]} <= {id(p) for p in model.layers[group["layer"]].parameters()}
    assert course.prepare(optimizer, 1) == pytest.approx(3e-2, rel=0.02)


def test_what_is_frozen_does_not_move_and_what_is_finished_moves_slowly():
    model, course, optimizer = start(shorten(0, 1, 2, 3))
    for turn in range(3):
        moved = follow(model, course, optimizer, range(10 * turn, 10 * turn + 10))
        asleep = [f"layer {n}" for n in range(turn + 1, 3)] + ["rest"]
        assert all(moved.pop(name) == 0 for name in asleep)
        assert not any(p in optimizer.state for name in asleep for p in model.parts()[name]), "no moments either"
        assert {float(optimizer.state[p]["step"]) for p in model.parts()["layer 0"]} == {10}, "a phase begins without"
        current = moved.pop(f"layer {turn}")
        assert current > 0 and all(0 < distance < 0.5 * current for distance in moved.values())
    assert min(follow(model, course, optimizer, range(30, 50)).values()) > 0


@pytest.mark.parametrize(("step", "awake"), [(0, 1), (15, 2), (30, 4)])
def test_what_is_at_rest_gets_no_gradient_and_is_not_clipped_with_the_others(step, awake):
    phases = shorten(0, 1, 2, 3)
    model, course, optimizer = start(phases)
    rates = phases.learning_rates(step)
    assert course.prepare(optimizer, step) == max(*rates.layers, rates.rest)
    states, logits = model(torch.arange(11)[None])
    torch.stack([x.square().mean() for x in (*states, logits)]).sum().backward()
    reached = [name for name, parameters in model.parts().items() if any(p.grad is not None for p in parameters)]
    assert reached == list(model.parts())[:awake]
