"""What a module computes with in advance for a length: rotations, windows, rows of ids. Files with others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.families import find_family
from pocketbert.core.types import Format
from pocketbert.export.prepare import prepare
from pocketbert.pipeline.gates.stored import ReferenceConstants, compare_constants
from pocketbert.pipeline.gates.torch_constants import ModuleConstants, _trace, example_inputs
from support.stored_models import CLASSIFY
from support.tiny import tiny_classifier

LENGTH = 24
FAMILY = find_family("modernbert")
KINDS = "full_attention", "sliding_attention"


def found(module: nn.Module, whole: nn.Module, inputs: tuple[str, ...], length: int = LENGTH) -> list[str]:
    """What is wrong with a file of inputs of one length that holds the constants of `module`, if `whole` is right."""
    trace = ModuleConstants(whole, inputs)
    reference = ReferenceConstants(trace.constants, of_length=trace.of_length, needed=trace.needed)
    file, _ = _trace(module, example_inputs(inputs, length))
    return compare_constants([file], reference, (length,)).problems


def prepared() -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = tiny_classifier("modernbert", 4, ("a", "b", "c"))
        torch.manual_seed(3)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return prepare(model, FAMILY, CLASSIFY, Format.TFLITE)


Angles = dict[str, tuple[Tensor, Tensor]]


class Changed(nn.Module):
    """Rotations that are not those of the module."""

    def __init__(self, rotary: nn.Module, change: Callable[[Angles], Angles]) -> None:
        super().__init__()
        self.rotary, self.change = rotary, change

    def forward(self, length: int) -> Angles:
        return self.change(self.rotary(length + 1))


def rows(angles: Angles, rows: slice) -> Angles:
    return {kind: (cos[:, :, rows], sin[:, :, rows]) for kind, (cos, sin) in angles.items()}


def none(angles: Angles) -> Angles:
    return {kind: (torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)) for kind in angles}


def swapped(angles: Angles) -> Angles:
    here = rows(angles, slice(-1))
    return dict(zip(KINDS, (here[KINDS[1]], here[KINDS[0]]), strict=True))


def one_for_both(angles: Angles) -> Angles:
    return dict.fromkeys(KINDS, rows(angles, slice(-1))[KINDS[0]])


BROKEN = {
    "shifted by a position": (lambda a: rows(a, slice(1, None)), "has other numbers"),
    "backwards": (lambda a: {k: (c[:, :, :-1].flip(2), s[:, :, :-1]) for k, (c, s) in a.items()}, "has other numbers"),
    "of the other kind of layer": (swapped, "in the model it is not"),
    "one kind for both": (one_for_both, "is not in the file"),
    "none": (none, "is not in the file"),
}


def test_rotations_of_the_length_pass() -> None:
    module, whole = prepared(), prepared()
    assert found(module, whole, FAMILY.inputs) == []
    module.rotary = Changed(module.rotary, lambda a: rows(a, slice(-1)))
    assert found(module, whole, FAMILY.inputs) == []


@pytest.mark.parametrize("name", BROKEN)
def test_other_rotations_fail(name: str) -> None:
    module, (change, said) = prepared(), BROKEN[name]
    module.rotary = Changed(module.rotary, change)
    problems = found(module, prepared(), FAMILY.inputs)
    assert any(said in p for p in problems), problems


def test_a_window_of_another_width_fails() -> None:
    module = prepared()
    module.window += 1
    assert any("other numbers" in p for p in found(module, prepared(), FAMILY.inputs))


def test_rotations_are_no_norm() -> None:
    module = prepared()
    norm = module.model.model.layers[0].mlp_norm
    width = norm.weight.shape[0]
    rotation = module.rotary.get_buffer(KINDS[0])
    module.register_buffer("wide", rotation.repeat(width // len(rotation)))
    whole = prepared()
    whole.register_buffer("wide", module.wide.clone())
    assert found(module, whole, FAMILY.inputs) == []
    norm.weight = nn.Parameter(module.wide.clone())
    problems = found(module, whole, FAMILY.inputs)
    assert any("mlp_norm.weight is not in the file" in p for p in problems), problems


class Ids(nn.Module):
    """Rows of a table for distances, chosen by a slice of a list of ids as relative positions are."""

    def __init__(self, shift: int = 0, seed: int = 1) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)))
        made = torch.randint(0, 64, (2000,), generator=torch.Generator().manual_seed(seed))
        self.ids, self.shift = nn.Buffer(made.to(torch.int32)), shift

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        start = 1000 - length + self.shift
        zero = (input_ids[0, :1] * 0).to(torch.int32)
        return nn.functional.embedding(self.ids[start : start + 2 * length] + zero, self.table)


@pytest.mark.parametrize("shift", [0, 1, -1, 700])
def test_ids_are_those_of_the_length(shift: int) -> None:
    problems = found(Ids(shift), Ids(), ("input_ids",), 300)
    assert bool(problems) == bool(shift), problems


def test_ids_of_another_list_fail() -> None:
    assert found(Ids(seed=2), Ids(), ("input_ids",), 300)


class Positions(nn.Module):
    """A table of positions, of which the first rows are used: as many as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Buffer(torch.randn(LENGTH, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table[: input_ids.shape[1]] + input_ids[0, :, None]


def test_the_longest_input_of_a_model_is_traced() -> None:
    """The table has no row for one token more."""
    assert found(Positions(), Positions(), ("input_ids",), LENGTH) == []
    broken = Positions()
    broken.table += 1
    assert found(broken, Positions(), ("input_ids",), LENGTH)
