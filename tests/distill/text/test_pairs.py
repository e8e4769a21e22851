from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.core.errors import InputError
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import SecondSegment
from pocketbert.distill.text.pairs import _ELSEWHERE, _FOLLOWS, PairLayout, Pairs, _pair_layout, pairs_of

Ids = NDArray[np.int64]
UNK, CLS, SEP = 1, 2, 3
VOCABULARY = 400
CONTINUES = np.arange(VOCABULARY) >= 390
"""The last ten tokens continue a word."""


def ids(*values: int) -> Ids:
    return np.array(values, np.int64)


BERT = PairLayout(ids(CLS), ids(SEP), ids(SEP), (ids(0), 0, ids(0), 1, ids(1)))
ROBERTA = PairLayout(ids(CLS), ids(SEP, SEP), ids(SEP), (ids(0), 0, ids(0, 0), 0, ids(0)))
XLNET = PairLayout(ids(), ids(SEP), ids(SEP, CLS), (ids(), 0, ids(0), 1, ids(1, 2)))
PAIRS = Pairs(BERT, CONTINUES, (0, UNK, CLS, SEP), seed=3, purpose="distill.0")


@dataclass(frozen=True)
class Rows:
    """A corpus in memory."""

    rows: list[Ids]

    @property
    def lengths(self) -> Ids:
        return np.array([len(r) for r in self.rows])

    @property
    def counts(self) -> Ids:
        return np.bincount(np.concatenate(self.rows), minlength=VOCABULARY)

    def ids(self, rows: Sequence[int] | Ids) -> list[Ids]:
        return [self.rows[i] for i in rows]


def wrapped(body: Sequence[int], layout: PairLayout = BERT) -> Ids:
    return np.concatenate([layout.before, np.array(body, np.int64), layout.after])


def numbered(lengths: Sequence[int], layout: PairLayout = BERT) -> Rows:
    """Rows whose tokens tell which row they are from: row r has 10 + 20 r, 11 + 20 r, ..."""
    return Rows([wrapped(range(10 + 20 * r, 10 + 20 * r + n), layout) for r, n in enumerate(lengths)])


def texts(pair: Encoded, layout: PairLayout = BERT) -> tuple[list[int], list[int]]:
    """Both segments of a pair; checks the frame."""
    body = pair.ids[len(layout.before) : len(pair) - len(layout.after)].tolist()
    middle = layout.between.tolist()
    (cut,) = [i for i in range(len(body)) if body[i : i + len(middle)] == middle]
    first, second = body[:cut], body[cut + len(middle) :]
    assert pair.ids.tolist() == layout.join(np.array(first), np.array(second)).ids.tolist()
    return first, second


BODY = st.lists(st.sampled_from([UNK, *range(380, VOCABULARY)]), min_size=1, max_size=20)


@given(st.lists(BODY, min_size=1, max_size=6), st.integers(0, 99), st.sampled_from([BERT, ROBERTA, XLNET]))
def test_a_pair_is_two_segments_and_no_longer_than_its_row(
    bodies: list[list[int]], step: int, layout: PairLayout
) -> None:
    corpus = Rows([wrapped(body, layout) for body in bodies])
    made = replace(PAIRS, layout=layout).build(corpus, range(len(bodies)), step)
    for row, pair, label, body in zip(corpus.rows, made.encoded, made.labels, bodies, strict=True):
        assert len(pair.type_ids) == len(pair) <= len(row)
        if label == IGNORED_LABEL:
            assert pair.ids.tolist() == row.tolist() and not pair.type_ids.any()
            continue
        first, second = texts(pair, layout)
        assert first and second
        assert body[: len(first)] == first
        # each begins with a word: the end of the first one is not in the middle of one
        behind_unknown = body[len(first) - 1] == UNK
        assert not CONTINUES[body[len(first)]] or behind_unknown
        if label == _FOLLOWS:
            assert body[len(first) : len(first) + len(second)] == second
        before, one, between, two, after = layout.segments
        expected = [*before, *[one] * len(first), *between, *[two] * len(second), *after]
        assert pair.type_ids.tolist() == expected


@given(st.integers(0, 999), st.integers(2, 7))
def test_a_segment_from_elsewhere_is_a_piece_of_another_row_and_no_longer(step: int, count: int) -> None:
    lengths = [15] * (count - 1) + [4]
    corpus = numbered(lengths)
    made = PAIRS.build(corpus, range(count), step)
    for row, (pair, label) in enumerate(zip(made.encoded, made.labels, strict=True)):
        first, second = texts(pair)
        of = {(t - 10) // 20 for t in second}
        assert {(t - 10) // 20 for t in first} == {row}
        assert len(of) == 1 and (of == {row}) == (label == _FOLLOWS)
        assert second == list(range(second[0], second[0] + len(second)))
        assert len(first) + len(second) <= lengths[row] - 1


def test_half_of_the_second_segments_are_from_elsewhere_and_a_tenth_is_short() -> None:
    corpus, rows = numbered([19] * 19), 19
    labels, sizes, others, cuts = [], [], Counter[int](), Counter[int]()
    for step in range(200):
        made = PAIRS.build(corpus, range(rows), step)
        labels += made.labels.tolist()
        for row, pair in enumerate(made.encoded):
            first, second = texts(pair)
            sizes.append(len(first) + len(second))
            if len(pair) == 21:
                cuts[len(first)] += 1
            other = (second[0] - 10) // 20
            if other != row:
                others[(other - row) % rows] += 1
    n = len(labels)
    half = labels.count(_ELSEWHERE) / n
    assert set(labels) == {_FOLLOWS, _ELSEWHERE}
    assert half == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / n))
    # lengths 2 to 18 are drawn of a tenth, the longest of them is not short
    short = 0.1 * 16 / 17
    assert sum(s < 18 for s in sizes) / n == pytest.approx(short, abs=4 * math.sqrt(short / n))
    assert min(sizes) == 2
    # any other row, and any place to cut, is as likely as the next
    assert set(others) == set(range(1, rows))
    drawn = sum(others.values())
    assert max(abs(c / drawn - 1 / 18) for c in others.values()) < 4.5 * math.sqrt(1 / 18 / drawn)
    whole = sum(cuts.values())
    assert set(cuts) == set(range(1, 18))
    assert max(abs(c / whole - 1 / 17) for c in cuts.values()) < 4.5 * math.sqrt(1 / 17 / whole)


@given(st.lists(BODY, min_size=2, max_size=6), st.integers(0, 99), st.randoms(use_true_random=False))
def test_a_pair_depends_on_seed_step_and_row_alone(bodies: list[list[int]], step: int, random: Any) -> None:
    corpus = Rows([wrapped(body) for body in bodies])
    whole = PAIRS.build(corpus, range(len(bodies)), step)
    order = list(range(len(bodies)))
    random.shuffle(order)
    shuffled = PAIRS.build(corpus, order, step)
    for place, row in enumerate(order):
        alone = PAIRS.build(corpus, [row], step)
        for made, i in ((shuffled, place), (alone, 0)):
            assert made.encoded[i].ids.tolist() == whole.encoded[row].ids.tolist()
            assert made.encoded[i].type_ids.tolist() == whole.encoded[row].type_ids.tolist()
            assert made.labels[i] == whole.labels[row]


@pytest.mark.parametrize("change", [{"seed": 4}, {"purpose": "distill.1"}, {"step": 1}])
def test_seed_purpose_and_step_each_change_the_pairs(change: dict[str, Any]) -> None:
    corpus, step = numbered([19] * 10), change.get("step", 0)
    other = replace(PAIRS, **{k: v for k, v in change.items() if k != "step"})
    one, two = PAIRS.build(corpus, range(10), 0), other.build(corpus, range(10), step)
    assert [e.ids.tolist() for e in one.encoded] != [e.ids.tolist() for e in two.encoded]
    assert (PAIRS.key() == other.key()) == ("step" in change)


def test_rows_without_a_place_to_cut_stay_one_segment() -> None:
    corpus = Rows([wrapped([5]), wrapped([]), wrapped([5, 6]), wrapped([5, 395, 396, 397])])
    for step in range(50):
        made = PAIRS.build(corpus, range(4), step)
        assert made.labels.tolist() == [IGNORED_LABEL] * 4
        assert [e.ids.tolist() for e in made.encoded] == [r.tolist() for r in corpus.rows]


def test_nothing_is_taken_from_an_empty_row() -> None:
    corpus = Rows([wrapped([]), wrapped([5, 6, 7, 8])])
    for step in range(40):
        made = PAIRS.build(corpus, [1], step)
        assert made.labels.tolist() == [_FOLLOWS]
        first, second = texts(made.encoded[0])
        assert second
        assert [*first, *second] == [5, 6, 7, 8][: len(first) + len(second)]


def test_a_single_row_has_no_other() -> None:
    corpus = numbered([15])
    for step in range(40):
        made = PAIRS.build(corpus, [0], step)
        assert made.labels.tolist() == [_FOLLOWS]
        first, second = texts(made.encoded[0])
        assert [*first, *second] == list(range(10, 10 + len(first) + len(second)))


def test_packed_rows_lose_their_separators_and_are_not_cut_where_a_text_ends() -> None:
    packed = wrapped([10, 11, 12, SEP, 13, 14, SEP, 15, 16, 17])
    corpus = Rows([packed, wrapped([30, 31, 32, 33, SEP, 34, 35, 36, 37, 38])])
    cuts = set()
    for step in range(200):
        made = PAIRS.build(corpus, [0, 1], step)
        first, second = texts(made.encoded[0])
        assert SEP not in first + second
        assert first == list(range(10, 10 + len(first)))
        cuts.add(len(first))
    assert cuts == {1, 2, 4, 6, 7}


def tokenizer_of(folder: Path, post: Any, tokens: Sequence[str]) -> TextTokenizer:
    made = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=tokens[0]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(tokens[:3]))
    if post is not None:
        made.post_processor = post
    made.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder, 32)


TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c"]
XLNET_TEMPLATE = processors.TemplateProcessing(
    single="$A </s> <s>:2", pair="$A </s> $B:1 </s>:1 <s>:2", special_tokens=[("<s>", 1), ("</s>", 2)]
)


@pytest.mark.parametrize(
    "post",
    [
        processors.BertProcessing(("</s>", 2), ("<s>", 1)),
        processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
        XLNET_TEMPLATE,
    ],
)
def test_the_layout_is_the_tokenizers_own(tmp_path: Path, post: Any) -> None:
    tokenizer = tokenizer_of(tmp_path, post, TOKENS)
    layout = _pair_layout(tokenizer, "distill.0.pairs")
    made = layout.join(ids(3, 4), ids(5))
    (expected,) = tokenizer.encode([("a b", "c")])
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.type_ids.tolist() == expected.type_ids.tolist()


def second_of(pair: Encoded) -> Ids:
    """Tokens of segment 1 but its separator."""
    return pair.ids[pair.type_ids == 1][:-1]


def test_the_layout_of_real_looking_wordpiece(tmp_path: Path, make_tokenizer: Callable[..., None]) -> None:
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 48)
    pairs = pairs_of(tokenizer, tokenizer.vocabulary_size, 0, "distill.0")
    made = pairs.layout.join(*(e.ids[1:-1] for e in tokenizer.encode(["the unhappy fox", "stop"])))
    (expected,) = tokenizer.encode([("the unhappy fox", "stop")])
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.type_ids.tolist() == expected.type_ids.tolist()
    text = tokenizer.encode(["unhappyfoxes jumping"])[0].ids
    corpus = Rows([text, text])
    spelt = {
        tokenizer.token(int(second[0]))
        for step in range(60)
        for second in [second_of(pairs.build(corpus, [0], step).encoded[0])]
        if second.size
    }
    assert spelt and not any(s.startswith("##") for s in spelt)


def test_a_tokenizer_that_puts_nothing_between_two_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"distill\.0\.pairs: the tokenizer puts no special token between"):
        pairs_of(tokenizer_of(tmp_path, None, TOKENS), len(TOKENS), 0, "distill.0")


def test_no_room_for_two_texts_is_refused(tmp_path: Path) -> None:
    tokenizer_of(tmp_path, processors.BertProcessing(("</s>", 2), ("<s>", 1)), TOKENS)
    with pytest.raises(InputError, match="inputs of 4 tokens have no room for two texts"):
        pairs_of(TextTokenizer(tmp_path, 4), len(TOKENS), 0, "distill.0")


SWAPPED = replace(PAIRS, second=SecondSegment.SWAPPED)


@given(st.lists(BODY, min_size=1, max_size=6), st.integers(0, 99))
def test_swapped_pairs_are_two_neighbouring_pieces_of_their_row_in_either_order(
    bodies: list[list[int]], step: int
) -> None:
    corpus = Rows([wrapped(b) for b in bodies])
    made = SWAPPED.build(corpus, range(len(bodies)), step)
    straight = PAIRS.build(Rows(corpus.rows[:1]), [0], step)
    for body, pair, label in zip(bodies, made.encoded, made.labels.tolist(), strict=True):
        if label == IGNORED_LABEL:
            continue
        first, second = texts(pair)
        text = first + second if label == _FOLLOWS else second + first
        assert body[: len(text)] == text
        assert first
        assert second
    if straight.labels[0] == _FOLLOWS == made.labels[0]:
        assert made.encoded[0].ids.tolist() == straight.encoded[0].ids.tolist(), "the cuts are those of other pairs"


def test_half_of_the_pairs_are_swapped_and_the_choice_is_a_function_of_step_and_row() -> None:
    corpus = Rows([wrapped(range(10, 22))] * 600)
    made = SWAPPED.build(corpus, range(600), 2)
    assert made.labels.mean() == pytest.approx(0.5, abs=0.06)
    turned = SWAPPED.build(corpus, range(599, -1, -1), 2)
    assert turned.labels.tolist() == made.labels[::-1].tolist()
    assert SWAPPED.build(corpus, range(600), 3).labels.tolist() != made.labels.tolist()
    alone = SWAPPED.build(Rows(corpus.rows[:1]), [0] * 40, 1)
    assert set(alone.labels.tolist()) <= {_FOLLOWS, _ELSEWHERE}
    assert SWAPPED.key() != PAIRS.key()
