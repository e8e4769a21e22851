"""Dependencies that report to their vendors are told not to, before anything imports them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
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
    own = {n: v for n, v in os.environ.items() if n not in {*TELEMETRY_SWITCHES, "MKL_CBWR"}}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    inherited = json.loads(done.stdout)
    assert {n: inherited[n] for n in TELEMETRY_SWITCHES} == TELEMETRY_SWITCHES
    assert inherited["MKL_CBWR"] == "AUTO", "products of matrices that are the same in each run"


@pytest.mark.parametrize("before", [None, SimpleNamespace(), "absent"])
def test_openvino_finds_no_reporter_and_others_find_it_again(before: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, _OPENVINO_REPORTER, before)  # type: ignore[arg-type]
    if before == "absent":
        monkeypatch.delitem(sys.modules, _OPENVINO_REPORTER)
    with pytest.raises(ImportError), block_openvino_telemetry():
        import openvino_telemetry  # noqa: F401
    assert sys.modules.get(_OPENVINO_REPORTER, "absent") == before


# no file of the repository that imports such a library forgets it


def read_scripts() -> Iterator[tuple[str, Path, list[str]]]:
    """Every Python file but the tests, which conftest.py has imported PocketBERT for: its name, path and lines."""
    for top in ("src", *WINGS, "scripts", "lab", "examples", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not path.name.startswith(("test_", "conftest")):
                yield path.relative_to(ROOT).as_posix(), path, path.read_text("utf-8").splitlines()


def is_installed(path: Path) -> bool:
    """Whether importing the file imports `pocketbert` first."""
    parts = path.relative_to(ROOT).parts
    return parts[0] in ("src", *WINGS) and path.name != "on_mac.py"


def importing(*modules: str) -> re.Pattern[str]:
    names = "|".join(modules)
    return re.compile(rf"\s*(from|import) ({names})\b|.*(import_module|__import__)\(.({names})\b")


def first_line(lines: list[str], pattern: re.Pattern[str]) -> float:
    return next((i for i, line in enumerate(lines) if pattern.match(line)), float("inf"))


def neighbours(path: Path) -> list[str]:
    """Modules next to a script that import PocketBERT, or set the variable, when they are imported."""
    at_once = re.compile(rf"^(from|import) pocketbert\b|^os.environ\[.{VARIABLE}", re.M)
    return [p.stem for p in path.parent.glob("*.py") if p != path and at_once.search(p.read_text("utf-8"))]


def test_who_imports_onnx_runtime_without_pocketbert_switches_it_off_before() -> None:
    uses, seen = importing("onnxruntime", "optimum", "sentence_transformers"), []
    for name, path, lines in read_scripts():
        if is_installed(path) or first_line(lines, uses) == float("inf"):
            continue
        seen.append(name)
        switch = min(
            first_line(lines, importing("pocketbert", *neighbours(path))),
            first_line(lines, re.compile(rf".*['\"]{VARIABLE}['\"]")),
        )
        assert switch < first_line(lines, uses), name
    assert "lab/peers/engine/worker.py" in seen


def test_who_imports_openvino_leaves_its_reporter_out() -> None:
    uses, seen = importing("openvino", "nncf"), []
    for name, path, lines in read_scripts():
        if first_line(lines, uses) == float("inf"):
            continue
        seen.append(name)
        if not is_installed(path):
            assert first_line(lines, re.compile(f".*['\"]{_OPENVINO_REPORTER}['\"]")) < first_line(lines, uses), name
            continue
        for number, line in enumerate(lines):
            if uses.match(line):  # within the block, which is indented less
                depth = len(line) - len(line.lstrip())
                outer = [
                    above for above in lines[:number] if above.strip() and len(above) - len(above.lstrip()) < depth
                ]
                assert "block_openvino_telemetry()" in outer[-1], f"{name}:{number + 1}"
    assert {"runtime/openvino.py", "lab/peers/engine/builder.py"} <= set(seen)


def test_code_in_other_languages_and_in_the_documentation_switches_it_off_before() -> None:
    codes = {p.name: p.read_text("utf-8") for p in (ROOT / "examples").glob("*.mjs")}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
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
