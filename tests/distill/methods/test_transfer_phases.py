from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.distill.methods.transfer import STRATEGIES as BY_NAME
from pocketbert.distill.methods.transfer import Rates, TransferPhases, auxiliary, joint, progressive

PUBLISHED = progressive()
STRATEGIES: list[Callable[[int], TransferPhases]] = [progressive, joint, auxiliary]


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
        PUBLISHED.reduced(steps)
    assert min(phase.steps for phase in PUBLISHED.reduced(74).phases) == 1


def test_steps_of_transfer_and_of_the_guesses_can_be_given_apart() -> None:
    less = progressive(6).reduced(1000, 600)
    assert [phase.steps for phase in less.phases] == [100] * 6 + [400]
    assert less.phases[-1].warmup == 8  # 10,000 of 500,000
    assert less.name == "progressive, reduced to 1,000 of 560,000 steps"
    assert [phase.steps for phase in joint(6).reduced(1000, 600).phases] == [600, 400]
    with pytest.raises(InputError, match=r"distill.0.transfer_steps: 5 steps .* Set transfer_steps from 6 to 60,000"):
        progressive(6).reduced(100, 5)


def test_as_many_steps_cannot_be_divided_in_another_way() -> None:
    with pytest.raises(InputError, match=r"739,976 steps do not divide .* Set steps from 1 to 500,000"):
        PUBLISHED.reduced(740_000, 24)


def test_every_strategy_has_a_name() -> None:
    assert {name: make(3).strategy for name, make in BY_NAME.items()} == {name: name.value for name in BY_NAME}
