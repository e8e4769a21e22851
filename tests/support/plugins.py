"""Installed packages that announce plug-ins, in folders of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pocketbert.core import plugins
from pocketbert.core.families import ADAPTERS, CAPTURES, CHECKPOINTS, LAYER_PARTS, table
from pocketbert.distill.capture import record  # noqa: F401 - wings register when they are imported, once per process
from pocketbert.export import prepare  # noqa: F401

REGISTRIES = (ADAPTERS, CAPTURES, CHECKPOINTS, LAYER_PARTS)


def blocks(page: Path) -> dict[str, str]:
    """Code blocks of a page whose first line is a comment with a file name, by that name."""
    found = re.findall(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


def install(site: Path, name: str, code: str, entry: str = "register", version: str = "1.0") -> None:
    """Put a package of one module with an entry point into a folder, as an installer leaves it."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(code, "utf-8")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{plugins._GROUP}]\n{name} = {name}:{entry}\n", "utf-8")
    (info / "RECORD").write_text("", "utf-8")


@contextmanager
def fresh_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables that a test may add to, and plug-ins that are loaded anew."""
    for registry in REGISTRIES:
        registry.keys()  # what the wings register stays
    with monkeypatch.context() as patch:
        for registry in REGISTRIES:
            patch.setattr(registry, "_values", dict(registry._values))
        patch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
        patch.setattr(plugins, "_STATE", plugins._State())
        yield
