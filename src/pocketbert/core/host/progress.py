"""Progress of long work on stderr: a bar with rate and remaining time on a terminal, plain lines elsewhere.

`Meter` counts units of work, `report_parts` a few long parts, `report_waiting` reports work of libraries. In both, `note_stage` says
what is being done, and within `expect_end` their lines say how long all work may still take. `print_note` prints a note,
`set_quiet` silences all.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
"""Seconds between two lines of `report_waiting` and `report_parts`, on a terminal and elsewhere."""

_state = {"quiet": False}
_stages: list[str] = []
"""The stage that the innermost block of `report_waiting` or `report_parts` is at, and those of the blocks around it; empty where none
was noted."""
_ends: list[float] = []
"""When all work is expected to end, by `time.monotonic`; the innermost `expect_end` last."""


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


def describe_seconds(seconds: float) -> str:
    """Return a length of time as text: seconds below 100, else minutes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


@contextlib.contextmanager
def expect_end(seconds: float) -> Iterator[None]:
    """Let progress lines in the block say how long all work may still take: `seconds` when it begins; 0 if not known."""
    _ends.append(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ends.pop()


@contextlib.contextmanager
def report_waiting(label: str) -> Iterator[None]:
    """Print at intervals how long the block has been running, and its stage, for work without a progress bar."""
    start = time.monotonic()
    with _report_at_intervals(lambda now: f"{label}: at work for {now - start:.0f} s"):
        yield


def report_parts(label: str, parts: Mapping[str, _T]) -> Iterator[_T]:
    """Yield the parts of a long piece of work; print at intervals which of them is at work, its stage, and what is left.

    Args:
        label: Name of the work.
        parts: The parts by name.
    """
    start = time.monotonic()
    part_start, done, name = start, 0, ""

    def describe(now: float) -> str:
        """Return the progress; what is left is told from the parts that are done, unless `expect_end` has told it for the whole command."""
        has_no_pace = not done or _is_end_known(now)
        left = 0.0 if has_no_pace else (part_start - start) / done * (len(parts) - done) - (now - part_start)
        return f"{label}: {name}, {done + 1} of {len(parts)}" + (f", about {describe_seconds(left)} left" * (left > 0))

    with _report_at_intervals(describe):
        for name in parts:
            part_start, _stages[-1] = time.monotonic(), ""
            yield parts[name]
            done += 1


@contextlib.contextmanager
def _report_at_intervals(describe: Callable[[float], str]) -> Iterator[None]:
    """Print what a function of the time returns at intervals, with the stage of the block and the time that all may take."""
    block_ended = threading.Event()
    interval = _WAITING_INTERVAL_S if sys.stderr.isatty() else _PLAIN_WAITING_INTERVAL_S

    def report() -> None:
        """Print a line at each interval until the block has ended."""
        while not block_ended.wait(interval):
            now, stage = time.monotonic(), f": {_stages[-1]}" if _stages[-1] else ""
            left = f"; about {describe_seconds(_ends[-1] - now)} left in all" if _is_end_known(now) else ""
            print_note(f"  {describe(now)}{stage}{left}")

    _stages.append("")
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        block_ended.set()
        thread.join()
        _stages.pop()


def _is_end_known(now: float) -> bool:
    """Return whether the end of all work is known from `expect_end`, and has not passed."""
    return bool(_ends) and _ends[-1] > now


def note_stage(stage: str) -> None:
    """Set the stage that the next line of the innermost `report_waiting` or `report_parts` names; without one, do nothing."""
    if _stages:
        _stages[-1] = stage


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
