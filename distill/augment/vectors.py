"""Vectors of words: the teacher's own embeddings, or a file of word vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.limits import CORPUS_ROWS, Limits
from pocketbert.core.data.streams import opened
from pocketbert.core.errors import InputError, Problem
from pocketbert.distill.augment.words import WordReader, is_replaceable

Vectors = NDArray[np.float32]

MOST_ROWS = 100_000
"""Rows of a file that are read, the most frequent words, as the released code of TinyBERT does."""
_MOST_NUMBERS = 4096
_LONGEST_LINE = 1 << 18
_LIMITS = Limits(rows=CORPUS_ROWS)
"""Of these lines far fewer are read."""


class WordVectors(Protocol):
    """Words that may replace others, and where words lie.

    Attributes:
        words: W words.
        matrix: Their vectors of length 1, [W, H] float32.
    """

    words: Sequence[str]
    matrix: Vectors

    def of(self, words: Sequence[str]) -> Vectors:
        """Vectors of length 1 of any n words, [n, H] float32; zeros where a word has none."""
        ...


class EmbeddingVectors:
    """A teacher's input embeddings: of a word of one token its row, of several the mean of their rows.

    Args:
        table: The embedding table, [V, H] float32.
        reader: The teacher's tokenizer.
    """

    def __init__(self, table: Vectors, reader: WordReader) -> None:
        self._table, self._reader = table, reader
        found = {id: word for id, word in reader.vocabulary().items() if id < len(table)}
        self.words: Sequence[str] = list(found.values())
        self.matrix = _unit(table[list(found)])

    def of(self, words: Sequence[str]) -> Vectors:
        """See `WordVectors.of`."""
        out = np.zeros((len(words), self._table.shape[1]), np.float32)
        for i, pieces in enumerate(self._reader.pieces(words)):
            if pieces:
                out[i] = self._table[pieces].mean(0)
        return _unit(out)


class FileVectors:
    """Vectors of a file.

    Args:
        words: Its words.
        matrix: Their vectors, [W, H] float32, none of them zero.
    """

    def __init__(self, words: Sequence[str], matrix: Vectors) -> None:
        self.words, self.matrix = words, _unit(matrix)
        self._place = {word: i for i, word in enumerate(words)}

    def of(self, words: Sequence[str]) -> Vectors:
        """See `WordVectors.of`; a word that the file lacks may be there in small letters."""
        places = [self._place.get(w, self._place.get(w.lower(), -1)) for w in words]
        out = self.matrix[places]
        out[np.array(places, np.int64) < 0] = 0
        return out


def read_vectors(path: Path, where: str = "data.augment.vectors") -> FileVectors:
    """Read a text file of word vectors, ``word v1 v2 ...`` a line: GloVe, word2vec and fastText.

    The first `MOST_ROWS` lines count; of these, words that may replace none (`is_replaceable`) and rows of zeros are left out. A first
    line of two whole numbers, as word2vec and fastText write it, is skipped.

    Args:
        path: The file, plain or ``.gz``.
        where: Recipe key, for errors.

    Raises:
        InputError: Naming the lines that are no vectors, or saying that none is left.
    """
    bad = BadRows(str(path))
    words: dict[str, None] = {}
    rows: list[Vectors] = []
    with opened(path, f"{where}: {path}", _LIMITS) as stream:
        for word, vector in _rows(stream, bad):
            if word not in words and is_replaceable(word) and vector.any():
                words[word] = None
                rows.append(vector)
    problems = bad.close()
    if not problems and not rows:
        problems = [Problem(str(path), "holds no vector of a word.", "Give a text file of word vectors.")]
    if problems:
        raise InputError(problems)
    return FileVectors(list(words), np.stack(rows))


def _rows(stream: BinaryIO, bad: BadRows) -> Iterator[tuple[str, Vectors]]:
    size, first = 0, 1
    for number in range(1, MOST_ROWS + 2):
        line = stream.readline(_LONGEST_LINE)
        if not line or number == MOST_ROWS + first:
            return
        if len(line) == _LONGEST_LINE:
            bad.add(number, f"is longer than {_LONGEST_LINE:,} bytes; no vector is.")
            return
        try:
            text = line.decode().rstrip()
        except UnicodeDecodeError as error:
            bad.add(number, f"is not UTF-8: {error}.", "Convert the file to UTF-8.")
            continue
        fields = text.split(" ")
        if number == 1:
            if len(fields) == 2 and all(f.isdecimal() for f in fields):
                size, first = int(fields[1]), 2
                continue
            size = len(fields) - 1
        if not 1 <= size <= _MOST_NUMBERS:
            bad.add(number, f"has {size:,} numbers behind the word; allowed: 1 to {_MOST_NUMBERS:,}.")
            return
        if len(fields) <= size:
            bad.add(number, f"has {max(0, len(fields) - 1)} numbers behind the word, the lines before it have {size}.")
            continue
        try:
            # a few rows of GloVe have blanks within the word
            vector = np.array(fields[-size:], np.float32)
        except ValueError as error:
            bad.add(number, f"is not a row of numbers: {error}.")
            continue
        if not np.isfinite(vector).all():
            bad.add(number, "holds a number that is not finite.")
            continue
        yield " ".join(fields[:-size]), vector


def _unit(matrix: Vectors) -> Vectors:
    length = np.linalg.norm(matrix, axis=-1, keepdims=True)
    out: Vectors = (matrix / np.maximum(length, 1e-12)).astype(np.float32)
    return out
