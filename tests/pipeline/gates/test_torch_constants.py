"""What a module computes with in advance for a length: rotations, windows, rows of ids. Files with others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.families import find_family
from pocketbert.core.types import Format
from pocketbert.export.prepare import prepare
from pocketbert.pipeline.formats.constants import Constant, ConstantRole, StoredTensor
from pocketbert.pipeline.gates import reference_constants
from pocketbert.pipeline.gates.reference_constants import ReferenceConstants
from pocketbert.pipeline.gates.stored import compare_constants
from pocketbert.pipeline.gates.torch_constants import ModuleConstants, _trace, example_inputs
from support.stored_models import CLASSIFY
from support.tiny import tiny_classifier

LENGTH = 24
FAMILY = find_family("modernbert")
KINDS = "full_attention", "sliding_attention"
Angles = dict[str, tuple[Tensor, Tensor]]


@pytest.mark.parametrize("steps", [None, (1, 1), (40, 1), (1, 6), (40, 6)])
def test_a_wrong_number_is_found_in_whatever_block_of_a_table_it_is(
    steps: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_constants, "_BLOCK", 42)
    draw = np.random.default_rng(3)
    value = np.round(draw.uniform(-127, 127, (40, 6))).astype(np.float32)
    value[:, 0], value[0] = 127, 127  # each scale is as fine as its numbers allow
    step = None if steps is None else np.ones(steps, np.float32)
    reference = ReferenceConstants([Constant(ConstantRole.MATRIX, StoredTensor(value + 0.0, "table"), 0, 0)])

    def matches(stored: NDArray[np.float32]) -> list[int]:
        found = reference.matches(Constant(ConstantRole.MATRIX, StoredTensor(stored, "file", step), 0, 0))
        reference.forget_file()
        return found

    assert matches(value) == [0]
    assert matches(value + 0.49) == ([0] if steps else [])
    for row in (0, 6, 7, 20, 39):
        for column in (0, 5):
            wrong = value.copy()
            wrong[row, column] += 2
            assert matches(wrong) == [], (row, column)


def find_problems(
    module: nn.Module, whole: nn.Module, inputs: tuple[str, ...] = ("input_ids",), length: int = LENGTH
) -> list[str]:
    """What is wrong with a file of inputs of one length that holds the constants of `module`, if `whole` is right."""
    trace = ModuleConstants(whole, inputs)
    reference = ReferenceConstants(trace.constants, of_length=trace.of_length, needed=trace.needed)
    file, _ = _trace(module, example_inputs(inputs, length))
    return compare_constants([file], reference, (length,)).problems


def make_module() -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = tiny_classifier("modernbert", 4, ("a", "b", "c"))
        torch.manual_seed(3)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return prepare(model, FAMILY, CLASSIFY, Format.TFLITE)


class Changed(nn.Module):
    """Rotations that are not those of the module."""

    def __init__(self, rotary: nn.Module, change: Callable[[Angles], Angles]) -> None:
        super().__init__()
        self.rotary, self.change = rotary, change

    def forward(self, length: int) -> Angles:
        return self.change(self.rotary(length + 1))


def take(angles: Angles, rows: slice = slice(-1)) -> Angles:
    return {kind: (cos[:, :, rows], sin[:, :, rows]) for kind, (cos, sin) in angles.items()}


ROTATIONS: dict[str, tuple[Callable[[Angles], Angles], str]] = {
    "of the length": (take, ""),
    "shifted by a position": (lambda a: take(a, slice(1, None)), "has other numbers"),
    "backwards": (lambda a: {k: (c.flip(2), s) for k, (c, s) in take(a).items()}, "has other numbers"),
    "of the other kind of layer": (
        lambda a: dict(zip(KINDS, reversed([take(a)[k] for k in KINDS]), strict=True)),
        "in the model it is not",
    ),
    "one kind for both": (lambda a: dict.fromkeys(KINDS, take(a)[KINDS[0]]), "is not in the file"),
    "none": (lambda a: dict.fromkeys(a, (torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))), "is not in the file"),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_other_rotations_than_those_of_the_length_fail(name: str) -> None:
    module, whole, (change, said) = make_module(), make_module(), ROTATIONS[name]
    assert find_problems(module, whole, FAMILY.inputs) == []
    module.rotary = Changed(module.rotary, change)
    problems = find_problems(module, whole, FAMILY.inputs)
    assert any(said in p for p in problems) if said else problems == []


def test_a_window_of_another_width_fails() -> None:
    module = make_module()
    module.window += 1
    assert any("other numbers" in p for p in find_problems(module, make_module(), FAMILY.inputs))


def test_rotations_are_no_norm() -> None:
    module, whole = make_module(), make_module()
    norm, rotation = module.model.model.layers[0].mlp_norm, module.rotary.get_buffer(KINDS[0])
    module.register_buffer("wide", rotation.repeat(norm.weight.shape[0] // len(rotation)))
    whole.register_buffer("wide", module.wide.clone())
    assert find_problems(module, whole, FAMILY.inputs) == []
    norm.weight = nn.Parameter(module.wide.clone())
    problems = find_problems(module, whole, FAMILY.inputs)
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


@pytest.mark.parametrize(("shift", "seed"), [(0, 1), (1, 1), (-1, 1), (700, 1), (0, 2)])
def test_ids_are_those_of_the_length_and_of_the_list(shift: int, seed: int) -> None:
    problems = find_problems(Ids(shift, seed), Ids(), length=300)
    assert bool(problems) == ((shift, seed) != (0, 1)), problems


class Positions(nn.Module):
    """A table of positions, of which the first rows are used: as many as there are tokens, and no row for one more."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Buffer(torch.randn(LENGTH, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table[: input_ids.shape[1]] + input_ids[0, :, None]


def test_the_longest_input_of_a_model_is_traced() -> None:
    assert find_problems(Positions(), Positions()) == []
    broken = Positions()
    broken.table += 1
    assert find_problems(broken, Positions())
