"""Write texts of any number into a corpus on disk, in one pass and bounded memory.

`write_corpus` tokenizes the texts in batches, turns them into rows of bounded length (`_CutTexts`: one text per row;
`_PackTexts`: texts packed one after the other), and appends the rows to Arrow files of a given number of rows. The
format is described in `pocketbert.distill.text.corpus`. In a launch of several processes, `tokenize_share` tokenizes in the other
processes their part of the batches of a corpus that process 0 writes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import is_unicode, sha256_file, write_json
from pocketbert.core.disk.ownership import FolderContents
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.processes import LaunchedProcess, current_process, exchange
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.host.system import version_of
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text.corpus import COLUMN, CORPUS_FILE, COUNTS, CorpusInfo, Dropped, Shard
from pocketbert.distill.text.tokenizer import CorpusTokenizer

CORPUS_CONTENTS = FolderContents(CORPUS_FILE, (COUNTS, "rows-*.arrow"))
"""Files of a corpus: a folder that holds anything else is not replaced."""

_TEXTS_AT_ONCE = 1024
_CHARACTERS_AT_ONCE = 1 << 21
"""Texts and characters that are tokenized together: many short texts, or a few books."""
_ROWS_AT_ONCE = 4096
"""Rows of one Arrow record batch."""
_TOLD_BATCHES = 256
"""Batches after which process 0 says how far a divided tokenization is."""
_NOT_UNICODE = -1
"""Stands in place of the number of tokens of a text that no tokenizer takes."""

_Ids = NDArray[np.int64]
_Batch = tuple[_Ids, _Ids]
"""A tokenized batch: the number of tokens of each text, or `_NOT_UNICODE`, and the token ids of all its texts."""


def write_corpus(
    texts: Iterable[str],
    tokenizer: Path,
    settings: CorpusSettings,
    destination: Path,
    rows_per_shard: int = 50_000,
    total: int | None = None,
    divided: bool = False,
    spread: Callable[[Iterator[list[str]]], Iterator[_Batch]] | None = None,
) -> CorpusInfo:
    """Tokenize texts, and write them as rows of token ids into a corpus folder.

    The same texts, tokenizer and settings give the same bytes, as long as pyarrow and tokenizers stay the same, and
    however many processes tokenize them.

    Args:
        texts: One text after the other (sentences, paragraphs, articles); read once, never held as a whole.
        tokenizer: The model's ``tokenizer.json`` or the folder that holds it.
        settings: How texts become rows.
        destination: The folder to write; an older corpus there is replaced when the new one is complete.
        rows_per_shard: Number of rows in each file.
        total: Number of texts, if known: progress is then shown as a bar, else as a line per file.
        divided: Whether the other processes of the launch tokenize their part of the texts; they call `tokenize_share`.
        spread: Function that has other processes tokenize batches of texts, by `open_batch_tokenizer`, and yields them in their order.

    Returns:
        The content of ``corpus.json``.

    Raises:
        InputError: If no row is left, an entry is no text, `tokenizer` is no tokenizer, `destination` holds something
            else than a corpus, the settings leave no room beside the tokenizer's special tokens, or `rows_per_shard` is
            below 1.
        MissingBackendError: If pyarrow is not installed.
    """
    if version_of("pyarrow") is None:
        raise MissingBackendError("the library 'pyarrow'", "pip install 'pocketbert[train]'")
    corpus_tokenizer = CorpusTokenizer(tokenizer)
    _check_arguments(corpus_tokenizer, settings, destination, rows_per_shard)
    builder = (_PackTexts if settings.packed else _CutTexts)(settings, corpus_tokenizer)
    size = corpus_tokenizer.vocabulary_size
    with (
        build_folder(destination, CORPUS_CONTENTS) as work,
        Meter("" if total is None else f"tokenize {destination.name}", total or 0) as meter,
        contextlib.closing(_ShardWriter(work, size, rows_per_shard, total is None)) as shards,
    ):
        if divided:
            exchange(str(work.parent))
            batches = _tokenize_together(texts, corpus_tokenizer, work.parent)
        elif spread is not None:
            batches = spread(_batch_texts(texts))
        else:
            batches = _tokenize(texts, corpus_tokenizer, LaunchedProcess(0, 1))
        text_count = _write_rows(batches, builder, shards, meter)
        if not shards.done:
            raise _no_rows_error(destination, text_count, builder.dropped)
        info = CorpusInfo(
            settings=settings,
            tokenizer_digest=corpus_tokenizer.digest,
            vocabulary_size=size,
            special_ids=corpus_tokenizer.special_ids,
            texts=text_count,
            rows=sum(s.rows for s in shards.done),
            tokens=sum(s.tokens for s in shards.done),
            dropped=builder.dropped,
            shards=shards.done,
        )
        np.save(work / COUNTS, shards.counts)
        write_json(work / CORPUS_FILE, info.model_dump(mode="json"))
    return info


def _check_arguments(
    tokenizer: CorpusTokenizer, settings: CorpusSettings, destination: Path, rows_per_shard: int
) -> None:
    """Raise one InputError with everything that is wrong with the arguments of `write_corpus`."""
    problems = []
    special = len(tokenizer.before) + len(tokenizer.after)
    if settings.length <= special:
        problems.append(
            Problem("length", f"{settings.length} leaves no room for text next to {special} special tokens.")
        )
    if rows_per_shard < 1:
        problems.append(Problem("rows_per_shard", f"{rows_per_shard}; at least 1 is needed."))
    if destination.is_file() or (
        destination.is_dir() and any(destination.iterdir()) and not (destination / CORPUS_FILE).is_file()
    ):
        problems.append(
            Problem(str(destination), "exists and is not a corpus; it is not replaced.", "Name another folder.")
        )
    if problems:
        raise InputError(problems)


def _no_rows_error(destination: Path, text_count: int, dropped: Dropped) -> InputError:
    """Return the InputError for texts of which no row is left, with what was dropped and why."""
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped if count)
    what = f"no rows are left of {text_count:,} texts: {reasons or 'there were none'}."
    return InputError(
        Problem(str(destination), what, "Give more or longer texts, lower 'shortest', or set 'packed: true'.")
    )


def _write_rows(batches: Iterable[_Batch], builder: _RowBuilder, shards: _ShardWriter, meter: Meter) -> int:
    """Build rows from tokenized batches, write them to files, and return the number of texts.

    `builder` makes rows of texts, `shards` writes them, and `meter` shows the progress. Texts that are not valid
    Unicode are counted and dropped.
    """
    text_count = 0
    for lengths, ids in batches:
        text_count += len(lengths)
        valid = lengths[lengths != _NOT_UNICODE]
        builder.dropped.not_unicode += len(lengths) - len(valid)
        for tokens in np.split(ids, np.cumsum(valid))[:-1]:
            for row in builder.add(tokens):
                shards.add(row)
        meter.advance(len(lengths), f"{shards.rows:,} rows")
    for row in builder.finish():
        shards.add(row)
    shards.flush()
    return text_count


# --- tokenizing, alone or together with other processes ---


def tokenize_share(texts: Iterable[str], tokenizer: Path) -> None:
    """Tokenize, in a process other than 0, this process's part of the texts of a corpus that process 0 writes.

    Every process reads all texts. Process 0 calls `write_corpus` with the same ones and `divided`.

    Args:
        texts: All texts of the corpus.
        tokenizer: The model's ``tokenizer.json`` or the folder that holds it.
    """
    _tokenize_together(texts, CorpusTokenizer(tokenizer), Path(exchange()[0]))


def _tokenize_together(texts: Iterable[str], tokenizer: CorpusTokenizer, folder: Path) -> Iterator[_Batch]:
    """Tokenize this process's part of the texts into a file of `folder`, and wait until all processes have done so.

    Returns the batches of all processes, in the order of the texts.
    """
    process, number_type = current_process(), _id_type(tokenizer.vocabulary_size)
    with _share_of(folder, process.rank).open("wb") as stream:
        for count, (lengths, ids) in enumerate(_tokenize(texts, tokenizer, process), 1):
            np.save(stream, lengths)
            np.save(stream, ids.astype(number_type))
            if count % _TOLD_BATCHES == 0:
                print_note(f"  {count * process.world:,} batches of texts tokenized by {process.world} processes")
    exchange()
    return _read_shares(folder, process.world)


def _read_shares(folder: Path, world: int) -> Iterator[_Batch]:
    """Yield the batches that the processes of a launch have tokenized into a folder, in the order of the texts."""
    with contextlib.ExitStack() as files:
        streams = [files.enter_context(_share_of(folder, rank).open("rb")) for rank in range(world)]
        for stream in itertools.cycle(streams):
            if not stream.peek(1):  # batches are dealt in turn: nobody has one behind the first that is missing
                return
            lengths = np.load(stream, allow_pickle=False)
            yield lengths, np.load(stream, allow_pickle=False).astype(np.int64)


def _share_of(folder: Path, rank: int) -> Path:
    """Return the file of the batches that a process tokenizes."""
    return folder / f"{rank}-tokens.npy"


def _tokenize(texts: Iterable[str], tokenizer: CorpusTokenizer, process: LaunchedProcess) -> Iterator[_Batch]:
    """Yield the tokenized batches that fall to a process, if all processes take batches in turn."""
    for batch in itertools.islice(_batch_texts(texts), process.rank, None, process.world):
        yield _tokenize_batch(tokenizer, batch)


def open_batch_tokenizer(tokenizer: Path) -> Callable[[list[str]], _Batch]:
    """Return a function that tokenizes a batch of texts, for processes that work for `write_corpus`."""
    return partial(_tokenize_batch, CorpusTokenizer(tokenizer))


def _tokenize_batch(tokenizer: CorpusTokenizer, batch: list[str]) -> _Batch:
    """Return a tokenized batch of texts."""
    valid = np.array([is_unicode(text) for text in batch])
    tokens = tokenizer.tokens([*itertools.compress(batch, valid)])
    lengths = np.full(len(batch), _NOT_UNICODE, np.int64)
    lengths[valid] = [len(ids) for ids in tokens]
    return lengths, np.concatenate([np.empty(0, np.int64), *tokens])


def _batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of texts to tokenize together; raise InputError if an entry is no string."""
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


# --- texts to rows ---


class _RowBuilder:
    """Base of the two ways to build rows of token ids from tokenized texts.

    Attributes:
        dropped: Numbers of texts and rows that were left out so far.

    Args:
        settings: Lengths of rows and limits of what is dropped.
        tokenizer: Source of the special tokens; the first one that it puts after a text separates packed texts.
    """

    def __init__(self, settings: CorpusSettings, tokenizer: CorpusTokenizer) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.dropped = Dropped()

    def add(self, tokens: _Ids) -> Iterator[_Ids]:
        """Take the token ids of one more text, without special tokens, and yield the rows that are complete with it."""
        raise NotImplementedError

    def finish(self) -> Iterator[_Ids]:
        """Yield the rows that remain after the last text."""
        return iter(())

    def _has_many_unknown(self, ids: _Ids, row_length: int) -> bool:
        """Return whether so many of `ids` are unknown tokens that a row of `row_length` tokens is dropped."""
        unknown_id = self.tokenizer.unknown_id
        unknown = 0 if unknown_id is None else int(np.count_nonzero(ids == unknown_id))
        return unknown >= self.settings.unknown_share * row_length


class _CutTexts(_RowBuilder):
    """Builds one row per text. Longer texts are cut into pieces, each with special tokens around it.

    This is as in the code of DistilBERT (Sanh et al. 2019, arXiv 1910.01108), where rows that are too short or have too
    many unknown tokens are dropped after cutting. That code adds the special tokens before it cuts, which makes its
    first piece one token shorter than here.
    """

    def add(self, tokens: _Ids) -> Iterator[_Ids]:
        """Cut one text's token ids into rows, and yield the rows, each with special tokens.

        Empty texts, and rows that are too short or have too many unknown tokens, are counted and dropped.
        """
        before, after = self.tokenizer.before, self.tokenizer.after
        room = self.settings.length - len(before) - len(after)
        self.dropped.empty += not tokens.size
        for start in range(0, len(tokens), room):
            row = np.concatenate([before, tokens[start : start + room], after])
            if len(row) < self.settings.shortest:
                self.dropped.short += 1
            elif self._has_many_unknown(row, len(row)):
                self.dropped.unknown += 1
            else:
                yield row


class _PackTexts(_RowBuilder):
    """Builds rows that are filled with consecutive texts: ``[CLS] text [SEP] text [SEP] ... [SEP]``.

    A text that does not fit is cut; its rest begins the next row. Every row but the last has `length` tokens, or one
    less if a single place is left, which could not hold a token and its ``[SEP]``. Texts with too large a share of
    unknown tokens are dropped before packing, with the share that they would have on a row of their own; `shortest` can
    only concern the last row. RoBERTa packs in the same way ("FULL-SENTENCES", Liu et al. 2019, arXiv 1907.11692,
    section 4.2).
    """

    def __init__(self, settings: CorpusSettings, tokenizer: CorpusTokenizer) -> None:
        super().__init__(settings, tokenizer)
        self._separator, self._end = tokenizer.after[:1], tokenizer.after[1:]
        self._room = settings.length - len(tokenizer.before) - len(self._end)
        self._parts: list[_Ids] = []
        self._used = 0

    def add(self, tokens: _Ids) -> Iterator[_Ids]:
        """Add one text's token ids to the row that is being filled; yield each row that becomes full.

        A text that does not fit continues in the next row. Texts that are empty or have too many unknown tokens are
        counted and dropped.
        """
        if not tokens.size:
            self.dropped.empty += 1
            return
        if self._has_many_unknown(tokens, len(tokens) + len(self.tokenizer.before) + len(self.tokenizer.after)):
            self.dropped.unknown += 1
            return
        start = 0
        while start < len(tokens):
            piece = tokens[start : start + self._room - self._used - 1]
            self._parts += [piece, self._separator]
            self._used += len(piece) + 1
            start += len(piece)
            if self._room - self._used < 2:
                yield self._take_row()

    def finish(self) -> Iterator[_Ids]:
        """Yield the last, partly filled row if it is long enough."""
        if self._parts:
            row = self._take_row()
            if len(row) >= self.settings.shortest:
                yield row
            else:
                self.dropped.short += 1

    def _take_row(self) -> _Ids:
        """Return the row in progress with its special tokens, and begin an empty one."""
        row = np.concatenate([self.tokenizer.before, *self._parts, self._end])
        self._parts, self._used = [], 0
        return row


# --- rows to files ---


def _id_type(vocabulary: int) -> np.dtype[Any]:
    """Return the number type of token ids on disk: half the space and page cache for the vocabularies of all English BERTs."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)


class _ShardWriter:
    """Writes rows of token ids into one Arrow file after the other, and counts how often each token occurs.

    Attributes:
        counts: Occurrences of each token, [V] int64.
        done: Descriptions of the complete files.
        rows: Rows added so far.

    Args:
        report: Whether to print a line per file.
    """

    def __init__(self, folder: Path, vocabulary: int, rows_per_shard: int, report: bool) -> None:
        self.folder, self.limit, self.report = folder, rows_per_shard, report
        self.dtype = _id_type(vocabulary)
        self.counts: NDArray[np.int64] = np.zeros(vocabulary, np.int64)
        self.done: list[Shard] = []
        self.rows = 0
        self._pending: list[NDArray[np.int64]] = []
        self._writer: Any = None
        self._shard_rows = self._shard_tokens = 0

    def add(self, row: NDArray[np.int64]) -> None:
        """Append one row, and begin a new file after `rows_per_shard` rows."""
        self._pending.append(row)
        self.rows += 1
        full = self._shard_rows + len(self._pending) >= self.limit
        if full or len(self._pending) >= _ROWS_AT_ONCE:
            self._write_pending()
        if full:
            self._end_shard()

    def flush(self) -> None:
        """Write the rows that are still in memory, and close the last file."""
        self._write_pending()
        self._end_shard()

    def close(self) -> None:
        """Close an unfinished file, for use after an error."""
        if self._writer is not None:
            self._writer.close()

    def _write_pending(self) -> None:
        """Write the rows in memory as one Arrow record batch, and count their tokens."""
        if not self._pending:
            return
        import pyarrow

        schema = pyarrow.schema([(COLUMN, pyarrow.list_(pyarrow.from_numpy_dtype(self.dtype)))])
        if self._writer is None:
            self._writer = pyarrow.ipc.new_stream(str(self._shard_path()), schema)
        ids = np.concatenate(self._pending)
        offsets = np.cumsum([0, *map(len, self._pending)], dtype=np.int32)
        column = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(ids.astype(self.dtype)))
        self._writer.write_batch(pyarrow.record_batch([column], schema=schema))
        self.counts += np.bincount(ids, minlength=len(self.counts))
        self._shard_rows += len(self._pending)
        self._shard_tokens += len(ids)
        self._pending = []

    def _end_shard(self) -> None:
        """Close the open file, if there is one, and append its description to `done`."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        path = self._shard_path()
        shard = Shard(
            file=path.name,
            rows=self._shard_rows,
            tokens=self._shard_tokens,
            bytes=path.stat().st_size,
            sha256=sha256_file(path),
        )
        self.done.append(shard)
        self._shard_rows = self._shard_tokens = 0
        if self.report:
            print_note(f"  {shard.file}: {shard.rows:,} rows, {shard.tokens:,} tokens")

    def _shard_path(self) -> Path:
        """Return the path of the file that is being written."""
        return self.folder / f"rows-{len(self.done):05}.arrow"
