"""Progress of long work on stderr: a bar with rate and remaining time on a terminal, plain lines elsewhere.

`Meter` counts units of work, `report_parts` a few long parts, `report_waiting` reports work of libraries, in which `note_stage` says how
far it is, `print_note` prints a note, `set_quiet` silences all.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # rich is imported when something is shown: a program that predicts shows nothing
    from rich.console import Console
    from rich.progress import Progress

from pocketbert.core.errors import with_given_names
from pocketbert.core.host.quiet import find_loud_stderr

_T = TypeVar("_T")

_LINE_INTERVAL_S = 10.0
"""Seconds between two plain lines when stderr is not a terminal."""
_BAR_INTERVAL_S = 0.1
_WAITING_INTERVAL_S, _PLAIN_WAITING_INTERVAL_S = 10.0, 30.0
"""Seconds between two lines of `report_waiting`, on a terminal and elsewhere."""

_state = {"quiet": False}
_stages: list[str] = []
"""The stage that the innermost `report_waiting` is at, and those of the blocks around it; empty where none was noted."""


def set_quiet(quiet: bool) -> None:
    """Switch progress bars and notes off or on (``-q`` on the command line)."""
    _state["quiet"] = quiet


def print_note(message: str, style: str = "") -> None:
    """Print a line to stderr, without disturbing a progress bar.

    Args:
        message: The line.
        style: Colour on a terminal, as rich names it.
    """
    _console().print(with_given_names(message), markup=False, style=style or None)


def _console() -> Console:
    """Build a rich console on stderr that prints nothing with ``-q``."""
    from rich.console import Console

    stream = find_loud_stderr()
    soft_wrap = not (stream or sys.stderr).isatty()
    return Console(stderr=True, file=stream, quiet=_state["quiet"], highlight=False, soft_wrap=soft_wrap)


@contextlib.contextmanager
def report_waiting(label: str) -> Iterator[None]:
    """Print at intervals how long the block has been running, and its stage, for work without a progress bar."""
    block_ended, start = threading.Event(), time.monotonic()
    interval = _WAITING_INTERVAL_S if sys.stderr.isatty() else _PLAIN_WAITING_INTERVAL_S

    def report() -> None:
        while not block_ended.wait(interval):
            stage = f", {_stages[-1]}" if _stages[-1] else ""
            print_note(f"  {label}: at work for {time.monotonic() - start:.0f} s{stage}")

    _stages.append("")
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        block_ended.set()
        thread.join()
        _stages.pop()


def note_stage(stage: str) -> None:
    """Set the stage of the work that the next line of the innermost `report_waiting` names; without one, do nothing."""
    if _stages:
        _stages[-1] = stage


def report_parts(label: str, parts: Sequence[_T]) -> Iterator[_T]:
    """Yield the parts of a long piece of work; print at intervals how many are done and how long the rest may take."""
    start = shown = time.monotonic()
    for done, part in enumerate(parts):
        now = time.monotonic()
        if done and now - shown >= _LINE_INTERVAL_S:
            left = (now - start) / done * (len(parts) - done)
            print_note(f"  {label}: {done} of {len(parts)} done, about {left:.0f} s left")
            shown = now
        yield part


class Meter:
    """Shows the progress of one piece of work: a bar on a terminal, otherwise a line from time to time.

    Args:
        label: Name of the work; empty to show nothing.
        total: Number of units.
        start: Units already done (after a resume).
    """

    def __init__(self, label: str, total: int, start: int = 0) -> None:
        self.label, self.total, self.done, self.first = label, total, start, start
        self.note = ""
        self._start_time = self._shown_time = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        """Show the progress bar on a terminal, unless the label is empty or output is switched off."""
        if self.label and sys.stderr.isatty() and not _state["quiet"]:
            self._bar = _make_bar()
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, note="")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the progress bar, and print one line if all units are done and took at least two seconds."""
        if self._bar is not None:
            self._bar.stop()
        took = time.monotonic() - self._start_time
        if self.label and took >= 2 and self.done >= self.total:
            print_note(f"  {self.label}: {self.done - self.first:,} done in {took:.1f} s  {self.note}".rstrip())

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count units as done, and show a short note, such as the loss, beside the bar or in the next line."""
        self.done += units
        self.note = note or self.note
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=self.note)
            if now - self._shown_time >= _BAR_INTERVAL_S:
                self._bar.refresh()
                self._shown_time = time.monotonic()
        elif self.label and now - self._shown_time >= _LINE_INTERVAL_S and self.done < self.total:
            rate = (self.done - self.first) / (now - self._start_time)
            remaining = (self.total - self.done) / rate if rate else float("inf")
            print_note(
                f"  {self.label}: {self.done:,}/{self.total:,}  {rate:.1f}/s  {remaining:.0f} s left  {self.note}"
            )
            self._shown_time = now


def _make_bar() -> Progress:
    """Build a progress bar with the units per second, the remaining time and a note."""
    from rich import progress
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Column with the units per second."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.1f}/s" if speed else "", style="progress.data.speed")

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=28),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
        console=_console(),
        transient=True,
        auto_refresh=False,
    )  # no refresh thread: it would run inside what a benchmark measures
