"""XLM's tokenizer.json against the original in Python, on awkward texts; every difference is listed here."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, SENTENCES, UNICODE_SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.families.table import checkpoint_code
from pocketbert.core.models.checkpoints import save_tokenizer
from pocketbert.core.models.tokenizers import cut_pairs_as_tokenizer_json
from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny_texts import vocabulary
from support.tiny_word_bpe import write_xlm_files


def tokenizer_json(folder: Path) -> str:
    convert = checkpoint_code(find_family("xlm")).tokenizer_json
    assert convert is not None
    return convert(folder)


AWKWARD = (
    "Mr. Smith went to the U.S. today. He said 'hello'.",
    "rock'n'roll isn't 5's or 5'a dogs' ",
    "A,B,C 5,300, and 1,2.",
    "etc. and so on. No. 5 is here. No. Never!",
    "Wait... what?? (see fig. 3).",
    '"quoted," he said. "End".',
    "tab\tnew\nline",
    "a—b – c ‚d‘ „e“",
    "Café ÀÉÎ Ünïcödé ß",
    "北京。上海，你好！１２３",
    "오늘 날씨가 어때요?",
    "हिन्दी भाषा",
    "ไทย ภาษา",
    "👩‍👩‍👧 emoji ☕",
    "3.14. 1.5. v. vs. i.e. e.g. ok",
    "it's. 'end.'",
    "«bonjour» 10 %",
    "x_y@z.com http://a.b/c?d=e&f",
    "- -- --- a-b",
    "...",
    "'",
    "','",
    "a ' b",
    "don`t ``x''",
    "Nº 5 № ½ ²",
    "שלום עולם مرحبا بالعالم",
    "<special1> is it </s>",
    "END. Next end.Next one I. II. iv. A. b.",
    "lamplamp songs tune album zzzz",
)
DIFFERENT = {
    "cafe\u0301s": "Moses splits at an accent that is a character of its own, here it is removed first",
    "ΣΑΣ": "Python writes the last sigma of a word as ς, the tokenizers library as σ",
    "5\u00a0000": "Moses joins digits around a no-break space with a period",
    '"quoted",,,, then': "Moses moves a quotation mark behind all commas that follow it, here behind one",
    "\u1e9e\u0560x": "sacremoses knows the letters of an older Unicode",
}


def write(folder: Path, lower: bool) -> Path:
    """Files of XLM with a vocabulary in which every character of the texts has a token, so that differences show."""
    write_xlm_files(folder, vocabulary())
    texts = [*SENTENCES, *ASCII_SENTENCES, *UNICODE_SENTENCES, *AWKWARD, *DIFFERENT]
    ids = json.loads((folder / "vocab.json").read_text())
    for letter in sorted(
        {c for t in texts for c in unicodedata.normalize("NFD", t.lower()) + t + "\"ς.-!:'?" if c != " "}
    ):
        for token in (letter, f"{letter}</w>"):
            ids.setdefault(token, len(ids))
    (folder / "vocab.json").write_text(json.dumps(ids))
    settings = {"tokenizer_class": "XLMTokenizer", "do_lowercase_and_remove_accent": lower}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "xlm", "pad_token_id": 2}))
    return folder


@pytest.mark.parametrize("lower", [True, False])
def test_ids_are_those_of_the_original(lower: bool, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    from transformers import XLMTokenizer

    theirs = XLMTokenizer.from_pretrained(write(tmp_path, lower))
    ours = Tokenizer.from_str(tokenizer_json(tmp_path))
    for text in (*SENTENCES, *ASCII_SENTENCES, *UNICODE_SENTENCES, *AWKWARD):
        assert ours.encode(text).tokens == theirs.convert_ids_to_tokens(theirs(text)["input_ids"]), text
    pair = ("bright lamp.", "old song")
    assert ours.encode(*pair).ids == theirs(*pair)["input_ids"]
    if lower:
        same = [t for t in DIFFERENT if ours.encode(t).ids == theirs(t)["input_ids"]]
        assert not same, "no difference any more: take it off the list"


def test_a_word_that_is_merged_and_not_in_the_vocabulary_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, lower=True)
    with (tmp_path / "merges.txt").open("a") as file:
        file.write("z z 17\nzz z 3\n")
    ours = Tokenizer.from_str(tokenizer_json(tmp_path))
    assert ours.encode("zzzq").ids[1:-1] == [3, ours.token_to_id("q</w>")]


def test_a_folder_as_the_authors_ship_it_is_saved_with_tokenizer_json(tmp_path: Path) -> None:
    source, destination = write(tmp_path / "shipped", lower=True), tmp_path / "saved"
    destination.mkdir()
    save_tokenizer(source, 40, destination, find_family("xlm"))
    made = TextTokenizer(destination, 40, pad_id=2)
    assert made.mask_token == "<special1>"
    assert made.encode(["bright lamp"])[0].ids.tolist() == [0, *made.encode(["bright lamp"])[0].ids.tolist()[1:-1], 1]


def test_files_that_are_missing_and_words_that_others_find_are_refused(tmp_path: Path) -> None:
    write(tmp_path, lower=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm", "lang2id": {"zh": 0, "ja": 1}}))
    with pytest.raises(InputError, match=r"its languages are zh, ja, .*XLMTokenizer.tokenize"):
        tokenizer_json(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(InputError, match=r"neither tokenizer.json nor merges.txt"):
        tokenizer_json(tmp_path)
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(InputError, match="no vocabulary of XLM: <s>, </s>, <pad>, <unk> missing"):
        tokenizer_json(tmp_path)


@pytest.mark.parametrize("side", ["right", "left"])
def test_pairs_of_all_lengths_are_cut_as_by_tokenizer_json(side: str, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    from transformers import XLMTokenizer

    theirs = XLMTokenizer.from_pretrained(write(tmp_path, lower=True), truncation_side=side)
    ours = Tokenizer.from_str(tokenizer_json(tmp_path))
    ours.enable_truncation(12, direction=side)  # 9 tokens and 3 special ones
    pairs = [("a " * first, "b " * second) for first in range(1, 12) for second in range(1, 12)]

    def differ() -> list[tuple[int, int]]:
        inputs = {p: theirs(*p, truncation=True, max_length=12)["input_ids"] for p in pairs}
        return [(len(p[0]) // 2, len(p[1]) // 2) for p in pairs if ours.encode(*p).ids != inputs[p]]

    assert set(differ()) == {(first, second) for first in range(5, 12) for second in range(first, 12)}
    for _ in range(2):  # a second time changes nothing
        cut_pairs_as_tokenizer_json(theirs)
    assert differ() == []
