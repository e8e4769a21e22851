"""The facades: what app developers and researchers import, without knowing where it is defined."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "pocketbert": ROOT / "src/pocketbert/__init__.py",
    "pocketbert.distill": ROOT / "distill/__init__.py",
    "pocketbert.plugins": ROOT / "src/pocketbert/plugins.py",
    "pocketbert.runtime": ROOT / "runtime/__init__.py",
}
FACADES = {*SOURCES, "pocketbert.api"}
HEAVY = ("torch", "transformers", "numpy", "onnxruntime", "tokenizers", "pydantic", "yaml")


@pytest.mark.parametrize("facade", sorted(SOURCES))  # the verbs of api: tests/test_docs.py
def test_every_name_is_importable_and_documented(facade: str) -> None:
    module = importlib.import_module(facade)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        assert name in dir(module)
        if isinstance(value, type) or callable(value):
            assert (value.__doc__ or "").strip(), f"{facade}.{name} has no docstring"
            assert not value.__doc__.startswith(f"{name}("), f"{facade}.{name} has a generated docstring"


@pytest.mark.parametrize("facade", sorted(SOURCES))
def test_type_checkers_see_the_names_that_are_imported(facade: str) -> None:
    tree = ast.parse(SOURCES[facade].read_text("utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If)]
    seen = {(f"{i.module}.{a.name}", a.name) for i in block.body if isinstance(i, ast.ImportFrom) for a in i.names}
    module = importlib.import_module(facade)
    assert {name for _, name in seen} == set(module.__all__)
    for place, name in seen:
        parent, _, last = place.rpartition(".")
        assert getattr(module, name) is getattr(importlib.import_module(parent), last), place


def test_an_unknown_name_is_refused() -> None:
    import pocketbert

    with pytest.raises(AttributeError, match="module 'pocketbert' has no attribute 'exprot'"):
        _ = pocketbert.exprot  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from pocketbert.distill import soft_target  # type: ignore[attr-defined]  # noqa: F401


def test_importing_a_facade_imports_nothing_heavy() -> None:
    code = (
        f"import {', '.join(sorted(FACADES))}, sys, json; print(json.dumps(sorted(set(sys.modules) & set({HEAVY!r}))))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []


def test_submodules_are_reached_from_the_package() -> None:
    code = "import pocketbert; print(pocketbert.distill.layer_map(2, 4), pocketbert.api.export.__name__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["[2,", "4]", "export"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_import_from_facades(path: Path) -> None:
    assert deep_imports(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_python_in_pages_imports_from_facades(path: Path) -> None:
    if path.name == "api-reference.md":
        return  # generated: signatures
    blocks = path.read_text("utf-8").split("```python\n")[1:]
    assert [d for b in blocks for d in deep_imports(b.split("```")[0])] == []


def deep_imports(code: str) -> list[str]:
    """Modules of PocketBERT that a text imports and that are not facades."""
    found = []
    for node in ast.walk(ast.parse(code)) if "import" in code else ():
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found += [str(n) for n in names if str(n).startswith("pocketbert") and n not in FACADES]
    return found


def test_a_deep_import_is_seen() -> None:
    assert deep_imports("from pocketbert.core.errors import InputError\nimport pocketbert") == [
        "pocketbert.core.errors"
    ]
