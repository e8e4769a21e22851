"""run.log: what happened in a run folder, and why it stopped."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pocketbert.core.errors import GateError

log = logging.getLogger("pocketbert")


class _RunLog(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Say nothing: on a full disk the error that stopped the run is the one to read."""


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append to a file what is logged in the block, and the error that ends it."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False  # libraries configure the root logger; run.log is the place for this
    log.addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        log.info("stopped by a signal")
        raise
    except BaseException as error:
        # a gate says all there is to say
        log.error("stopped: %s: %s", type(error).__name__, error, exc_info=not isinstance(error, GateError))
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def command_line() -> str:
    """The command line of this process, where it is PocketBERT's; empty elsewhere."""
    return "pocketbert " + shlex.join(sys.argv[1:]) if sys.argv and "pocketbert" in sys.argv[0] else ""
