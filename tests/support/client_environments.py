"""Environments of real clients, one for each, below `.venv-clients/`, kept between runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-clients"
MINUTES = 60
OPTIMUM = (
    "optimum-onnx==0.1.0",
    "onnxruntime==1.31.1",
    "transformers==4.57.6",
    "torch==2.13.0",
    "numpy==2.4.6",
    "sentence-transformers==5.7.0",
)
SENTENCE_TRANSFORMERS = ("sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6")
MEDIAPIPE = ("mediapipe==1.2.2",)
NODE_PACKAGES = ("@huggingface/transformers@4.3.1", "puppeteer-core@24.43.1", "axe-core@4.14.1")


def find_uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        pytest.fail(f"uv is needed to build client environments: neither {beside} nor uv on the PATH is there.")
    return found


def run(command: Sequence[str], what: str, timeout: float = 20 * MINUTES, cwd: Path | None = None) -> str:
    """Run a program without this session's import path; a failure is a failed test that shows what it said."""
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=own, cwd=cwd, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{what}: not finished after {timeout:.0f} s.")
    if done.returncode:
        pytest.fail(f"{what} (exit {done.returncode}):\n{done.stderr[-3000:]}")
    return done.stdout


def build(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with exactly these packages; built once, rebuilt when the list changes."""
    folder, wanted = HOME / name, json.dumps([sys.version_info[:2], *packages])
    python, note = folder / "bin" / "python", folder / "packages.json"
    HOME.mkdir(exist_ok=True)
    with FileLock(HOME / f".{name}.lock"):
        if not (python.exists() and note.is_file() and note.read_text() == wanted):
            shutil.rmtree(folder, ignore_errors=True)
            where = f"{name}: could not install {', '.join(packages)}; these tests need the package registry"
            run([find_uv(), "venv", "-q", "--python", sys.executable, str(folder)], where)
            run([find_uv(), "pip", "install", "-q", "--python", str(python), *packages], where)
            note.write_text(wanted)  # last: an environment without it is not finished
    return python


def build_node() -> tuple[str, Path]:
    """Node, and a folder beside whose scripts transformers.js and puppeteer lie; skips without Node and npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node and npm are not installed")
    folder = HOME / "node"
    note = folder / "packages.json"
    HOME.mkdir(exist_ok=True)
    with FileLock(HOME / ".node.lock"):
        if not (note.is_file() and note.read_text() == json.dumps(NODE_PACKAGES)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text('{"private": true}')
            # without the scripts, which look for CUDA where nobody needs it
            install = [npm, "i", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
            where = f"npm could not install {', '.join(NODE_PACKAGES)}; these tests need the package registry"
            run([*install, *NODE_PACKAGES], where)
            note.write_text(json.dumps(NODE_PACKAGES))
    return node, folder
