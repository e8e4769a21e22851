"""Errors named by cause. Each carries the value, what is allowed, and the fix; each knows its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What a command's exit status means."""

    OK = 0
    MACHINE = 1
    """The machine failed (disk full, read-only, crash); state is kept."""
    INPUT = 2
    """Bad usage, recipe or input; all problems were listed."""
    GATE = 3
    """A gate failed, and the files stay where they are, marked failed; or training met a NaN or an infinity, and its checkpoints stay."""
    MISSING = 4
    """An optional part or the demo teacher is not installed."""
    INTERRUPTED = 130
    TERMINATED = 143
    """SIGTERM, for example of ``docker stop``; state is kept."""


class PocketBertError(Exception):
    """Base of all errors that a user is meant to read."""

    exit_code = ExitCode.MACHINE


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input, and how to correct it.

    Attributes:
        where: File, line and key, as far as known (``recipe.yaml:7 distill.0.method``).
        what: The offending value and what is allowed.
        fix: What to do about it; empty if `what` says it already.
    """

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        """`where: what (fix)` on one line; what no terminal should get from a file is spelt out."""
        return one_line(f"{self.where}: {self.what}" + (f" Fix: {self.fix}" if self.fix else ""))


class InputError(PocketBertError):
    """Bad usage, recipe, data or model folder. Lists every problem at once."""

    exit_code = ExitCode.INPUT

    def __init__(self, problems: Sequence[Problem] | Problem, *more: Problem) -> None:
        first = [problems] if isinstance(problems, Problem) else list(problems)
        self.problems: list[Problem] = [*first, *more]
        super().__init__("\n".join(str(p) for p in self.problems))


class GateError(PocketBertError):
    """A file, or a step of training, did not pass a gate."""

    exit_code = ExitCode.GATE

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = list(failures)
        super().__init__("\n".join(self.failures))


class MissingBackendError(PocketBertError):
    """An optional part is not installed. The message ends with the command that installs it."""

    exit_code = ExitCode.MISSING

    def __init__(self, what: str, command: str) -> None:
        self.command = command
        super().__init__(f"{what} is not installed. Install it with: {command}")


class MachineError(PocketBertError):
    """The machine cannot do the work, e.g. the disk is full or a folder is read-only; the input is right."""

    exit_code = ExitCode.MACHINE


KEPT = "Unfinished work is kept in "
"""How the note of an error begins that tells where the next command goes on."""


def note_kept(error: BaseException, folder: Path) -> None:
    """Let an error tell where unfinished work lies; the place of an outer work folder replaces that of an inner one."""
    notes = [note for note in getattr(error, "__notes__", []) if not note.startswith(KEPT)]
    error.__notes__ = [*notes, f"{KEPT}{one_line(str(folder))}; the same command continues there."]


def one_line(text: str) -> str:
    """Text with line breaks, control characters and the like written as Python writes them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: object, most: int = 80) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else f"{text[: most - 4]}..."


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first names of a list with the number of the others, on one line of bounded length."""
    first = ", ".join(shown(name, 40) for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


_SHOWN_NAMES, _COMPARED_NAMES, _COMPARED_CHARACTERS = 60, 2000, 100


def nearest(value: str, allowed: Sequence[str], alike: float = 0.6) -> str:
    """A hint that names the closest allowed value, or lists what is allowed; long lists are cut.

    Args:
        value: What the user wrote.
        allowed: What would have been accepted.
        alike: From what share of equal characters on a name is taken for the one that was meant.

    Returns:
        For example ``did you mean 'lr'?`` or ``allowed: a, b, c``.
    """
    start = value[:1].casefold()
    compared = allowed if len(allowed) <= _COMPARED_NAMES else [n for n in allowed if n[:1].casefold() == start]
    short = [name for name in compared[:_COMPARED_NAMES] if len(name) <= _COMPARED_CHARACTERS]
    close = get_close_matches(value[:_COMPARED_CHARACTERS], short, n=1, cutoff=alike)
    names = [
        n if len(n) <= _COMPARED_CHARACTERS else f"{n[:_COMPARED_CHARACTERS]}..."
        for n in sorted(allowed)[:_SHOWN_NAMES]
    ]
    more = f" and {len(allowed) - _SHOWN_NAMES:,} more" if len(allowed) > _SHOWN_NAMES else ""
    listing = f"allowed: {', '.join(names)}{more}"
    return f"did you mean '{close[0]}'? ({listing})" if close else listing
