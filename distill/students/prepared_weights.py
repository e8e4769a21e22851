"""A student's weights in the module that its files are exported from: which is which, and how it was rewritten.

Exporters rewrite a copy of the student: a scale goes into the queries, the last layer's keys are transposed, outlier channels are
divided. What is trained stays the student, so each weight of the rewritten module is computed from the student's in every step.
How is found by changing the student and looking at what changes in the module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Prepare = Callable[[Any, bool], nn.Module]
"""Rewrites a copy of a model for export; the second argument tells whether outlier channels are divided."""
_CLOSE = 1e-5
"""Largest difference of a weight that is computed here and one that was rewritten, relative to the largest."""


@dataclass(frozen=True)
class Origin:
    """Where a weight of a rewritten module comes from.

    Attributes:
        name: Path of the student's parameter.
        transposed: Whether it was transposed.
        factor: What it was multiplied with: a number, or one for each row or number.
    """

    name: str
    transposed: bool
    factor: Tensor

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Compute the weight from the student's parameters."""
        value = weights[self.name]
        return (value.t() if self.transposed else value) * self.factor.to(value.device)


@dataclass(frozen=True)
class PreparedWeights:
    """A rewritten module, and how its weights follow the student's.

    Attributes:
        module: The module, whose own weights are those of the student when it was rewritten.
        origins: Where each trained weight of it comes from, by name.
    """

    module: nn.Module
    origins: Mapping[str, Origin]

    def of(self, student: nn.Module) -> dict[str, Tensor]:
        """Compute the trained weights of the module, by name; gradients reach the student."""
        weights = dict(student.named_parameters())
        return {name: origin.of(weights) for name, origin in self.origins.items()}


def prepared_weights(student: nn.Module, prepare: Prepare) -> PreparedWeights | None:
    """Find out how a rewritten module follows from a student.

    Biases and norms are trained too where the rewriting leaves them apart from the matrices; otherwise matrices only.
    Embedding tables are constants.

    Args:
        student: The model.
        prepare: Rewrites a copy of it.

    Returns:
        None where some weight of the module is not one of the student's, multiplied or transposed: it cannot be trained.
    """
    plain, module = prepare(student, False), prepare(student, True)
    before, after = _tensors(plain), _tensors(module)
    for wanted in (_trained(student, matrices=False), _trained(student, matrices=True)):
        origins = _origins(before, student, prepare, wanted)
        if origins is not None and _reaches_products(module, origins):
            divided = {name: _divided(o, before[name], after[name]) for name, o in origins.items()}
            return PreparedWeights(module, divided)
    return None


def _trained(student: nn.Module, matrices: bool) -> list[str]:
    """Names of the parameters to train: all but the tables, or the weights of linear layers only."""
    tables = {id(p) for m in student.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    linear = {id(m.weight) for m in student.modules() if isinstance(m, nn.Linear)}
    return [name for name, p in student.named_parameters() if id(p) not in tables and (not matrices or id(p) in linear)]


def _origins(
    before: Mapping[str, Tensor], student: nn.Module, prepare: Prepare, wanted: list[str]
) -> dict[str, Origin] | None:
    """The origin of everything that follows the wanted parameters; None where something follows in another way."""
    changed = [_changed(student, wanted, seed) for seed in (1, 2)]
    first, second = (_tensors(prepare(model, False)) for model in changed)
    given, other = ({n: p.detach() for n, p in m.named_parameters() if n in wanted} for m in changed)
    if not before.keys() == first.keys() == second.keys():
        return None
    out = {}
    for name, value in before.items():
        if torch.equal(value, first[name]):
            continue
        origin = _origin(first[name], given)
        if origin is None or not _close(origin.of(other), second[name]):
            return None
        out[name] = origin
    return out


def _changed(student: nn.Module, names: list[str], seed: int) -> nn.Module:
    """A copy with other numbers, so that no two weights are alike."""
    made, random = copy.deepcopy(student), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in names:
                noise = torch.randn(parameter.shape, generator=random).to(parameter)
                parameter.add_(0.1 * noise * parameter.abs().mean() + 0.01 * noise)
    return made


def _origin(value: Tensor, candidates: Mapping[str, Tensor]) -> Origin | None:
    for name, given in candidates.items():
        for transposed in (False, True) if given.ndim == 2 else (False,):
            one = given.t() if transposed else given
            if one.shape == value.shape and (factor := _factor(value, one)) is not None:
                return Origin(name, transposed, factor)
    return None


def _factor(value: Tensor, given: Tensor) -> Tensor | None:
    """What `given` is multiplied with to be `value`: one number, or one for each row."""
    at = given.abs().argmax()
    number = value.flatten()[at] / given.flatten()[at]
    if _close(given[:1] * number, value[:1]) and _close(given * number, value):
        return number
    if given.ndim < 2:
        return None
    places = given.abs().argmax(1, keepdim=True)
    rows = value.gather(1, places) / given.gather(1, places)
    return rows if _close(given * rows, value) else None


def _divided(origin: Origin, plain: Tensor, real: Tensor) -> Origin:
    """The same with the powers of two that outlier channels were divided by, or what reads them multiplied."""
    if torch.equal(plain, real):
        return origin
    powers = torch.where(plain == 0, torch.ones_like(plain), real / plain)
    return Origin(origin.name, origin.transposed, origin.factor * powers)


def _reaches_products(module: nn.Module, origins: Mapping[str, Origin]) -> bool:
    """Whether every product but those that read a table is trained."""
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    names = [n for n, m in module.named_modules() if isinstance(m, nn.Linear) and id(m.weight) not in tables]
    return bool(names) and all(f"{name}.weight" in origins for name in names)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: value.detach() for name, value in named}


def _close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= _CLOSE * wanted.abs().max())
