"""Real clients, each in an environment of its own below `.venv-clients/`, kept between runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import support.clients
from pocketbert import ExportOptions, api
from pocketbert.core.data.source import DataSource
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.client_environments import HOME, OFFLINE, OPTIMUM, TRANSFORMERS_JS, build, run
from support.client_table import CLIENTS, table
from support.clients import LABELS, LENGTH, TEXTS

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


@pytest.fixture(scope="session")
def smaller_phone(phones: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for text classification with files in `small` and `a8w8` in addition."""
    folder = tmp_path_factory.mktemp("smaller")
    names = LABELS[TaskName.TEXT_CLASSIFICATION]
    rows = [{"text": f"{text} {i}", "label": names[i % len(names)]} for i in range(4) for text in TEXTS]
    (folder / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    calibrate = DataSource.at(str(folder / "train.jsonl"))
    return api.quantize(phones(TaskName.TEXT_CLASSIFICATION), folder / "phone", ["small", "a8w8"], calibrate=calibrate)


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
