"""Builders shared by all tests: tiny random models as Hugging Face folders, exported files, data files."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.testing

# before any library of Hugging Face is imported: no test may reach for the network or the user's caches
for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="pocketbert-hf-")

# tests that import openvino themselves do not go through PocketBERT, which keeps this reporter away from it
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

from filelock import FileLock
from hypothesis import settings

from pocketbert.core.families import find_family, table
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import set_quiet
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format
from support import canaries, conversions
from support.folders import common_folder
from support.shards import (  # hooks of pytest
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_xdist_node_collection_finished,
)
from support.tiny import EXPORTED, tiny_classifier
from support.tiny_tokenizers import MAX_LENGTH, WORDS, write_tokenizer

# building the commands from their signatures takes as long as most of them run
typer.testing._get_command = cache(typer.testing._get_command)

# the same examples in every run, and no timings: the machines are shared
settings.register_profile("pocketbert", deadline=None, derandomize=True, database=None)
settings.load_profile("pocketbert")

TFLITE_LENGTHS = {**dict.fromkeys(EXPORTED, (16, 40)), "bert": (16, 32, 40)}
"""Signatures of `exported_tflite`: converting one takes seconds."""
LABELS = ("negative", "neutral", "positive")


def list_registered() -> dict[str, set[str]]:
    """Return what is registered under names that other tests count."""
    return {
        "formats": {str(f) for f in Format},
        "rows of formats": {str(f) for f in FORMATS},
        "families": set(table._FAMILIES),
    }


REGISTERED = list_registered()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that leaves a registered name behind for the tests after it."""
    yield
    assert list_registered() == REGISTERED, "what a test registers it must forget"


def pytest_unconfigure() -> None:
    """Remove the caches of this process; worker processes end without `atexit`."""
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True)
def own_random_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def not_quiet() -> None:
    """Undo the ``--quiet`` of a command in an earlier test."""
    set_quiet(False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own for every test."""
    folder = tmp_path / "pocketbert-cache"
    monkeypatch.setenv("POCKETBERT_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def guarded_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a stranger stand around every output, and the test fails if one does not survive."""
    canaries.guard(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def no_other_processes() -> Iterator[None]:
    """Exports of these processes start neither sentence-transformers, which takes ten seconds, nor a Java compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POCKETBERT_JAVA", "no")
        patch.setattr("pocketbert.pipeline.make.library.find_spec", lambda name: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def equal_models_are_converted_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Equal tiny models become a file of a format once for all test processes."""
    with conversions.converted_once(common_folder(tmp_path_factory) / "conversions"):
        yield


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., None]:
    """`write_tokenizer(folder, pad_id=0, baked_in=True)`."""
    return write_tokenizer


@pytest.fixture(scope="session")
def make_classifier() -> Callable[..., Any]:
    """`tiny_classifier(family, layers, labels, seed=0, **config changes)`: a torch module in eval mode."""
    return tiny_classifier


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(family, layers=3, labels=LABELS, auto_class=...)`: a Hugging Face folder, read-only by convention."""

    @cache
    def build(
        family: str,
        layers: int = 3,
        labels: tuple[str, ...] = LABELS,
        auto_class: str = "AutoModelForSequenceClassification",
    ) -> Path:
        folder = tmp_path_factory.mktemp(f"tiny-{family}-{layers}-")
        tiny_classifier(family, layers, labels, auto_class=auto_class).save_pretrained(folder)
        write_tokenizer(folder, pad_id=find_family(family).tiny["pad_token_id"])
        return folder

    return build


@pytest.fixture(scope="session")
def open_tiny(tiny_model: Callable[..., Path]) -> Callable[..., tuple[Any, ModelFolder, TextTokenizer]]:
    """`open_tiny(family, layers=3)`: a fresh torch module, its folder, its tokenizer."""

    def open_folder(family: str, layers: int = 3) -> tuple[Any, ModelFolder, TextTokenizer]:
        from pocketbert.core.models.checkpoints import load_model
        from pocketbert.core.tasks import TASKS, TaskName

        folder = open_model_folder(str(tiny_model(family, layers)))
        model = load_model(folder, TASKS[TaskName.TEXT_CLASSIFICATION])
        return model, folder, TextTokenizer(folder.path, MAX_LENGTH)

    return open_folder


def written_once(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """The file `name`, which the first of all test processes to come writes."""
    path = common_folder(factory) / name
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            part = path.with_suffix(".partial")
            write(part)
            part.rename(path)
    return path


@pytest.fixture(scope="session")
def exported(
    open_tiny: Callable[..., tuple[Any, ModelFolder, TextTokenizer]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`exported(family)`: the ONNX file of a tiny 2-layer classifier, written once for all test processes."""

    def export_once(family: str) -> Path:
        def write(path: Path) -> None:
            from pocketbert.core.compare.sample_texts import SENTENCES
            from pocketbert.core.tasks import TASKS, TaskName
            from pocketbert.export import onnx
            from pocketbert.export.prepare import prepare

            task = TASKS[TaskName.TEXT_CLASSIFICATION]
            model, folder, tokenizer = open_tiny(family, 2)
            example = tokenizer.pad(tokenizer.encode(list(SENTENCES[:2])), 32)
            onnx.export(prepare(model, folder.family, task), folder.family, task, example, path)

        return written_once(tmp_path_factory, f"exported-{family}/model.onnx", write)

    return export_once


@pytest.fixture(scope="session")
def exported_tflite(
    open_tiny: Callable[..., tuple[Any, ModelFolder, TextTokenizer]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`exported_tflite(family)`: the TFLite file of the same classifier, with signatures for `TFLITE_LENGTHS`."""

    def export_once(family: str) -> Path:
        def write(path: Path) -> None:
            from pocketbert.core.tasks import TASKS, TaskName
            from pocketbert.core.types import Format
            from pocketbert.export import tflite
            from pocketbert.export.prepare import prepare

            task = TASKS[TaskName.TEXT_CLASSIFICATION]
            model, folder, _ = open_tiny(family, 2)
            module = prepare(model, folder.family, task, Format.TFLITE)
            tflite.export(module, folder.family, task, TFLITE_LENGTHS[family], path)

        return written_once(tmp_path_factory, f"exported-tflite-{family}/model.tflite", write)

    return export_once


@pytest.fixture(scope="session")
def write_rows() -> Callable[..., Path]:
    """`write_rows(path, rows)`: dictionaries as .jsonl[.gz]; returns the path."""

    def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
        raw = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
        return path

    return write


@pytest.fixture(scope="session")
def labelled_rows() -> Callable[..., list[dict[str, Any]]]:
    """`labelled_rows(count, labels=LABELS)`: texts of different lengths that mostly tell their label."""

    def rows(count: int, labels: Sequence[str] = LABELS) -> list[dict[str, Any]]:
        import numpy as np

        draw = np.random.default_rng(count)
        hints = dict(zip(labels, ("bad", "day", "good"), strict=False))
        out = []
        for i in range(count):
            label = labels[i % len(labels)]
            words = list(draw.choice(WORDS, int(draw.integers(2, 20))))
            words.insert(int(draw.integers(0, len(words))), hints[label])
            out.append({"text": " ".join(words), "label": label})
        return out

    return rows
