"""What an intent is: its name, its share of the corpus and its phrasings by split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


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
