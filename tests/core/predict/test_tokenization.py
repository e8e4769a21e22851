from __future__ import annotations

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
from pocketbert.core.families import family_of, register_family, table
from pocketbert.core.host.system import version_of
from pocketbert.core.models.folder import DEMO_DISTRIBUTION, DEMO_TEACHER, open_model_folder
from pocketbert.core.predict.inputs import Encoded, Places, Text, truncate_row
from pocketbert.core.predict.tokenization import TextTokenizer, strip_padding_and_truncation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(made)
    return made


def test_padding_and_truncation_of_the_file_are_switched_off(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    assert content["padding"] is not None
    assert content["truncation"] is not None
    tokenizer = TextTokenizer(folder, 64)
    short, long = tokenizer.encode(["good", "good " * 50])
    assert len(short) == 3
    assert len(long) == 52


def test_truncation_is_flagged(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, 6)
    rows = tokenizer.encode(["a good film", "a good old film not", ("a good", "film"), ("a good", "film of the day")])
    assert [r.truncated for r in rows] == [False, True, False, True]
    assert [len(r) for r in rows] == [5, 6, 6, 6]
    last = TextTokenizer(folder, 64).encode(["good"])[0].ids[-1]
    assert all(r.ids[-1] == last for r in rows)


def test_the_longest_input_is_not_truncated(folder: Path) -> None:
    [row] = TextTokenizer(folder, 5).encode(["a good film"])
    assert (len(row), row.truncated) == (5, False)


def test_pairs_get_segments(folder: Path) -> None:
    [row] = TextTokenizer(folder, 64).encode([("good film", "bad")])
    assert row.type_ids.tolist() == [0, 0, 0, 0, 1, 1]


def test_many_texts_are_encoded_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pocketbert.core.predict.tokenization._ENCODE_AT_ONCE", 7)
    tokenizer = TextTokenizer(folder, 64)
    texts = list(SENTENCES)
    assert [r.ids.tolist() for r in tokenizer.encode(texts)] == [tokenizer.encode([t])[0].ids.tolist() for t in texts]


@pytest.mark.parametrize("bad", ["half \ud83d", None, 3, ("a", None), ("a", "b", "c")])
def test_what_is_no_text_is_refused_with_its_place(folder: Path, bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pocketbert.core.predict.tokenization._ENCODE_AT_ONCE", 2)
    with pytest.raises(InputError, match=r"text 4: .* is neither Unicode text nor a pair of texts"):
        TextTokenizer(folder, 16).encode(["good", "bad", ("a", "b"), bad])


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(folder: Path, side: str) -> None:
    tokenizer = TextTokenizer(folder, 64, pad_id=9, padding_side=side)
    rows = tokenizer.encode(["good", ("a good", "film")])
    batch = tokenizer.pad(rows)
    assert {v.shape for v in batch.values()} == {(2, 6)}
    assert {str(v.dtype) for v in batch.values()} == {"int64"}
    assert batch["attention_mask"].sum(1).tolist() == [3, 6]
    empty = slice(3, 6) if side == "right" else slice(0, 3)
    assert batch["input_ids"][0, empty].tolist() == [9, 9, 9]
    assert batch["attention_mask"][0, empty].tolist() == [0, 0, 0]
    assert batch["token_type_ids"][1].tolist() == [0, 0, 0, 0, 1, 1]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 4), st.sampled_from(["right", "left"]))
def test_padding_keeps_every_token(folder: Path, lengths: list[int], extra: int, side: str) -> None:
    tokenizer = TextTokenizer(folder, 64, padding_side=side)
    rows = [Encoded(np.arange(1, n + 1), np.ones(n, np.int64), False) for n in lengths]
    batch = tokenizer.pad(rows, max(lengths) + extra)
    for i, row in enumerate(rows):
        real = batch["attention_mask"][i] == 1
        assert batch["input_ids"][i][real].tolist() == row.ids.tolist()
        assert batch["token_type_ids"][i][real].tolist() == row.type_ids.tolist()
        assert batch["input_ids"][i][~real].tolist() == [tokenizer.pad_id] * int((~real).sum())


def test_the_pad_id_is_the_models(tiny_model: Callable[..., Path]) -> None:
    assert TextTokenizer(tiny_model("roberta"), 16).pad_id == 1
    assert TextTokenizer(tiny_model("bert"), 16).pad_id == 0


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


def test_no_room_beside_the_special_tokens(folder: Path) -> None:
    with pytest.raises(InputError, match="3 leaves no room for text next to 3 special tokens"):
        TextTokenizer(folder, 3)


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file not found"):
        TextTokenizer(tmp_path, 16)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(InputError, match="not a tokenizer"):
        TextTokenizer(tmp_path, 16)


def test_the_plain_file_pads_and_cuts_nothing(folder: Path) -> None:
    from tokenizers import Tokenizer

    raw = (folder / "tokenizer.json").read_text()
    plain = Tokenizer.from_str(strip_padding_and_truncation(raw))
    assert plain.padding is None
    assert plain.truncation is None
    assert len(plain.encode("good " * 100).ids) == 102
    assert json.loads(strip_padding_and_truncation(raw))["model"] == json.loads(raw)["model"]


@pytest.mark.skipif(version_of(DEMO_DISTRIBUTION) is None, reason=f"{DEMO_DISTRIBUTION} is not installed")
def test_ids_equal_those_of_transformers() -> None:
    import transformers

    folder = open_model_folder(DEMO_TEACHER).path
    reference = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    texts: list[Text] = [*SENTENCES[:30], *sample_pairs()[:6], "", "x " * 200]
    for max_length in (128, 20):
        for text, row in zip(texts, TextTokenizer(folder, max_length).encode(texts), strict=True):
            parts = text if isinstance(text, tuple) else (text,)
            wanted = reference(*parts, truncation=True, max_length=max_length, padding=False)
            assert row.ids.tolist() == wanted["input_ids"]
            assert row.type_ids.tolist() == wanted["token_type_ids"]


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


def test_a_cut_text_is_what_a_shorter_tokenizer_gives(folder: Path) -> None:
    text = "good day " * 20
    long, short = TextTokenizer(folder, 40).encode([text])[0], TextTokenizer(folder, 16).encode([text])[0]
    assert truncate_row(long, 16).ids.tolist() == short.ids.tolist()
