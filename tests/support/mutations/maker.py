"""What can be wrong with an input: makers of damage by kind, and the seeded list that the tests take.

A maker gets a random generator and a path, and damages what lies there; the same number always gives the same damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

Damage = Callable[[random.Random, Path], None]


@dataclass(frozen=True)
class Maker:
    """One way to damage an input.

    Attributes:
        damage: Does it.
        harmless: Commands that may succeed all the same, because they do not read what is damaged, or because it is
            still valid.
    """

    damage: Damage
    harmless: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Mutation:
    """One damaged input.

    Attributes:
        name: Number and maker, unique within its kind.
        maker: Which way.
        seed: Of its random choices.
    """

    name: str
    maker: Maker
    seed: str

    def apply(self, path: Path) -> None:
        """Damage what lies there."""
        self.maker.damage(random.Random(self.seed), path)


_MAKERS: dict[str, list[Maker]] = {}


def maker(kind: str, harmless: Collection[str] = ()) -> Callable[[Damage], Damage]:
    """Register a way to damage inputs of one kind."""

    def register(damage: Damage) -> Damage:
        _MAKERS.setdefault(kind, []).append(Maker(damage, frozenset(harmless)))
        return damage

    return register


def mutations(kind: str, count: int, first: int = 0) -> list[Mutation]:
    """`count` mutations from number `first` on; every maker in turn, each time with other choices."""
    makers = _MAKERS[kind]
    out = []
    for number in range(first, first + count):
        chosen = makers[number % len(makers)]
        name = f"{number:03d}-{chosen.damage.__name__}"
        out.append(Mutation(name, chosen, f"{kind}/{number}"))
    return out


def flipped(draw: random.Random, data: bytes, bits: int) -> bytes:
    """Bytes with some bits turned over."""
    out = bytearray(data)
    for _ in range(bits):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def blanked(draw: random.Random, data: bytes) -> bytes:
    """Bytes with a block of zeros, as a disk leaves it that lost a sector."""
    size = min(len(data) // 2, 1 << draw.randint(4, 12)) or 1
    start = draw.randrange(len(data) - size + 1)
    if not any(data[start : start + size]):
        return flipped(draw, data, 3)
    return data[:start] + bytes(size) + data[start + size :]


def cut_off(draw: random.Random, data: bytes) -> bytes:
    """The beginning of some bytes."""
    return data[: draw.randrange(len(data))]
