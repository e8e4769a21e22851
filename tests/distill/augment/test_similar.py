"""Words that may stand in for others in masks: near, as many tokens, and never the word itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pocketbert.core.families import TokenizerKind
from pocketbert.distill.word_vectors import EmbeddingVectors, FileVectors, NearestWords, WordReader
from support.tiny_tokenizers import vocabulary, write_tokenizer

WORDS = ("good", "great", "poor", "walking", "music")
LINES = np.array([[1, 0, 0.1], [1, 0.1, 0], [0, 1, 0], [0.9, 0, 0.2], [0, 0, 1]], np.float32)


def reader(folder: Path) -> WordReader:
    write_tokenizer(folder)
    return WordReader(folder, TokenizerKind.WORDPIECE)


def ids(*tokens: str) -> tuple[int, ...]:
    return tuple(vocabulary(0).index(t) for t in tokens)


def test_the_nearest_words_of_as_many_tokens(tmp_path: Path) -> None:
    known = NearestWords(FileVectors(WORDS, LINES), reader(tmp_path), len(vocabulary(0)), count=2)
    assert list(known.of(ids("good"))) == [ids("great")], "walking is nearer than poor, and has several tokens"
    assert list(known.of(ids("week"))) == [], "the file lacks it"
    assert known.of(ids("good")) is known.of(ids("good")), "each word is looked up once"


def test_a_word_with_a_token_beyond_the_vocabulary_is_left_out(tmp_path: Path) -> None:
    (great,) = ids("great")
    known = NearestWords(FileVectors(WORDS, LINES), reader(tmp_path), great, count=2)
    assert list(known.of(ids("good"))) == []


def test_a_teachers_embeddings_serve_where_there_is_no_file(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(len(vocabulary(0)), 16)).astype(np.float32)
    table[ids("music")[0]] = table[ids("lazy")[0]] * 1.1
    words = reader(tmp_path)
    known = NearestWords(EmbeddingVectors(table, words), words, len(table), count=1)
    assert list(known.of(ids("lazy"))) == [ids("music")]
    assert list(known.of(ids("[UNK]"))) == []


def test_the_key_tells_words_vectors_and_count_apart(tmp_path: Path) -> None:
    words = reader(tmp_path)
    keys = [
        NearestWords(FileVectors(names, lines), words, 90, count).key()
        for names, lines, count in (
            (WORDS, LINES, 2),
            (WORDS, LINES, 3),
            (WORDS, LINES + 1, 2),
            (WORDS[::-1], LINES, 2),
        )
    ]
    assert len({str(k) for k in keys}) == 4
