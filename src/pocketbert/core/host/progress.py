"""Progress for long work: a bar with rate and remaining time on a terminal, plain lines elsewhere.

Everything goes to stderr, so that stdout stays the answer.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines when stderr is not a terminal."""

BAR_EVERY_S = 0.1

WAITING_EVERY_S, PLAIN_WAITING_EVERY_S = 10.0, 30.0
"""Seconds between two lines on work that cannot be looked into, on a terminal and elsewhere."""

_state = {"quiet": False}


def set_quiet(quiet: bool) -> None:
    """Silence progress and notes (the command line's ``-q``)."""
    _state["quiet"] = quiet


def console() -> Console:
    """A console on stderr, honouring ``-q``."""
    return Console(stderr=True, quiet=_state["quiet"], highlight=False, soft_wrap=not sys.stderr.isatty())


def say(message: str, style: str = "") -> None:
    """Tell the user something on one line, outside any bar.

    Args:
        message: The line.
        style: Colour on a terminal, as rich names it; none elsewhere.
    """
    console().print(message, markup=False, style=style or None)


@contextlib.contextmanager
def waiting(label: str) -> Iterator[None]:
    """Say from time to time that the block is still at work: a converter that cannot be looked into takes minutes.

    Args:
        label: What is being done.
    """
    done, began = threading.Event(), time.monotonic()
    every = WAITING_EVERY_S if sys.stderr.isatty() else PLAIN_WAITING_EVERY_S

    def tell() -> None:
        while not done.wait(every):
            say(f"  {label}: at work for {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f}/s" if speed else "", style="progress.data.speed")


class Meter:
    """Shows how far one piece of work is.

    Args:
        label: What is being done; empty for silence.
        total: Number of units.
        start: Units already done (after a resume).
    """

    def __init__(self, label: str, total: int, start: int = 0) -> None:
        self.label, self.total, self.done, self.first = label, total, start, start
        self.note = ""
        self._began = self._said = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        """Open the bar."""
        if self.label and sys.stderr.isatty() and not _state["quiet"]:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console(),
                transient=True,
                auto_refresh=False,
            )  # no refresh thread: it would run inside what a benchmark measures
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, note="")
        return self

    def __exit__(self, *_: object) -> None:
        """Close the bar, leaving one line when the work took a noticeable time."""
        if self._bar is not None:
            self._bar.stop()
        took = time.monotonic() - self._began
        if self.label and took >= 2 and self.done >= self.total:
            say(f"  {self.label}: {self.done - self.first:,} done in {took:.1f} s  {self.note}".rstrip())

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count `units` as done.

        Args:
            units: How many.
            note: A short text beside the bar, e.g. the loss.
        """
        self.done += units
        self.note = note or self.note
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=self.note)
            if time.monotonic() - self._said >= BAR_EVERY_S:
                self._bar.refresh()
                self._said = time.monotonic()
            return
        now = time.monotonic()
        if self.label and now - self._said >= PLAIN_EVERY_S and self.done < self.total:
            rate = (self.done - self.first) / (now - self._began)
            left = (self.total - self.done) / rate if rate else float("inf")
            say(f"  {self.label}: {self.done:,}/{self.total:,}  {rate:.1f}/s  {left:.0f} s left  {self.note}")
            self._said = now


def track(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """Iterate with a meter.

    Args:
        items: What to iterate.
        label: What is being done.
        total: Number of items.
    """
    with Meter(label, total) as meter:
        for item in items:
            yield item
            meter.advance()
