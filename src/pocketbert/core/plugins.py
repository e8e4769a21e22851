"""Plug-ins and registries: what installed packages add, and the lazy names of PocketBERT's facades.

- `load_plugins` calls the functions that installed packages name as entry points of the group
  ``pocketbert.plugins``; each calls `register_family` and its kind, which report to `record_registration`. Nothing is loaded
  until a registry is asked for something, so that `pocketbert --help` costs nothing and cannot fail. Nothing that a
  recipe names is imported.
- `Registry` holds code by key, such as the adapter that a row of the family table names.
- `make_facade_getattr` and `make_facade_dir` make the `__getattr__` and `__dir__` of packages whose names are imported when first used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pocketbert.core.errors import ExitCode, InputError, PocketBertError, Problem, suggest_allowed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "pocketbert.plugins"
_T = TypeVar("_T")


# --- plug-ins ------------------------------------------------------------


@dataclass
class Plugin:
    """An installed plug-in: one entry point of a Python package that registers families, formats, methods or devices.

    Attributes:
        name: Name of the entry point.
        value: The function that the entry point names, ``module:function``.
        distribution: The installed package that the plug-in belongs to.
        version: Version of the installed package.
        registered: What the function has registered, such as ``family roformer``.
        error: Why the plug-in could not be loaded; empty if it was loaded.
        lacks_a_package: Whether a package that is not installed is the reason.
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
        """A sentence about why the plug-in failed, and one about how to fix it."""
        package = f"{self.distribution} {self.version}"
        failure = f"the plug-in '{self.name}' of the package {package} ({self.value}) failed: {self.error}."
        return f"{failure} Repair that package, or remove it: pip uninstall {self.distribution}."


class PluginError(PocketBertError):
    """Raised if installed plug-ins cannot be loaded; the message names each of them and the fix."""

    def __init__(self, plugins: list[Plugin]) -> None:
        self.plugins = plugins
        missing = all(p.lacks_a_package for p in plugins)
        self.exit_code = ExitCode.MISSING if missing else ExitCode.INPUT
        super().__init__(" ".join(p.complaint for p in plugins))


class _State:
    """The state of plug-ins in this process: those loaded, the one being loaded, and whether failures are ignored."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] | None = None
        self.loading: Plugin | None = None
        self.tolerant = False


_STATE = _State()


def load_plugins() -> None:
    """Load all installed plug-ins, once per process; registries call this before they look up a name.

    Raises:
        PluginError: Naming every plug-in that failed, at every call. Not within `tolerate_failed_plugins`, and not while a
            plug-in is being loaded.
    """
    if _STATE.loading is not None:  # a plug-in that looks something up while it registers
        return
    failed = [p for p in list_plugins() if p.error]
    if failed and not _STATE.tolerant:
        raise PluginError(failed)


def list_plugins() -> tuple[Plugin, ...]:
    """Load all installed plug-ins and list them, failed ones included, sorted by package and name."""
    if _STATE.plugins is None:
        from importlib import metadata  # here, since it slows down the start of every command by 20 ms

        _STATE.plugins = []
        entries = metadata.entry_points(group=_GROUP)
        for entry in sorted(entries, key=lambda entry: (entry.dist.name if entry.dist else "", entry.name)):
            _STATE.plugins.append(_load(entry))
    return tuple(_STATE.plugins)


def _load(entry: EntryPoint) -> Plugin:
    """Load one entry point and call its function; an error is stored in the returned `Plugin`."""
    plugin = Plugin(
        name=entry.name,
        value=entry.value,
        distribution=entry.dist.name if entry.dist else "unknown",
        version=entry.dist.version if entry.dist else "unknown",
    )
    _STATE.loading = plugin
    try:
        entry.load()()
    except (Exception, SystemExit) as error:  # somebody else's code, which may fail in any way
        plugin.error = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        plugin.lacks_a_package = isinstance(error, ModuleNotFoundError)
    finally:
        _STATE.loading = None
    return plugin


def record_registration(kind: str, name: str, known: bool = False) -> None:
    """Record a registration by the plug-in that is being loaded; every `register_...` function calls this first.

    `pocketbert doctor` lists the records. While no plug-in is being loaded, nothing happens.

    Args:
        kind: Kind of the registered object in one word, such as ``family``.
        name: Name of the registered object.
        known: Whether an object of that name is registered already.

    Raises:
        ValueError: If a plug-in would replace a registered object, since the winner of two plug-ins would depend on
            their order.
    """
    plugin = _STATE.loading
    if plugin is None:
        return
    if known:
        raise ValueError(f"there is a {kind} named '{name}' already, which a plug-in cannot replace")
    plugin.registered.append(f"{kind} {name}")


@contextlib.contextmanager
def tolerate_failed_plugins() -> Iterator[None]:
    """Ignore plug-ins that fail to load while the block runs, for a command that reports the failure itself."""
    before, _STATE.tolerant = _STATE.tolerant, True
    try:
        yield
    finally:
        _STATE.tolerant = before


# --- registries ------------------------------------------------------------


_wings: dict[str, list[Callable[[], None]]] = {}


def register_before_lookup(kind: str, load: Callable[[], None]) -> None:
    """Add a function that fills a registry with the package's own values before its first lookup.

    Args:
        kind: The `kind` of the registry.
        load: Function that imports the modules that register the package's own values.
    """
    _wings.setdefault(kind, []).append(load)


class Registry(Generic[_T]):
    """A registry of values by key, such as the code that a model family's row names by a key; plug-ins may add values.

    Args:
        kind: What the values are in one word, for messages (``adapter``).
        function: The public function that adds a value, for messages (``register_adapter``).
    """

    def __init__(self, kind: str, function: str) -> None:
        self._kind, self._function = kind, function
        self._values: dict[str, _T] = {}

    def register(self, key: str, value: _T) -> None:
        """Register a value under a key, replacing an earlier one; a plug-in can only add keys."""
        record_registration(self._kind, key, key in self._values)
        self._values[key] = value

    def add(self, key: str, value: _T) -> None:
        """Add one of the package's own values, unless the key has a value already."""
        self._values.setdefault(key, value)

    def keys(self) -> tuple[str, ...]:
        """Return all keys, in the order of registration."""
        self._fill()
        return tuple(self._values)

    def values(self) -> tuple[_T, ...]:
        """Return all values, in the order of registration."""
        self._fill()
        return tuple(self._values.values())

    def find(self, key: str, where: str) -> _T:
        """Look up the value of a key; raise InputError if there is none.

        Raises:
            InputError: If nothing is registered under the key.
        """
        self._fill()
        if key not in self._values:
            problem = f"no {self._kind} is registered as '{key}'; {suggest_allowed(key, tuple(self._values))}."
            fix = f"Register it with pocketbert.core.families.{self._function}."
            raise InputError(Problem(where, problem, fix))
        return self._values[key]

    def _fill(self) -> None:
        """Fill the registry: load plug-ins and the package's own modules that register values."""
        load_plugins()
        loaders = _wings.pop(self._kind, [])  # first, since modules may look something up while they register
        try:
            for load in loaders:
                load()
        except BaseException:
            _wings[self._kind] = loaders  # for the next lookup, which then raises the same error
            raise


# --- facades ------------------------------------------------------------


def make_facade_getattr(
    facade: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Build the `__getattr__` of a facade (a package that re-exports names), which imports a name on first use.

    Args:
        facade: Name of the package.
        names: Public names of each module that defines some; modules are named relative to ``pocketbert``.
        modules: Names of submodules that the facade imports when they are first used.

    Returns:
        The function for the package's `__getattr__`. It imports one name and stores it in the package.
    """
    module_of = {name: f"pocketbert.{module}" for module, public in names.items() for name in public}

    def get(name: str) -> Any:
        """Import and return a public name or a submodule of the facade."""
        if name in modules:
            return import_module(f"{facade}.{name}")
        if name not in module_of:
            raise AttributeError(f"module '{facade}' has no attribute '{name}'")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[facade], name, value)
        return value

    return get


def make_facade_dir(facade: str, names: Sequence[str]) -> Callable[[], list[str]]:
    """Build the `__dir__` of a facade, so that completion lists its public names only.

    Returns:
        The function for the package's `__dir__`.
    """

    def list_names() -> list[str]:
        own = (n for n in vars(sys.modules[facade]) if n.startswith("__"))
        return sorted({*own, *names})

    return list_names
