"""Plain text as rows of token ids on disk: memory-mapped, read at any place, for general distillation.

A corpus is a folder, written by `pocketbert.distill.text.writer.write_corpus`: ``corpus.json`` (`CorpusInfo`), ``counts.npy``
(how often each token occurs, [V] int64) and ``rows-00000.arrow`` ... with one column ``input_ids``, in the format that
`datasets` reads: ``load_dataset("arrow", data_files="FOLDER/*.arrow")``.

`open_corpus` opens a `Corpus`, and `mix_corpora` samples rows from several as a `_Mixture`. Both implement `TokenRows`, as does
`EncodedRows` for tokenized rows in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from pocketbert.core.disk.files import read_json, safe_join, sha256_file, sha256_json
from pocketbert.core.errors import InputError, MissingBackendError, Problem, first_line
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.core.seeds import generator

CORPUS_FILE = "corpus.json"
COUNTS = "counts.npy"
COLUMN = "input_ids"

_Rows = Sequence[int] | NDArray[np.int64]


class Dropped(BaseModel):
    """Numbers of texts and rows that were left out of a corpus, by reason.

    `short` counts rows, and so does `unknown` if texts are not packed; all other numbers count texts.

    Attributes:
        empty: Texts without tokens.
        not_unicode: Texts with half of a surrogate pair, which no tokenizer takes.
        short: Rows with fewer tokens than `CorpusSettings.shortest`.
        unknown: Texts or rows with too large a share of unknown tokens.
    """

    empty: NonNegativeInt = 0
    not_unicode: NonNegativeInt = 0
    short: NonNegativeInt = 0
    unknown: NonNegativeInt = 0


class Shard(BaseModel):
    """Description of one Arrow file of a corpus: its name, rows, tokens, bytes and hash."""

    model_config = ConfigDict(frozen=True)

    file: str
    rows: PositiveInt
    tokens: PositiveInt
    bytes: PositiveInt
    sha256: str


class CorpusInfo(BaseModel):
    """Content of a corpus' ``corpus.json``: settings, tokenizer, sizes, and its files.

    Attributes:
        schema_version: Version of this file.
        settings: How texts became rows.
        tokenizer_digest: `pocketbert.distill.text.tokenizer.tokenizer_digest` of the tokenizer.
        vocabulary_size: V: the highest token id plus one.
        special_ids: Ids that are never masked: those that the tokenizer declares as special.
        texts: Texts that were read.
        rows: Number of rows.
        tokens: Number of tokens.
        dropped: Texts and rows that were left out.
        shards: The files of rows.
    """

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1] = 1
    settings: CorpusSettings
    tokenizer_digest: str
    vocabulary_size: PositiveInt
    special_ids: list[NonNegativeInt]
    texts: PositiveInt
    rows: PositiveInt
    tokens: PositiveInt
    dropped: Dropped
    shards: Annotated[list[Shard], Field(min_length=1)]

    @property
    def digest(self) -> str:
        """Hash of all these fields, the files' hashes included. A stage that reads the corpus depends on it."""
        return sha256_json(self.model_dump(mode="json"))


class TokenRows(Protocol):
    """Interface of tokenized rows: a `Corpus`, a mixture of corpora, or `EncodedRows`."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, [N]."""
        ...

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of occurrences of each token id, [V]."""
        ...

    def ids(self, rows: _Rows) -> list[NDArray[np.int64]]:
        """Return an array of token ids for each of the given row numbers."""
        ...


class Corpus:
    """Tokenized rows in memory-mapped files of a folder; see `open_corpus`.

    Attributes:
        folder: The corpus' folder.
        info: Content of ``corpus.json``.
        counts: Occurrences of each token, [V] int64.
        lengths: Tokens of each of the N rows, special ones included, [N] int64.
    """

    def __init__(
        self,
        folder: Path,
        info: CorpusInfo,
        counts: NDArray[np.int64],
        chunks: Sequence[tuple[NDArray[np.int32], NDArray[Any]]],
    ) -> None:
        self.folder, self.info, self.counts = folder, info, counts
        self._chunks = chunks
        sizes = [len(offsets) - 1 for offsets, _ in chunks]
        self._starts = np.cumsum([0, *sizes])[:-1]
        self.lengths = np.concatenate([np.diff(offsets) for offsets, _ in chunks]).astype(np.int64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def ids(self, rows: _Rows) -> list[NDArray[np.int64]]:
        """Read the token ids of the given rows from the memory-mapped files.

        Args:
            rows: Row numbers from 0, in any order, repeats allowed.

        Returns:
            One array per row number, [L] int64.

        Raises:
            IndexError: If a row number is out of range.
        """
        index = _row_index(rows, len(self))
        ids = []
        for row, chunk in zip(index, np.searchsorted(self._starts, index, "right") - 1, strict=True):
            offsets, values = self._chunks[chunk]
            place = row - self._starts[chunk]
            ids.append(values[offsets[place] : offsets[place + 1]].astype(np.int64))
        return ids

    def verify(self) -> None:
        """Compare the hash of every file of rows with the one in ``corpus.json``.

        This finds changed token ids, which opening the corpus does not.

        Raises:
            InputError: Naming every file that is missing or whose content differs.
        """
        changed = []
        with Meter(f"check {self.folder.name}", self.info.tokens) as meter:
            for shard in self.info.shards:
                path = self.folder / shard.file
                if not path.is_file() or sha256_file(path) != shard.sha256:
                    changed.append(_damage(path, "its sha256 is not the one it was written with"))
                meter.advance(shard.tokens)
        if changed:
            raise InputError(changed)


class EncodedRows:
    """Tokenized rows of a data set, held in memory; implements `TokenRows`.

    Args:
        encoded: N tokenized rows.
        vocabulary: Number of tokens V.
    """

    def __init__(self, encoded: Sequence[Encoded], vocabulary: int) -> None:
        self._encoded = encoded
        self.lengths: NDArray[np.int64] = np.array([len(e) for e in encoded], np.int64)
        all_ids = np.concatenate([e.ids for e in encoded]) if encoded else np.empty(0, np.int64)
        self.counts: NDArray[np.int64] = np.bincount(all_ids, minlength=vocabulary).astype(np.int64)

    def ids(self, rows: _Rows) -> list[NDArray[np.int64]]:
        """Return an array of token ids for each of the given row numbers."""
        return [self._encoded[int(i)].ids for i in rows]


def _row_index(rows: _Rows, count: int) -> NDArray[np.int64]:
    """Convert row numbers to an array [n]; raise IndexError if one is outside 0 to `count` - 1."""
    index = np.asarray(rows, np.int64).reshape(-1)
    if index.size and not 0 <= index.min() <= index.max() < count:
        raise IndexError(f"rows {index.min()} to {index.max()} asked for, there are {count}")
    return index


# --- opening a corpus ---


def open_corpus(folder: Path, tokenizer_digest: str | None = None) -> Corpus:
    """Open a corpus folder without reading its rows, after comparing its files' sizes with ``corpus.json``.

    The numbers of rows and tokens of every file are compared too. The bytes of the rows are not hashed, which takes
    time on a large corpus: `Corpus.verify` does this.

    Args:
        folder: A folder of `write_corpus`.
        tokenizer_digest: Digest of the model's tokenizer, with which the corpus must have been made; None to accept
            any.

    Returns:
        The corpus, whose rows are read on demand.

    Raises:
        InputError: If the folder is no corpus, is damaged, or was made with another tokenizer.
        MissingBackendError: If pyarrow is not installed.
    """
    if not (folder / CORPUS_FILE).is_file():
        raise InputError(Problem(str(folder), f"no corpus: there is no {CORPUS_FILE}."))
    try:
        info = CorpusInfo.model_validate(read_json(folder / CORPUS_FILE))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _damaged(folder / CORPUS_FILE, f"{place}: {first['msg']}") from error
    if tokenizer_digest is not None and tokenizer_digest != info.tokenizer_digest:
        reason = (
            f"made with another tokenizer ({info.tokenizer_digest[:12]}) than the model's "
            f"({tokenizer_digest[:12]}): its ids mean other tokens."
        )
        raise InputError(Problem(str(folder), reason, "Write the corpus again with the model's tokenizer."))
    if version_of("pyarrow") is None:
        raise MissingBackendError("the library 'pyarrow'", "pip install 'pocketbert[train]'")
    chunks = [chunk for shard in info.shards for chunk in _read_shard(folder, shard)]
    corpus = Corpus(folder, info, _read_counts(folder, info), chunks)
    if len(corpus) != info.rows or int(corpus.lengths.sum()) != info.tokens:
        raise _damaged(folder, f"{len(corpus):,} rows, {CORPUS_FILE} says {info.rows:,}")
    return corpus


def _read_counts(folder: Path, info: CorpusInfo) -> NDArray[np.int64]:
    """Read counts.npy, the number of occurrences of each token id, and compare its size and sum with corpus.json.

    Raises InputError if the file is broken or differs.
    """
    path = folder / COUNTS
    try:
        counts: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, first_line(error)) from error
    if counts.shape != (info.vocabulary_size,) or counts.dtype != np.int64 or counts.min() < 0:
        raise _damaged(path, f"shape {counts.shape}, dtype {counts.dtype}; {info.vocabulary_size} counts expected")
    if int(counts.sum()) != info.tokens:
        raise _damaged(path, f"{int(counts.sum()):,} tokens, {CORPUS_FILE} says {info.tokens:,}")
    return counts


def _read_shard(folder: Path, shard: Shard) -> list[tuple[NDArray[np.int32], NDArray[Any]]]:
    """Memory-map one Arrow file of a corpus, after comparing its bytes, rows and tokens with corpus.json.

    Returns:
        For each chunk of the file, the offsets of its rows, [rows + 1], and the token ids of all its rows.

    Raises:
        InputError: If the file is missing, broken or has other numbers of bytes, rows or tokens.
    """
    import pyarrow

    path = safe_join(folder, shard.file, str(folder / CORPUS_FILE))
    if not path.is_file():
        raise _damaged(path, "the file is missing")
    if path.stat().st_size != shard.bytes:
        raise _damaged(path, f"{path.stat().st_size:,} bytes, {CORPUS_FILE} says {shard.bytes:,}")
    try:
        with pyarrow.memory_map(str(path)) as source:
            table = pyarrow.ipc.open_stream(source).read_all()
        lists = table.column(COLUMN).chunks
        chunks = [(c.offsets.to_numpy(), c.values.to_numpy()) for c in lists if c.null_count == 0]
    except (pyarrow.ArrowException, OSError, ValueError, LookupError, AttributeError) as error:
        raise _damaged(path, first_line(error)) from error
    rows = tokens = 0
    for offsets, values in chunks:
        # offsets that go back or beyond the end would silently read other rows' tokens
        if (
            offsets[0] != 0
            or offsets[-1] != len(values)
            or np.any(np.diff(offsets) <= 0)
            or values.dtype.kind not in "iu"
        ):
            raise _damaged(path, "its offsets or ids are not those of rows")
        rows, tokens = rows + len(offsets) - 1, tokens + len(values)
    if (rows, tokens) != (shard.rows, shard.tokens):
        raise _damaged(
            path, f"{rows:,} rows of {tokens:,} tokens, {CORPUS_FILE} says {shard.rows:,} of {shard.tokens:,}"
        )
    return chunks


def _damaged(path: Path, reason: str) -> InputError:
    """Return the InputError for a damaged corpus file."""
    return InputError(_damage(path, reason))


def _damage(path: Path, reason: str) -> Problem:
    """Return the problem that describes a damaged corpus file."""
    return Problem(str(path), f"damaged corpus: {reason.rstrip('.')}.", "Write the corpus again.")


# --- mixing corpora ---


@dataclass(frozen=True)
class _Mixture:
    """Rows sampled from several corpora; see `mix_corpora`.

    Attributes:
        corpora: The corpora that rows are taken from.
        sources: Index in `corpora` for each of the N rows, [N] int64.
        places: Row number of each row in its corpus, [N] int64.
        lengths: Number of tokens of each row, [N] int64.
        counts: Occurrences of each token, [V] int64. They are the corpora's own counts, in proportion to the rows taken
            from them, and so exact only if all rows of a corpus are taken.
    """

    corpora: Sequence[Corpus]
    sources: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def ids(self, rows: _Rows) -> list[NDArray[np.int64]]:
        """Return an array of token ids for each of the given row numbers; see `Corpus.ids`."""
        index = _row_index(rows, len(self))
        return [self.corpora[self.sources[i]].ids(self.places[i : i + 1])[0] for i in index]


def mix_corpora(corpora: Sequence[Corpus], shares: Sequence[float], rows: int, seed: int) -> _Mixture:
    """Sample rows at random from one or several corpora, a given share of them from each.

    From each corpus, rows are taken without replacement until all were taken once, then again all in a new order. The
    sample depends only on the seed, the shares, the number of rows and the sizes of the corpora.

    Args:
        corpora: The corpora to take rows from, made with the same tokenizer.
        shares: Share of the rows from each corpus; positive, scaled to sum to 1. The numbers of rows are rounded by
            largest remainder.
        rows: Number of rows N of the sample, at least 1.
        seed: Decides which rows, and their order.

    Returns:
        N rows in random order.

    Raises:
        InputError: If there are not as many shares as corpora, a share is not positive or too small for one row, `rows`
            is below 1, or the tokenizers differ.
    """
    _check_mixture(corpora, shares, rows)
    row_counts = _apportion(shares, rows)
    if not row_counts.all():
        i = int(np.argmin(row_counts))
        raise InputError(
            Problem(
                f"shares.{i}",
                f"{shares[i]} of {sum(shares)} is less than one of {rows} rows.",
                "Raise the share or the number of rows, or leave this source out.",
            )
        )
    samples = [_sample_rows(len(c), int(n), seed, i) for i, (c, n) in enumerate(zip(corpora, row_counts, strict=True))]
    order = generator(seed, "mix/order").permutation(rows)
    expected_counts = [c.counts * (n / len(c)) for c, n in zip(corpora, row_counts, strict=True)]
    return _Mixture(
        corpora=tuple(corpora),
        sources=np.repeat(np.arange(len(corpora)), row_counts)[order],
        places=np.concatenate(samples)[order],
        lengths=np.concatenate([c.lengths[s] for c, s in zip(corpora, samples, strict=True)])[order],
        counts=np.rint(np.sum(expected_counts, 0)).astype(np.int64),
    )


def _check_mixture(corpora: Sequence[Corpus], shares: Sequence[float], rows: int) -> None:
    """Raise one InputError with everything that is wrong with the arguments of `mix_corpora`."""
    problems = []
    if not corpora or len(corpora) != len(shares):
        problems.append(Problem("shares", f"{len(shares)} shares for {len(corpora)} corpora; one each is needed."))
    problems += [
        Problem(f"shares.{i}", f"{share}; a share is a positive number.")
        for i, share in enumerate(shares)
        if not (isfinite(share) and share > 0)
    ]
    if rows < 1:
        problems.append(Problem("rows", f"{rows}; at least 1 is needed."))
    problems += [
        Problem(
            str(c.folder),
            f"made with another tokenizer than {corpora[0].folder}; rows of both cannot be mixed.",
            "Write both with the model's tokenizer.",
        )
        for c in corpora[1:]
        if c.info.tokenizer_digest != corpora[0].info.tokenizer_digest
    ]
    if problems:
        raise InputError(problems)


def _apportion(shares: Sequence[float], rows: int) -> NDArray[np.int64]:
    """Divide `rows` among sources in proportion to `shares`, and return whole numbers that sum to `rows`.

    Numbers are rounded down, and the rows left over go to the largest remainders, of equal ones to the earlier source.
    """
    exact = np.asarray(shares, np.float64) / sum(shares) * rows
    whole = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[: rows - int(whole.sum())]] += 1
    return whole


def _sample_rows(available: int, count: int, seed: int, source: int) -> NDArray[np.int64]:
    """Draw `count` random row numbers below `available`. No row is drawn again before all were drawn once."""
    rounds = -(-count // available)
    orders = [generator(seed, "mix/rows", source, r).permutation(available) for r in range(rounds)]
    sample: NDArray[np.int64] = np.concatenate(orders)[:count]
    return sample
