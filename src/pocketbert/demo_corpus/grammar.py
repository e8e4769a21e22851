"""The template notation of the demo corpus, and the data files that are written in it.

A template is one line of words. `(a|b|)` stands for one of its alternatives, the empty one included; alternations do not nest,
but may hold slots. `{city}` is filled from the vocabulary `city` and tagged `city`; `{place:city}` is filled from `city` and
tagged `place`; `{O:city}` is filled and left untagged.

`read_intents` and `read_vocabularies` read the data files, `list_variants` resolves the alternations of a template, and
`expand_template` draws one tagged utterance from it with the choices of a `Stream`.

`intents.json` maps each intent to its templates by split: `train` may be used by every split, `dev` and `test` by their own
only. Two keys are optional: `weight` is the size of the class relative to the usual one, and `for_each` maps a mark to the
texts that replace it in every template by turns. `slot_values.json` maps each vocabulary to the values that every split may
use (`seen`) and to those that only dev and test may use (`held`).
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

T = TypeVar("T")

SLOT = re.compile(r"^\{(?:(?P<tag>\w+):)?(?P<vocabulary>\w+)\}(?P<after>[,.?]?)$")
_ALTERNATION = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True)
class Intent:
    """One command that the assistant understands, with its sentence templates.

    Attributes:
        name: Label of the intent.
        train: Templates that every split may use.
        dev: Templates that only dev may use.
        test: Templates that only test may use.
        weight: Number of its rows relative to an intent of usual size.
    """

    name: str
    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]
    weight: float = 1.0

    def held(self, split: str) -> tuple[str, ...]:
        """Return the templates that only the given split, `dev` or `test`, may use."""
        return {"dev": self.dev, "test": self.test}[split]


@dataclass(frozen=True)
class Vocabulary:
    """A named list of values that can fill a slot in a template.

    Attributes:
        name: Name of the vocabulary in templates.
        seen: Values that every split may use.
        held: Values that only dev and test may use.
    """

    name: str
    seen: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True)
class Word:
    """A word of an utterance with its BIO tag."""

    text: str
    tag: str


class Stream:
    """Pseudo-random number generator that is seeded by a name, with the same numbers in every Python version.

    Only `random.Random.random` is used underneath: it is the one method whose sequence the standard library promises to keep
    from one Python version to the next.

    Args:
        name: Any text; equal names give equal choices.
    """

    def __init__(self, name: str) -> None:
        self._random = random.Random(name)

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self._random.random() < share

    def below(self, limit: int) -> int:
        """Return a random whole number from 0 to `limit` - 1."""
        return int(self._random.random() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Return a random entry of a sequence, which must not be empty."""
        return choices[self.below(len(choices))]


def read_intents() -> tuple[Intent, ...]:
    """Read all intents with their templates from intents.json, sorted by name."""
    intents = []
    for name, entry in sorted(_read_json("intents.json").items()):
        templates = {split: tuple(entry[split]) for split in ("train", "dev", "test")}
        for mark, texts in entry.get("for_each", {}).items():
            templates = {
                split: tuple(line.replace(mark, text) for line in lines for text in texts)
                for split, lines in templates.items()
            }
        intents.append(Intent(name, **templates, weight=entry.get("weight", 1.0)))
    return tuple(intents)


def read_vocabularies() -> dict[str, Vocabulary]:
    """Read all slot vocabularies from slot_values.json, by name."""
    content = _read_json("slot_values.json")
    return {name: Vocabulary(name, tuple(entry["seen"]), tuple(entry["held"])) for name, entry in content.items()}


def _read_json(file_name: str) -> dict[str, Any]:
    """Return the content of a JSON file of this package."""
    content: dict[str, Any] = json.loads(resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8"))
    return content


@functools.cache
def list_variants(template: str) -> tuple[str, ...]:
    """List the lines that a template gives with each choice of its alternatives `(a|b)`, each line once.

    Slots are not filled.
    """
    # re.split with one group yields literal text and alternation bodies by turns
    parts = _ALTERNATION.split(template)
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    lines = (" ".join("".join(combination).split()) for combination in itertools.product(*options))
    return tuple(dict.fromkeys(lines))


def expand_template(
    template: str, vocabularies: Mapping[str, Vocabulary], stream: Stream, held_share: float
) -> list[Word]:
    """Draw one utterance from a template: choose its alternatives at random, and fill its slots.

    Args:
        template: A template line.
        vocabularies: The slot vocabularies by name.
        stream: Source of the random choices.
        held_share: Share of the slots that take a held-out value; 0 for train.

    Returns:
        The words with their tags.
    """
    words: list[Word] = []
    used: set[str] = set()
    for part in stream.pick(list_variants(template)).split():
        slot = SLOT.match(part)
        if slot is None:
            words.append(Word(part, "O"))
            continue
        vocabulary = vocabularies[slot["vocabulary"]]
        values = vocabulary.held if stream.chance(held_share) else vocabulary.seen
        # a template may name a vocabulary twice ("milk and milk" would be nonsense)
        value = stream.pick([value for value in values if value not in used])
        used.add(value)
        tag = slot["tag"] or slot["vocabulary"]
        for index, text in enumerate((value + slot["after"]).split()):
            words.append(Word(text, "O" if tag == "O" else ("I-" if index else "B-") + tag))
    return words
