"""Words of a text that may be replaced, and the similar words that may replace them, by the cosine of word vectors.

Augmentation (`pocketbert.distill.augment`) and MacBERT's masking (`pocketbert.distill.text.masking`) use them:

1. `WordReader` splits texts into words and lists the words of a vocabulary;
2. the vectors come from the teacher's embeddings (`EmbeddingVectors`) or a file (`read_word_vectors`);
3. `Neighbours` finds the words nearest to a word, `NearestWords` only those with the same number of tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.streams import DEFAULT_CORPUS_ROWS, Limits, open_bounded
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TokenizerKind
from pocketbert.distill.text.tokenizer import CorpusTokenizer

SPARE = 4
"""Candidates to find beyond those wanted: the word itself is among them, perhaps in several spellings."""

_CANDIDATES = 15
"""Nearest words to choose similar ones from, as in TinyBERT's augmentation; MacBERT's authors name no number."""
_SEARCH_WORDS = 256
"""Words whose neighbours are searched together."""
_MOST_ROWS = 100_000
"""Rows of a file that are read, the most frequent words, as the released code of TinyBERT does."""
_MOST_NUMBERS = 4096
_LONGEST_LINE = 1 << 18
_LIMITS = Limits(rows=DEFAULT_CORPUS_ROWS)
"""Limits of a file of vectors, of which far fewer lines are read."""

_SPACE = {TokenizerKind.BYTE_BPE: "Ġ", TokenizerKind.SENTENCEPIECE: "▁"}
"""Character in place of the blank before a word in vocabularies that spell it."""
_CONTINUES = "##"
_SHORTEST_WORD = 3
"""Letters of the shortest word that is replaced or replaces another."""

_Vectors = NDArray[np.float32]

_STOP_WORDS = frozenset(
    """
    a about above across after afterwards again against ai ain all almost alone along already also although always am
    among an and another any anybody anyhow anyone anything anyway anywhere are aren around as at away
    be became because become becomes been before beforehand behind being below beside besides between beyond both
    but by
    ca can cannot could couldn
    d did didn do does doesn doing don done down during
    each either else elsewhere enough even ever every everybody everyone everything everywhere except
    few for from further
    had hadn has hasn have haven having he hence her here hers herself him himself his how however
    i if in indeed instead into is isn it its itself
    just
    least less ll
    m ma many may maybe me might mightn mine more moreover most mostly much must mustn my myself
    na namely needn neither never nevertheless no nobody none noone nor not nothing now nowhere nt
    o of off often on once one only onto or other others otherwise ought our ours ourselves out over own
    per perhaps please
    quite
    rather re really
    s same sha shall shan she should shouldn since so some somebody somehow someone something sometime sometimes
    somewhere still such
    t ta than that the their theirs them themselves then thence there thereafter thereby therefore these they this
    those though through throughout thru thus to together too toward towards
    under unless until up upon us
    ve very via
    was wasn we well were weren what whatever when whence whenever where whereas whereby wherein wherever whether
    which whichever while whither who whoever whole whom whose why will with within without wo won would wouldn
    y yet you your yours yourself yourselves
    """.split()
)
"""Function words and the halves that tokenizers make of contractions (``don`` and ``t``, or ``wo`` and ``n't``).

Negations are among them: no copy loses a "not", and none gets one.
"""


# --- words ---


@dataclass(frozen=True)
class Word:
    """A word in a text that may be replaced.

    Attributes:
        start: Position of the word's first character in the text, in code points.
        end: Position after the word's last character.
        text: The word as the text spells it.
        token: Position of the word's token among the text's tokens; None if the word has several tokens, or an unknown
            one.
    """

    start: int
    end: int
    text: str
    token: int | None


@dataclass(frozen=True)
class WordText:
    """A text with its token ids and its replaceable words.

    Attributes:
        text: The text.
        ids: Token ids of the text, without special tokens, [L] int64.
        words: The words that may be replaced, in order.
    """

    text: str
    ids: NDArray[np.int64]
    words: tuple[Word, ...]


class WordReader:
    """Splits texts into words by the pre-tokenization of a tokenizer, and lists the whole words of its vocabulary.

    Attributes:
        base: The tokenizer with its special tokens and its digest.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.
        kind: How the tokenizer's vocabulary marks the beginning of a word.
    """

    def __init__(self, path: Path, kind: TokenizerKind) -> None:
        self.base, self.kind = CorpusTokenizer(path), kind
        self._tokenizer = self.base.tokenizer

    def read(self, texts: Sequence[str]) -> list[WordText]:
        """Tokenize texts, and return each text with its token ids and its replaceable words.

        Raises:
            InputError: If the tokenizer cannot encode a text.
        """
        try:
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception
            raise InputError(Problem("tokenizer.json", f"cannot encode: {error}.")) from error
        return [
            WordText(t, np.array(e.ids, np.int64), tuple(self._replaceable_words(t, e)))
            for t, e in zip(texts, encodings, strict=True)
        ]

    def _replaceable_words(self, text: str, encoding: Encoding) -> list[Word]:
        """Group the tokens of an encoded text by word, and return the words that may be replaced, in order."""
        tokens_by_word: dict[int, list[int]] = {}
        for place, number in enumerate(encoding.word_ids):
            if number is not None:
                tokens_by_word.setdefault(number, []).append(place)
        words = []
        for places in tokens_by_word.values():
            start = min(encoding.offsets[p][0] for p in places)
            end = max(encoding.offsets[p][1] for p in places)
            span = text[start:end]  # some tokenizers count the blank before a word to it
            start, word = end - len(span.lstrip()), span.strip()
            if not _is_replaceable(word):
                continue
            single = len(places) == 1 and encoding.ids[places[0]] != self.base.unknown_id
            words.append(Word(start, start + len(word), word, places[0] if single else None))
        return sorted(words, key=lambda w: w.start)

    def pieces(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each word, tokenized as within a text; empty for a word with an unknown token."""
        blank = "" if self.kind is TokenizerKind.WORDPIECE else " "
        encoded = self._tokenizer.encode_batch([blank + w for w in words], add_special_tokens=False)
        return [[] if self.base.unknown_id in e.ids else list(e.ids) for e in encoded]

    def text(self, pieces: Sequence[int]) -> str:
        """Return the text that the token ids of a word stand for, without blanks around it."""
        return str(self._tokenizer.decode(list(pieces))).strip()

    def vocabulary(self) -> dict[int, str]:
        """Return the vocabulary entries that are whole, replaceable words, by token id, ascending.

        Continuing pieces (``##ing``), special tokens, numbers, signs, stop words and words of one or two letters are
        not among them.
        """
        space, special = _SPACE.get(self.kind, ""), set(self.base.special_ids)
        words = {}
        for token, id in sorted(self._tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
            if id in special or not token.startswith(space) or token.startswith(_CONTINUES):
                continue
            # bytes of a byte-level vocabulary are spelt as other letters
            word = str(self._tokenizer.decode([id])).strip() if space else token
            if _is_replaceable(word):
                words[int(id)] = word
        return words


def _is_replaceable(word: str) -> bool:
    """Return whether augmentation may replace a word: three letters or more and nothing else, and no English stop word.

    Shorter entries of a vocabulary are fragments and initials for the most part. The letters must be of a script that
    has capitals (Latin, Greek, Cyrillic, Armenian). Tokenizers split other scripts into single characters (Chinese,
    Japanese) or fragments, and replacing these does not give real words.
    """
    is_word = word.isalpha() and all(c.lower() != c.upper() for c in word)
    return len(word) >= _SHORTEST_WORD and is_word and word.lower() not in _STOP_WORDS


# --- vectors ---


class WordVectors(Protocol):
    """Interface of word vectors: the words that may replace others with their vectors, and the vector of any word.

    Attributes:
        words: W words that may replace others.
        matrix: Vectors of these words, each of length 1, [W, H] float32.
    """

    words: Sequence[str]
    matrix: NDArray[np.float32]

    def of(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each of n words, [n, H] float32. A word without a vector gets zeros."""
        ...


class EmbeddingVectors:
    """Word vectors from a teacher's input embeddings: the row of a word's token, or the mean over its tokens.

    Args:
        table: The embedding table, [V, H] float32.
        reader: Reader with the teacher's tokenizer.
    """

    def __init__(self, table: NDArray[np.float32], reader: WordReader) -> None:
        self._table, self._reader = table, reader
        words_by_id = {id: word for id, word in reader.vocabulary().items() if id < len(table)}
        self.words: Sequence[str] = list(words_by_id.values())
        self.matrix = _normalize(table[list(words_by_id)])

    def of(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each word; see `WordVectors.of`."""
        vectors = np.zeros((len(words), self._table.shape[1]), np.float32)
        for i, pieces in enumerate(self._reader.pieces(words)):
            if pieces:
                vectors[i] = self._table[pieces].mean(0)
        return _normalize(vectors)


class FileVectors:
    """Word vectors that were read from a file.

    Args:
        words: Words of the file.
        matrix: Vectors of these words, [W, H] float32, none of them zero.
    """

    def __init__(self, words: Sequence[str], matrix: NDArray[np.float32]) -> None:
        self.words, self.matrix = words, _normalize(matrix)
        self._place = {word: i for i, word in enumerate(words)}

    def of(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each word. A word that the file does not have gets zeros.

        A word that the file lacks as it is spelt is looked up in lower case.
        """
        places = [self._place.get(w, self._place.get(w.lower(), -1)) for w in words]
        vectors = self.matrix[places]
        vectors[np.array(places, np.int64) < 0] = 0
        return vectors


def _normalize(matrix: _Vectors) -> _Vectors:
    """Scale each row of a matrix to length 1. Rows of zeros stay zero."""
    length = np.linalg.norm(matrix, axis=-1, keepdims=True)
    unit: _Vectors = (matrix / np.maximum(length, 1e-12)).astype(np.float32)
    return unit


def read_word_vectors(path: Path, where: str = "data.augment.vectors") -> FileVectors:
    """Read word vectors from a text file in the format of GloVe, word2vec or fastText: ``word v1 v2 ...`` in each line.

    The first 100,000 vectors are read. Words that cannot replace another word, such as numbers, vectors of zeros, and
    all but the first vector of a word are left out. A first line of two whole numbers, as word2vec and fastText write
    it, is skipped.

    Args:
        path: The file, plain or ``.gz``.
        where: Recipe key that error messages name.

    Raises:
        InputError: If the file cannot be opened, naming the lines that are no vectors, or if no vector is left.
    """
    bad = BadRows(str(path))
    words: dict[str, None] = {}
    rows: list[_Vectors] = []
    with open_bounded(path, f"{where}: {path}", _LIMITS) as stream:
        for word, vector in _read_lines(stream, bad):
            if word not in words and _is_replaceable(word) and vector.any():
                words[word] = None
                rows.append(vector)
    problems = bad.close()
    if not problems and not rows:
        problems = [Problem(str(path), "holds no vector of a word.", "Give a text file of word vectors.")]
    if problems:
        raise InputError(problems)
    return FileVectors(list(words), np.stack(rows))


def _read_lines(stream: BinaryIO, bad: BadRows) -> Iterator[tuple[str, _Vectors]]:
    """Yield the word and the vector of each line. Lines that are no vectors are added to `bad`.

    Reading ends after a line that is too long, or if the first line that can be read has too few or too many numbers.
    """
    size, first = 0, 1
    for number in range(1, _MOST_ROWS + 2):
        line = stream.readline(_LONGEST_LINE)
        if not line or number == _MOST_ROWS + first:
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
        if not size and first == 1:
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


# --- nearest words ---


class Neighbours:
    """Finds the vocabulary words nearest to a word by the cosine of their vectors. Each distinct word is searched once.

    Args:
        vectors: The words and their vectors.
        count: Largest number of neighbours per word, K of the paper.
    """

    def __init__(self, vectors: WordVectors, count: int) -> None:
        self.vectors, self.count = vectors, count
        self._known: dict[str, tuple[str, ...]] = {}

    def find(self, words: Sequence[str]) -> list[tuple[str, ...]]:
        """Return up to `count` nearest words of each word, in vocabulary order. A word without a vector has none.

        The word itself, in whatever case, is not among them. The order does not depend on the cosines, so that
        rounding, which differs with the words that are searched together, cannot change which number a neighbour has.
        """
        new = sorted(set(words) - self._known.keys())
        for start in range(0, len(new), _SEARCH_WORDS):
            block = new[start : start + _SEARCH_WORDS]
            self._known.update(zip(block, self._search(block), strict=True))
        return [self._known[w] for w in words]

    def _search(self, words: list[str]) -> list[tuple[str, ...]]:
        """Return the nearest vocabulary words of each of several words, which are searched with one matrix product."""
        vectors, vocabulary = self.vectors.of(words), self.vectors.words
        cosines = vectors @ self.vectors.matrix.T
        most = min(self.count + SPARE, len(vocabulary))
        if most == 0:
            return [() for _ in words]
        best = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
        neighbours = []
        for word, vector, row, places in zip(words, vectors, cosines, best, strict=True):
            nearest = places[np.lexsort((places, -row[places]))] if vector.any() else ()
            neighbours.append(select_candidates(word, [int(i) for i in nearest], vocabulary, self.count))
        return neighbours


def select_candidates(word: str, best: Sequence[int], vocabulary: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the best `count` words of a vocabulary, except the word itself, in the order of the vocabulary.

    Args:
        word: The word to be replaced, which is left out in whatever case.
        best: Indices into `vocabulary`, the best one first.
        vocabulary: The words.
        count: Largest number of words to return.
    """
    others = [i for i in best if vocabulary[i].lower() != word.lower()][:count]
    return tuple(vocabulary[i] for i in sorted(others))


class NearestWords:
    """Finds the nearest words that have as many tokens as a word; implements `SimilarWords` of the masking.

    Args:
        vectors: The words and their vectors: of a file, or a teacher's embeddings.
        reader: Reader with the teacher's tokenizer.
        vocabulary: Vocabulary size V; words with a token id of V or more are left out.
        count: Number of nearest words among which those with the right number of tokens are searched.
    """

    def __init__(self, vectors: WordVectors, reader: WordReader, vocabulary: int, count: int = _CANDIDATES) -> None:
        self._neighbours, self._reader, self._vocabulary = Neighbours(vectors, count), reader, vocabulary
        self._known: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}

    def of(self, word: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        """Return the words nearest to `word` that have as many tokens, each word given as token ids."""
        if word not in self._known:
            text = self._reader.text(word)
            (neighbours,) = self._neighbours.find([text]) if text else ((),)
            pieces = [tuple(p) for p in self._reader.pieces(neighbours)] if neighbours else []
            self._known[word] = tuple(
                p for p in pieces if len(p) == len(word) and p != word and max(p) < self._vocabulary
            )
        return self._known[word]

    def key(self) -> list[Any]:
        """Return what decides which words are similar: a digest of words and vectors, and the settings."""
        vectors = self._neighbours.vectors
        digest = hashlib.sha256("\n".join(vectors.words).encode())
        digest.update(np.ascontiguousarray(vectors.matrix, "<f4").tobytes())
        return [digest.hexdigest(), self._neighbours.count, self._vocabulary]
