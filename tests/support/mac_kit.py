"""Artefact folders with packages for the fake coremltools of tests/benchmarks/fake_mac, and their script run with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pocketbert.benchmarks.imported.mac import MAC_SCRIPT_NAME, mac_script
from pocketbert.core.artefacts import Artefacts, ModelRecord, Processing, write_artefacts
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.core.types import Format, Scheme

FAKE = Path(__file__).parents[1] / "benchmarks" / "fake_mac"
TEXTS = ["turn it down", "turn it down a little please", ["a pair", "of texts"]]


def package(path: Path, **wish: Any) -> Path:
    """Write a package for the fake coremltools, which does what `wish` says."""
    model = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model.parent.mkdir(parents=True)
    model.write_text(json.dumps({"kind": "enumerated", "lengths": [32, 64, 128], **wish}))
    (path / "Manifest.json").write_text("{}")
    return path


def list_packages(phone: Path) -> None:
    """Write artifacts.json as the pack step does."""
    packages = sorted((phone / "coreml").glob("*.mlpackage"))
    records = [
        ModelRecord(
            path=p.relative_to(phone).as_posix(),
            sha256=sha256_path(p),
            bytes=path_bytes(p),
            format=Format.COREML,
            scheme=Scheme.W8 if "w8" in p.name else Scheme.FP16,
        )
        for p in packages
    ]
    write_artefacts(
        phone,
        Artefacts(
            name="tiny",
            task=TaskName.TEXT_CLASSIFICATION,
            family="bert",
            labels=["a", "b"],
            files=records,
            processing=Processing(max_length=128, score=ScoreFunction.SOFTMAX),
        ),
    )


def folder(phone: Path, **packages: Any) -> Path:
    """Write an artefact folder with packages for the fake coremltools, golden rows and the script."""
    (phone / "coreml").mkdir(parents=True)
    tokens, golden = [], []
    for number, text in enumerate(TEXTS):
        ids = [101, *range(1000, 1006 + 3 * number), 102]
        tokens.append({"text": text, "ids": ids, "offsets": []})
        logits = [sum(ids) / 1e4, len(ids) / 1e2]
        names = [f"coreml/{n}.mlpackage" for n in packages]
        golden.append(
            {
                "text": text,
                "label": "a",
                "reference": logits,
                "outputs": dict.fromkeys(names, logits),
                "tolerance": dict.fromkeys(names, 0.01),
            }
        )
    for name, rows in (("golden_tokens.jsonl", tokens), ("golden.jsonl", golden)):
        (phone / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
    (phone / "config.json").write_text(json.dumps({"pad_token_id": 0}))
    for name, wish in packages.items():
        package(phone / "coreml" / f"{name}.mlpackage", **wish)
    list_packages(phone)
    (phone / "coreml" / MAC_SCRIPT_NAME).write_text(mac_script())
    return phone


def run(phone: Path, *arguments: object, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the folder's script with the fake coremltools, in a process of its own."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(FAKE),
        "PATH": f"{path}{os.environ['PATH']}",
        **environment,
    }
    command = [sys.executable, str(phone / "coreml" / MAC_SCRIPT_NAME), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
