"""A table that code is registered in by key: what a row of the family table names, and an installed package may add to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.loading.plugins import announce, load_plugins

T = TypeVar("T")

_wings: dict[str, list[Callable[[], None]]] = {}


def add_wing(kind: str, load: Callable[[], None]) -> None:
    """Have a function called before the first lookup in a registry: it imports the wing that registers the package's values.

    Args:
        kind: The registry's `kind`.
        load: Imports the wing.
    """
    _wings.setdefault(kind, []).append(load)


class Registry(Generic[T]):
    """Values by key.

    Args:
        kind: What the values are, for messages (``adapter``).
        function: The public function that adds one, for messages (``register_adapter``).
    """

    def __init__(self, kind: str, function: str) -> None:
        self._kind, self._function = kind, function
        self._values: dict[str, T] = {}

    def register(self, key: str, value: T) -> None:
        """Add a value of a user or a plug-in, or replace the one of that key; a plug-in can only add."""
        announce(self._kind, key, key in self._values)
        self._values[key] = value

    def add(self, key: str, value: T) -> None:
        """Add one of the package's own values; a value that is there already stays."""
        self._values.setdefault(key, value)

    def keys(self) -> tuple[str, ...]:
        """All keys, in the order they were registered."""
        self._fill()
        return tuple(self._values)

    def values(self) -> tuple[T, ...]:
        """All values, in the order they were registered."""
        self._fill()
        return tuple(self._values.values())

    def find(self, key: str, where: str) -> T:
        """The value of a key.

        Args:
            key: From a row of the family table.
            where: What to blame in the error.

        Raises:
            InputError: If nothing is registered under it.
        """
        self._fill()
        if key not in self._values:
            raise InputError(
                Problem(
                    where,
                    f"no {self._kind} is registered as '{key}'; {nearest(key, tuple(self._values))}.",
                    f"Register it with pocketbert.core.families.{self._function}.",
                )
            )
        return self._values[key]

    def _fill(self) -> None:
        load_plugins()
        for load in _wings.pop(self._kind, ()):
            load()
