"""Copies of texts: what they change, what they leave, and what decides them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.families import TokenizerKind
from pocketbert.core.recipe.data import AugmentSection
from pocketbert.distill.augment import Augmenter, SourceRow, _match_case
from pocketbert.distill.text.tokenizer import CorpusTokenizer
from pocketbert.distill.word_vectors import _STOP_WORDS, EmbeddingVectors, Neighbours, WordReader, _is_replaceable

TEXT = "Set an alarm: Play music,  PLEASE stop the (quick) weather"
PAIRS = [("good film", "brown fox jumps"), ("lazy dog", "happy morning music")]


@pytest.fixture(scope="module")
def reader(tiny_model: Callable[..., Path]) -> WordReader:
    return WordReader(tiny_model("bert"), TokenizerKind.WORDPIECE)


@dataclass
class Kit:
    """Makes augmenters over one random embedding table."""

    reader: WordReader
    table: Any = field(default_factory=lambda: np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32))

    def __call__(self, seed: int = 1, masked: Any = None, **settings: Any) -> Augmenter:
        section = AugmentSection(**{"copies": 8, "candidates": 5, **settings})
        vectors = EmbeddingVectors(self.table, self.reader)
        return Augmenter(self.reader, section, seed, Neighbours(vectors, section.candidates), masked)

    def texts(self, text: str, **settings: Any) -> list[str]:
        (copies,) = self(**settings).copies([SourceRow(1, (text,))])
        return [c[0] for c in copies]


@pytest.fixture(scope="module")
def kit(reader: WordReader) -> Kit:
    return Kit(reader)


def test_only_words_of_meaning_change_and_all_else_stays_to_the_byte(kit: Kit) -> None:
    copies = kit.texts(TEXT, probability=1.0, copies=20)
    assert copies
    frame = ["", " an ", ": ", " ", ",  PLEASE ", " the (", ") ", ""]
    words = ["Set", "alarm", "Play", "music", "stop", "quick", "weather"]
    for copy in copies:
        rest, found = copy.removeprefix(frame[0]), []
        for between in frame[1:-1]:
            word, _, rest = rest.partition(between)
            found.append(word)
        found.append(rest)
        assert len(found) == len(words), copy
        for word, other in zip(words, found, strict=True):
            assert _is_replaceable(other), copy
            assert other.lower() != word.lower()
            assert other[0].isupper() == word[0].isupper()


def test_candidates_are_whole_words_of_the_vocabulary(kit: Kit, reader: WordReader) -> None:
    vocabulary = set(reader.vocabulary().values())
    assert "ing" not in vocabulary
    assert not any(w.startswith("##") or w in _STOP_WORDS or "[" in w for w in vocabulary)
    for copy in kit.texts("happy music", probability=1.0, copies=50, candidates=1000):
        assert set(copy.split()) <= vocabulary


@pytest.mark.parametrize(
    ("word", "candidate", "written"),
    [
        ("film", "movie", "movie"),
        ("Film", "movie", "Movie"),
        ("FILM", "movie", "MOVIE"),
        ("film", "Paris", "Paris"),
        ("Film", "iPhone", "IPhone"),
        ("Éclair", "cake", "Cake"),
    ],
)
def test_capitals_are_those_of_the_word(word: str, candidate: str, written: str) -> None:
    assert _match_case(word, candidate) == written


def test_capitals_of_a_lower_case_vocabulary(kit: Kit) -> None:
    for copy in kit.texts("GOOD Music today", probability=1.0):
        first, second = copy.split()[:2]
        assert first.isupper()
        assert second.istitle()


@pytest.mark.parametrize("text", ["我们 喜欢 音乐", "กินข้าว", "123 4x4 :-)", "it is the n't", "", "  ", "مرحبا بالعالم"])
def test_texts_without_such_words_have_no_copies(kit: Kit, text: str) -> None:
    assert kit.texts(text, probability=1.0) == []


def test_words_of_several_pieces_have_the_mean_of_their_rows(reader: WordReader) -> None:
    (pieces,) = reader.pieces(["foxes"])
    assert len(pieces) > 1
    table = np.random.default_rng(1).normal(size=(400, 8)).astype(np.float32)
    night = next(i for i, w in reader.vocabulary().items() if w == "night")
    table[night] = 3 * table[pieces].mean(0)
    assert Neighbours(EmbeddingVectors(table, reader), 1).find(["foxes"]) == [("night",)]


def test_neighbours_are_the_nearest_by_cosine(reader: WordReader) -> None:
    table = np.random.default_rng(2).normal(size=(400, 8)).astype(np.float32)
    vectors = EmbeddingVectors(table, reader)
    place = list(vectors.words).index("music")
    cosines = vectors.matrix @ vectors.matrix[place]
    cosines[place] = -2
    nearest = {vectors.words[i] for i in np.argsort(-cosines)[:4]}
    assert set(Neighbours(vectors, 4).find(["music"])[0]) == nearest


@given(
    st.floats(0, 1),
    st.integers(1, 12),
    st.lists(st.sampled_from(["good", "the", "fox", "!", "foxes", "Day"]), max_size=8),
)
def test_at_most_n_copies_all_different_and_none_the_row(
    kit: Kit, probability: float, copies: int, words: list[str]
) -> None:
    text = " ".join(words)
    made = kit.texts(text, probability=probability, copies=copies)
    assert len(made) <= copies
    assert len({text, *made}) == len(made) + 1
    assert all(len(c.split(" ")) == len(text.split(" ")) for c in made)


def test_nothing_changes_with_probability_0(kit: Kit) -> None:
    assert kit.texts(TEXT, probability=0.0) == []


def test_the_share_of_replaced_words_is_the_probability(kit: Kit) -> None:
    text = "good bad happy sad music light order number quick brown"
    rows = [SourceRow(i, (text,)) for i in range(400)]
    changed = [
        sum(a != b for a, b in zip(text.split(), copy[0].split(), strict=True))
        for copies in kit(probability=0.3, copies=5).copies(rows)
        for copy in copies
    ]
    assert np.sum(changed) / (400 * 5 * 10) == pytest.approx(0.3, abs=0.02)


def test_copies_depend_on_seed_and_number_and_not_on_company(kit: Kit) -> None:
    rows = [
        SourceRow(i, (t,)) for i, t in enumerate([TEXT, "good music", "never again happy", TEXT, "foxes jump over"])
    ]
    together = kit(probability=0.5).copies(rows)
    assert together == [kit(probability=0.5).copies([row])[0] for row in rows]
    assert together[::-1] == kit(probability=0.5).copies(rows[::-1])
    assert together[0] != together[3]
    assert together != kit(seed=2, probability=0.5).copies(rows)


def test_more_copies_begin_with_the_same_ones(kit: Kit) -> None:
    few, many = kit.texts(TEXT, copies=3), kit.texts(TEXT, copies=30)
    assert many[: len(few)] == few


def test_the_partner_in_a_pair_is_always_the_rows_own(kit: Kit) -> None:
    rows = [SourceRow(i, pair) for i, pair in enumerate(PAIRS)]
    for (first, second), copies in zip(PAIRS, kit(probability=0.9, copies=9).copies(rows), strict=True):
        varied = [(a != first, b != second) for a, b in copies]
        assert len(copies) <= 9
        assert set(varied) == {(True, False), (False, True)}
        assert varied == sorted(varied, reverse=True)
        assert sum(a for a, _ in varied) <= 5


def test_a_pair_with_the_same_text_twice_keeps_one_of_them(kit: Kit) -> None:
    (copies,) = kit(probability=1.0).copies([SourceRow(1, ("good music", "good music"))])
    assert all((a == "good music") != (b == "good music") for a, b in copies)


@dataclass
class Planted:
    """Says "dog" for every word of a single token."""

    def candidates(self, texts: Any) -> list[list[tuple[str, ...]]]:
        return [[("dog",) for w in t.words if w.token is not None] for t in texts]


def test_the_head_is_asked_for_words_of_one_piece_and_neighbours_for_others(kit: Kit) -> None:
    for copy in kit.texts("Good foxes jumps", masked=Planted(), probability=1.0):
        first, second, third = copy.split()
        assert (first, third) == ("Dog", "dog")
        assert second in Neighbours(EmbeddingVectors(kit.table, kit.reader), 5).find(["foxes"])[0]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_offsets_are_code_points(tiny_model: Callable[..., Path], family: str) -> None:
    reader = WordReader(tiny_model(family), TokenizerKind.WORDPIECE)
    text = "😀 café  Music\tgood"
    (read,) = reader.read([text])
    assert [w.text for w in read.words] == ["café", "Music", "good"]
    assert all(text[w.start : w.end] == w.text for w in read.words)
    assert [w.token is None for w in read.words] == [True, False, False]


def test_a_byte_level_vocabulary(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(["a good Music film music films good"] * 20, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.save(str(tmp_path / "tokenizer.json"))
    reader = WordReader(tmp_path, TokenizerKind.BYTE_BPE)
    assert set(reader.vocabulary().values()) >= {"good", "Music", "film", "films"}
    (read,) = reader.read(["Good film, don't"])
    assert [(w.text, w.token is None) for w in read.words] == [("Good", True), ("film", False)]
    assert CorpusTokenizer(tmp_path).digest == reader.base.digest
    copies = Kit(reader).texts("Good film, don't", probability=1.0)
    assert copies
    assert all(c.endswith(", don't") for c in copies)
