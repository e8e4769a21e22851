"""Real clients in their environments, the folders that they open, and the table of how far they are from PocketBERT."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pocketbert import ExportOptions, api
from pocketbert.core.data.source import DataSource
from pocketbert.core.tasks import TASKS, TaskName
from support.client_environments import MEDIAPIPE, OPTIMUM, ROOT, build, build_node, run
from support.clients import LABELS, LENGTH, TEXTS, write_model
from support.debian_tools import TOOLS, lacking, lacking_libraries
from support.folders import common_folder

_OFFLINE = (sys.executable, str(ROOT / "scripts" / "contacts.py"), "--only-refuse", "--")
"""In front of a client that reports to its vendor and has no switch."""
_DIFFERENCE = "difference from PocketBERT"
_COLUMNS = (
    "transformers, torch",
    "optimum",
    "sentence-transformers",
    "onnxruntime, int8",
    "LiteRT, int8",
    "transformers.js",
    "MediaPipe",
)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """`measured(client, task, difference, file="")`: a figure of the table that is printed after the tests.

    None where answers were compared that have no numbers.
    """

    def note(client: str, task: str, difference: float | None, file: str = "") -> None:
        assert client in _COLUMNS
        record_property(_DIFFERENCE, [client, str(task), file, difference])

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of docs/lab/clients.md, of the tests that ran and passed."""
    reports = [r for r in terminalreporter.getreports("passed") if r.when == "call"]
    notes = [value for r in reports for name, value in r.user_properties if name == _DIFFERENCE]
    if notes:
        terminalreporter.section("largest differences from PocketBERT")
        for line in render_table(notes):
            terminalreporter.line(line)


def render_table(notes: Sequence[tuple[str, str, str, float | None]]) -> list[str]:
    """Lines of Markdown: a row per task, a column per client, in a cell a figure per file in the order of the tests."""
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for client, task, file, difference in notes:
        cell = cells.setdefault((task, client), {})
        if difference is not None:
            cell[file] = max(difference, cell.get(file, 0))
    clients = [c for c in _COLUMNS if any(c == seen for _, seen in cells)]
    lines = ["| task | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]
    for task in (t.value for t in TASKS if any(t.value == seen for seen, _ in cells)):
        row = ["–" if (cell := cells.get((task, c))) is None else _render_cell([*cell.values()]) for c in clients]
        lines.append(f"| {task} | " + " | ".join(row) + " |")
    return lines


def _render_cell(figures: Sequence[float]) -> str:
    return ", ".join(f"{d:.1e}" if d else "0" for d in figures) or "same"


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`ask(python, verb, offline=False, **question)`: what a function of client.py answers there."""

    def call(python: Path, verb: str, offline: bool = False, **question: Any) -> Any:
        folder = tmp_path_factory.mktemp("client")
        files = [str(folder / "question.json"), str(folder / "answer.json")]
        Path(files[0]).write_text(json.dumps(question))
        command = [str(python), str(Path(__file__).with_name("client.py")), verb, *files]
        run([*(_OFFLINE if offline and sys.platform == "linux" else ()), *command], verb)
        return json.loads(Path(files[1]).read_text())

    return call


@pytest.fixture(scope="session")
def optimum() -> Path:
    """A Python with optimum.onnxruntime and sentence-transformers, which share a transformers below 4.58."""
    return build("optimum", OPTIMUM)


@pytest.fixture(scope="session")
def mediapipe(ask: Callable[..., Any]) -> Callable[..., Any]:
    """`mediapipe(verb, model, texts)`: the rows that MediaPipe Tasks answers, or its error."""
    python = build("mediapipe", MEDIAPIPE)
    return lambda verb, model, texts: ask(python, verb, offline=True, model=str(model), texts=list(texts))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`node(code, *arguments, cwd=None)`: what a module of JavaScript prints, with transformers.js beside it."""
    program, folder = build_node()

    def call(code: str, *arguments: str, cwd: Path | None = None) -> str:
        # imports are looked up beside the script
        script = folder / f"{tmp_path_factory.mktemp('node').name}-{os.getpid()}.mjs"
        script.write_text(code, encoding="utf-8")
        try:
            return run([program, str(script), *arguments], "node", cwd=cwd)
        finally:
            script.unlink()

    return call


@pytest.fixture(scope="session")
def chromium() -> Callable[..., dict[str, Any]]:
    """`chromium(script, *arguments)`: the JSON that a script of puppeteer prints; its first argument is the program."""
    with FileLock(f"{TOOLS}.chromium.lock"):
        reasons = [*lacking(["chromium"]), *lacking_libraries()]  # nothing is fetched where `make tools` has done it
    if reasons:
        pytest.skip(f"no Chromium: {'; '.join(reasons)}")
    program, folder = build_node()
    executable = TOOLS / "chromium/usr/lib/chromium/chromium"
    beside = executable.parents[3] / "usr/lib/x86_64-linux-gnu"
    paths = [str(beside), str(beside / "pulseaudio"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}

    def look(script: Path, *arguments: str) -> dict[str, Any]:
        copy = folder / f"{script.stem}-{os.getpid()}.mjs"  # imports are looked up beside the script
        shutil.copyfile(script, copy)
        command = [program, str(copy), str(executable), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert seen["errors"] == seen["faults"] == []  # of scripts, and of accessibility (axe)
        return seen

    return look


@pytest.fixture(scope="session")
def phones(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`phones(task)`: the artefact folder of a tiny random model, ONNX and TFLite, exported once for all processes."""
    root = common_folder(tmp_path_factory)

    @cache
    def export(task: str) -> Path:
        folder = root / f"client-{task}"
        options = ExportOptions(task=task, max_length=LENGTH, formats=["onnx", "tflite"])
        with FileLock(root / f"client-{task}.lock"):
            if not (folder / "phone" / "artifacts.json").is_file():
                (folder / "model").mkdir(parents=True)
                write_model(TaskName(task), folder / "model")
                api.export(str(folder / "model"), folder / "phone", options)
        return folder / "phone"

    return export


@pytest.fixture(scope="session")
def smaller_phone(phones: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for text classification with files in `small` and `a8w8` in addition."""
    folder = tmp_path_factory.mktemp("smaller")
    names = LABELS[TaskName.TEXT_CLASSIFICATION]
    rows = [{"text": f"{text} {i}", "label": names[i % len(names)]} for i in range(4) for text in TEXTS]
    (folder / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    calibrate = DataSource.at(str(folder / "train.jsonl"))
    return api.quantize(phones(TaskName.TEXT_CLASSIFICATION), folder / "phone", ["small", "a8w8"], calibrate=calibrate)
