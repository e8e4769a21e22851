"""A process that predicts contacts nobody and leaves nothing but PocketBERT's own cache: seen from outside, past 15 s.

`scripts/contacts.py` refuses what it sees, so that the children which are made to report do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketbert.core.host.quiet import TELEMETRY_SWITCHES
from pocketbert.core.host.system import version_of

CONTACTS = Path(__file__).resolve().parents[2] / "scripts" / "contacts.py"
LIFE_S = 20
"""ONNX Runtime 1.31 makes its first contact about 9 s after its import and the next one 5 s later."""
REPORTS = (1, 29)
"""The first ONNX Runtime that reports."""
PREDICT = f"""
import importlib.util, pathlib, sys, time
import pocketbert
model = pocketbert.load(sys.argv[1])
assert model.predict(["the film was good"])[0].label
if importlib.util.find_spec("ai_edge_litert"):
    import ai_edge_litert.interpreter
if importlib.util.find_spec("openvino"):
    from pocketbert.runtime.openvino import OpenVinoPredictor
    assert OpenVinoPredictor(pathlib.Path(sys.argv[1], "onnx/model.onnx"), threads=1).inputs
    assert callable(sys.modules["openvino"].convert_model)   # nothing else of it is missing
time.sleep({LIFE_S})
"""
OPENVINO = "import openvino, time; time.sleep(5)"


def start(folder: Path, code: str, argument: object = "", **environment: str) -> subprocess.Popen[str]:
    """A process whose contacts are watched, with a report of them in a folder."""
    # the session's own switches would hide whether the child sets them
    own = {n: v for n, v in os.environ.items() if n not in TELEMETRY_SWITCHES and "_OFFLINE" not in n}
    guard = [sys.executable, str(CONTACTS), "--json", str(folder / "report.json"), "--"]
    return subprocess.Popen(
        [*guard, sys.executable, "-c", code, str(argument)],
        env={**own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str], folder: Path) -> tuple[list[str], list[str]]:
    """Whom it tried to contact, and the files in its home folder."""
    said, _ = process.communicate(timeout=300)
    if process.returncode == 4:
        pytest.skip(said.strip())
    report = json.loads((folder / "report.json").read_text())
    assert report["exit_code"] == 0, said
    return report["contacts"], report["files"]


@pytest.mark.slow
def test_who_predicts_contacts_nobody_and_the_guard_would_see_it(packed: Path, tmp_path: Path) -> None:
    cases: dict[str, tuple[str, dict[str, str]]] = {
        "cure": (PREDICT, {}),
        "asked for": (PREDICT, {"ORT_DISABLE_TELEMETRY": "0"}),
        **({"openvino alone": (OPENVINO, {})} if version_of("openvino") else {}),
    }
    folders = {name: tmp_path / name for name in cases}
    for folder in folders.values():
        folder.mkdir()
    children = {name: start(folders[name], code, packed, **more) for name, (code, more) in cases.items()}
    seen = {name: end(child, folders[name]) for name, child in children.items()}

    contacts, files = seen["cure"]
    assert contacts == []
    assert [f for f in files if not f.startswith(".cache/pocketbert/")] == []
    if tuple(int(n) for n in (version_of("onnxruntime") or "0").split(".")[:2]) >= REPORTS:
        contacts, files = seen["asked for"]
        assert [c for c in contacts if "microsoft.com" in c], contacts
        assert [f for f in files if f.endswith("deviceid")], files
    if "openvino alone" in seen:
        contacts, files = seen["openvino alone"]
        assert [c for c in contacts if "google-analytics.com" in c], contacts
        assert "intel/openvino_ga_cid" in files
