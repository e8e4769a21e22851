"""Libraries that print to the terminal from C++ and Python alike: kept quiet, and shown when they fail."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

_LAST_LINES = 5


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send everything that is printed inside to a temporary file; its last lines go into an error's notes.

    File descriptors 1 and 2 of the whole process are redirected, since C++ code writes there directly. Nothing else
    of the process may print meanwhile.
    """
    logging_level, root = logging.root.level, logging.getLogger()
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved = [os.dup(1), os.dup(2)]
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        root.setLevel(logging.ERROR)
        try:
            yield
        except BaseException as error:
            sys.stdout.flush()
            sys.stderr.flush()
            sink.seek(0)
            lines = sink.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
            if lines:
                error.add_note("printed before: " + " | ".join(lines))
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, handle in zip((1, 2), saved, strict=True):
                os.dup2(handle, target)
                os.close(handle)
            root.setLevel(logging_level)
