"""A tiny task that can be learnt, a tiny teacher, and one finished run that the tests copy and break.

tests/cli/conftest.py takes its fixtures from here.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from filelock import FileLock
from typer.testing import CliRunner

LABELS = ("lamp", "music", "timer")
KEYWORDS = {
    "lamp": ("lamp", "bright", "dim", "bulb", "glow"),
    "music": ("song", "tune", "album", "band", "melody"),
    "timer": ("timer", "minutes", "alarm", "wake", "countdown"),
}
FILLERS = (
    "please", "could", "you", "now", "the", "a", "my", "in", "on", "at", "for", "with", "kitchen",
    "bedroom", "hall", "today", "later", "again", "just", "then", "some", "more", "less", "very", "nice", "old",
    "new", "big", "small", "friend", "house", "room", "door", "table", "chair", "quick", "slow",
)  # fmt: skip
LENGTH = 40
RECIPE = {
    "schema": 1,
    "name": "tiny",
    "task": "text-classification",
    "seed": 3,
    "data": {
        "train": {"path": "train.jsonl"},
        "eval": {"path": "eval.jsonl"},
        "labels": list(LABELS),
        "max_length": LENGTH,
    },
    "teacher": {
        "model": "./teacher",
        "finetune": {"steps": 140, "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 10},
    },
    "student": {"layers": 1},
    "distill": [{"method": "task", "steps": 80, "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 10}],
    "export": {"formats": ["onnx"], "lengths": [16, 32]},
    "verify": {"max_drop": 0.02},
}


def task_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of filler words with one keyword that decides the label."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        label = LABELS[i % len(LABELS)]
        words = [draw.choice(FILLERS) for _ in range(draw.randint(2, 12))]
        words.insert(draw.randint(0, len(words)), draw.choice(KEYWORDS[label]))
        rows.append({"text": " ".join(words), "label": label})
    return rows


def vocabulary() -> list[str]:
    """Words of the task, and letters so that any ASCII word can be spelt."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [*FILLERS, *(w for group in KEYWORDS.values() for w in group)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return list(dict.fromkeys([*special, *words, *letters, *".,!?'-", *(f"##{c}" for c in letters)]))


def write_tokenizer(folder: Path, tokens: Sequence[str]) -> None:
    """A lower-casing WordPiece tokenizer in Hugging Face layout."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    index = {t: i for i, t in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(index, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", index["[CLS]"]), ("[SEP]", index["[SEP]"])],
    )
    made.save(str(folder / "tokenizer.json"))
    named = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **named}))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


def write_bert(
    folder: Path, labels: Sequence[str] | None = None, seed: int = 0, vocabulary_size: int | None = None
) -> Path:
    """A tiny random BERT: bare where there are no labels, else with a head whose outputs differ."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}} if labels else {}
    config = transformers.BertConfig(
        vocab_size=vocabulary_size or len(vocabulary()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **names,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = transformers.AutoModelForSequenceClassification if labels else transformers.AutoModel
        model = kind.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    write_tokenizer(folder, vocabulary())
    return folder


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as .jsonl."""
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return path


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with nested keys replaced; None removes a key."""
    out = dict(base)
    for key, value in changes.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes; the empty lock file left out."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


@contextmanager
def once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that the first process to come builds for all of them: its path, and whether it is there."""
    base = factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with FileLock(root / f"{name}.lock"):
        done = root / f"{name}.done"
        yield root / name, done.is_file()
        done.touch()


class Task:
    """The tiny task on disk.

    Attributes:
        folder: Holds train.jsonl, eval.jsonl, teacher/ and recipe.yaml.
        recipe: The recipe file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.recipe = folder, folder / "recipe.yaml"

    def variant(self, destination: Path, **changes: Any) -> Path:
        """Write a changed recipe elsewhere, with paths that still lead here."""
        here = {
            "data": {
                "train": {"path": str(self.folder / "train.jsonl")},
                "eval": {"path": str(self.folder / "eval.jsonl")},
            },
            "teacher": {"model": str(self.folder / "teacher")},
        }
        destination.write_text(yaml.safe_dump(merged(merged(RECIPE, here), changes), sort_keys=False))
        return destination


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """The builders of this file: kit.write_bert, kit.task_rows, kit.tree, ..."""
    return SimpleNamespace(**globals())


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The tiny task; read-only by convention."""
    with once(tmp_path_factory, "tiny-task") as (folder, there):
        if not there:
            folder.mkdir()
            write_lines(folder / "train.jsonl", task_rows(600, 1))
            write_lines(folder / "eval.jsonl", task_rows(150, 2))
            write_bert(folder / "teacher")
            (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    return Task(folder)


def completed_run(folder: Path, recipe: Path, *arguments: str) -> None:
    """`pocketbert run` on one core; what it printed lies beside the folder."""
    run = subprocess.run(
        one_core(command("run", recipe, *arguments, "-o", folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    folder.with_suffix(".stdout").write_text(run.stdout)
    folder.with_suffix(".stderr").write_text(run.stderr)


@pytest.fixture(scope="session")
def finished(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the tiny task, all gates passed; read-only by convention. Beside it what the command printed."""
    with once(tmp_path_factory, "tiny-run") as (folder, there):
        if not there:
            completed_run(folder, task.recipe)
    return folder


@pytest.fixture(scope="session")
def finished_tflite(task: Task, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with TFLite first, for MediaPipe and for an old runtime too; read-only by convention.

    Teacher, student and ONNX files are those of `finished`. Beside it what the command printed.
    """
    with once(tmp_path_factory, "tiny-run-tflite") as (folder, there):
        if not there:
            shutil.copytree(finished, folder)
            changes = ["export.formats=[tflite, onnx]", "quantize={files: [int8, {scheme: int8, runtime: tflite216}]}"]
            completed_run(folder, task.recipe, *changes, "--overwrite")
    return folder


@pytest.fixture
def tflite_copy(finished_tflite: Path, tmp_path: Path) -> Path:
    """A copy of that run folder, to be broken."""
    return Path(shutil.copytree(finished_tflite, tmp_path / "run"))


@pytest.fixture(scope="session")
def finished_coreml(task: Task, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with Core ML first; read-only by convention.

    Teacher, student and ONNX files are those of `finished`. Beside it what the command printed.
    """
    with once(tmp_path_factory, "tiny-run-coreml") as (folder, there):
        if not there:
            shutil.copytree(finished, folder)
            completed_run(folder, task.recipe, "export.formats=[coreml, onnx]", "--overwrite")
    return folder


@pytest.fixture
def coreml_copy(finished_coreml: Path, tmp_path: Path) -> Path:
    """A copy of that run folder, to be broken."""
    return Path(shutil.copytree(finished_coreml, tmp_path / "run"))


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run folder, to be broken."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def phone(finished: Path, tmp_path: Path) -> Path:
    """A copy of the packed artefact folder, to be broken."""
    return Path(shutil.copytree(finished / "phone", tmp_path / "phone"))


@pytest.fixture
def cli() -> Callable[..., Any]:
    """`cli(*args, input=None)`: a command in this process; exit_code, stdout and stderr apart."""
    from pocketbert.cli.main import app

    def invoke(*args: object, input: str | None = None) -> Any:
        return CliRunner().invoke(app, [str(a) for a in args], input=input)

    return invoke


@pytest.fixture
def refused(cli: Callable[..., Any], tmp_path: Path) -> Callable[..., list[str]]:
    """`refused(run, *expected)`: `verify` names the expected gates and exits 3; `pack` then refuses and leaves nothing.

    Returns all gates that closed, as ``file gate``.
    """

    def check(run: Path, *expected: str) -> list[str]:
        target = tmp_path / "out" / "packed"
        target.parent.mkdir()
        verified = cli("verify", "-m", run, "--json")
        assert verified.exit_code == 3, verified.output
        result = json.loads(verified.stdout.splitlines()[-1])
        failed = [f"{g['file']} {g['name']}" for g in result["gates"] if not g["passed"]]
        assert set(expected) <= set(failed), failed
        for name in expected:
            file, gate = name.rsplit(" ", 1)
            assert f"{file}: gate '{gate}' failed:" in verified.stderr
        assert result["status"] == "failed"
        mark = json.loads((run / ".stages" / "verify.json").read_text())
        assert mark["status"] == "failed"
        packed = cli("pack", "-m", run, "-o", target)
        assert packed.exit_code == 3, packed.output
        assert "nothing was packed" in packed.stderr.lower()
        assert not list(target.parent.iterdir())
        return failed

    return check


@pytest.fixture
def pb() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`pb(*args, pinned=False)`: a command in a process of its own, bound to one core if asked."""

    def call(*args: object, pinned: bool = False) -> subprocess.CompletedProcess[str]:
        argv = one_core(command(*args)) if pinned else command(*args)
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)

    return call


_PIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    os.sched_setaffinity(0, {cores[int(worker) % len(cores)]})
os.execv(sys.argv[1], sys.argv[1:])
"""


def one_core(argv: Sequence[str]) -> list[str]:
    """A command bound to one core: one thread, the same rounding every time, no waiting for a busy sibling.

    Ctrl-C works there even where the tests themselves were started in the background. The process does this to itself:
    code that runs between fork and exec can deadlock where the tests' process has the threads of JAX.
    """
    return [sys.executable, "-c", _PIN, *argv]


def command(*args: object) -> list[str]:
    """The command line for a process of its own."""
    return [sys.executable, "-m", "pocketbert.cli.main", *map(str, args)]
