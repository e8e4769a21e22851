"""Mutators, ways to change an input, and cases: one mutated input and the command that reads it."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from fuzz.files import odd_things


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
    """The copy of the sound inputs that one case may change; `here` is the working folder of the command."""

    here: Path
    overrides: list[str] = field(default_factory=list)  # of the recipe
    stdin: str = ""  # a file; "closed" for none; empty for an empty one

    def __post_init__(self) -> None:
        self.phone, self.model = self.here / "phone", self.here / "model"
        self.recipe, self.rows = self.here / "recipe.yaml", self.here / "rows"


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


def mutator(target: str, verdict: Verdict = Verdict.ANY, verbs: Collection[str] = ()) -> Callable[[Change], Change]:
    """Register a way to change inputs of a target; see `Mutator`."""

    def register(change: Change) -> Change:
        name = f"{target}.{change.__name__}"  # type: ignore[attr-defined]
        assert name not in MUTATORS, name
        MUTATORS[name] = Mutator(name, target, change, verdict, frozenset(verbs))
        return change

    return register


def mutators_of(target: str) -> list[Mutator]:
    """The mutators of a target, in the order of their registration."""
    return [m for m in MUTATORS.values() if m.target == target]


@dataclass(frozen=True)
class Step:
    """One change of the input: the name of a mutator, and the seed of its random choices."""

    mutator: str
    seed: str


@dataclass(frozen=True)
class Case:
    """A mutated input and a command, made from the seed of a campaign and a number, the same each time."""

    seed: int
    number: int
    target: str
    verb: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """A name for folders and messages."""
        return f"{self.seed}-{self.number}-{self.verb}"

    def apply(self, place: Place) -> Verdict:
        """Change the input; return what the command may answer.

        A step reads and writes the input, so none is taken any more once that holds a pipe, a device or a huge file.
        """
        found: list[Verdict] = []
        for step in self.steps:
            if found and odd_things(place.here):
                found.append(Verdict.ANY)
                break
            try:
                found.append(MUTATORS[step.mutator].apply(step.seed, place, self.verb))
            except Exception:
                if not found:
                    raise
                found.append(Verdict.ANY)  # an earlier step left nothing that this one could change
        return found[0] if len(found) == 1 else Verdict.FINE if set(found) == {Verdict.FINE} else Verdict.ANY

    def without(self, number: int) -> Case:
        """The case without one of its steps."""
        return replace(self, steps=self.steps[:number] + self.steps[number + 1 :])
