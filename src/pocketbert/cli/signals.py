"""Ctrl-C and SIGTERM: the first one ends the command in order, the second one at once; both keep what is on disk."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pocketbert.core.errors import ExitCode
from pocketbert.core.host.stopping import postpone

CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}
_WORDS = {ExitCode.INTERRUPTED: "Ctrl-C", ExitCode.TERMINATED: "SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end.

    Attributes:
        exit_code: What the command ends with.
        message: What is printed; one line.
    """

    def __init__(self, exit_code: ExitCode) -> None:
        super().__init__()
        self.exit_code, self.message = exit_code, stopped_by(exit_code)


def stopped_by(code: ExitCode) -> str:
    """What is printed at the end that a signal asked for."""
    return f"Stopped by {_WORDS[code]}. Finished work is kept; run the same command to continue."


@contextmanager
def signals() -> Iterator[None]:
    """End a command in order at the first signal: an exception unwinds it, in training after the step and its checkpoint.

    A second signal ends the process at once.

    Signals that the starter of the command lets be ignored (``nohup``, ``&``) stay ignored. A process of a launcher is
    ended by the launcher.
    """
    seen: list[ExitCode] = []
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        code = CODES[signal.Signals(number)]
        if os.getpid() != process:  # a child that was forked: as if there were no handler
            os._exit(code)
        if seen:
            os.write(2, b"Stopped at once.\n")
            os._exit(seen[0])
        seen.append(code)
        error = Stopped(code)
        if not postpone(error):
            raise error

    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    mine = [n for n in CODES if signal.getsignal(n) is usual[n] and "WORLD_SIZE" not in os.environ]
    for number in mine:
        signal.signal(number, stop)
    try:
        yield
    except Stopped as error:  # outside of any command: while options are read, or at the end
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit:
        if seen:  # typer has a code of its own for Ctrl-C
            sys.exit(seen[0])
        raise
    finally:
        for number in mine:
            # Python gives up its handlers when it ends: a second signal would then end the process with another code
            signal.signal(number, signal.SIG_IGN if seen else usual[number])
