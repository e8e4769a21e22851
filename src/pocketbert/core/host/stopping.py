"""A signal that asks a process to end, and work that ends at a good place first: after a training step, not within it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Hold:
    """A piece of work that a request to stop does not interrupt.

    Attributes:
        asked: What to raise at the next good place; None while nobody asked.
    """

    def __init__(self) -> None:
        self.asked: BaseException | None = None


_holds: list[Hold] = []


def postpone(error: BaseException) -> bool:
    """Hand a request to stop to the work that runs, if there is any that wants to end in order.

    Args:
        error: What the work raises when it is at a good place.

    Returns:
        Whether it will; else the caller raises it at once.
    """
    if not _holds or _holds[-1].asked is not None:
        return False
    _holds[-1].asked = error
    os.write(2, b"\nStopping after this step of the training; a second signal stops at once.\n")
    return True


@contextmanager
def holding() -> Iterator[Hold]:
    """Let requests to stop wait, for work that looks at `Hold.asked` between its steps.

    Where no command handles signals, as in a notebook, the first Ctrl-C waits too, and the second one interrupts.
    """
    hold = Hold()
    _holds.append(hold)
    main = threading.current_thread() is threading.main_thread()
    mine = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def stop(number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt()
        if not postpone(error):
            raise error

    if mine:
        signal.signal(signal.SIGINT, stop)
    try:
        yield hold
    finally:
        _holds.remove(hold)
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
