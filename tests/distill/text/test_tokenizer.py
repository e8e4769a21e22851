"""What is read from a tokenizer's files: words, special tokens, a digest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pocketbert.core.errors import InputError
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.text.tokenizer import (
    CorpusTokenizer,
    continues_word,
    tokenizer_digest,
    word_starts,
    wordless_ids,
)

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


def save(folder: Path, model: Any, before: Any, special: Sequence[str], normalizer: Any = None) -> TextTokenizer:
    made = Tokenizer(model)
    made.pre_tokenizer = before
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_special_tokens(list(special))
    made.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder, 64)


def save_wordpiece(folder: Path) -> TextTokenizer:
    tokens = ["[PAD]", "[UNK]", "[MASK]", "un", "##believ", "##able", "!", "we", "喜", "欢", "我", "##"]
    model = models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]")
    # the unknown token is not declared special
    return save(folder, model, pre_tokenizers.BertPreTokenizer(), ["[PAD]", "[MASK]"], normalizers.BertNormalizer())


def save_byte_level(folder: Path) -> TextTokenizer:
    merges = [("u", "n"), ("Ġ", "w"), ("Ġw", "e"), ("a", "b"), ("l", "e"), ("ab", "le")]
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    model = models.BPE({t: i for i, t in enumerate(tokens)}, merges)
    return save(folder, model, pre_tokenizers.ByteLevel(add_prefix_space=False), SPECIAL)


def save_sentencepiece(folder: Path) -> TextTokenizer:
    pieces = [*SPECIAL, "▁", "▁we", "▁un", "able", "!", "我", "喜欢", "。", "カ"]
    model = models.Unigram([(p, -1.0) for p in pieces], unk_id=1)
    return save(folder, model, pre_tokenizers.Metaspace(), SPECIAL)


@pytest.mark.parametrize(
    ("make", "text", "expected"),
    [
        (save_wordpiece, "unbelievable! we", ["un+##believ+##able", "!", "we"]),
        (save_wordpiece, "我喜欢 we", ["我", "喜", "欢", "we"]),
        (save_byte_level, "unable we, we", ["un+able", "Ġwe+,", "Ġwe"]),
        (save_byte_level, "we\nun", ["w+e", "Ċ+un"]),
        (save_sentencepiece, "we unable!", ["▁we", "▁un+able+!"]),
        (save_sentencepiece, "我喜欢。カ", ["▁", "我", "喜欢+。", "カ"]),
    ],
)
def test_words(tmp_path, make, text, expected):
    tokenizer = make(tmp_path)
    size, ids = tokenizer.vocabulary_size, tokenizer.encode([text])[0].ids
    continues, wordless = continues_word(tokenizer, size), wordless_ids(tokenizer, size)
    assert continues is not None
    assert {"[UNK]", "<unk>"} & {tokenizer.token(i) for i in wordless}
    assert {*tokenizer.special_ids} <= {*wordless}
    words: list[str] = []
    for id, begins in zip(ids, word_starts(continues[ids], np.isin(ids, wordless)), strict=True):
        if begins:
            words.append(tokenizer.token(int(id)))
        else:
            words[-1] += "+" + tokenizer.token(int(id))
    assert words == expected


def test_a_vocabulary_without_marks_does_not_tell_where_words_begin(tmp_path):
    model = models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    assert continues_word(save(tmp_path, model, pre_tokenizers.Whitespace(), ["[UNK]"]), 2) is None


def test_tokenizers_that_cannot_make_rows_are_refused(tmp_path):
    with pytest.raises(InputError, match="file not found"):
        CorpusTokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    for content, message in (("[]", "no section 'model'"), ('{"model": {}}', "not a tokenizer")):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            CorpusTokenizer(tmp_path)
    Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(path))
    with pytest.raises(InputError, match="no special token after a text"):
        CorpusTokenizer(path)


def test_padding_and_truncation_are_no_part_of_the_digest(tmp_path, make_tokenizer):
    digests = {}
    for name, more in {"baked": {}, "plain": {"baked_in": False}, "other": {"pad_id": 1}}.items():
        (tmp_path / name).mkdir()
        make_tokenizer(tmp_path / name, **more)
        digests[name] = tokenizer_digest(tmp_path / name)
    assert digests["baked"] == digests["plain"] == tokenizer_digest(tmp_path / "plain" / "tokenizer.json")
    assert digests["baked"] != digests["other"]
