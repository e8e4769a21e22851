"""Mutators: ways to change an input, and what the commands that read it may answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Verdict(Enum):
    """How a command that reads a mutated input may end."""

    FINE = frozenset({0})
    """The input is as good as before."""
    BAD = frozenset({2, 3})
    """The input is wrong: refused, or stopped by a gate."""
    ANY = frozenset({0, 2, 3})
    """Nobody knows; but not with a crash, nor as a failure of the machine."""


@dataclass
class Place:
    """The copy of the sound inputs that one case may change.

    Attributes:
        here: Working folder of the command, with the inputs.
        overrides: Further arguments: overrides of the recipe.
        stdin: File that is the command's stdin; "closed" for none; empty for an empty one.
    """

    here: Path
    overrides: list[str] = field(default_factory=list)
    stdin: str = ""

    @property
    def phone(self) -> Path:
        """The artefact folder."""
        return self.here / "phone"

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.here / "model"

    @property
    def recipe(self) -> Path:
        """The recipe."""
        return self.here / "recipe.yaml"

    @property
    def rows(self) -> Path:
        """The folder of the training rows."""
        return self.here / "rows"


Change = Callable[[random.Random, Place], Verdict | None]


@dataclass(frozen=True)
class Mutator:
    """One way to change an input.

    Attributes:
        name: Unique.
        target: Which input.
        change: Does it; returns a verdict where that depends on what was drawn.
        verdict: What commands may answer otherwise.
        verbs: Commands that the verdict is about; others may answer anything. Empty for all.
    """

    name: str
    target: str
    change: Change
    verdict: Verdict
    verbs: frozenset[str]

    def apply(self, seed: str, place: Place, verb: str) -> Verdict:
        """Change the input; return what the command may answer."""
        found = self.change(random.Random(seed), place) or self.verdict
        return found if not self.verbs or verb in self.verbs else Verdict.ANY


MUTATORS: dict[str, Mutator] = {}


def mutator(*targets: str, verdict: Verdict = Verdict.ANY, verbs: Collection[str] = ()) -> Callable[[Change], Change]:
    """Register a way to change inputs of some targets.

    Args:
        targets: Names of targets.
        verdict: What commands may answer.
        verbs: Commands that the verdict is about; default all.
    """

    def register(change: Change) -> Change:
        for target in targets:
            name = f"{target}.{change.__name__}"  # type: ignore[attr-defined]
            assert name not in MUTATORS, name
            MUTATORS[name] = Mutator(name, target, change, verdict, frozenset(verbs))
        return change

    return register


def mutators_of(target: str) -> list[Mutator]:
    """The mutators of a target, in the order of their registration."""
    return [m for m in MUTATORS.values() if m.target == target]
