"""Dependencies that report to their vendors are told not to, before anything imports them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from pocketbert.core.host.quiet import (
    _OPENVINO_REPORTER,
    TELEMETRY_SWITCHES,
    block_openvino_telemetry,
    switch_off_telemetry,
)

ROOT = Path(__file__).resolve().parents[3]
WINGS = ("benchmarks", "distill", "export", "quantize", "runtime")
VARIABLE = "ORT_DISABLE_TELEMETRY"
BY_VARIABLE = ("onnxruntime", "optimum", "sentence_transformers")
"""Packages that are ONNX Runtime or import it."""
BY_STUB = ("openvino", "nncf")


def test_what_the_user_set_stands_but_for_an_empty_value() -> None:
    environment = {VARIABLE: "0", "HF_HUB_DISABLE_TELEMETRY": "", "PATH": "here"}
    switch_off_telemetry(environment)
    assert environment == {**TELEMETRY_SWITCHES, VARIABLE: "0", "PATH": "here"}


@pytest.mark.parametrize(("value", "calls"), [("", 1), ("1", 1), ("true", 1), ("0", 0)])
def test_an_engine_that_was_imported_before_is_told_by_its_own_function(
    value: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[None] = []
    engine = SimpleNamespace(disable_telemetry_events=lambda: told.append(None))
    monkeypatch.setitem(sys.modules, "onnxruntime", engine)  # type: ignore[arg-type]
    switch_off_telemetry({VARIABLE: value})
    assert len(told) == calls
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace())  # type: ignore[arg-type]
    switch_off_telemetry({})  # an engine without that function


@pytest.mark.parametrize("module", ["pocketbert", "pocketbert.runtime.onnx"])
def test_importing_any_part_sets_the_variables_for_child_processes_too(module: str) -> None:
    inner = "import os, json; print(json.dumps(dict(os.environ)))"
    code = f"import {module}, subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {inner!r}], text=True))"
    own = {n: v for n, v in os.environ.items() if n not in TELEMETRY_SWITCHES}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    inherited = json.loads(done.stdout)
    assert {n: inherited[n] for n in TELEMETRY_SWITCHES} == TELEMETRY_SWITCHES


@pytest.mark.parametrize("before", [None, SimpleNamespace(), "absent"])
def test_openvino_finds_no_reporter_and_others_find_it_again(before: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, _OPENVINO_REPORTER, before)  # type: ignore[arg-type]
    if before == "absent":
        monkeypatch.delitem(sys.modules, _OPENVINO_REPORTER)
    with pytest.raises(ImportError), block_openvino_telemetry():
        import openvino_telemetry  # noqa: F401
    assert sys.modules.get(_OPENVINO_REPORTER, "absent") == before


# no file of the repository that imports such a library forgets it


@cache
def sources() -> dict[Path, ast.Module]:
    """Every Python file of the repository, parsed."""
    tops = ("src", *WINGS, "scripts", "examples", "tests")
    paths = sorted(p for top in tops for p in (ROOT / top).rglob("*.py"))
    return {p: ast.parse(p.read_text("utf-8")) for p in paths}


def installed(path: Path) -> bool:
    """Whether importing the file imports `pocketbert` first."""
    parts = path.relative_to(ROOT).parts
    return parts[0] in ("src", *WINGS) and "peers" not in parts and path.name != "on_mac.py"


def part_of_the_session(path: Path) -> bool:
    """Whether tests/conftest.py was imported first, which imports PocketBERT."""
    return path.name == "conftest.py" or path.name.startswith("test_")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name.split(".")[0]) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (
                (node.lineno, a.value.split(".")[0])
                for a in node.args
                if isinstance(a, ast.Constant) and isinstance(a.value, str)
            )


def first(tree: ast.AST, text: str, names: tuple[str, ...]) -> float:
    """The first line, as far as it is read from above, that imports one of the modules or holds the text."""
    lines = [line for line, name in imports(tree) if name in names]
    lines += [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == text]
    return min(lines, default=float("inf"))


def neighbours(path: Path) -> tuple[str, ...]:
    """Modules next to a script that import PocketBERT when they are imported."""
    beside = {p.stem: tree for p, tree in sources().items() if p.parent == path.parent and p != path}
    at_once = {
        name: [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)] for name, tree in beside.items()
    }
    return tuple(n for n, body in at_once.items() if "pocketbert" in {m for _, m in imports(ast.Module(body, []))})


def test_who_imports_onnx_runtime_without_pocketbert_switches_it_off_before() -> None:
    seen = []
    for path, tree in sources().items():
        uses = [line for line, name in imports(tree) if name in BY_VARIABLE]
        if not uses or installed(path) or part_of_the_session(path):
            continue
        seen.append(path.relative_to(ROOT).as_posix())
        assert first(tree, VARIABLE, ("pocketbert", *neighbours(path))) < min(uses), path
    assert "benchmarks/peers/engine/worker.py" in seen


def test_who_imports_openvino_leaves_its_reporter_out() -> None:
    seen = []
    for path, tree in sources().items():
        uses = [line for line, name in imports(tree) if name in BY_STUB]
        if not uses or part_of_the_session(path):
            continue
        seen.append(path.relative_to(ROOT).as_posix())
        if installed(path):
            guards = [
                n
                for n in ast.walk(tree)
                if isinstance(n, ast.With) and ast.unparse(n.items[0].context_expr) == "block_openvino_telemetry()"
            ]
            assert all(any(g.lineno < line <= (g.end_lineno or 0) for g in guards) for line in uses), path
        else:
            assert first(tree, _OPENVINO_REPORTER, ()) < min(uses), path
    assert {"runtime/openvino.py", "benchmarks/peers/engine/builder.py"} <= set(seen)


def test_code_in_other_languages_and_in_the_documentation_switches_it_off_before() -> None:
    codes = {p.name: p.read_text("utf-8") for p in (ROOT / "examples").glob("*.mjs")}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        fences = re.findall(r"^```\w+\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
        codes.update({f"{page.name}, {i}": code for i, code in enumerate(fences)})
    uses = re.compile(
        r"^(?:import|from) (?:onnxruntime|optimum|sentence_transformers)|InferenceSession|onnxruntime-node|pipeline\(",
        re.M,
    )
    for name, code in codes.items():
        found = uses.search(code)
        if found:
            assert VARIABLE in code[: found.start()], name
