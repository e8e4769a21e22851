"""Build facades: packages that import their names from deeper modules when the names are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def importer(facade: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """Make the `__getattr__` of a facade.

    Args:
        facade: Name of its package.
        names: Public names by the module that defines them, which is given relative to ``pocketbert``.
        modules: Submodules that are imported when they are first used.

    Returns:
        A function that imports one name and remembers it in the facade.
    """
    places = {name: f"pocketbert.{module}" for module, several in names.items() for name in several}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{facade}.{name}")
        if name not in places:
            raise AttributeError(f"module '{facade}' has no attribute '{name}'")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[facade], name, value)
        return value

    return get


def listing(facade: str, names: Sequence[str]) -> Callable[[], list[str]]:
    """Make the `__dir__` of a facade: its public names and what every module has, so that completion offers nothing else.

    Args:
        facade: Name of its package.
        names: Its public names.
    """

    def list_names() -> list[str]:
        own = (n for n in vars(sys.modules[facade]) if n.startswith("__"))
        return sorted({*own, *names})

    return list_names
