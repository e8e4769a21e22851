"""Batches of unlabelled text: rows as pairs of segments, and the hidden tokens of both."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.core.errors import InputError
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import MaskingKind, SecondSegment
from pocketbert.distill.text.corpus import EncodedRows
from pocketbert.distill.text.masking import Masking, masking_of
from pocketbert.distill.text.pairs import GeneralSet, PairLayout, Pairs, pairs_of
from pocketbert.distill.training.data import make_part

Ids = NDArray[np.int64]
UNK, CLS, SEP = 1, 2, 3
FOLLOWS, ELSEWHERE = 0, 1
VOCABULARY = 400
CONTINUES = np.arange(VOCABULARY) >= 390
"""The last ten tokens continue a word."""


def ids(*values: int) -> Ids:
    return np.array(values, np.int64)


BERT = PairLayout(ids(CLS), ids(SEP), ids(SEP), (ids(0), 0, ids(0), 1, ids(1)))
ROBERTA = PairLayout(ids(CLS), ids(SEP, SEP), ids(SEP), (ids(0), 0, ids(0, 0), 0, ids(0)))
XLNET = PairLayout(ids(), ids(SEP), ids(SEP, CLS), (ids(), 0, ids(0), 1, ids(1, 2)))
PAIRS = Pairs(BERT, CONTINUES, (0, UNK, CLS, SEP), seed=3, purpose="distill.0")
SWAPPED = replace(PAIRS, second=SecondSegment.SWAPPED)
BODY = st.lists(st.sampled_from([UNK, *range(380, VOCABULARY)]), min_size=1, max_size=20)
BODIES = st.lists(BODY, min_size=2, max_size=6)


def corpus_of(bodies: Sequence[Sequence[int]], layout: PairLayout = BERT) -> EncodedRows:
    """A corpus in memory, each row in the special tokens of one text."""
    rows = [np.concatenate([layout.before, ids(*body), layout.after]) for body in bodies]
    return EncodedRows([Encoded(row, np.zeros_like(row), truncated=False) for row in rows], VOCABULARY)


def numbered(lengths: Sequence[int]) -> EncodedRows:
    """Rows whose tokens tell which row they are from: row r has 10 + 20 r, 11 + 20 r, ..."""
    return corpus_of([range(10 + 20 * r, 10 + 20 * r + n) for r, n in enumerate(lengths)])


def texts(pair: Encoded, layout: PairLayout = BERT) -> tuple[list[int], list[int]]:
    """Both segments of a pair; checks the frame."""
    body = pair.ids[len(layout.before) : len(pair) - len(layout.after)].tolist()
    middle = layout.between.tolist()
    (cut,) = [i for i in range(len(body)) if body[i : i + len(middle)] == middle]
    first, second = body[:cut], body[cut + len(middle) :]
    before, one, between, two, after = layout.segments
    assert pair.ids.tolist() == [*layout.before, *first, *middle, *second, *layout.after]
    assert pair.type_ids.tolist() == [*before, *[one] * len(first), *between, *[two] * len(second), *after]
    return first, second


@settings(max_examples=40)
@given(BODIES, st.integers(0, 99), st.sampled_from([BERT, ROBERTA, XLNET]))
def test_a_pair_is_two_segments_and_no_longer_than_its_row(bodies, step, layout):
    corpus = corpus_of(bodies, layout)
    made = replace(PAIRS, layout=layout).build(corpus, range(len(bodies)), step)
    rows = corpus.ids(range(len(bodies)))
    for row, pair, label, body in zip(rows, made.encoded, made.labels, bodies, strict=True):
        assert len(pair.type_ids) == len(pair) <= len(row)
        if label == IGNORED_LABEL:
            assert pair.ids.tolist() == row.tolist()
            assert not pair.type_ids.any()
            continue
        first, second = texts(pair, layout)
        assert first
        assert second
        assert body[: len(first)] == first
        behind_unknown = body[len(first) - 1] == UNK
        assert not CONTINUES[body[len(first)]] or behind_unknown, "the first one ends in the middle of a word"
        if label == FOLLOWS:
            assert body[len(first) : len(first) + len(second)] == second


@settings(max_examples=25)
@given(st.integers(0, 999), st.integers(2, 7))
def test_a_segment_from_elsewhere_is_a_piece_of_another_row_and_no_longer(step, count):
    lengths = [15] * (count - 1) + [4]
    made = PAIRS.build(numbered(lengths), range(count), step)
    for row, (pair, label) in enumerate(zip(made.encoded, made.labels, strict=True)):
        first, second = texts(pair)
        of = {(t - 10) // 20 for t in second}
        assert {(t - 10) // 20 for t in first} == {row}
        assert len(of) == 1
        assert (of == {row}) == (label == FOLLOWS)
        assert second == list(range(second[0], second[0] + len(second)))
        assert len(first) + len(second) <= lengths[row] - 1


def assert_uniform(found: Counter[int], values: range) -> None:
    whole, share = found.total(), 1 / len(values)
    assert set(found) == set(values)
    assert max(abs(n / whole - share) for n in found.values()) < 4.5 * math.sqrt(share / whole)


def test_half_of_the_second_segments_are_from_elsewhere_and_a_tenth_is_short():
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
    assert set(labels) == {FOLLOWS, ELSEWHERE}
    assert labels.count(ELSEWHERE) / n == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / n))
    # lengths 2 to 18 are drawn of a tenth, the longest of them is not short
    short = 0.1 * 16 / 17
    assert sum(s < 18 for s in sizes) / n == pytest.approx(short, abs=4 * math.sqrt(short / n))
    assert min(sizes) == 2
    assert_uniform(others, range(1, rows))
    assert_uniform(cuts, range(1, 18))


@pytest.mark.parametrize("pairs", [PAIRS, SWAPPED])
@settings(max_examples=25)
@given(BODIES, st.integers(0, 99), st.randoms(use_true_random=False))
def test_a_pair_depends_on_seed_step_and_row_alone(pairs, bodies, step, random):
    corpus = corpus_of(bodies)
    whole = pairs.build(corpus, range(len(bodies)), step)
    order = list(range(len(bodies)))
    random.shuffle(order)
    shuffled = pairs.build(corpus, order, step)
    for place, row in enumerate(order):
        alone = pairs.build(corpus, [row], step)
        for made, i in ((shuffled, place), (alone, 0)):
            assert made.encoded[i].ids.tolist() == whole.encoded[row].ids.tolist()
            assert made.encoded[i].type_ids.tolist() == whole.encoded[row].type_ids.tolist()
            assert made.labels[i] == whole.labels[row]


@pytest.mark.parametrize("change", [{"seed": 4}, {"purpose": "distill.1"}, {}])
def test_seed_purpose_and_step_each_change_the_pairs(change):
    corpus, other = numbered([19] * 10), replace(PAIRS, **change)
    one, two = PAIRS.build(corpus, range(10), 0), other.build(corpus, range(10), 0 if change else 1)
    assert [e.ids.tolist() for e in one.encoded] != [e.ids.tolist() for e in two.encoded]
    assert (PAIRS.key() != other.key()) == bool(change)


def test_rows_without_a_place_to_cut_stay_one_segment():
    corpus = corpus_of([[5], [], [5, 6], [5, 395, 396, 397]])
    for step in range(50):
        made = PAIRS.build(corpus, range(4), step)
        assert made.labels.tolist() == [IGNORED_LABEL] * 4
        assert [e.ids.tolist() for e in made.encoded] == [r.tolist() for r in corpus.ids(range(4))]


@pytest.mark.parametrize("bodies", [[[5, 6, 7, 8]], [[5, 6, 7, 8], []]])
def test_a_single_row_and_one_beside_an_empty_one_have_no_other(bodies):
    for step in range(40):
        made = PAIRS.build(corpus_of(bodies), [0], step)
        assert made.labels.tolist() == [FOLLOWS]
        first, second = texts(made.encoded[0])
        assert second
        assert [*first, *second] == [5, 6, 7, 8][: len(first) + len(second)]


def test_packed_rows_lose_their_separators_and_are_not_cut_where_a_text_ends():
    corpus = corpus_of([[10, 11, 12, SEP, 13, 14, SEP, 15, 16, 17], [30, 31, 32, 33, SEP, 34, 35, 36, 37, 38]])
    cuts = set()
    for step in range(200):
        first, second = texts(PAIRS.build(corpus, [0, 1], step).encoded[0])
        assert SEP not in first + second
        assert first == list(range(10, 10 + len(first)))
        cuts.add(len(first))
    assert cuts == {1, 2, 4, 6, 7}


def test_half_of_swapped_pairs_are_neighbouring_pieces_in_the_other_order():
    made = SWAPPED.build(numbered([12] * 15), range(15), 0)
    assert {*made.labels.tolist()} == {FOLLOWS, ELSEWHERE}
    for row, (pair, label) in enumerate(zip(made.encoded, made.labels.tolist(), strict=True)):
        first, second = texts(pair)
        body = first + second if label == FOLLOWS else second + first
        assert body == list(range(10 + 20 * row, 10 + 20 * row + len(body)))
    many = SWAPPED.build(corpus_of([range(10, 22)] * 600), range(600), 2)
    assert many.labels.mean() == pytest.approx(0.5, abs=0.06)
    assert SWAPPED.key() != PAIRS.key()


# --- the layout of a tokenizer ---

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c"]
POSTS = {
    "bert": processors.BertProcessing(("</s>", 2), ("<s>", 1)),
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    "xlnet": processors.TemplateProcessing(
        single="$A </s> <s>:2", pair="$A </s> $B:1 </s>:1 <s>:2", special_tokens=[("<s>", 1), ("</s>", 2)]
    ),
    "none": None,
}


def save_words(folder: Path, post: str, longest: int = 32) -> TextTokenizer:
    made = Tokenizer(models.WordLevel({t: i for i, t in enumerate(TOKENS)}, unk_token=TOKENS[0]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(TOKENS[:3])
    if POSTS[post] is not None:
        made.post_processor = POSTS[post]
    made.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder, longest)


@pytest.mark.parametrize("post", ["bert", "roberta", "xlnet"])
def test_the_layout_is_the_tokenizers_own(tmp_path, post):
    tokenizer = save_words(tmp_path, post)
    made = pairs_of(tokenizer, len(TOKENS), 0, "distill.0").layout.join(ids(3, 4), ids(5))
    (expected,) = tokenizer.encode([("a b", "c")])
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.type_ids.tolist() == expected.type_ids.tolist()


@pytest.mark.parametrize(
    ("post", "longest", "message"),
    [
        ("none", 32, r"distill\.0\.pairs: the tokenizer puts no special token between"),
        ("bert", 4, "inputs of 4 tokens have no room for two texts"),
    ],
)
def test_a_tokenizer_without_a_layout_is_refused(tmp_path, post, longest, message):
    with pytest.raises(InputError, match=message):
        pairs_of(save_words(tmp_path, post, longest), len(TOKENS), 0, "distill.0")


# --- batches ---

PAD, MASK = 0, 4
TEXTS = [
    "the film was far better than they had expected",
    "stop the music",
    "a quick brown fox jumps over the lazy dog and it is never happy again",
    "what will the weather be like in the morning",
]


@pytest.fixture
def tokenizer(tiny_model) -> Callable[..., TextTokenizer]:
    """`tokenizer(padding_side)`: one whose padding is there."""
    return lambda side="right": TextTokenizer(tiny_model("bert"), 48, padding_side=side)


def rows_of(tokenizer: TextTokenizer) -> EncodedRows:
    return EncodedRows(tokenizer.encode(TEXTS), tokenizer.vocabulary_size)


def set_of(tokenizer: TextTokenizer) -> GeneralSet:
    rows = rows_of(tokenizer)
    return GeneralSet(rows, tokenizer, Masking(rows.counts, MASK, range(5), 1, "distill.0"))


class Unheard:
    """Knows no similar word."""

    def of(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        return []

    def key(self) -> list[str]:
        return []


def paired(tokenizer: TextTokenizer, kind: MaskingKind) -> GeneralSet:
    rows = rows_of(tokenizer)
    masking = masking_of(kind, rows.counts, tokenizer, 1, "distill.0", similar=Unheard())
    return GeneralSet(rows, tokenizer, masking, pairs_of(tokenizer, len(rows.counts), 1, "distill.0"))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_the_text_with_hidden_tokens(tokenizer, side):
    data, rows = set_of(tokenizer(side)), [2, 0, 3]
    assert list(data.lengths) == data.corpus.lengths.tolist()
    batch, again = data.batch(rows, 5), set_of(tokenizer(side)).batch(rows, 5)
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    assert not torch.equal(batch["labels"], data.batch(rows, 6)["labels"])
    assert batch.pop("rows").tolist() == rows
    assert batch.pop("steps").tolist() == [5, 5, 5]
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "labels"}
    assert all(t.dtype == torch.int64 and t.shape == (3, data.lengths[2]) for t in batch.values())
    assert not batch["token_type_ids"].any()
    original = torch.where(batch["labels"] == IGNORED_LABEL, batch["input_ids"], batch["labels"])
    for found, mask, row in zip(original, batch["attention_mask"], rows, strict=True):
        assert found[mask.bool()].tolist() == data.corpus.ids([row])[0].tolist()
        assert found[~mask.bool()].tolist() == [PAD] * int((mask == 0).sum())
    tokens = int(batch["attention_mask"].sum())
    assert int((batch["labels"] != IGNORED_LABEL).sum()) == -(-tokens * 15 // 100)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", MaskingKind)
def test_pairs_are_made_before_tokens_are_hidden(tokenizer, kind, side):
    data, plain = paired(tokenizer(side), kind), paired(tokenizer(side), MaskingKind.NONE)
    rows, seen = [3, 0, 2, 1], set()
    for step in range(12):
        batch, text = data.batch(rows, step), plain.batch(rows, step)
        assert "next_sentence_label" in batch
        original = torch.where(batch["labels"] == IGNORED_LABEL, batch["input_ids"], batch["labels"])
        assert torch.equal(original, text["input_ids"])
        for name in ("attention_mask", "token_type_ids", "next_sentence_label"):
            assert torch.equal(batch[name], text[name])
        assert (kind is MaskingKind.NONE) == bool((batch["labels"] == IGNORED_LABEL).all())
        real = batch["attention_mask"] == 1
        assert not batch["token_type_ids"][~real].any()
        assert (real.sum(1) <= torch.tensor([data.lengths[r] for r in rows])).all()
        two = batch["next_sentence_label"] != IGNORED_LABEL
        assert torch.equal((batch["token_type_ids"] == 1).any(1), two)
        seen |= set(batch["next_sentence_label"].tolist())
    assert {FOLLOWS, ELSEWHERE} <= seen


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", MaskingKind)
def test_each_process_makes_its_own_rows_of_a_batch(tokenizer, kind, side):
    rows = [3, 0, 2, 1, 0]
    for data in (paired(tokenizer(side), kind), replace(paired(tokenizer(side), kind), pairs=None)):
        for step in range(8):  # among them steps whose longest pair is no process's own
            whole = data.batch(rows, step)
            for own in (slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 5)):
                part = make_part(data, rows, step, own)
                assert part.keys() == whole.keys()
                assert all(torch.equal(part[name], value[own]) for name, value in whole.items())


def test_keys_tell_sets_apart(tokenizer):
    sets = [paired(tokenizer(), kind) for kind in (MaskingKind.NONE, MaskingKind.DYNAMIC)]
    sets += [paired(tokenizer("left"), MaskingKind.NONE), set_of(tokenizer())]
    keys = {str(data.key()) for data in sets}
    assert len(keys) == len(sets)
    assert str(paired(tokenizer(), MaskingKind.NONE).key()) in keys
