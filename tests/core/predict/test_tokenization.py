"""Texts become ids: as transformers makes them, cut and padded as asked, and tokenizer files that are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import InputError
from pocketbert.core.families import TokenizerKind, family_of, register_family, table
from pocketbert.core.heads.head import prepare_texts
from pocketbert.core.host.system import version_of
from pocketbert.core.models.folder import DEMO_DISTRIBUTION, DEMO_TEACHER, open_model_folder
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Encoded, Places, Text, truncate_row
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.predict.tokenizer_file import library_errors
from support.tiny_sentencepiece import LAYOUTS
from support.tiny_tokenizers import vocabulary, write_tokenizer_of_kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(made)
    return made


# Encoding


def test_truncation_is_flagged(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, 6)
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is not None, "which is switched off"
    assert [len(row) for row in TextTokenizer(folder, 64).encode(["good", "good " * 50])] == [3, 52]
    rows = tokenizer.encode(
        ["a good film", "a good film day", "a good film day not", ("a", "film"), ("a", "good old film")]
    )
    assert [(len(r), r.truncated) for r in rows] == [(5, False), (6, False), (6, True), (5, False), (6, True)]
    last = TextTokenizer(folder, 64).encode(["good"])[0].ids[-1]
    assert all(r.ids[-1] == last for r in rows)


def test_many_texts_are_encoded_in_order_and_what_is_no_text_is_refused_with_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbert.core.predict.tokenization._ENCODE_AT_ONCE", 7)
    tokenizer = TextTokenizer(folder, 64)
    texts = list(SENTENCES)
    assert [r.ids.tolist() for r in tokenizer.encode(texts)] == [tokenizer.encode([t])[0].ids.tolist() for t in texts]
    bad: Any
    for bad in ("half \ud83d", None, 3, ("a", None), ("a", "b", "c")):
        with pytest.raises(InputError, match=r"text 11: .* is neither Unicode text nor a pair of texts"):
            tokenizer.encode([*texts[:9], ("a", "b"), bad])


@pytest.mark.skipif(version_of(DEMO_DISTRIBUTION) is None, reason=f"{DEMO_DISTRIBUTION} is not installed")
def test_ids_equal_those_of_transformers() -> None:
    import transformers

    demo = open_model_folder(DEMO_TEACHER).path
    reference = transformers.AutoTokenizer.from_pretrained(str(demo), local_files_only=True)
    texts: list[Text] = [*SENTENCES[:30], *sample_pairs()[:6], "", "x " * 200]
    for max_length in (128, 20):
        for text, row in zip(texts, TextTokenizer(demo, max_length).encode(texts), strict=True):
            parts = text if isinstance(text, tuple) else (text,)
            wanted = reference(*parts, truncation=True, max_length=max_length, padding=False)
            assert row.ids.tolist() == wanted["input_ids"]
            assert row.type_ids.tolist() == wanted["token_type_ids"]


def test_golden_rows_hold_ids_and_code_point_offsets(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, 64)
    text = "A naïve film 👍 good"
    row = tokenizer.golden(text)
    assert row["text"] == text
    assert row["ids"] == tokenizer.encode([text])[0].ids.tolist()
    assert text[slice(*row["offsets"][-2])] == "good"
    pair = tokenizer.golden(("good", "bad day"))
    assert pair["text"] == ["good", "bad day"]
    assert len(pair["ids"]) == len(pair["offsets"]) == 6


# Padding


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 4), st.sampled_from(["right", "left"]))
def test_padding_keeps_every_token(folder: Path, lengths: list[int], extra: int, side: str) -> None:
    tokenizer = TextTokenizer(folder, 64, pad_id=9, padding_side=side)
    rows = [Encoded(np.arange(1, n + 1), np.arange(n) % 2, False) for n in lengths]
    width = max(lengths) + extra
    batch = tokenizer.pad(rows, width)
    assert {(v.shape, str(v.dtype)) for v in batch.values()} == {((len(rows), width), "int64")}
    for i, row in enumerate(rows):
        real = batch["attention_mask"][i] == 1
        assert real[: len(row)].all() if side == "right" else real[width - len(row) :].all()
        assert batch["input_ids"][i][real].tolist() == row.ids.tolist()
        assert batch["token_type_ids"][i][real].tolist() == row.type_ids.tolist()
        assert batch["input_ids"][i][~real].tolist() == [9] * (width - len(row))
    assert tokenizer.pad(rows)["input_ids"].shape == (len(rows), max(lengths))


def test_the_padding_side_is_what_the_folder_says(
    tmp_path: Path, make_tokenizer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def side(path: Path = tmp_path, **given: str) -> str:
        return TextTokenizer(path, 16, **given).padding_side  # type: ignore[arg-type]

    def write(name: str, content: Any) -> None:
        (tmp_path / name).write_text(json.dumps(content))

    make_tokenizer(tmp_path)
    assert side() == "right", "a tokenizer without a model"
    write("config.json", {"model_type": "left-bert"})
    with pytest.raises(InputError, match=r"config.json: model_type 'left-bert' is not in the family table"):
        side()
    assert side(padding_side="right") == "right"
    monkeypatch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
    register_family(replace(family_of("bert"), name="left", model_types=("left-bert",), padding_side="left"))
    assert side() == side(tmp_path / "tokenizer.json") == "left"
    write("artifacts.json", {"processing": {"padding_side": "right"}})
    assert side() == "right", "an artefact folder says it itself"
    write("artifacts.json", {"processing": {"padding_side": "left"}})
    write("config.json", {"model_type": "unheard-of"})
    assert side() == "left"
    assert side(padding_side="right") == "right"
    write("artifacts.json", {"processing": {"padding_side": "middle"}})
    with pytest.raises(InputError, match="'middle' is not a padding side; allowed: right or left"):
        side()


# Cutting


@given(st.integers(1, 30), st.integers(1, 30))
def test_a_cut_row_keeps_its_beginning_and_its_last_token(size: int, length: int) -> None:
    row = Encoded(np.arange(size) + 5, np.arange(size) % 2, False)
    found = truncate_row(row, length)
    if size <= length:
        assert found is row
        return
    assert len(found) == len(found.type_ids) == length
    assert found.truncated
    assert found.ids.tolist() == [*range(5, 5 + length - 1), size + 4]
    assert found.type_ids[-1] == (size - 1) % 2
    assert len(row) == size  # the row itself stays as it is


@pytest.mark.parametrize(
    ("question", "context", "room", "left"), [(3, 20, 8, (3, 5)), (20, 3, 8, (5, 3)), (9, 9, 7, (3, 4))]
)
def test_a_cut_pair_keeps_its_separators(question: int, context: int, room: int, left: tuple[int, int]) -> None:
    parts = np.array([-1, *[0] * question, -1, -1, *[1] * context, -1])
    spans = np.zeros((len(parts), 2), np.int64)
    row = Encoded(np.arange(len(parts)), parts.clip(0), False, Places(spans, parts, parts))
    found = truncate_row(row, room + 4)
    assert found.places is not None
    assert found.places.parts.tolist() == [-1, *[0] * left[0], -1, -1, *[1] * left[1], -1]
    assert found.ids.tolist() == sorted(found.ids.tolist())
    assert len(truncate_row(row, 5)) == 5, "no room for the separators and one token of each text"


KINDS = [
    *((TokenizerKind.SENTENCEPIECE, layout) for layout in LAYOUTS),
    *((kind, "") for kind in TokenizerKind if kind is not TokenizerKind.SENTENCEPIECE),
]
TAILS = {"XLNetTokenizer": 2}
"""Special tokens behind the text where it is more than one."""


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize(("kind", "layout"), KINDS)
def test_special_tokens_of_every_tokenizer_stay(kind: TokenizerKind, layout: str, places: bool, tmp_path: Path) -> None:
    write_tokenizer_of_kind(tmp_path, kind, vocabulary(0), layout)
    long, short = (TextTokenizer(tmp_path, n, pad_id=0, padding_side="right") for n in (80, 16))
    text, second = "good " * 60, "bad " * 50
    [row], [wanted] = long.encode([text], places), short.encode([text])
    assert truncate_row(row, 16).ids.tolist() == wanted.ids.tolist()
    [whole] = long.encode([(text, second)], places=True)
    assert whole.places is not None
    special = whole.ids[whole.places.parts < 0].tolist()
    [found] = prepare_texts([Example(text, second, None, 1)], long, places).within(16).encoded
    assert len(found) == 16
    assert [i for i in found.ids.tolist() if i in special] == special
    tail = TAILS.get(layout, 1)
    assert found.ids[-tail:].tolist() == whole.ids[-tail:].tolist()
    assert found.ids[-tail - 1] not in special
    # shorter than what stays: its end, and no more tokens than asked for
    for length in (1, 2, 3):
        few = truncate_row(row, length).ids
        assert len(few) == length
        assert np.array_equal(few[-min(tail, length) :], row.ids[-min(tail, length) :])


# Tokenizer files


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def with_normalizer(folder: Path, *parts: dict[str, Any]) -> Any:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Sequence", "normalizers": list(parts)}
    return content


def write_tokenizer(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def nested(depth: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


FLOOD = "make more than 64 characters of one"
LONG_TABLE = base64.b64encode((0).to_bytes(4, "little") + b"x" * 5000 + b"\0").decode()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([replacing({"String": "a"}, "a" * 10)] * 9, FLOOD),
        ([replacing({"Regex": ""}, "x" * 1000)], FLOOD),
        ([replacing({"Regex": "."}, "xxxxxxxxx")] * 2, FLOOD),
        ([{"type": "Prepend", "prepend": "x" * 10_000}], FLOOD),
        ([nested(90)], "more than 64 normalizers"),
        ([{"type": "Precompiled", "precompiled_charsmap": LONG_TABLE}], "its table of characters"),
    ],
)
def test_normalizers_that_make_a_flood_of_a_drop_are_refused(
    folder: Path, tmp_path: Path, parts: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        TextTokenizer(write_tokenizer(tmp_path, with_normalizer(folder, *parts)), 32)


def test_normalizers_of_published_tokenizers_pass(folder: Path, tmp_path: Path) -> None:
    usual = [
        replacing({"String": "``"}, '"'),
        replacing({"Regex": " {2,}"}, " "),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Lowercase"},
        replacing({"String": " "}, "▁"),
        {"type": "Prepend", "prepend": "▁"},
    ]
    tokenizer = TextTokenizer(write_tokenizer(tmp_path, with_normalizer(folder, *usual)), 32)
    assert len(tokenizer.encode(["good"])[0]) >= 3


def test_a_panic_of_the_library_is_wrong_input(folder: Path, tmp_path: Path) -> None:
    # a pattern that runs into the limit of the library's engine: the exception is a BaseException
    content = with_normalizer(folder, replacing({"Regex": "(a+)+$"}, "x"))
    tokenizer = TextTokenizer(write_tokenizer(tmp_path, content), 32)
    for run in (tokenizer.encode, lambda t: tokenizer.golden(t[0]), lambda t: tokenizer.windows([(t[0], "b")], 1)):
        with pytest.raises(InputError, match="cannot encode"):
            run(["a" * 40 + "b"])
    for kind in (KeyboardInterrupt, SystemExit):
        with pytest.raises(kind), library_errors("tokenizer.json", "cannot encode"):
            raise kind


def test_a_template_that_names_no_special_token_is_refused_without_a_panic(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for frame in ("single", "pair"):
        content = json.loads((folder / "tokenizer.json").read_text())
        content["post_processor"][frame][-1] = {"SpecialToken": {"id": "{0}", "type_id": 0}}
        with pytest.raises(InputError, match=r"its template names '\{0\}', which is not among its special tokens"):
            TextTokenizer(write_tokenizer(tmp_path, content), 32)
    assert "panicked" not in capfd.readouterr().err


def test_missing_broken_and_large_files_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 leaves no room for text next to 3 special tokens"):
        TextTokenizer(folder, 3)
    with pytest.raises(InputError, match="file not found"):
        TextTokenizer(tmp_path, 16)
    write_tokenizer(tmp_path, {"model": 3})
    with pytest.raises(InputError, match="not a tokenizer"):
        TextTokenizer(tmp_path, 16)
    with (tmp_path / "tokenizer.json").open("r+b") as stream:
        stream.truncate(40 << 20)
    with pytest.raises(InputError, match="larger than 32 MiB"):
        TextTokenizer(tmp_path, 32)
