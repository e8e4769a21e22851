"""Texts of any number into a corpus on disk, in one pass and bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import is_unicode, sha256_file, write_json
from pocketbert.core.disk.ownership import Contents
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.progress import Meter, say
from pocketbert.core.host.system import version_of
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text.corpus import COLUMN, COUNTS, INFO, CorpusInfo, Dropped, Shard
from pocketbert.distill.text.tokenizer import CorpusTokenizer

# --- rows ---
# Token ids of texts into rows of bounded length: one text a row, or texts packed one after the other.


Ids = NDArray[np.int64]


class RowBuilder(Protocol):
    """Makes rows of texts.

    Attributes:
        dropped: What did not become rows, so far.
    """

    dropped: Dropped

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """The rows that are complete with one more text, given as ids without special tokens."""
        ...

    def finish(self) -> Iterator[Ids]:
        """What is left when all texts are there."""
        ...


class CutTexts:
    """One row per text; longer texts are cut into pieces, each wrapped in special tokens like a separate text.

    As in the code of DistilBERT (Sanh et al. 2019, arXiv 1910.01108), where too short and too unknown rows are
    dropped after cutting; that code cuts the wrapped text, which makes its first piece one token shorter than here.

    Args:
        settings: Lengths and limits.
        tokenizer: Gives the special tokens.
    """

    def __init__(self, settings: CorpusSettings, tokenizer: CorpusTokenizer) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.dropped = Dropped()
        self._room = settings.length - len(tokenizer.before) - len(tokenizer.after)

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """The rows of one text."""
        self.dropped.empty += not tokens.size
        for start in range(0, len(tokens), self._room):
            piece = tokens[start : start + self._room]
            row = np.concatenate([self.tokenizer.before, piece, self.tokenizer.after])
            if len(row) < self.settings.shortest:
                self.dropped.short += 1
            elif _unknown(row, self.tokenizer) >= self.settings.unknown_share * len(row):
                self.dropped.unknown += 1
            else:
                yield row

    def finish(self) -> Iterator[Ids]:
        """Nothing: no row waits for another text."""
        return iter(())


class PackTexts:
    """Rows filled with consecutive texts: ``[CLS] text [SEP] text [SEP] ... [SEP]``.

    A text that does not fit is cut; its rest begins the next row. Every row but the last has `length` tokens, or one
    less where a single free place could hold no token and its ``[SEP]``. A text is judged by its share of unknown
    tokens before it is packed, as it would be on a row of its own; `shortest` can only concern the last row.
    RoBERTa packs likewise ("FULL-SENTENCES", Liu et al. 2019, arXiv 1907.11692, section 4.2).

    Args:
        settings: Lengths and limits.
        tokenizer: Gives the special tokens; the first one that it puts after a text separates texts.
    """

    def __init__(self, settings: CorpusSettings, tokenizer: CorpusTokenizer) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.dropped = Dropped()
        self._separator, self._end = tokenizer.after[:1], tokenizer.after[1:]
        self._room = settings.length - len(tokenizer.before) - len(self._end)
        self._parts: list[Ids] = []
        self._used = 0

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """The rows that this text completes."""
        if not tokens.size:
            self.dropped.empty += 1
            return
        alone = len(tokens) + len(self.tokenizer.before) + len(self.tokenizer.after)
        if _unknown(tokens, self.tokenizer) >= self.settings.unknown_share * alone:
            self.dropped.unknown += 1
            return
        start = 0
        while start < len(tokens):
            piece = tokens[start : start + self._room - self._used - 1]
            self._parts += [piece, self._separator]
            self._used += len(piece) + 1
            start += len(piece)
            if self._room - self._used < 2:
                yield self._row()

    def finish(self) -> Iterator[Ids]:
        """The last row, if it is long enough."""
        if self._parts:
            row = self._row()
            if len(row) >= self.settings.shortest:
                yield row
            else:
                self.dropped.short += 1

    def _row(self) -> Ids:
        row = np.concatenate([self.tokenizer.before, *self._parts, self._end])
        self._parts, self._used = [], 0
        return row


def _unknown(ids: Ids, tokenizer: CorpusTokenizer) -> int:
    return 0 if tokenizer.unknown_id is None else int(np.count_nonzero(ids == tokenizer.unknown_id))


CONTENTS = Contents(INFO, (COUNTS, "rows-*.arrow"))
"""Files of a corpus: a folder that holds anything else is not replaced."""
_TEXTS_AT_ONCE = 1024
_CHARACTERS_AT_ONCE = 1 << 21
"""What is tokenized together: many short texts, or a few books."""
_ROWS_AT_ONCE = 4096
"""Rows of one Arrow record batch."""


def write_corpus(
    texts: Iterable[str],
    tokenizer: Path,
    settings: CorpusSettings,
    destination: Path,
    rows_per_shard: int = 50_000,
    total: int | None = None,
) -> CorpusInfo:
    """Tokenize texts into a corpus.

    The same texts, tokenizer and settings give the same bytes, as long as pyarrow and tokenizers stay the same.

    Args:
        texts: One text after the other (sentences, paragraphs, articles); read once, never held as a whole.
        tokenizer: The model's ``tokenizer.json`` or the folder that holds it.
        settings: How texts become rows.
        destination: The folder to write; an older corpus there is replaced when the new one is whole.
        rows_per_shard: Rows of one file.
        total: Number of texts, if known: there is a bar then, else a line per file.

    Returns:
        What was written.

    Raises:
        InputError: If no row is left, an entry is no text, `destination` is a folder of something else, or the settings
            leave no room beside the tokenizer's special tokens.
        MissingBackendError: If pyarrow is not installed.
    """
    if version_of("pyarrow") is None:
        raise MissingBackendError("the library 'pyarrow'", "pip install 'pocketbert[train]'")
    maker = CorpusTokenizer(tokenizer)
    _check(maker, settings, destination, rows_per_shard)
    builder = PackTexts(settings, maker) if settings.packed else CutTexts(settings, maker)
    with (
        building(destination, CONTENTS) as work,
        Meter("" if total is None else f"tokenize {destination.name}", total or 0) as meter,
    ):
        with contextlib.closing(_Shards(work, maker.vocabulary_size, rows_per_shard, total is None)) as shards:
            read = _tokenize(texts, maker, builder, shards, meter)
            shards.flush()
        if not shards.done:
            raise InputError(
                Problem(
                    str(destination),
                    f"no rows are left of {read:,} texts: {_reasons(builder.dropped)}.",
                    "Give more or longer texts, lower 'shortest', or set 'packed: true'.",
                )
            )
        info = CorpusInfo(
            settings=settings,
            tokenizer_digest=maker.digest,
            vocabulary_size=maker.vocabulary_size,
            special_ids=maker.special_ids,
            texts=read,
            rows=sum(s.rows for s in shards.done),
            tokens=sum(s.tokens for s in shards.done),
            dropped=builder.dropped,
            shards=shards.done,
        )
        np.save(work / COUNTS, shards.counts)
        write_json(work / INFO, info.model_dump(mode="json"))
    return info


def _check(maker: CorpusTokenizer, settings: CorpusSettings, destination: Path, rows_per_shard: int) -> None:
    problems = []
    special = len(maker.before) + len(maker.after)
    if settings.length <= special:
        problems.append(
            Problem("length", f"{settings.length} leaves no room for text next to {special} special tokens.")
        )
    if rows_per_shard < 1:
        problems.append(Problem("rows_per_shard", f"{rows_per_shard}; at least 1 is needed."))
    if destination.is_file() or (
        destination.is_dir() and any(destination.iterdir()) and not (destination / INFO).is_file()
    ):
        problems.append(
            Problem(str(destination), "exists and is not a corpus; it is not replaced.", "Name another folder.")
        )
    if problems:
        raise InputError(problems)


def _tokenize(texts: Iterable[str], maker: CorpusTokenizer, builder: RowBuilder, shards: _Shards, meter: Meter) -> int:
    read = 0
    for batch in _batches(texts):
        read += len(batch)
        clean = [text for text in batch if is_unicode(text)]
        builder.dropped.not_unicode += len(batch) - len(clean)
        for tokens in maker.tokens(clean):
            for row in builder.add(tokens):
                shards.add(row)
        meter.advance(len(batch), f"{shards.rows:,} rows")
    for row in builder.finish():
        shards.add(row)
    return read


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(Problem(f"text {number}", f"{text!r:.60} is {type(text).__name__}, not text."))
        batch.append(text)
        characters += len(text)
        if len(batch) >= _TEXTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _reasons(dropped: Dropped) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped if count) or "there were none"


class _Shards:
    """Writes rows into one file after the other, and counts their tokens."""

    def __init__(self, folder: Path, vocabulary: int, rows_per_shard: int, tell: bool) -> None:
        self.folder, self.limit, self.tell = folder, rows_per_shard, tell
        # half the disk space and page cache for the vocabularies of all English BERTs
        self.dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)
        self.counts: NDArray[np.int64] = np.zeros(vocabulary, np.int64)
        self.done: list[Shard] = []
        self.rows = 0
        self._waiting: list[NDArray[np.int64]] = []
        self._writer: Any = None
        self._shard_rows = self._shard_tokens = 0

    def add(self, row: NDArray[np.int64]) -> None:
        """Append one row."""
        self._waiting.append(row)
        self.rows += 1
        full = self._shard_rows + len(self._waiting) >= self.limit
        if full or len(self._waiting) >= _ROWS_AT_ONCE:
            self._write()
        if full:
            self._end_shard()

    def flush(self) -> None:
        """Write what waits, and end the last file."""
        self._write()
        self._end_shard()

    def close(self) -> None:
        """Let go of an unfinished file after an error."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _path(self) -> Path:
        return self.folder / f"rows-{len(self.done):05}.arrow"

    def _write(self) -> None:
        if not self._waiting:
            return
        import pyarrow

        schema = pyarrow.schema([(COLUMN, pyarrow.list_(pyarrow.from_numpy_dtype(self.dtype)))])
        if self._writer is None:
            self._writer = pyarrow.ipc.new_stream(str(self._path), schema)
        ids = np.concatenate(self._waiting)
        offsets = np.cumsum([0, *map(len, self._waiting)], dtype=np.int32)
        column = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(ids.astype(self.dtype)))
        self._writer.write_batch(pyarrow.record_batch([column], schema=schema))
        self.counts += np.bincount(ids, minlength=len(self.counts))
        self._shard_rows += len(self._waiting)
        self._shard_tokens += len(ids)
        self._waiting = []

    def _end_shard(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        path = self._path
        shard = Shard(
            file=path.name,
            rows=self._shard_rows,
            tokens=self._shard_tokens,
            bytes=path.stat().st_size,
            sha256=sha256_file(path),
        )
        self.done.append(shard)
        self._shard_rows = self._shard_tokens = 0
        if self.tell:
            say(f"  {shard.file}: {shard.rows:,} rows, {shard.tokens:,} tokens")
