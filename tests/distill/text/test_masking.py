"""Which tokens are hidden and what is read in their place, for every kind of masking."""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.errors import InputError
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.masking import Masked, MaskingScheme, _draw_spans, masking_of

Ids = NDArray[np.int64]
PAD, UNK, CLS, SEP, MASK = SPECIAL = tuple(range(5))
V = 60
CONTINUES = np.arange(V) >= 40
"""Tokens from 40 on continue a word."""
NONE, FREQUENCY, DYNAMIC, WORDS, SPANS, NGRAMS, SIMILAR = (
    MaskingKind(k) for k in ("none", "frequency", "dynamic", "whole-word", "span", "ngram", "similar")
)
BY_WORD = (WORDS, SPANS, NGRAMS, SIMILAR)
BY_ROW = (DYNAMIC, *BY_WORD)
BODY = st.lists(st.sampled_from([UNK, *range(5, V)]), min_size=1, max_size=40)
SHARE = st.sampled_from([0.15, 0.5, 1.0])


@dataclass
class Spelling:
    """What masking asks of a tokenizer: as WordPiece spells tokens, or without marks."""

    mask_id: int | None = MASK
    marks: bool = True
    special_ids = (PAD, CLS, SEP, MASK)

    def token(self, id: int) -> str:
        if id == UNK:
            return "[UNK]"
        return f"##{id}" if self.marks and CONTINUES[id] else f"w{id}"


class Next:
    """The word whose first token is the next one; nothing is known of words of two tokens that begin with an even number."""

    name = "next"

    def of(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [] if len(word) == 2 and word[0] % 2 == 0 else [(word[0] + 1, *word[1:])]

    def key(self) -> list[str]:
        return [self.name]


def scheme(kind: MaskingKind, tokenizer: Spelling | None = None, **changes: Any) -> MaskingScheme:
    told = {"counts": np.ones(V, np.int64), "seed": 3, "purpose": "distill.0", "similar": Next(), **changes}
    return masking_of(kind, tokenizer=cast(TextTokenizer, tokenizer or Spelling()), **told)


def padded(bodies: list[list[int]], width: int, left: bool = False) -> tuple[Ids, Ids]:
    """Rows in the tokens of one text, and where these are."""
    ids, mask = np.full((len(bodies), width), PAD), np.zeros((len(bodies), width), np.int64)
    for i, body in enumerate(bodies):
        where = slice(width - len(body) - 2, width) if left else slice(0, len(body) + 2)
        ids[i, where], mask[i, where] = [CLS, *body, SEP], 1
    return ids, mask


def per_row(masked: Masked, mask: Ids) -> list[tuple[list[int], list[int]]]:
    return [
        (i[m == 1].tolist(), t[m == 1].tolist()) for i, t, m in zip(masked.input_ids, masked.labels, mask, strict=True)
    ]


def apply(masking: MaskingScheme, body: list[int], rows: int = 1, step: int = 0) -> tuple[Ids, Ids, Ids]:
    """The same row under several numbers: what it was, what is read, what is hidden."""
    ids, mask = padded([body] * rows, len(body) + 2)
    out = masking.apply(ids, mask, range(rows), step)
    return ids, out.input_ids, out.labels != IGNORED_LABEL


def words_of(body: list[int]) -> list[set[int]]:
    """Places of the pieces of each word behind [CLS]; by the definition, not as the code does it."""
    out: list[set[int]] = []
    for place, token in enumerate(body, 1):
        if token in SPECIAL:
            out.append(set())
        elif token >= 40 and out and out[-1]:
            out[-1].add(place)
        else:
            out.append({place})
    return [word for word in out if word]


def count_by_hand(body: list[int], share: float) -> int:
    return max(1, round(round(share * (len(body) + 2), 9)))  # as BERT's code rounds


@pytest.mark.parametrize("kind", [FREQUENCY, *BY_ROW])
@settings(max_examples=25)
@given(st.lists(BODY, min_size=1, max_size=6), st.integers(0, 99), st.randoms(use_true_random=False))
def test_neither_order_padding_nor_division_changes_what_is_hidden(kind, bodies, step, random):
    masking, numbers = scheme(kind), list(range(100, 100 + len(bodies)))
    ids, mask = padded(bodies, 42)
    before = ids.copy()
    plain = per_row(masking.apply(ids, mask, numbers, step), mask)
    assert (ids == before).all()
    order = list(range(len(bodies)))
    random.shuffle(order)
    ids, mask = padded([bodies[i] for i in order], 50, left=True)
    assert [plain[i] for i in order] == per_row(masking.apply(ids, mask, [numbers[i] for i in order], step), mask)
    if kind is FREQUENCY:
        return  # it decides over the whole batch
    for body, number, expected in zip(bodies, numbers, plain, strict=True):
        ids, mask = padded([body], len(body) + 2)
        assert per_row(masking.apply(ids, mask, [number], step), mask) == [expected]


@pytest.mark.parametrize("kind", [FREQUENCY, *BY_ROW])
@settings(max_examples=25)
@given(BODY, st.integers(0, 99), SHARE)
def test_what_is_not_hidden_stays_and_special_tokens_are_never_hidden(kind, body, step, share):
    ids, mask = padded([body], 45)
    out = scheme(kind, share=share).apply(ids, mask, [0], step)
    chosen = out.labels != IGNORED_LABEL
    assert not np.isin(ids[chosen], SPECIAL).any()
    assert (out.labels[chosen] == ids[chosen]).all()
    assert (out.input_ids[~chosen] == ids[~chosen]).all()
    assert chosen.any() == bool(words_of(body))


@settings(max_examples=25)
@given(BODY, st.integers(0, 99), SHARE)
def test_of_single_tokens_the_share_is_hidden(body, step, share):
    possible = sum(token not in SPECIAL for token in body)
    hidden = {k: int(apply(scheme(k, share=share), body, step=step)[2].sum()) for k in (DYNAMIC, FREQUENCY)}
    assert hidden[DYNAMIC] == min(count_by_hand(body, share), possible)
    assert hidden[FREQUENCY] == min(math.ceil(Fraction(str(share)) * (len(body) + 2)), possible)


@settings(max_examples=50)
@given(st.integers(0, 100_000))
def test_of_a_batch_the_number_is_the_exact_ceiling(tokens):
    assert scheme(FREQUENCY).estimate(np.array([tokens])) == math.ceil(Fraction(15, 100) * tokens)


@pytest.mark.parametrize("kind", BY_WORD)
@settings(max_examples=25)
@given(BODY, st.integers(0, 99), SHARE)
def test_words_are_hidden_whole_and_no_more_than_the_share(kind, body, step, share):
    found = {*np.flatnonzero(apply(scheme(kind, share=share), body, step=step)[2]).tolist()}
    words = words_of(body)
    assert all(found.issuperset(word) or found.isdisjoint(word) for word in words)
    if not words:
        return
    wanted = max(count_by_hand(body, share), min(map(len, words)))  # where no word fits, the shortest is hidden
    left = wanted - len(found)
    assert left >= 0
    assert all(len(word) > left for word in words if found.isdisjoint(word)), "another word would have fitted"


@pytest.mark.parametrize("kind", [FREQUENCY, *BY_ROW])
@pytest.mark.parametrize("change", [{"seed": 4}, {"purpose": "distill.1"}, {"step": 8}, {"first": 1000}])
def test_seed_purpose_step_and_row_each_change_the_masks(kind, change):
    ids, mask = padded([np.random.default_rng(0).integers(5, V, 200).tolist()], 202)
    settings = {k: v for k, v in change.items() if k in ("seed", "purpose")}
    plain, again = (scheme(kind).apply(ids, mask, [0], 7) for _ in range(2))
    other = scheme(kind, **settings).apply(ids, mask, [change.get("first", 0)], change.get("step", 7))
    assert (plain.labels == again.labels).all()
    assert (plain.input_ids == again.input_ids).all()
    assert (plain.labels != other.labels).any()


@pytest.mark.parametrize("kind", [FREQUENCY, DYNAMIC, WORDS, SPANS, NGRAMS])
def test_eighty_ten_ten(kind):
    rows = np.random.default_rng(1).integers(5, 40, (40, 300))
    outs = [scheme(kind).apply(rows, np.ones_like(rows), range(40), step) for step in range(10)]
    read = np.concatenate([o.input_ids[o.labels != IGNORED_LABEL] for o in outs])
    gold = np.concatenate([o.labels[o.labels != IGNORED_LABEL] for o in outs])
    stranger = (read != MASK) & (read != gold)
    share = 0.1 / V  # a random token is the mask or the original once in V times each
    # tokens of a span share their fate: n of them are worth n * E[L] / E[L^2] = n / 5.6 independent ones
    n = len(read) / (6 if kind is SPANS else 1)
    for found, wanted in (
        ((read == MASK).mean(), 0.8 + share),
        ((read == gold).mean(), 0.1 + share),
        (stranger.mean(), 0.1 - 2 * share),
    ):
        assert found == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / n))
    assert set(np.unique(read[stranger])) | {MASK} == set(range(V)), "random tokens are of the whole vocabulary"
    often = np.bincount(read[stranger], minlength=V)
    expected = stranger.sum() / V
    assert kind is SPANS or abs(often - expected)[40:].max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("kind", [FREQUENCY, *BY_ROW])
def test_each_token_is_hidden_as_often(kind):
    body, rows = list(range(5, 25)), 1500
    masking = scheme(kind, share=0.06)  # of 22 tokens one, wherever it is
    labels = np.stack([apply(masking, body, step=step)[2][0] for step in range(rows)])
    p = labels.sum() / rows / 20
    assert p == pytest.approx((2 if kind is FREQUENCY else 1) / 20)
    assert labels[:, [0, 21]].sum() == 0
    assert np.abs(labels[:, 1:21].mean(0) - p).max() < 4.5 * math.sqrt(p * (1 - p) / rows)


@pytest.mark.parametrize("kind", [FREQUENCY, *BY_ROW])
def test_an_estimate_is_what_single_pieces_make_exact(kind):
    ids, mask = padded([[5] * n for n in (1, 7, 30)], 32)
    masking = scheme(kind)
    assert masking.estimate(mask.sum(1)) == (masking.apply(ids, mask, range(3), 0).labels != IGNORED_LABEL).sum()


def test_none_hides_nothing():
    before, read, hidden = apply(scheme(NONE), [5, 6, 7])
    assert (read == before).all()
    assert read is not before
    assert not hidden.any()
    assert scheme(NONE).estimate(np.array([5])) == 0


def test_keys_tell_maskings_apart():
    class Others(Next):
        name = "others"

    changes = [{"seed": 4}, {"share": 0.2}, {"purpose": "distill.1"}]
    every = [
        *(scheme(kind) for kind in MaskingKind),
        *(scheme(kind, **change) for kind in (FREQUENCY, DYNAMIC) for change in changes),
        scheme(FREQUENCY, smoothing=0.5),
        scheme(FREQUENCY, counts=np.arange(V)),
        scheme(SIMILAR, similar=Others()),
        scheme(WORDS, Spelling(mask_id=5)),
    ]
    keys = {str(m.key()) for m in every}
    assert len(keys) == len(every)
    assert str(scheme(DYNAMIC).key()) in keys


@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_rare_tokens_are_drawn_as_often_as_their_frequency_says(smoothing):
    counts = np.ones(V, np.int64)
    tokens = [10, 11, 12, 13]
    counts[tokens] = [0, 20, 500, 10_000]
    masking = scheme(FREQUENCY, counts=counts, smoothing=smoothing, share=0.3)  # ceil(0.3 * 6): two of the four
    weights = {t: max(int(counts[t]), 1) ** -smoothing for t in tokens}
    exact = dict.fromkeys(tokens, 0.0)
    for first, second in permutations(tokens, 2):
        whole = sum(weights.values())
        chance = weights[first] / whole * weights[second] / (whole - weights[first])
        exact[first] += chance
        exact[second] += chance
    steps = 3000
    found = np.mean([apply(masking, tokens, step=step)[2][0, 1:5] for step in range(steps)], axis=0)
    for share, p in zip(found, exact.values(), strict=True):
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / steps) + 1e-9)


# --- spans and runs of words ---


def test_a_span_shares_its_fate():
    body = np.random.default_rng(2).integers(5, 40, 400).tolist()
    before, read, hidden = apply(scheme(SPANS, share=0.02), body, rows=200)  # few spans, far apart
    kinds = set()
    for row in range(200):
        places = np.flatnonzero(hidden[row])
        run = max(np.split(places, np.flatnonzero(np.diff(places) > 1) + 1), key=len)
        if 2 < len(run) < len(places):
            masks = (read[row, run] == MASK).sum()
            same = (read[row, run] == before[row, run]).sum()
            kinds.add("mask" if masks == len(run) else "same" if same == len(run) else "random")
            assert masks == len(run) or masks <= 2, "a random token may be the mask"
    assert kinds == {"mask", "same", "random"}


@pytest.mark.parametrize(
    ("chances", "published"),
    [((), 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)), ((np.array([0.4, 0.3, 0.2, 0.1]),), [0.4, 0.3, 0.2, 0.1])],
)
def test_spans_have_the_published_lengths_and_do_not_overlap(chances, published):
    """The first span is as long as it was drawn unless the row ends; from outside nobody sees which was the first."""
    words, draws, found = 200, 1500, np.zeros(len(published))
    firsts = np.arange(words)
    for seed in range(draws):
        noise = np.random.default_rng(seed).random((words, 2))
        spans = _draw_spans(firsts, firsts + 1, 30, noise, *chances)
        covered = [w for first, end in spans for w in range(first, end)]
        assert len(covered) == len(set(covered)) == 30
        if spans[0][0] < words - 10:
            found[spans[0][1] - spans[0][0] - 1] += 1
    p = np.array(published)
    assert (np.abs(found / found.sum() - p) < 4 * np.sqrt(p * (1 - p) / found.sum())).all()


# --- similar words ---


def replaced(body: list[int]) -> tuple[Ids, Ids, Ids]:
    before, read, hidden = apply(scheme(SIMILAR, share=0.5), body)
    return before[0], read[0], hidden[0]


def test_four_of_five_hidden_words_become_a_similar_one_and_none_the_mask_token():
    body = np.random.default_rng(1).choice([*range(5, 40, 2), *range(41, 59, 2)], 3000).tolist()
    before, read, hidden = replaced(body)
    starts = np.flatnonzero(hidden & ~CONTINUES[before])
    whole = [i for i in starts if not CONTINUES[before[i + 1]]]
    kinds = read[whole] - before[whole]
    assert np.mean(kinds == 1) == pytest.approx(0.8 + 0.1 / V, abs=0.03)
    assert np.mean(kinds == 0) == pytest.approx(0.1 + 0.1 / V, abs=0.03)
    assert (read[hidden] == MASK).mean() < 0.03, "only as a random token"


def test_a_word_without_a_similar_one_becomes_as_many_random_tokens():
    for word, similar in (([6, 40], None), ([7, 40], [8, 40])):
        _, read, hidden = replaced(word * 1500)
        pairs = read[1:-1].reshape(-1, 2)[hidden[1:-1].reshape(-1, 2)[:, 0]]
        kept = (pairs == word).all(1)
        assert kept.mean() == pytest.approx(0.1, abs=0.03)
        if similar is None:
            assert len(np.unique(pairs[~kept][:, 0])) > V * 0.9
        else:
            assert (pairs == similar).all(1).mean() == pytest.approx(0.8, abs=0.03)


# --- what a tokenizer must have ---


@pytest.mark.parametrize("kind", MaskingKind)
def test_without_a_mask_token_or_beginnings_of_words_it_is_refused(kind):
    bare = Spelling(mask_id=None, marks=False)
    if kind is NONE:
        assert scheme(kind, bare).key() == ["none"]
        return
    with pytest.raises(InputError) as error:
        scheme(kind, bare)
    said = str(error.value)
    # similar words take the place of the mask token
    missing = "vocabulary does not tell" if kind is SIMILAR else "tokenizer has no mask token"
    assert said.startswith(f"distill.0.masking: {kind}, and the {missing}")
    assert ("where words begin" in said) == (kind in BY_WORD)
    if kind in BY_WORD:
        with pytest.raises(InputError, match=f"{kind}, and the vocabulary does not tell"):
            scheme(kind, Spelling(marks=False))
    else:
        scheme(kind, Spelling(marks=False))
    if kind is SIMILAR:
        scheme(kind, Spelling(mask_id=None))
