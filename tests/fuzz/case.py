"""One mutated input and the command that reads it: made from a seed and a number, the same each time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import fuzz.mutators  # noqa: F401 - registers the mutators
from fuzz.mutation import MUTATORS, Place, Verdict, mutators_of
from fuzz.plain import odd_things
from fuzz.targets import TARGETS


@dataclass(frozen=True)
class Step:
    """One change of the input.

    Attributes:
        mutator: Name of the mutator.
        seed: Of its random choices.
    """

    mutator: str
    seed: str


@dataclass(frozen=True)
class Case:
    """A mutated input and a command.

    Attributes:
        seed: Of the campaign.
        number: Within it.
        target: What is mutated.
        verb: Which command reads it.
        steps: The changes, in order.
    """

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
        if len(found) == 1:
            return found[0]
        return Verdict.FINE if set(found) == {Verdict.FINE} else Verdict.ANY

    def without(self, number: int) -> Case:
        """The case without one of its steps."""
        return replace(self, steps=self.steps[:number] + self.steps[number + 1 :])


def draw_case(seed: int, number: int, targets: tuple[str, ...] = tuple(TARGETS)) -> Case:
    """The case of a number: a target, one of its commands, and mostly one change."""
    draw = random.Random(f"{seed}/{number}")
    target = TARGETS[draw.choices(targets, [TARGETS[t].share for t in targets])[0]]
    verb = draw.choice(list(target.commands))
    known = mutators_of(target.name)
    count = draw.choices([1, 2, 3], [8, 1.5, 0.5])[0]
    drawn = [Step(draw.choice(known).name, f"{seed}/{number}/{i}") for i in range(count)]
    steps = tuple(sorted(drawn, key=lambda s: ".no_plain_" in s.mutator))  # nothing changes a device
    return Case(seed, number, target.name, verb, steps)


def case_of(mutator: str, verb: str, seed: int, number: int) -> Case:
    """The case of one mutator and one command."""
    target = MUTATORS[mutator].target
    return Case(seed, number, target, verb, (Step(mutator, f"{seed}/{number}/{mutator}"),))


def prepared(case: Case, seeds: Path, here: Path) -> tuple[Place, Verdict]:
    """Copy the sound inputs and change them."""
    place = TARGETS[case.target].prepare(seeds, here)
    return place, case.apply(place)
