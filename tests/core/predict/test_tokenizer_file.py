from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.predict.tokenizer_file import library_errors, tokenizer_problems


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def with_normalizer(folder: Path, *parts: dict[str, Any]) -> Any:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Sequence", "normalizers": list(parts)}
    return content


@pytest.fixture
def folder(tmp_path: Path, make_tokenizer: Callable[..., None]) -> Path:
    make_tokenizer(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "parts",
    [
        [replacing({"String": "a"}, "a" * 10)] * 9,
        [replacing({"Regex": ""}, "x" * 1000)],
        [replacing({"Regex": "."}, "xxxxxxxxx")] * 2,
        [{"type": "Prepend", "prepend": "x" * 10_000}],
    ],
)
def test_normalizers_that_make_a_flood_of_a_drop_are_refused(folder: Path, parts: Any) -> None:
    content = with_normalizer(folder, *parts)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="make more than 64 characters of one"):
        TextTokenizer(folder, 32)


def test_nested_parts_and_long_tables_are_refused(folder: Path) -> None:
    part: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(90):
        part = {"type": "Sequence", "normalizers": [part]}
    assert "more than 64 normalizers" in tokenizer_problems(with_normalizer(folder, part))[0]
    table = base64.b64encode((0).to_bytes(4, "little") + b"x" * 5000 + b"\0").decode()
    long = with_normalizer(folder, {"type": "Precompiled", "precompiled_charsmap": table})
    assert "its table of characters" in tokenizer_problems(long)[0]


def test_normalizers_of_published_tokenizers_pass(folder: Path) -> None:
    usual = [
        replacing({"String": "``"}, '"'),
        replacing({"Regex": " {2,}"}, " "),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Lowercase"},
        replacing({"String": " "}, "▁"),
        {"type": "Prepend", "prepend": "▁"},
    ]
    assert tokenizer_problems(with_normalizer(folder, *usual)) == []


def test_a_panic_of_the_library_is_wrong_input(folder: Path) -> None:
    """A pattern that runs into the limit of the library's engine: the exception is a BaseException."""
    content = with_normalizer(folder, replacing({"Regex": "(a+)+$"}, "x"))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = TextTokenizer(folder, 32)
    for run in (tokenizer.encode, lambda t: tokenizer.golden(t[0]), lambda t: tokenizer.windows([(t[0], "b")], 1)):
        with pytest.raises(InputError, match="cannot encode"):
            run(["a" * 40 + "b"])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_let_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind), library_errors("tokenizer.json", "cannot encode"):
        raise kind


def test_a_large_file_is_refused(folder: Path) -> None:
    with (folder / "tokenizer.json").open("r+b") as stream:
        stream.truncate(40 << 20)
    with pytest.raises(InputError, match="larger than 32 MiB"):
        TextTokenizer(folder, 32)


@pytest.mark.parametrize("frame", ["single", "pair"])
def test_a_template_that_names_no_special_token_is_refused_without_a_panic(
    folder: Path, frame: str, capfd: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"][frame][-1] = {"SpecialToken": {"id": "{0}", "type_id": 0}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"its template names '\{0\}', which is not among its special tokens"):
        TextTokenizer(folder, 32)
    assert "panicked" not in capfd.readouterr().err
