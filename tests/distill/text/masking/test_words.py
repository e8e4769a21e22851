from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pocketbert.core.errors import InputError
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.masking import Masking, MaskingScheme, masking_of
from pocketbert.distill.text.tokenizer import continues_word, word_starts, wordless_ids

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


def saved(folder: Path, model: Any, before: Any, special: Sequence[str] = SPECIAL) -> TextTokenizer:
    made = Tokenizer(model)
    made.pre_tokenizer = before
    made.add_special_tokens(list(special))
    made.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder, 64)


def wordpiece(folder: Path) -> TextTokenizer:
    tokens = ["[PAD]", "[UNK]", "[MASK]", "un", "##believ", "##able", "!", "we", "喜", "欢", "我", "##"]
    model = models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]")
    special = ["[PAD]", "[MASK]"]  # the unknown token is not declared special
    tokenizer = saved(folder, model, pre_tokenizers.BertPreTokenizer(), special)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.normalizer = normalizers.BertNormalizer()
    made.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder, tokenizer.max_length)


def byte_level(folder: Path) -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("u", "n"), ("Ġ", "w"), ("Ġw", "e"), ("a", "b"), ("l", "e"), ("ab", "le")]
    tokens = [*SPECIAL, *alphabet, *(a + b for a, b in merges)]
    model = models.BPE({t: i for i, t in enumerate(tokens)}, merges)
    return saved(folder, model, pre_tokenizers.ByteLevel(add_prefix_space=False))


def sentencepiece(folder: Path) -> TextTokenizer:
    pieces = [*SPECIAL, "▁", "▁we", "▁un", "able", "!", "我", "喜欢", "。", "カ"]
    model = models.Unigram([(p, -1.0) for p in pieces], unk_id=1)
    return saved(folder, model, pre_tokenizers.Metaspace())


def words(tokenizer: TextTokenizer, text: str) -> list[str]:
    """The tokens of a text, those of one word joined."""
    ids = tokenizer.encode([text])[0].ids
    size = tokenizer.vocabulary_size
    continues = continues_word(tokenizer, size)
    assert continues is not None
    apart = np.isin(ids, wordless_ids(tokenizer, size))
    out: list[str] = []
    for id, begins in zip(ids, word_starts(continues[ids], apart), strict=True):
        if begins:
            out.append("")
        out[-1] += ("+" if out[-1] else "") + tokenizer.token(int(id))
    return out


@pytest.mark.parametrize(
    ("make", "text", "expected"),
    [
        (wordpiece, "unbelievable! we", ["un+##believ+##able", "!", "we"]),
        (wordpiece, "我喜欢 we", ["我", "喜", "欢", "we"]),
        (byte_level, "unable we, we", ["un+able", "Ġwe+,", "Ġwe"]),
        (byte_level, "we\nun", ["w+e", "Ċ+un"]),
        (sentencepiece, "we unable!", ["▁we", "▁un+able+!"]),
        (sentencepiece, "我喜欢。カ", ["▁", "我", "喜欢+。", "カ"]),
    ],
)
def test_words(tmp_path: Path, make: Callable[[Path], TextTokenizer], text: str, expected: list[str]) -> None:
    assert words(make(tmp_path), text) == expected


def test_what_follows_a_special_or_unknown_token_begins_a_word() -> None:
    continues = np.array([False, True, True, False, True])
    apart = np.array([True, False, False, True, False])
    assert word_starts(continues, apart).tolist() == [True, True, False, True, True]
    assert word_starts(continues[:0], apart[:0]).size == 0


class Unheard:
    """Knows no word."""

    def of(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        return []

    def key(self) -> list[str]:
        return []


def masking(tokenizer: TextTokenizer, kind: MaskingKind, share: float = 1.0) -> MaskingScheme:
    counts = np.ones(tokenizer.vocabulary_size, np.int64)
    return masking_of(kind, counts, tokenizer, seed=1, purpose="distill.0", share=share, similar=Unheard())


@pytest.mark.parametrize("kind", MaskingKind)
@pytest.mark.parametrize("make", [wordpiece, byte_level, sentencepiece])
def test_every_kind_hides_words_but_neither_special_nor_unknown_tokens(
    tmp_path: Path, make: Callable[[Path], TextTokenizer], kind: MaskingKind
) -> None:
    tokenizer = make(tmp_path)
    wordless = wordless_ids(tokenizer, tokenizer.vocabulary_size)
    assert {"[UNK]", "<unk>"} & {tokenizer.token(i) for i in wordless}
    ids = np.array([[*wordless, *tokenizer.encode(["we unable"])[0].ids]])
    labels = masking(tokenizer, kind).apply(ids, np.ones_like(ids), [0], 0).labels[0]
    assert (labels[: len(wordless)] == IGNORED_LABEL).all()
    hidden = 0 if kind is MaskingKind.NONE else int((~np.isin(ids, wordless)).sum())
    assert (labels != IGNORED_LABEL).sum() == hidden


def test_frequency_is_what_it_was(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    assert tokenizer.mask_id is not None
    counts = np.arange(tokenizer.vocabulary_size)
    made = masking_of(MaskingKind.FREQUENCY, counts, tokenizer, 5, "distill.2", 0.3, 0.5)
    by_hand = Masking(counts, tokenizer.mask_id, tokenizer.special_ids, 5, "distill.2", 0.3, 0.5)
    ids = np.random.default_rng(0).integers(0, len(counts), (6, 30))
    one, two = (m.apply(ids, np.ones_like(ids), range(6), 4) for m in (made, by_hand))
    assert (one.input_ids == two.input_ids).all() and (one.labels == two.labels).all()
    assert made.key() == by_hand.key()
    assert made.estimate(np.full(6, 30)) == (one.labels != IGNORED_LABEL).sum()


@pytest.mark.parametrize("kind", MaskingKind)
def test_without_a_mask_token_only_none_is_possible(tmp_path: Path, kind: MaskingKind) -> None:
    model = models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    tokenizer = saved(tmp_path, model, pre_tokenizers.Whitespace(), ["[UNK]"])
    if kind is MaskingKind.NONE:
        assert masking(tokenizer, kind).key() == ["none"]
        return
    with pytest.raises(InputError) as error:
        masking(tokenizer, kind)
    said = str(error.value)
    # similar words take the place of the mask token
    missing = "vocabulary does not tell" if kind is MaskingKind.SIMILAR else "tokenizer has no mask token"
    assert said.startswith(f"distill.0.masking: {kind}, and the {missing}")
    # a vocabulary without marks is named in the same breath
    assert ("where words begin" in said) == (kind not in (MaskingKind.DYNAMIC, MaskingKind.FREQUENCY))


def test_a_vocabulary_without_marks_takes_single_tokens(tmp_path: Path) -> None:
    model = models.WordLevel({"[UNK]": 0, "a": 1, "[MASK]": 2}, unk_token="[UNK]")
    tokenizer = saved(tmp_path, model, pre_tokenizers.Whitespace(), ["[UNK]", "[MASK]"])
    assert continues_word(tokenizer, 3) is None
    masking(tokenizer, MaskingKind.DYNAMIC)
    with pytest.raises(InputError, match="whole-word, and the vocabulary does not tell"):
        masking(tokenizer, MaskingKind.WHOLE_WORD)
