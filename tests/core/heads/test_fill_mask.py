"""Hidden words: which are hidden, how guesses are scored, and what is answered."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import make_head
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from support.head_rows import check_not_finite_spoils, make_rows, score_outputs

HEAD = make_head(task_of("fill-mask"), Labels(()))
TEXTS = (
    "the fox jumps over the lazy dog",
    "good",
    "she was happy that the weather was good and the day was not bad",
)
OWN_MASK = "the [MASK] jumps over the lazy dog"


def prepare(tokenizer: TextTokenizer, *texts: str) -> Any:
    return HEAD.prepare(make_rows(*((t, None) for t in texts)), tokenizer, "a.txt")


def outputs(prepared: Any, vocabulary: int, sure: float = 20.0) -> list[np.ndarray]:
    """Logits [masked tokens, V] that give the hidden tokens so much more than the others."""
    return [sure * np.eye(vocabulary, dtype=np.float32)[np.maximum(gold, 0)] for gold in prepared.truth]


def test_the_same_words_of_a_text_are_hidden_wherever_it_stands(tokenizer: TextTokenizer) -> None:
    made, again = prepare(tokenizer, *TEXTS), prepare(tokenizer, "bad day", *reversed(TEXTS))
    for one, other in zip(made.encoded, reversed(again.encoded), strict=False):
        assert one.ids.tolist() == other.ids.tolist()
    for text, masked, gold in zip(TEXTS, made.encoded, made.truth, strict=True):
        [original] = tokenizer.encode([text])
        hidden = masked.ids == tokenizer.mask_id
        assert masked.ids[~hidden].tolist() == original.ids[~hidden].tolist()
        assert original.ids[hidden].tolist() == np.asarray(gold).tolist()
        assert hidden.sum() == max(1, round(0.15 * (len(original) - 2)))
        assert not hidden[[0, -1]].any(), "special tokens stay"


def test_a_mask_that_the_text_has_is_nobodys_guess(tokenizer: TextTokenizer) -> None:
    made = prepare(tokenizer, OWN_MASK)
    masked = np.flatnonzero(made.encoded[0].ids == tokenizer.mask_id)
    truth = np.asarray(made.truth[0]).tolist()
    assert masked[0] == 2
    assert truth[0] == IGNORED_LABEL
    assert len(truth) == len(masked) == 2
    [matrix] = outputs(made, tokenizer.vocabulary_size)
    score = score_outputs(HEAD, made, [matrix])
    assert (score.others["top_1"], score.chance) == (1.0, 0.0)
    matrix[0] = np.random.default_rng(0).normal(size=tokenizer.vocabulary_size)
    assert score_outputs(HEAD, made, [matrix]).value == score.value, "nobody knows what stood there"
    none = prepare(tokenizer, "[MASK]", "")
    assert [np.asarray(t).tolist() for t in none.truth] == [[IGNORED_LABEL], []]


def test_chance_is_the_guess_by_frequency(tokenizer: TextTokenizer) -> None:
    made, size = prepare(tokenizer, *TEXTS), tokenizer.vocabulary_size
    score = score_outputs(HEAD, made, outputs(made, size, 60.0))
    assert (score.metric, score.finite, score.rows, score.others) == ("cross_entropy", True, 3, {"top_1": 1.0})
    assert score.value == pytest.approx(0.0, abs=1e-6)
    gold = np.concatenate(made.truth)
    shares = np.bincount(gold, minlength=size) / len(gold)
    assert score.chance == pytest.approx(-sum(p * math.log(p) for p in shares if p))
    by_frequency = [np.tile(np.log(shares + 1e-30), (len(t), 1)).astype(np.float32) for t in made.truth]
    assert score_outputs(HEAD, made, by_frequency).value == pytest.approx(score.chance, rel=1e-5)


@settings(max_examples=25)
@given(st.integers(0, 999))
def test_the_loss_is_the_mean_over_all_masked_tokens(folder: Path, seed: int) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(seed)
    made = prepare(tokenizer, *TEXTS)
    logits = [draw.normal(size=m.shape).astype(np.float32) * 3 for m in outputs(made, tokenizer.vocabulary_size)]
    losses = []
    for matrix, gold in zip(logits, made.truth, strict=True):
        x = matrix.astype(np.float64)
        losses += (np.log(np.exp(x).sum(-1)) - x[np.arange(len(gold)), gold]).tolist()
    assert score_outputs(HEAD, made, logits).value == pytest.approx(np.mean(losses), rel=1e-6)


def test_rows_that_a_file_cuts_are_scored_where_they_are_left(tokenizer: TextTokenizer) -> None:
    made = prepare(tokenizer, TEXTS[2] + " " + TEXTS[0])
    masked = np.flatnonzero(made.encoded[0].ids == tokenizer.mask_id)
    short = made.within(int(masked[0]) + 2)
    left = int((short.encoded[0].ids == tokenizer.mask_id).sum())
    assert 1 <= left < len(masked)
    logits = outputs(made, tokenizer.vocabulary_size, 60.0)[0]
    assert score_outputs(HEAD, short, [logits[:left]]).value == pytest.approx(0, abs=1e-6)
    none = made.within(int(masked[0]) + 1)
    assert HEAD.reduce(0, np.zeros((len(none.encoded[0]), 5), np.float32), none).shape == (0, 2)


def test_answers_are_the_ten_best_words_of_each_mask(tokenizer: TextTokenizer) -> None:
    texts = make_rows(("the [MASK] was [MASK]", None), ("good", None))
    made = HEAD.prepare(texts, tokenizer, "texts", labelled=False)
    size = tokenizer.vocabulary_size
    film, bad, good = (tokenizer.encode([w])[0].ids[1] for w in ("film", "bad", "good"))
    matrix = np.zeros((2, size), np.float32)
    matrix[0, film] = 9
    matrix[1, bad], matrix[1, good] = 8, 9
    filled, nothing = HEAD.answers([matrix, np.zeros((3, size), np.float32)], made)
    assert [g.token for g in filled.places[1][:2]] == ["good", "bad"]
    best = filled.places[0][0]
    assert (best.token, best.text) == ("film", "film")
    assert best.score == pytest.approx(math.exp(9) / (math.exp(9) + size - 1))
    assert [len(place) for place in filled.places] == [10, 10]
    assert nothing.places == ()


def test_a_vocabulary_without_mask_is_refused_and_numbers_that_are_not_finite_spoil_the_score(
    folder: Path, tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("[MASK]", "[HIDE]"))
    with pytest.raises(InputError, match="needs a mask token, the tokenizer has none"):
        prepare(TextTokenizer(tmp_path, 32), *TEXTS)
    made = prepare(tokenizer, *TEXTS)
    check_not_finite_spoils(HEAD, made, outputs(made, tokenizer.vocabulary_size), [(1, 0, 7), (2, 1, 0)])
