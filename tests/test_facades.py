"""The facades: what app developers and researchers import, without knowing where it is defined."""

from __future__ import annotations

import ast
import importlib
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


def test_facades_import_nothing_heavy_and_submodules_are_reached_from_the_package() -> None:
    code = (
        f"import {', '.join(sorted(FACADES))}, sys; print(sorted(set(sys.modules) & set({HEAVY!r})))\n"
        "print(pocketbert.distill.layer_map(2, 4), pocketbert.api.export.__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["[]", "[2, 4] export"]


def deep_imports(code: str) -> list[str]:
    """Modules of PocketBERT that a text imports and that are not facades."""
    found = []
    for node in ast.walk(ast.parse(code)) if "import" in code else ():
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found += [str(n) for n in names if str(n).startswith("pocketbert") and n not in FACADES]
    return found


def test_examples_and_pages_import_from_facades() -> None:
    code = {p.name: [p.read_text("utf-8")] for p in (ROOT / "examples").glob("*.py")}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = [block.split("```")[0] for block in page.read_text("utf-8").split("```python\n")[1:]]
        code[page.name] = blocks if page.name != "api-reference.md" else []  # generated: signatures
    assert len(code) > 10
    assert {name: d for name, blocks in code.items() for b in blocks if (d := deep_imports(b))} == {}
    deep = "from pocketbert.core.errors import InputError\nimport pocketbert"
    assert deep_imports(deep) == ["pocketbert.core.errors"]
