"""Installed packages that add families, methods, formats or devices: the entry points of group `pocketbert.plugins`.

An entry point names a function without arguments, which calls `register_family` and its kind. Nothing is loaded until a registry
is asked for something, so that `pocketbert --help` costs nothing and cannot fail. Nothing that a recipe names is imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pocketbert.core.errors import ExitCode, PocketBertError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
