"""Installed packages that add families, methods, formats or devices: the entry points of group `pocketbert.plugins`.

An entry point names a function without arguments, which calls `register_family` and its kind. Nothing is loaded until a registry
is asked for something, so that `pocketbert --help` costs nothing and cannot fail. Nothing that a recipe names is imported.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pocketbert.core.errors import ExitCode, InputError, PocketBertError, Problem, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# --- facade ---
# Build facades: packages that import their names from deeper modules when the names are first used.


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


GROUP = "pocketbert.plugins"


class PluginError(PocketBertError):
    """Installed plug-ins that cannot be loaded. Names each, and what to do."""

    def __init__(self, plugins: list[Plugin]) -> None:
        self.plugins = plugins
        missing = all(p.lacks_a_package for p in plugins)
        self.exit_code = ExitCode.MISSING if missing else ExitCode.INPUT
        super().__init__(" ".join(p.complaint for p in plugins))


@dataclass
class Plugin:
    """One entry point.

    Attributes:
        name: Name of the entry point.
        value: The function it names, ``module:function``.
        distribution: The installed package that it belongs to.
        version: That package's version.
        registered: What the function has registered, such as ``family camembert``.
        error: Why it could not be loaded; empty if it was.
        lacks_a_package: Whether the reason is a package that is not installed.
    """

    name: str
    value: str
    distribution: str
    version: str
    registered: list[str] = field(default_factory=list)
    error: str = ""
    lacks_a_package: bool = False

    @property
    def complaint(self) -> str:
        """One sentence about what failed, and one about what to do."""
        lead = f"the plug-in '{self.name}' of the package {self.distribution} {self.version} ({self.value}) failed: {self.error}."
        return f"{lead} Repair that package, or remove it: pip uninstall {self.distribution}."


class _State:
    """What this process has loaded."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] | None = None
        self.loading: Plugin | None = None
        self.tolerant = False


_STATE = _State()


def load_plugins() -> None:
    """Call the functions of all installed plug-ins, once per process. Every registry calls it before a lookup by name.

    Raises:
        PluginError: Naming every plug-in that failed; again at every call.
    """
    if _STATE.loading is not None:  # a plug-in that looks something up while it registers
        return
    failed = [p for p in plugins() if p.error]
    if failed and not _STATE.tolerant:
        raise PluginError(failed)


def plugins() -> tuple[Plugin, ...]:
    """All installed plug-ins, loaded, the ones that failed included, sorted by package and name."""
    if _STATE.plugins is None:
        from importlib import metadata  # here, since it costs the start of every command 20 ms

        _STATE.plugins = []
        for entry in sorted(metadata.entry_points(group=GROUP), key=_order):
            _STATE.plugins.append(_load(entry))
    return tuple(_STATE.plugins)


def announce(kind: str, name: str, known: bool = False) -> None:
    """Note for `pocketbert doctor` what the plug-in that is being loaded registers. Every `register_...` calls it first.

    Args:
        kind: What is registered, in one word: ``family``.
        name: Its name.
        known: Whether there is one of that name already.

    Raises:
        ValueError: If a plug-in would replace what is there: which of two had won would depend on their order.
    """
    plugin = _STATE.loading
    if plugin is None:
        return
    if known:
        raise ValueError(f"there is a {kind} named '{name}' already, which a plug-in cannot replace")
    plugin.registered.append(f"{kind} {name}")


@contextlib.contextmanager
def tolerated() -> Iterator[None]:
    """Look things up although a plug-in fails: for a command that reports the failure itself."""
    before, _STATE.tolerant = _STATE.tolerant, True
    try:
        yield
    finally:
        _STATE.tolerant = before


def _order(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name if entry.dist else "", entry.name)


def _load(entry: EntryPoint) -> Plugin:
    made = Plugin(
        name=entry.name,
        value=entry.value,
        distribution=entry.dist.name if entry.dist else "unknown",
        version=entry.dist.version if entry.dist else "unknown",
    )
    _STATE.loading = made
    try:
        entry.load()()
    except (Exception, SystemExit) as error:  # somebody else's code, which may fail in any way
        made.error = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        made.lacks_a_package = isinstance(error, ModuleNotFoundError)
    finally:
        _STATE.loading = None
    return made


# --- registry ---
# A table that code is registered in by key: what a row of the family table names, and an installed package may add to.


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
