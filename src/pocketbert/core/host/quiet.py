"""Libraries that print to the terminal from C++ and Python alike: kept quiet, and shown when they fail."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import TextIO

_LAST_LINES = 5


class _Stream(io.TextIOBase):
    """Writes into a descriptor while `inside` is set; afterwards, for log handlers that keep it, to another stream."""

    def __init__(self, inside: int, outside: TextIO) -> None:
        self.inside: int | None = inside
        self.outside = outside

    def write(self, text: str, /) -> int:
        if self.inside is None:
            return self.outside.write(text)
        os.write(self.inside, text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        self.outside.flush()

    def fileno(self) -> int:
        return self.outside.fileno()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send everything that is printed inside to a temporary file; its last lines go into an error's notes.

    File descriptors 1 and 2 of the whole process are redirected, since C++ code writes there directly, and so are
    `sys.stdout` and `sys.stderr`, which are something else in a notebook. Nothing else of the process may print
    meanwhile.
    """
    logging_level, root = logging.root.level, logging.getLogger()
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        tempfile.TemporaryFile() as sink,
        contextlib.redirect_stdout(_Stream(sink.fileno(), sys.stdout)) as out,
        contextlib.redirect_stderr(_Stream(sink.fileno(), sys.stderr)) as err,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        saved = [os.dup(1), os.dup(2)]
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        root.setLevel(logging.ERROR)
        try:
            yield
        except BaseException as error:
            out.flush()
            err.flush()
            sink.seek(0)
            lines = sink.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
            if lines:
                error.add_note("printed before: " + " | ".join(lines))
            raise
        finally:
            out.inside = err.inside = None
            out.flush()
            err.flush()
            for target, handle in zip((1, 2), saved, strict=True):
                os.dup2(handle, target)
                os.close(handle)
            root.setLevel(logging_level)


@contextlib.contextmanager
def quiet_coremltools() -> Iterator[None]:
    """Silence what coremltools says through its loggers and progress bars: eight missing proxies, 93 passes."""
    logger, bars = logging.getLogger("coremltools"), os.environ.get("TQDM_DISABLE")
    level = logger.level
    logger.setLevel(logging.ERROR)
    os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = bars
