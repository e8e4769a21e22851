"""What can be wrong with an input: makers of damage by kind, and the seeded list that the tests take.

A maker gets a random generator and a path, and damages what lies there; the same number always gives the same damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

Damage = Callable[[random.Random, Path], None]
Contents = bytes | str | list[bytes] | list[str]
"""What a file becomes; of several, one that is drawn."""


@dataclass(frozen=True)
class Maker:
    """One way to damage an input."""

    damage: Damage
    harmless: frozenset[str]  # commands that may succeed: they do not read what is damaged, or it is still valid


@dataclass(frozen=True)
class Mutation:
    """One damaged input; its name is unique within its kind."""

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


def contents(kind: str, *names: str, harmless: Collection[str] = ()) -> Callable[[Callable[..., Contents]], Any]:
    """Register a way to give a file another content: the function tells it for a generator and what the file holds.

    Args:
        kind: Of the input.
        names: Files below the damaged folder, of which one is drawn; none where the input is a file itself.
        harmless: Commands that may succeed.
    """

    def register(listed: Callable[..., Contents]) -> Damage:
        @wraps(listed)
        def damage(draw: random.Random, path: Path) -> None:
            target = path / one_of(draw, names) if names else path
            drawn = one_of(draw, listed(draw, target.read_bytes()))
            target.write_bytes(drawn.encode() if isinstance(drawn, str) else drawn)

        return maker(kind, harmless)(damage)

    return register


def mutations(kind: str, count: int, first: int = 0) -> list[Mutation]:
    """`count` mutations from number `first` on; every maker in turn, each time with other choices."""
    out = []
    for number in range(first, first + count):
        chosen = _MAKERS[kind][number % len(_MAKERS[kind])]
        out.append(Mutation(f"{number:03d}-{chosen.damage.__name__}", chosen, f"{kind}/{number}"))
    return out


def one_of(draw: random.Random, options: Any) -> Any:
    """One of several options; what is no list or tuple, or the only one in it, is not drawn."""
    if not isinstance(options, list | tuple):
        return options
    return options[0] if len(options) == 1 else draw.choice(options)


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
