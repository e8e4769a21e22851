"""The emulation on cases read out of the real thing (tests/clients/test_mediapipe.py), and who is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TaskName
from pocketbert.export.mediapipe import MediaPipeTokenizer, explain_refusal, read_vocabulary

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b ##b ##a . [ ] mask caf café unk 中 ##中 [unused1] 😀 п ##п".split()
VOCABULARY = "".join(f"{t}\n" for t in TOKENS).encode()

# text → tokens, seen with mediapipe 1.2.2
SEEN = {
    "a b ab abba": "a b a ##b a ##b ##b ##a",
    "A.B": "a . b",
    "[MASK] [UNK] [unused1]": "[ mask ] [ unk ] [ [UNK] ]",
    "Café café cafe\u0301": "café café [UNK]",
    "CAFÉ": "[UNK]",  # É is no ASCII letter and stays
    "a中b 中": "a 中 b 中",
    "😀 a😀 😀.": "😀 [UNK] 😀 .",
    "": "",
    "a\0b": "a",
    "a\vb a\fb a\x01b": "[UNK] a b [UNK]",
    "a\u00a0b\u3000a": "[UNK]",
    "a。b、": "a [UNK] b [UNK]",
    "\U00010ed0a": "[UNK] a",  # a mark of Unicode 17
    "п" * 50 + " " + "п" * 51: "п" + " ##п" * 49 + " [UNK]",
    "a" * 100 + "." + "a" * 101: "a" + " ##a" * 99 + " . [UNK]",
}


@pytest.mark.parametrize("text", SEEN, ids=repr)
def test_the_emulation_cuts_as_mediapipe_was_seen_to(text: str) -> None:
    row = MediaPipeTokenizer(VOCABULARY, 200).encode([text])[0]
    assert [TOKENS[i] for i in row.ids] == ["[CLS]", *SEEN[text].split(), "[SEP]"]
    assert not row.truncated
    assert not row.type_ids.any()


def test_long_texts_keep_their_last_token() -> None:
    tokenizer = MediaPipeTokenizer(VOCABULARY, 5)
    long, short = tokenizer.encode(["a b a b a", "a b a"])
    assert [TOKENS[i] for i in long.ids] == ["[CLS]", "a", "b", "a", "[SEP]"]
    assert (long.truncated, short.truncated) == (True, False)
    assert tokenizer.pad([short], 7)["input_ids"].tolist() == [[2, 5, 6, 5, 3, 0, 0]]


def test_golden_rows_have_offsets_in_the_text() -> None:
    text = "ab ABBA😀!" + "a" * 101 + " 中"
    row = MediaPipeTokenizer(VOCABULARY, 200).golden(text)
    pieces = [text[start:end] for start, end in row["offsets"]]
    assert pieces == ["", "a", "b", "ABBA😀", "!", "a" * 101, "中", ""]
    assert [TOKENS[i] for i in row["ids"]] == "[CLS] a ##b [UNK] [UNK] [UNK] 中 [SEP]".split()


def test_pairs_places_and_broken_text_are_refused() -> None:
    tokenizer = MediaPipeTokenizer(VOCABULARY, 20)
    for bad in (("a", "b"), "\ud800"):
        with pytest.raises(InputError, match="text 2"):
            tokenizer.encode(["a", bad])
    with pytest.raises(InputError, match="place in the text"):
        tokenizer.encode(["a"], places=True)


def test_a_vocabulary_is_read_line_by_line() -> None:
    (row,) = MediaPipeTokenizer(b"[PAD]\r\n\n[UNK]\n[CLS]\n[SEP]\n a\na\n", 20).encode(["a b"])
    assert row.ids.tolist() == [2, 5, 1, 3]  # empty lines have no id, and blanks belong to a token
    with pytest.raises(InputError, match="UTF-8"):
        MediaPipeTokenizer(b"\xff", 20)
    with pytest.raises(InputError, match=r"\[SEP\]"):
        MediaPipeTokenizer(b"[UNK]\n[CLS]\n", 20)


@pytest.fixture
def folder(tmp_path: Path, make_tokenizer: Callable[..., None]) -> Path:
    make_tokenizer(tmp_path)
    return tmp_path


def content(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "tokenizer.json").read_text()))


def test_ascii_gets_the_ids_of_tokenizer_json(folder: Path) -> None:
    ours, theirs = MediaPipeTokenizer(folder, 40), TextTokenizer(folder, 40)
    for a, b in zip(ours.encode(ASCII_SENTENCES), theirs.encode(ASCII_SENTENCES), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.truncated == b.truncated


@pytest.mark.parametrize("task", [TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION])
def test_an_uncased_wordpiece_model_is_taken(folder: Path, task: TaskName) -> None:
    assert explain_refusal(folder, task, pair=False) is None
    assert explain_refusal(content(folder), task, pair=False) is None
    (folder / "vocab.txt").unlink()
    assert explain_refusal(folder, task, pair=False) is None
    assert read_vocabulary(folder).startswith(b"[PAD]\n")


@pytest.mark.parametrize(
    ("task", "more", "said"),
    [
        *((t, {}, t.value) for t in TaskName if t not in ("text-classification", "feature-extraction")),
        (TaskName.TEXT_CLASSIFICATION, {"pair": True}, "pairs"),
        (
            TaskName.TEXT_CLASSIFICATION,
            {"truncation_side": "left"},
            "MediaPipe cuts off the end of a long text, and this model loses its beginning (truncation_side: left).",
        ),
        (
            TaskName.TEXT_CLASSIFICATION,
            {"padding_side": "left"},
            "MediaPipe pads on the right, and this model is padded on the left.",
        ),
    ],
)
def test_other_tasks_pairs_and_sides_are_refused(folder: Path, task: TaskName, more: dict[str, Any], said: str) -> None:
    assert said in str(explain_refusal(folder, task, **{"pair": False, **more}))


def cased(c: dict[str, Any]) -> None:
    c["normalizer"]["lowercase"] = False


def renamed(c: dict[str, Any]) -> None:
    c["model"]["vocab"]["<s>"] = c["model"]["vocab"].pop("[CLS]")


def late_padding(c: dict[str, Any]) -> None:
    vocabulary = c["model"]["vocab"]
    vocabulary["[PAD]"], vocabulary["[UNK]"] = vocabulary["[UNK]"], vocabulary["[PAD]"]


def other_order(c: dict[str, Any]) -> None:
    c["post_processor"]["single"] = c["post_processor"]["single"][::-1]


def gap(c: dict[str, Any]) -> None:
    c["model"]["vocab"]["zebra"] = 10_000


def no_marks(c: dict[str, Any]) -> None:
    c["pre_tokenizer"] = {"type": "WhitespaceSplit"}


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "byte-level": (lambda c: c["model"].update(type="BPE"), "the model's is BPE"),
    "cased": (cased, "upper from lower case"),
    "no normalizer": (lambda c: c.update(normalizer=None), "upper from lower case"),
    "no [CLS]": (renamed, "[CLS]"),
    "other unknown token": (lambda c: c["model"].update(unk_token="<unk>"), "<unk>"),
    "padding": (late_padding, "id 0"),
    "order of special tokens": (other_order, "[SEP] [CLS]"),
    "no special tokens": (lambda c: c.update(post_processor=None), "no special tokens"),
    "word parts": (lambda c: c["model"].update(continuing_subword_prefix="@@"), "'@@'"),
    "holes in the ids": (gap, "are not 0 to"),
    "other words": (no_marks, "otherwise than tokenizer.json"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_other_tokenizers_are_refused(folder: Path, what: str) -> None:
    change, text = CHANGES[what]
    broken = content(folder)
    change(broken)
    reason = explain_refusal(broken, TaskName.TEXT_CLASSIFICATION, pair=False)
    assert reason is not None
    assert reason.startswith("MediaPipe would feed this model wrong ids: ")
    assert text in reason


def test_a_vocab_txt_of_another_model_is_refused(folder: Path) -> None:
    lines = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join([*lines[:5], "", *lines[6:]]) + "\n")
    assert "vocab.txt differs" in str(explain_refusal(folder, TaskName.TEXT_CLASSIFICATION, pair=False))
