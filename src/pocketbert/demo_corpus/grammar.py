"""The template notation: alternations, slots, and their expansion into tagged words.

A template is one line of words. `(a|b|)` stands for one of its alternatives, the empty one included;
alternations do not nest, but may hold slots. `{city}` is filled from the vocabulary `city` and tagged
`city`; `{place:city}` is filled from `city` and tagged `place`; `{O:city}` is filled and left untagged.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pocketbert.demo_corpus.stream import Stream

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
