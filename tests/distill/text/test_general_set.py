from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.masking import Masking, masking_of
from pocketbert.distill.text.pairs import GeneralSet, pairs_of
from pocketbert.distill.training.data import TrainData

PAD, MASK = 0, 4
TEXTS = [
    "the film was far better than they had expected",
    "stop the music",
    "a quick brown fox jumps over the lazy dog and it is never happy again",
    "what will the weather be like in the morning",
]


@dataclass(frozen=True)
class Rows:
    """A corpus in memory."""

    rows: list[NDArray[np.int64]]
    vocabulary: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(r) for r in self.rows])

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.bincount(np.concatenate(self.rows), minlength=self.vocabulary)

    def ids(self, rows: Sequence[int]) -> list[NDArray[np.int64]]:
        return [self.rows[i] for i in rows]


def corpus_of(tokenizer: TextTokenizer) -> Rows:
    return Rows([e.ids for e in tokenizer.encode(TEXTS)], tokenizer.vocabulary_size)


@pytest.fixture
def tokenizer(tmp_path: Path, make_tokenizer: Callable[..., None]) -> TextTokenizer:
    make_tokenizer(tmp_path)
    return TextTokenizer(tmp_path, 48)


@pytest.fixture
def sided(tmp_path: Path, tokenizer: TextTokenizer) -> Callable[[str], TextTokenizer]:
    """`sided(padding_side)`: the same tokenizer, padding there."""
    return lambda side: TextTokenizer(tmp_path, tokenizer.max_length, padding_side=side)


def set_of(tokenizer: TextTokenizer) -> GeneralSet:
    corpus = corpus_of(tokenizer)
    return GeneralSet(corpus, tokenizer, Masking(corpus.counts, MASK, range(5), 1, "distill.0"))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_the_text_with_hidden_tokens(sided: Callable[[str], TextTokenizer], side: str) -> None:
    tokenizer = sided(side)
    data: TrainData = set_of(tokenizer)
    corpus = corpus_of(tokenizer)
    assert list(data.lengths) == corpus.lengths.tolist()
    rows = [2, 0, 3]
    batch = data.batch(rows, 5)
    assert batch.pop("rows").tolist() == rows
    assert batch.pop("steps").tolist() == [5, 5, 5]
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "labels"}
    assert all(t.dtype == torch.int64 and t.shape == (3, data.lengths[2]) for t in batch.values())
    assert not batch["token_type_ids"].any()
    original = torch.where(batch["labels"] == IGNORED_LABEL, batch["input_ids"], batch["labels"])
    for found, mask, row in zip(original, batch["attention_mask"], rows, strict=True):
        assert found[mask.bool()].tolist() == corpus.rows[row].tolist()
        assert found[~mask.bool()].tolist() == [PAD] * int((mask == 0).sum())
    tokens = int(batch["attention_mask"].sum())
    assert int((batch["labels"] != IGNORED_LABEL).sum()) == -(-tokens * 15 // 100)


def test_a_batch_is_a_function_of_rows_and_step(tokenizer: TextTokenizer) -> None:
    first, second = set_of(tokenizer), set_of(tokenizer)
    second.batch([1], 0)  # what was asked before does not matter
    one, two = first.batch([0, 2], 9), second.batch([0, 2], 9)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["labels"], first.batch([0, 2], 10)["labels"])


class Unheard:
    """Knows no similar word."""

    def of(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        return []

    def key(self) -> list[str]:
        return []


def paired(tokenizer: TextTokenizer, kind: MaskingKind) -> GeneralSet:
    corpus = corpus_of(tokenizer)
    masking = masking_of(kind, corpus.counts, tokenizer, 1, "distill.0", similar=Unheard())
    return GeneralSet(corpus, tokenizer, masking, pairs_of(tokenizer, len(corpus.counts), 1, "distill.0"))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", MaskingKind)
def test_pairs_are_made_before_tokens_are_hidden(
    sided: Callable[[str], TextTokenizer], kind: MaskingKind, side: str
) -> None:
    data, plain = paired(sided(side), kind), paired(sided(side), MaskingKind.NONE)
    rows = [3, 0, 2, 1]
    seen = set()
    for step in range(12):
        batch, text = data.batch(rows, step), plain.batch(rows, step)
        assert set(batch) == {
            "input_ids",
            "attention_mask",
            "token_type_ids",
            "labels",
            "rows",
            "steps",
            "next_sentence_label",
        }
        original = torch.where(batch["labels"] == IGNORED_LABEL, batch["input_ids"], batch["labels"])
        assert torch.equal(original, text["input_ids"])
        for name in ("attention_mask", "token_type_ids", "next_sentence_label"):
            assert torch.equal(batch[name], text[name])
        assert (text["labels"] == IGNORED_LABEL).all()
        assert (kind is MaskingKind.NONE) == bool((batch["labels"] == IGNORED_LABEL).all())
        assert batch["next_sentence_label"].shape == (4,)
        real = batch["attention_mask"] == 1
        assert not batch["token_type_ids"][~real].any()
        assert (real.sum(1) <= torch.tensor([data.lengths[r] for r in rows])).all()
        two = batch["next_sentence_label"] != IGNORED_LABEL
        assert torch.equal((batch["token_type_ids"] == 1).any(1), two)
        seen |= set(batch["next_sentence_label"].tolist())
    assert {0, 1} <= seen


@pytest.mark.parametrize(
    "kind", [MaskingKind.NONE, MaskingKind.DYNAMIC, MaskingKind.WHOLE_WORD, MaskingKind.SPAN, MaskingKind.NGRAM]
)
def test_parts_of_a_paired_batch_are_the_whole(tokenizer: TextTokenizer, kind: MaskingKind) -> None:
    data = paired(tokenizer, kind)
    whole = data.batch([0, 1, 2, 3], 4)
    for row in range(4):
        alone = data.batch([row], 4)
        width = alone["input_ids"].shape[1]
        for name, value in alone.items():
            expected = whole[name][row]
            assert torch.equal(value[0], expected[:width] if expected.ndim else expected), name
        assert not whole["attention_mask"][row, width:].any()


def test_keys_tell_sets_apart(tokenizer: TextTokenizer, sided: Callable[[str], TextTokenizer]) -> None:
    sets = [paired(tokenizer, kind) for kind in MaskingKind]
    sets += [paired(sided("left"), MaskingKind.NONE), set_of(tokenizer)]
    keys = [str(data.key()) for data in sets]
    assert len(set(keys)) == len(keys)
    assert keys[0] == str(paired(tokenizer, MaskingKind.NONE).key())
