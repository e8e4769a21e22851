"""The template notation: alternations, slots, and their expansion into tagged words.

A template is one line of words. `(a|b|)` stands for one of its alternatives, the empty one included;
alternations do not nest, but may hold slots. `{city}` is filled from the vocabulary `city` and tagged
`city`; `{place:city}` is filled from `city` and tagged `place`; `{O:city}` is filled and left untagged.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

# --- stream ---
# A named stream of pseudo-random choices.


T = TypeVar("T")


class Stream:
    """Pseudo-random choices that depend on nothing but the stream's name.

    Only `random.Random.random` is used underneath: it is the one method whose sequence the standard
    library promises to keep from one Python version to the next.
    """

    def __init__(self, name: str) -> None:
        """Starts the stream.

        Args:
            name: Any text; equal names give equal choices.
        """
        self._random = random.Random(name)

    def chance(self, share: float) -> bool:
        """Returns True for about `share` of the calls."""
        return self._random.random() < share

    def below(self, limit: int) -> int:
        """Returns a whole number from 0 up to, not including, `limit`."""
        return int(self._random.random() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Returns one of `choices`.

        Args:
            choices: A sequence with at least one entry.
        """
        return choices[self.below(len(choices))]


ALTERNATION = re.compile(r"\(([^()]*)\)")
SLOT = re.compile(r"^\{(?:(?P<tag>\w+):)?(?P<vocabulary>\w+)\}(?P<after>[,.?]?)$")


@dataclass(frozen=True)
class Word:
    """A word of an utterance with its BIO tag."""

    text: str
    tag: str


@dataclass(frozen=True)
class Vocabulary:
    """The values that can fill a slot.

    Attributes:
        name: What templates call it.
        seen: Values that every split may use.
        held: Values that only dev and test may use.
    """

    name: str
    seen: tuple[str, ...]
    held: tuple[str, ...]


def vocabulary(name: str, *, seen: str, held: str) -> Vocabulary:
    """Reads a vocabulary from two texts of values separated by semicolons.

    Args:
        name: What templates call it.
        seen: Values that every split may use.
        held: Values that only dev and test may use.

    Returns:
        The vocabulary, in the order written.
    """
    return Vocabulary(name, _values(seen), _values(held))


def _values(text: str) -> tuple[str, ...]:
    return tuple(" ".join(value.split()) for value in text.split(";") if value.strip())


@functools.cache
def variants(template: str) -> tuple[str, ...]:
    """Lists every choice of a template's alternations; the slots stay in place.

    Args:
        template: A template line.

    Returns:
        The template's lines without alternations, in order, each once.
    """
    # re.split with one group yields literal text and alternation bodies by turns.
    parts = ALTERNATION.split(template)
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    lines = (" ".join("".join(chosen).split()) for chosen in itertools.product(*options))
    return tuple(dict.fromkeys(lines))


def expand(template: str, vocabularies: Mapping[str, Vocabulary], stream: Stream, held_share: float) -> list[Word]:
    """Draws one utterance from a template.

    Args:
        template: A template line.
        vocabularies: The slot vocabularies by name.
        stream: Where the choices come from.
        held_share: How often a slot takes a held-out value; 0 for train.

    Returns:
        The words with their tags.
    """
    words: list[Word] = []
    used: set[str] = set()
    for part in stream.pick(variants(template)).split():
        slot = SLOT.match(part)
        if slot is None:
            words.append(Word(part, "O"))
            continue
        source = vocabularies[slot["vocabulary"]]
        values = source.held if stream.chance(held_share) else source.seen
        # A template may name a vocabulary twice ("milk and milk" would be nonsense).
        value = stream.pick([value for value in values if value not in used])
        used.add(value)
        words.extend(_tagged(value + slot["after"], slot["tag"] or slot["vocabulary"]))
    return words


def _tagged(value: str, tag: str) -> list[Word]:
    if tag == "O":
        return [Word(text, "O") for text in value.split()]
    return [Word(text, ("I-" if index else "B-") + tag) for index, text in enumerate(value.split())]


# --- intent ---
# What an intent is: its name, its share of the corpus and its phrasings by split.


@dataclass(frozen=True)
class Intent:
    """One command the assistant understands.

    Attributes:
        name: The label.
        train: Templates that every split may use.
        dev: Templates that only dev may use.
        test: Templates that only test may use.
        weight: Size of the class relative to the usual one.
    """

    name: str
    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]
    weight: float = 1.0

    def held(self, split: str) -> tuple[str, ...]:
        """Returns the templates only `split` may use.

        Args:
            split: `dev` or `test`.
        """
        return {"dev": self.dev, "test": self.test}[split]


def intent(name: str, *, train: str, dev: str, test: str, weight: float = 1.0) -> Intent:
    """Reads an intent from texts with one template a line.

    Args:
        name: The label.
        train: Templates that every split may use.
        dev: Templates that only dev may use.
        test: Templates that only test may use.
        weight: Size of the class relative to the usual one.

    Returns:
        The intent.
    """
    return Intent(name, _lines(train), _lines(dev), _lines(test), weight)


def for_each(base: Intent, mark: str, names: Iterable[str]) -> Intent:
    """Repeats every template of an intent once a name.

    Args:
        base: An intent whose templates contain `mark`.
        mark: The text to replace.
        names: What to put in its place, by turns.

    Returns:
        The intent with every template repeated.
    """
    chosen = tuple(names)

    def repeated(templates: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(line.replace(mark, name) for line in templates for name in chosen)

    return replace(base, train=repeated(base.train), dev=repeated(base.dev), test=repeated(base.test))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())
