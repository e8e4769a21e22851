"""Real clients, each in an environment of its own below `.venv-clients/`, kept between runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

import support.clients
from pocketbert import ExportOptions, api
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.clients import LABELS, LENGTH, TEXTS

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-clients"
OFFLINE = (sys.executable, str(ROOT / "scripts" / "contacts.py"), "--only-refuse", "--")
"""In front of a client that reports to its vendor and has no switch."""
MINUTES = 60
OPTIMUM = (
    "optimum-onnx==0.1.0",
    "onnxruntime==1.31.1",
    "transformers==4.57.6",
    "torch==2.13.0",
    "numpy==2.4.6",
    "sentence-transformers==5.7.0",
)
TRANSFORMERS_JS = "@huggingface/transformers@4.3.1"
SENTENCE_TRANSFORMERS = ("sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6")
CLIENTS = (
    "transformers, torch",
    "optimum",
    "sentence-transformers",
    "onnxruntime, int8",
    "LiteRT, int8",
    "transformers.js",
    "MediaPipe",
)
"""Columns of the table in docs/clients.md."""
_DIFFERENCE = "difference from PocketBERT"


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """`measured(client, task, difference, file="")`: a figure of the table that is printed after the tests.

    None where answers were compared that have no numbers.
    """

    def note(client: str, task: str, difference: float | None, file: str = "") -> None:
        assert client in CLIENTS
        record_property(_DIFFERENCE, [client, str(task), file, difference])

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of docs/clients.md, of the tests that ran and passed."""
    reports = [r for r in terminalreporter.getreports("passed") if r.when == "call"]
    notes = [value for r in reports for name, value in r.user_properties if name == _DIFFERENCE]
    if notes:
        terminalreporter.section("largest differences from PocketBERT")
        for line in table(notes):
            terminalreporter.line(line)


def table(notes: Sequence[tuple[str, str, str, float | None]]) -> list[str]:
    """Lines of Markdown: a row per task, a column per client, in a cell a figure per file in the order of the tests."""
    cells: dict[tuple[str, str], dict[str, float | None]] = {}
    for client, task, file, difference in notes:
        cell = cells.setdefault((task, client), {})
        before = cell.get(file)
        cell[file] = difference if before is None or difference is None else max(before, difference)
    clients = [c for c in CLIENTS if any(c == seen for _, seen in cells)]
    lines = ["| task | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]
    for task in (t.value for t in TaskName):
        if any(task == seen for seen, _ in cells):
            row = [_cell(cells.get((task, client), {})) for client in clients]
            lines.append(f"| {task} | " + " | ".join(row) + " |")
    return lines


def _cell(figures: dict[str, float | None]) -> str:
    if not figures:
        return "–"
    known = [d for d in figures.values() if d is not None]
    return ", ".join(f"{d:.1e}" if d else "0" for d in known) or "same"


def uv() -> str:
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
            run([uv(), "venv", "-q", "--python", sys.executable, str(folder)], where)
            run([uv(), "pip", "install", "-q", "--python", str(python), *packages], where)
            note.write_text(wanted)  # last: an environment without it is not finished
    return python


@pytest.fixture(scope="session")
def environment() -> Callable[..., Path]:
    """`environment(name, packages)`: path of a Python that has these packages, and nothing of ours."""
    return build


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`ask(python, script, question, offline=False)`: what a script of this folder answers; both as JSON files."""

    def call(python: Path, script: str, question: Any, offline: bool = False) -> Any:
        folder = tmp_path_factory.mktemp("client")
        (folder / "question.json").write_text(json.dumps(question))
        files = [str(folder / "question.json"), str(folder / "answer.json")]
        command = [str(python), str(Path(__file__).parent / script), *files]
        run([*(OFFLINE if offline and sys.platform == "linux" else ()), *command], script)
        return json.loads((folder / "answer.json").read_text())

    return call


@pytest.fixture(scope="session")
def optimum() -> Path:
    """A Python with optimum.onnxruntime and sentence-transformers, which share a transformers below 4.58."""
    return build("optimum", OPTIMUM)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`node(code, *arguments, cwd=None)`: what a module of JavaScript prints, with transformers.js beside it."""
    found = shutil.which("node"), shutil.which("npm")
    if None in found:
        pytest.skip("Node and npm are not installed")
    folder = HOME / "node"
    with FileLock(HOME / ".node.lock"):
        note = folder / "packages.json"
        if not (note.is_file() and note.read_text() == TRANSFORMERS_JS):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{"private": true}')
            # without the scripts, which look for CUDA where nobody needs it
            install = [
                str(found[1]),
                "i",
                "--prefix",
                str(folder),
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                TRANSFORMERS_JS,
            ]
            run(install, "npm could not install transformers.js; these tests need the package registry")
            note.write_text(TRANSFORMERS_JS)

    def call(code: str, *arguments: str, cwd: Path | None = None) -> str:
        # imports are looked up beside the script
        script = folder / f"{tmp_path_factory.mktemp('node').name}-{os.getpid()}.mjs"
        script.write_text(code, encoding="utf-8")
        try:
            return run([str(found[0]), str(script), *arguments], "node", cwd=cwd)
        finally:
            script.unlink()

    return call


@pytest.fixture(scope="session")
def phones(
    make_classifier: Callable[..., Any], make_tokenizer: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`phones(task)`: the artefact folder of a tiny random model, ONNX and TFLite, exported once for all processes."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    @cache
    def export(task: str) -> Path:
        folder = root / f"client-{task}"
        with FileLock(root / f"client-{task}.lock"):
            if not (folder / "phone" / "artifacts.json").is_file():
                source = folder / "model"
                source.mkdir(parents=True)
                write_model(TaskName(task), source, make_classifier, make_tokenizer)
                api.export(
                    str(source),
                    folder / "phone",
                    ExportOptions(task=task, max_length=LENGTH, formats=["onnx", "tflite"]),
                )
        return folder / "phone"

    return export


def write_model(
    task: TaskName, folder: Path, make_classifier: Callable[..., Any], make_tokenizer: Callable[..., None]
) -> None:
    """A random model of the task whose answers differ from text to text."""
    import torch

    make_tokenizer(folder)
    row = TASKS[task]
    kind = {"problem_type": row.problem_type} if row.problem_type else {}
    model = make_classifier("bert", 2, LABELS.get(task, ("LABEL_0", "LABEL_1")), auto_class=row.auto_class, **kind)
    name = {TaskName.FILL_MASK: "cls.predictions.decoder", TaskName.QUESTION_ANSWERING: "qa_outputs"}.get(
        task, "classifier"
    )
    if task is not TaskName.FEATURE_EXTRACTION:
        head = model.get_submodule(name)
        with torch.no_grad():
            if task is not TaskName.FILL_MASK:  # whose decoder is the embedding table
                head.weight *= 10
            logits = [_logits(model, ids) for ids in TextTokenizer(folder, LENGTH).encode(list(TEXTS))]
            head.bias -= torch.cat(logits).mean(0)
    model.save_pretrained(folder)


def _logits(model: Any, row: Any) -> Any:
    import torch

    out = model(input_ids=torch.from_numpy(row.ids[None]))
    values = out.logits if "logits" in out else torch.stack([out.start_logits, out.end_logits], -1)
    return values.reshape(-1, values.shape[-1])


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Functions and texts of this file, which tests cannot import, and of `support.clients`."""
    return SimpleNamespace(**vars(support.clients) | globals())
