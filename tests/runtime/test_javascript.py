"""runtime/javascript (@pocketbert/runtime): tokens and answers as the Python runtime makes them, files and engines that are refused.

Run by Node on fixtures, with an engine that returns recorded outputs (javascript.mjs); tests/clients/test_javascript.py runs real engines.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from android import tokenizer_kinds as kinds
from android.answer_files import KITS, write_answer_files
from android.awkward_texts import awkward_texts
from android.token_files import _write_lines, library_rows, write_token_files
from tokenizers import Tokenizer

from pocketbert import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "runtime/javascript"
SCRIPT = Path(__file__).with_name("javascript.mjs")


def run_node(folder: Path, command: str) -> list[list[Any]]:
    """What a command of javascript.mjs prints about fixtures."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    done = subprocess.run(
        [node, str(SCRIPT), str(PACKAGE), str(folder), command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def answer_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artefact folders of every task, with outputs and the answers that Python makes of them."""
    folder = tmp_path_factory.mktemp("answers") / "kits"
    write_answer_files(folder)
    return folder


def test_answers_are_those_of_python(answer_folders: Path) -> None:
    said = run_node(answer_folders, "answers")
    assert {name for name, *_ in said} == set(KITS)
    assert [[name, wrong] for name, _, wrong in said if wrong] == []
    assert all(cases >= 60 for _, cases, _ in said)


def test_what_is_wrong_is_refused_in_words(answer_folders: Path) -> None:
    expected = [
        ("good", "accepted"),
        ("wrong engine", "fake 1 computes this file wrongly here: golden row"),
        ("wrong engine", "accepted"),  # without the self-test
        ("changed file", "its sha256 is not the listed one"),
        ("shorter file", "3 bytes, the folder's list says"),
        ("schema", "schema version 2.0 is not supported"),
        ("path", "a path leaves the folder"),
        ("form", "form 'entities', with inputs that @pocketbert/runtime does not make"),
        ("failed", "is marked failed"),
        ("scheme", "no w4 file that runs here; it has onnx/model.onnx"),
        ("file", "no model file 'onnx/other.onnx'"),
        ("no folder", "is no artefact folder: 404"),
        ("prompt", "'passage' is no prompt; the model has query, none"),
        ("pair", "feature-extraction takes one text, this is a pair"),
        ("number", "neither a text nor a pair"),
        ("single", "neither a text nor a pair"),
        ("inherited", "'constructor' is no prompt"),
        ("several heads", "accepted"),
        ("wrong head", "fake 1 computes this file wrongly here: golden row"),
        ("pair", "token-classification takes one text, this is a pair"),
        ("heads", "heads differ from those of config.json"),
        ("heads", "heads differ from those of config.json"),
        ("labels", "its heads (mood, slots, intent) do not fit the labels"),
        ("other host", "http://own.host/f/%20//other.host/x: 404"),
    ]
    said = run_node(answer_folders, "refusals")
    assert [name for name, _ in said] == [name for name, _ in expected]
    assert [
        (message, what) for (_, message), (_, what) in zip(said, expected, strict=True) if what not in message
    ] == []


def test_int8_products_do_not_saturate_on_processors_without_vnni(tmp_path: Path) -> None:
    precise = {"x64quantprecision": "1"}
    attempts = [
        precise,
        {**precise, "disable_quant_qdq": "1"},
        {},
    ]  # the next one where ONNX Runtime refuses the former
    said = run_node(tmp_path, "sessions")
    for cpu, settings in (
        ("", [{}] * 3),
        ("flags : avx2 avx_vnni", [{}] * 3),
        ("flags : avx2", attempts),
        (None, attempts),
    ):
        assert [used for _, flags, used in said if flags == cpu] == settings


def step_kinds() -> Iterator[tuple[str, str]]:
    """Tokenizers of single steps and of each model, which are made in no time."""
    for name, normalizer in kinds.NORMALIZERS.items():
        yield f"normalizer-{name}", kinds.byte_tokens(normalizer(), kinds.P.Split(kinds.Regex(r"\s"), "isolated"))
    for name, splitter in kinds.SPLITTERS.items():
        yield f"splitter-{name}", kinds.byte_tokens(None, splitter())
    yield "unigram-byte-fallback", kinds.unigram_bytes()
    yield from kinds._families()


@pytest.fixture(scope="module")
def step_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, texts = tmp_path_factory.mktemp("tokens"), awkward_texts(60)
    _write_lines(folder / "strings.jsonl", texts)
    for name, content in step_kinds():
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(content, encoding="utf-8")
        _write_lines(folder / name / "rows.jsonl", library_rows(Tokenizer.from_str(content), texts))
    return folder


def test_each_step_of_tokenizers_gives_the_librarys_tokens_and_places(step_files: Path) -> None:
    said = run_node(step_files, "tokens")
    assert len(said) > 40
    assert [row for row in said if row[2]] == []


@pytest.mark.slow
def test_every_kind_of_tokenizer_gives_the_librarys_tokens_and_places(tmp_path: Path) -> None:
    write_token_files(tmp_path / "tokens", 1000)
    said = run_node(tmp_path / "tokens", "tokens")
    assert len(said) > 60
    assert [row for row in said if row[2]] == []


def test_the_package_names_this_release_and_holds_the_java_tables() -> None:
    described = json.loads((PACKAGE / "package.json").read_text("utf-8"))
    assert described["version"] == __version__
    tables = (ROOT / "android_demo/core/src/main/resources/org/pocketbert/tokenizers/unicode.bin").read_bytes()
    assert f'"{base64.b64encode(tables).decode()}"' in (PACKAGE / "src/unicode-tables.js").read_text("utf-8")
