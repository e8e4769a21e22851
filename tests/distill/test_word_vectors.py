"""Words of a text, their vectors from a table or a file, and the nearest words."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.families import TokenizerKind
from pocketbert.distill import word_vectors
from pocketbert.distill.word_vectors import (
    EmbeddingVectors,
    FileVectors,
    NearestWords,
    Neighbours,
    WordReader,
    read_word_vectors,
)
from support.tiny_tokenizers import vocabulary

FILE = ["film 1 0 0", "movie 0.9 0.1 0", "tree 0 1 0", "oak 0 0.9 0.2", ", 1 1 1", "the 1 0 0", "zero 0 0 0"]
WORDS = ("good", "great", "poor", "walking", "music")
LINES = np.array([[1, 0, 0.1], [1, 0.1, 0], [0, 1, 0], [0.9, 0, 0.2], [0, 0, 1]], np.float32)


@pytest.fixture(scope="module")
def reader(tiny_model) -> WordReader:
    return WordReader(tiny_model("bert"), TokenizerKind.WORDPIECE)


def draw_table(rows: int = 400) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(rows, 8)).astype(np.float32)


def test_offsets_are_code_points(reader):
    text = "😀 café  Music\tgood"
    (read,) = reader.read([text])
    assert [w.text for w in read.words] == ["café", "Music", "good"]
    assert all(text[w.start : w.end] == w.text for w in read.words)
    assert [w.token is None for w in read.words] == [True, False, False]


def test_words_of_several_pieces_have_the_mean_of_their_rows(reader):
    (pieces,) = reader.pieces(["foxes"])
    assert len(pieces) > 1
    table = draw_table()
    night = next(i for i, w in reader.vocabulary().items() if w == "night")
    table[night] = 3 * table[pieces].mean(0)
    assert Neighbours(EmbeddingVectors(table, reader), 1).find(["foxes"]) == [("night",)]


# --- similar words, as token ids ---


def ids(*tokens: str) -> tuple[int, ...]:
    return tuple(vocabulary(0).index(t) for t in tokens)


def test_the_nearest_words_of_as_many_tokens(reader):
    known = NearestWords(FileVectors(WORDS, LINES), reader, len(vocabulary(0)), count=2)
    assert list(known.of(ids("good"))) == [ids("great")], "walking is nearer than poor, and has several tokens"
    assert list(known.of(ids("week"))) == [], "the file lacks it"
    (great,) = ids("great")
    beyond = NearestWords(FileVectors(WORDS, LINES), reader, great, count=2)
    assert list(beyond.of(ids("good"))) == [], "the model has no such token"


def test_a_teachers_embeddings_serve_where_there_is_no_file(reader):
    table = draw_table(len(vocabulary(0)))
    table[ids("music")[0]] = table[ids("lazy")[0]] * 1.1
    known = NearestWords(EmbeddingVectors(table, reader), reader, len(table), count=1)
    assert list(known.of(ids("lazy"))) == [ids("music")]
    assert list(known.of(ids("[UNK]"))) == []


def test_the_key_tells_words_vectors_and_count_apart(reader):
    told = [(WORDS, LINES, 2), (WORDS, LINES, 3), (WORDS, LINES + 1, 2), (WORDS[::-1], LINES, 2)]
    keys = [NearestWords(FileVectors(names, lines), reader, 90, count).key() for names, lines, count in told]
    assert len({str(k) for k in keys}) == 4


# --- files of vectors ---


def write(path: Path, *lines: str) -> Path:
    raw = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize(("name", "header"), [("v.txt", []), ("v.txt.gz", []), ("v.txt", ["8 3"])])
def test_words_and_their_neighbours(tmp_path, name, header):
    vectors = read_word_vectors(write(tmp_path / name, *header, *FILE, "Paris 0 0 1"))
    assert list(vectors.words) == ["film", "movie", "tree", "oak", "Paris"]
    assert np.linalg.norm(vectors.matrix, axis=1) == pytest.approx(1)
    found = Neighbours(vectors, 1)
    assert found.find(["film", "Film", "tree", "unheard"]) == [("movie",), ("movie",), ("oak",), ()]


def test_words_with_blanks_and_trailing_blanks_as_glove_and_fasttext_have_them(tmp_path):
    vectors = read_word_vectors(write(tmp_path / "v.txt", "film 1 0 ", ". . . 1 1", "tree 0 1\r"))
    assert list(vectors.words) == ["film", "tree"]


def test_rows_beyond_the_first_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "_MOST_ROWS", 2)
    for header in ([], ["8 3"]):
        assert list(read_word_vectors(write(tmp_path / "v.txt", *header, *FILE)).words) == ["film", "movie"]


def test_damaged_lines_are_named_all_at_once(tmp_path):
    lines = ["film 1 0 0", "movie 1 0", "tree 1 x 0", "oak nan 0 0", "elm 1 inf 0", "ash 1 2 3", ""]
    path = write(tmp_path / "v.txt", *lines)
    path.write_bytes(path.read_bytes() + b"\xff 1 2 3\n")
    with pytest.raises(InputError) as caught:
        read_word_vectors(path)
    said = [str(p) for p in caught.value.problems]
    assert [f"v.txt:{n}" in s for n, s in zip((2, 3, 4, 5, 7, 8), said, strict=True)] == [True] * 6
    assert "2 numbers" in said[0]
    assert "UTF-8" in said[-1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no vector of a word"),
        (b", 1 2\n", "no vector of a word"),
        (b"film\n", "0 numbers"),
        (b"1 0\nfilm 1 0\n", "0 numbers"),
        (b"film " + b"1 " * 5000, "5,000 numbers"),
        (b"a" * (1 << 19), "longer than"),
    ],
)
def test_files_that_are_none(tmp_path, content, says):
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_word_vectors(tmp_path / "v.txt")


def test_a_broken_gzip_file_and_none(tmp_path):
    whole = write(tmp_path / "v.txt.gz", *FILE)
    whole.write_bytes(whole.read_bytes()[:-12])
    with pytest.raises(InputError, match="broken gzip"):
        read_word_vectors(whole)
    with pytest.raises(InputError, match=r"data\.augment\.vectors: .*file not found"):
        read_word_vectors(tmp_path / "none.txt")
