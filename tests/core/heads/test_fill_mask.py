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
from pocketbert.core.heads.fill_mask import _GUESSES, _MASKED_SHARE
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.metrics import entropy
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

TASK = task_of("fill-mask")
TEXTS = (
    "the fox jumps over the lazy dog",
    "good",
    "she was happy that the weather was good and the day was not bad",
)


def prepared_of(rows: Any, tokenizer: TextTokenizer, texts: Any = TEXTS) -> tuple[Any, Any]:
    head = make_head(TASK, Labels(()))
    return head, head.prepare(rows(*((t, None) for t in texts)), tokenizer, "a.txt")


def outputs(prepared: Any, vocabulary: int, sure: float = 20.0) -> list[np.ndarray]:
    """Logits [masked tokens, V] that give the hidden tokens so much more than the others."""
    out = []
    for gold in prepared.truth:
        matrix = np.zeros((len(gold), vocabulary), np.float32)
        matrix[np.arange(len(gold)), gold] = sure
        out.append(matrix)
    return out


def test_the_same_words_of_a_text_are_hidden_wherever_it_stands(rows: Any, tokenizer: TextTokenizer) -> None:
    _, made = prepared_of(rows, tokenizer)
    _, again = prepared_of(rows, tokenizer, ("bad day", *reversed(TEXTS)))
    for one, other in zip(made.encoded, reversed(again.encoded), strict=False):
        assert one.ids.tolist() == other.ids.tolist()
    for text, masked, gold in zip(TEXTS, made.encoded, made.truth, strict=True):
        [original] = tokenizer.encode([text])
        hidden = masked.ids == tokenizer.mask_id
        assert masked.ids[~hidden].tolist() == original.ids[~hidden].tolist()
        assert original.ids[hidden].tolist() == np.asarray(gold).tolist()
        assert hidden.sum() == max(1, round(_MASKED_SHARE * (len(original) - 2)))
        assert not hidden[[0, -1]].any(), "special tokens stay"


def test_a_mask_that_the_text_has_is_nobodys_guess(rows: Any, tokenizer: TextTokenizer) -> None:
    _, made = prepared_of(rows, tokenizer, ("the [MASK] jumps over the lazy dog",))
    assert made.encoded[0].ids[2] == tokenizer.mask_id
    assert np.asarray(made.truth[0]).tolist()[0] == IGNORED_LABEL
    assert (np.asarray(made.truth[0]) != IGNORED_LABEL).sum() == 1
    _, none = prepared_of(rows, tokenizer, ("[MASK]", ""))
    assert [np.asarray(t).tolist() for t in none.truth] == [[IGNORED_LABEL], []]


def test_a_text_with_a_mask_of_its_own_is_scored_at_the_hidden_tokens(
    rows: Any, tokenizer: TextTokenizer, scored: Any
) -> None:
    head, made = prepared_of(rows, tokenizer, ("the [MASK] jumps over the lazy dog",))
    masked = np.flatnonzero(made.encoded[0].ids == tokenizer.mask_id)
    [original] = tokenizer.encode(["the [MASK] jumps over the lazy dog"])
    matrix = np.zeros((len(masked), tokenizer.vocabulary_size), np.float32)
    matrix[np.arange(len(masked)), original.ids[masked]] = 20
    score = scored(head, made, [matrix])
    assert (score.others["top_1"], score.chance) == (1.0, 0.0)
    matrix[masked == 2] = np.random.default_rng(0).normal(size=tokenizer.vocabulary_size)
    assert scored(head, made, [matrix]).value == score.value, "nobody knows what stood there"


def test_perfect_outputs_and_guesses_by_frequency(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    head, made = prepared_of(rows, tokenizer)
    size = tokenizer.vocabulary_size
    score = scored(head, made, outputs(made, size, 60.0))
    assert (score.metric, score.finite, score.rows) == ("cross_entropy", True, 3)
    assert score.value == pytest.approx(0.0, abs=1e-6)
    assert score.others == {"top_1": 1.0}
    blind = scored(head, made, [m * 0 for m in outputs(made, size)])
    assert blind.value == pytest.approx(math.log(size), rel=1e-6)
    gold = np.concatenate(made.truth)
    shares = np.bincount(gold, minlength=size) / len(gold)
    assert score.chance == pytest.approx(-sum(p * math.log(p) for p in shares if p))
    by_frequency = [np.tile(np.log(shares + 1e-30), (len(t), 1)).astype(np.float32) for t in made.truth]
    assert scored(head, made, by_frequency).value == pytest.approx(score.chance, rel=1e-5), "what chance means"


def test_entropy_by_hand() -> None:
    assert entropy(np.array([3, 3, 7, 9])) == pytest.approx(1.5 * math.log(2))
    assert entropy(np.array([5, 5])) == 0.0


@settings(max_examples=30)
@given(st.permutations(range(3)), st.integers(0, 999))
def test_every_masked_token_counts_once_in_any_order(
    rows: Any, folder: Any, scored: Any, same: Any, order: list[int], seed: int
) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(seed)
    head, made = prepared_of(rows, tokenizer)
    logits = [draw.normal(size=m.shape).astype(np.float32) * 3 for m in outputs(made, tokenizer.vocabulary_size)]
    losses = []
    for matrix, gold in zip(logits, made.truth, strict=True):
        x = matrix.astype(np.float64)
        losses += (np.log(np.exp(x).sum(-1)) - x[np.arange(len(gold)), gold]).tolist()
    head_2, moved = prepared_of(rows, tokenizer, [TEXTS[i] for i in order])
    first, second = scored(head, made, logits), scored(head_2, moved, [logits[i] for i in order])
    assert first.value == pytest.approx(np.mean(losses), rel=1e-6)
    same(first, second)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_number_that_is_not_finite_spoils_the_score(
    rows: Any, tokenizer: TextTokenizer, scored: Any, broken: float
) -> None:
    head, made = prepared_of(rows, tokenizer)
    logits = outputs(made, tokenizer.vocabulary_size)
    logits[1][0, 7] = broken
    score = scored(head, made, logits)
    assert math.isnan(score.value)
    assert not score.finite


def test_rows_that_a_file_cuts_are_scored_where_they_are_left(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    head, made = prepared_of(rows, tokenizer, (TEXTS[2] + " " + TEXTS[0],))
    masked = np.flatnonzero(made.encoded[0].ids == tokenizer.mask_id)
    assert len(masked) >= 2
    short = made.within(int(masked[0]) + 2)
    left = int((short.encoded[0].ids == tokenizer.mask_id).sum())
    assert 1 <= left < len(masked)
    logits = outputs(made, tokenizer.vocabulary_size, 60.0)[0]
    assert scored(head, short, [logits[:left]]).value == pytest.approx(0, abs=1e-6)
    none = made.within(int(masked[0]) + 1)
    assert head.reduce(0, np.zeros((len(none.encoded[0]), 5), np.float32), none).shape == (0, 2)


def test_answers(rows: Any, tokenizer: TextTokenizer) -> None:
    head = make_head(TASK, Labels(()))
    texts = rows(("the [MASK] was [MASK]", None), ("good", None))
    made = head.prepare(texts, tokenizer, "texts", labelled=False)
    size = tokenizer.vocabulary_size
    ids = [tokenizer.encode([w])[0].ids[1] for w in ("film", "bad", "good")]
    matrix = np.zeros((2, size), np.float32)
    matrix[0, ids[0]] = 9
    matrix[1, ids[1]], matrix[1, ids[2]] = 8, 9
    filled, nothing = head.answers([matrix, np.zeros((3, size), np.float32)], made)
    assert [[g.token for g in place[:2]] for place in filled.places][1] == ["good", "bad"]
    best = filled.places[0][0]
    assert (best.token, best.text) == ("film", "film")
    assert best.score == pytest.approx(math.exp(9) / (math.exp(9) + size - 1))
    assert all(len(place) == _GUESSES for place in filled.places)
    assert nothing.places == ()


def test_a_vocabulary_without_mask_is_refused(rows: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("[MASK]", "[HIDE]"))
    with pytest.raises(InputError, match="needs a mask token, the tokenizer has none"):
        prepared_of(rows, TextTokenizer(tmp_path, 32))
