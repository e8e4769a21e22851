"""SentencePiece tokenizers: the tiny ones of the tests have the special ids of the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.families import family_named
from pocketbert.core.models.tokenizer import check_tokenizer
from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny_sentencepiece import LAYOUTS, write_sentencepiece

PUBLISHED = {
    "XLMRobertaTokenizer": (["<s>", "<pad>", "</s>", "<unk>"], "<s> hello </s></s> you </s>"),
    "AlbertTokenizer": (["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], "[CLS] hello[SEP] you[SEP]"),
    "XLNetTokenizer": (["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"], "hello<sep> you<sep><cls>"),
    "DebertaV2Tokenizer": (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[CLS] hello[SEP] you[SEP]"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_tiny_tokenizer_has_the_special_ids_of_the_published_one(name: str, tmp_path: Path) -> None:
    rows = write_sentencepiece(tmp_path, name, ["lamp", "zzyzx", "[CLS]", "##s"])
    special, pair = PUBLISHED[name]
    made = TextTokenizer(tmp_path, 48, pad_id=0)
    assert [made.token(i) for i in range(len(special))] == special
    assert (made.vocabulary_size, made.largest_id) == (rows, rows - 1)
    assert made.mask_token in special or made.mask_id == rows - 1 or name == "DebertaV2Tokenizer"
    (row,) = made.encode([("hello", "you")])
    pieces = "".join(made.token(int(i)) for i in row.ids).replace("▁", " ").strip()
    assert pieces.replace(" ", "") == pair.replace(" ", "")
    (word,) = made.encode(["zzyzx"])
    assert special.index("[UNK]" if "[UNK]" in special else "<unk>") not in word.ids
    check_tokenizer(tmp_path, {"vocab_size": rows}, family_named("roberta"))
    assert (tmp_path / LAYOUTS[name].file).stat().st_size > 1000


def test_a_folder_as_the_authors_publish_it_has_no_file_of_the_fast_library(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sentencepiece.bpe.model", "tokenizer_config.json"]
