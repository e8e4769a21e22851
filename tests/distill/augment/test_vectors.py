"""Files of word vectors."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.errors import InputError
from pocketbert.distill import word_vectors as augment_vectors
from pocketbert.distill.word_vectors import Neighbours, read_word_vectors

LINES = [
    "film 1 0 0",
    "movie 0.9 0.1 0",
    "tree 0 1 0",
    "oak 0 0.9 0.2",
    ", 1 1 1",
    "the 1 0 0",
    "zero 0 0 0",
    "Paris 0 0 1",
]


def write(path: Path, *lines: str) -> Path:
    raw = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
@pytest.mark.parametrize("header", [[], ["8 3"]])
def test_words_and_their_neighbours(tmp_path: Path, name: str, header: list[str]) -> None:
    vectors = read_word_vectors(write(tmp_path / name, *header, *LINES))
    assert list(vectors.words) == ["film", "movie", "tree", "oak", "Paris"]
    assert np.linalg.norm(vectors.matrix, axis=1) == pytest.approx(1)
    found = Neighbours(vectors, 1)
    assert found.find(["film", "Film", "tree", "unheard"]) == [("movie",), ("movie",), ("oak",), ()]


def test_words_with_blanks_and_trailing_blanks_as_glove_and_fasttext_have_them(tmp_path: Path) -> None:
    vectors = read_word_vectors(write(tmp_path / "v.txt", "film 1 0 ", ". . . 1 1", "tree 0 1\r"))
    assert list(vectors.words) == ["film", "tree"]


def test_rows_beyond_the_first_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment_vectors, "_MOST_ROWS", 2)
    for header in ([], ["8 3"]):
        assert list(read_word_vectors(write(tmp_path / "v.txt", *header, *LINES)).words) == ["film", "movie"]


def test_damaged_lines_are_named_all_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "v.txt",
        "film 1 0 0",
        "movie 1 0",
        "tree 1 x 0",
        "oak nan 0 0",
        "elm 1 inf 0",
        "ash 1 2 3",
        "",
    )
    path.write_bytes(path.read_bytes() + b"\xff 1 2 3\n")
    with pytest.raises(InputError) as caught:
        read_word_vectors(path)
    said = [str(p) for p in caught.value.problems]
    assert [f"v.txt:{n}" in s for n, s in zip((2, 3, 4, 5, 7, 8), said, strict=True)] == [True] * 6
    assert "has 1 numbers" not in said[0]
    assert "2 numbers" in said[0]
    assert "UTF-8" in said[-1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no vector of a word"),
        (b", 1 2\n", "no vector of a word"),
        (b"film\n", "0 numbers"),
        (b"film " + b"1 " * 5000, "5,000 numbers"),
        (b"a" * (1 << 19), "longer than"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_word_vectors(tmp_path / "v.txt")


def test_a_broken_gzip_file_and_none(tmp_path: Path) -> None:
    whole = write(tmp_path / "v.txt.gz", *LINES)
    whole.write_bytes(whole.read_bytes()[:-12])
    with pytest.raises(InputError, match="broken gzip"):
        read_word_vectors(whole)
    with pytest.raises(InputError, match=r"data\.augment\.vectors: .*file not found"):
        read_word_vectors(tmp_path / "none.txt")
