"""Dependencies that report to their vendors are told not to, before anything imports them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def test_importing_any_part_sets_the_variables_for_child_processes_too() -> None:
    inner = "import os, json; print(json.dumps(dict(os.environ)))"
    code = f"import pocketbert, subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {inner!r}], text=True))"
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


IMPORT = r"^ *(?:from|import) (?:{0})\b|(?:import_module|__import__)\(.(?:{0})\b"


@pytest.mark.parametrize(
    ("libraries", "switch", "seen"),
    [
        # a script that imports PocketBERT, or a neighbour that does, is served by it
        (
            "onnxruntime|optimum|sentence_transformers",
            rf"^ *(?:from|import) (?:pocketbert|{{neighbours}})\b|['\"]{VARIABLE}['\"]",
            "lab/peers/engine/worker.py",
        ),
        ("openvino|nncf", rf"block_openvino_telemetry\(\)|['\"]{_OPENVINO_REPORTER}['\"]", "runtime/openvino.py"),
    ],
)
def test_no_file_that_imports_a_library_with_a_reporter_forgets_it(libraries: str, switch: str, seen: str) -> None:
    uses, found = re.compile(IMPORT.format(libraries), re.M), list[str]()
    for top in ("src", *WINGS, "scripts", "lab", "examples", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
            is_served = "{neighbours}" in switch and top in ("src", *WINGS) and path.name != "on_mac.py"
            first = uses.search(text)
            if is_served or path.name.startswith(("test_", "conftest")) or not first:
                continue
            found.append(name)
            neighbours = "|".join(
                p.stem
                for p in path.parent.glob("*.py")
                if re.search(rf"^(?:from|import) pocketbert\b|^os.environ\[.{VARIABLE}", p.read_text("utf-8"), re.M)
            )
            off = re.search(switch.replace("{neighbours}", neighbours or "none"), text, re.M)
            assert off and off.start() < first.start(), name
    assert seen in found


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
