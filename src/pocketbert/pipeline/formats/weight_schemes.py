"""What becomes of each weight in a file: its scheme, by the recipe or by default, and how torch rounds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.families.digests import digest_of
from pocketbert.core.families.roles import WeightRole, role_of
from pocketbert.core.recipe.quantize import LEFT, QuantizeSection
from pocketbert.core.types import Role, Scheme

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbert.quantize.simulation import Simulation
    from pocketbert.quantize.table import SchemeRow


def weights_of(module: nn.Module, scheme: Scheme = Scheme.FP32) -> list[WeightRole]:
    """List the weights of a prepared module with their roles.

    Args:
        module: The module that files are exported from.
        scheme: What the files are exported as: digests are those of numbers in fp32 or fp16.

    Returns:
        One entry for each matrix, in the module's order; a matrix with two uses has the role of the first.
    """

    def numbers(matrix: Tensor) -> NDArray[np.float32]:
        values: NDArray[np.float32] = matrix.detach().float().numpy()
        return values.astype(np.float16).astype(np.float32) if scheme is Scheme.FP16 else values

    matrices = ((n, digest_of(numbers(p)), p.numel()) for n, p in module.named_parameters())
    return [WeightRole(name=n, role=role_of(n), digest=d, numbers=size) for n, d, size in matrices if d is not None]


def name_of(section: QuantizeSection, weight: WeightRole) -> str:
    """Return the pattern of `quantize.names` that decides about a weight, the last that means it; empty where none does."""
    return next((pattern for pattern in reversed(section.names) if weight.matches(pattern)), "")


def resolved(
    section: QuantizeSection, weights: Sequence[WeightRole], scheme_of: Callable[[Role], Scheme]
) -> list[WeightRole]:
    """Give each weight its scheme: that of the last name that means it, else of its role, else the usual one.

    Args:
        section: The choices of one file, see `QuantizeSection.of`.
        weights: The weights in the file.
        scheme_of: The scheme of a role where the recipe chooses none: `SchemeRow.scheme_of` of the file's row.
    """

    def of(weight: WeightRole) -> Scheme | None:
        name = name_of(section, weight)
        choice = section.names[name] if name else section.roles.get(weight.role, scheme_of(weight.role))
        return None if choice == LEFT else Scheme(choice)

    return [w.model_copy(update={"scheme": of(w)}) for w in weights]


def simulation_of(row: SchemeRow, weights: Sequence[WeightRole], base: Scheme) -> Simulation:
    """Return the simulation of a file in which weights have different schemes.

    Args:
        row: The file's scheme, which has a simulation.
        weights: What becomes of each weight; empty where all have the scheme.
        base: Numbers of the exported file.
    """
    assert row.simulation is not None

    def named(scheme: Scheme | None) -> frozenset[str]:
        return frozenset(w.name for w in weights if w.scheme is scheme)

    seconds = tuple(
        (names, second.simulation.made_from(base)) for s, second in row.seconds.items() if (names := named(s))
    )
    return replace(row.simulation.made_from(base), left=named(None), seconds=seconds)
