"""Finished rows of a long command, kept beside its output until that is written, so that the same command goes on after a kill.

`keep_rows` opens the hidden file ``.NAME.answers``, whose first line is a digest of whatever decides the rows. Rows are added in
portions that are on the disk before the next one is begun; a portion of which only a part was written is cut off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.disk.ownership import lock_beside, remove_named_files
from pocketbert.core.errors import InputError, MachineError, Problem, note_kept

_NAME = re.compile(r"\..+\.(?:answers|lock)")
"""Names of the kept rows and of their lock."""
_KEY_BYTES = 64
_KEY = re.compile(rb"[0-9a-f]{64}\n?")


@dataclass
class KeptRows:
    """The rows of an output that are finished.

    Attributes:
        path: The hidden file.
        done: Number of rows in it.
        note: A sentence for the user on what an earlier command left; empty if it left nothing.
    """

    path: Path
    done: int = 0
    note: str = ""

    def add(self, lines: Sequence[bytes]) -> None:
        """Add the next portion of rows, a line each without its line feed, and write it through to the disk."""
        with self.path.open("ab") as stream:
            stream.write(b"".join(line + b"\n" for line in lines))
            stream.flush()
            os.fsync(stream.fileno())
        self.done += len(lines)

    def read(self) -> Iterator[bytes]:
        """Yield the line of each row, with its line feed."""
        with self.path.open("rb") as stream:
            stream.readline()
            yield from stream


@contextmanager
def keep_rows(output: Path, key: str, portion: int) -> Iterator[KeptRows]:
    """Keep the finished rows of an output in a file while the block runs; the file is removed when the block has ended.

    If the block ends with an error and rows are finished, the file stays, and the error gets a note of it.

    Args:
        output: The file that the block writes from the rows.
        key: Digest of whatever decides the rows; kept rows of another one are begun anew.
        portion: Rows of a portion; the last one may be smaller.

    Yields:
        The rows that an interrupted command has finished.

    Raises:
        InputError: If something else has the name of the hidden file.
        MachineError: If another process is writing the same output.
    """
    from filelock import Timeout

    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.with_name(f".{output.name}.answers")
    lock = lock_beside(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout as error:
        what = f"another process is writing {output}. Wait for it, or choose another file with -o/--output."
        raise MachineError(what) from error
    with held:
        kept = _open_kept_file(path, key, portion)
        try:
            yield kept
        except (Exception, KeyboardInterrupt) as error:
            if kept.done:
                note_kept(error, path)
            else:
                remove_named_files([path, Path(lock.lock_file)], _NAME)
            raise
        remove_named_files([path, Path(lock.lock_file)], _NAME)


def _open_kept_file(path: Path, key: str, portion: int) -> KeptRows:
    """Open the rows that an interrupted command with the same key has finished, without a half-written portion; else begin a new file.

    Raises InputError if something else has this name.
    """
    kept = KeptRows(path)
    if os.path.lexists(path):
        if path.is_symlink() or not path.is_file():
            raise InputError(Problem(str(path), "is not a file of PocketBERT; it is not touched.", "Move it away."))
        with path.open("r+b") as stream:
            first = stream.readline(_KEY_BYTES + 1)
            if first == f"{key}\n".encode():
                place = end = stream.tell()
                for number, line in enumerate(stream, 1):
                    if not line.endswith(b"\n"):
                        break  # cut off; behind a whole portion, too, it is no row
                    place += len(line)
                    # the rows of a portion are computed together, so that a batch is always the same
                    if number % portion == 0:
                        kept.done, end = number, place
                stream.truncate(end)
                kept.note = f"{kept.done:,} rows were answered before; going on behind them" if kept.done else ""
                return kept
        if first and not _KEY.fullmatch(first):
            raise InputError(Problem(str(path), "is not a file of PocketBERT; it is not touched.", "Move it away."))
        kept.note = f"{path.name} has answers to other rows, or of other settings: they are computed anew"
    path.write_text(f"{key}\n", encoding="utf-8")
    return kept
