"""Errors by cause, each with its exit code, and the wording that they share.

`InputError` lists problems, each with the place, the value and what is allowed, and the fix; `show_folder_as` names temporary folders. `shorten_repr`, `shorten_list`,
`escape_line` bound the length of values from files; `first_line` shortens foreign errors; `suggest_allowed` suggests what was meant;
`note_kept` adds where unfinished work is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """A gate failed, and the files stay, marked failed; or training met a NaN or an infinity, and its checkpoints
    stay."""
    MISSING = 4
    """An optional part or the demo teacher is not installed."""
    INTERRUPTED = 130
    TERMINATED = 143
    """SIGTERM, for example of ``docker stop``; state is kept."""


class PocketBertError(Exception):
    """Base of all errors whose message is written for the user."""

    exit_code = ExitCode.MACHINE


@dataclass(frozen=True)
class Problem:
    """One problem with an input: where it is, what is wrong and how to fix it.

    Attributes:
        where: File, line and key, as far as known (``recipe.yaml:7 distill.0.method``).
        what: The offending value and what is allowed.
        fix: What to do about it; empty if `what` says it already.
    """

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        """Return ``where: what Fix: fix`` on one line, with control characters escaped."""
        return escape_line(f"{self.where}: {self.what}" + (f" Fix: {self.fix}" if self.fix else ""))


_given_names: dict[str, str] = {}


def show_folder_as(folder: Path, name: str) -> None:
    """Let the input errors and printed notes of this process name what the user gave, not the temporary folder made of it.

    Args:
        folder: The temporary folder.
        name: The path or name that the user gave.
    """
    _given_names[str(folder)] = name


def with_given_names(text: str) -> str:
    """Return a message in which temporary folders, those made of others included, have the names of `show_folder_as`."""
    for folder, name in reversed(_given_names.items()):
        text = text.replace(folder, name)
    return text


class InputError(PocketBertError):
    """Raised for wrong usage, recipes, data or model folders; the message lists every problem."""

    exit_code = ExitCode.INPUT

    def __init__(self, problems: Sequence[Problem] | Problem, *more: Problem) -> None:
        first = [problems] if isinstance(problems, Problem) else list(problems)
        self.problems = [Problem(*map(with_given_names, (p.where, p.what, p.fix))) for p in (*first, *more)]
        super().__init__("\n".join(str(p) for p in self.problems))


class GateError(PocketBertError):
    """Raised if a model file or a training step failed one of the checks (gates) that it must pass."""

    exit_code = ExitCode.GATE

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = list(failures)
        super().__init__("\n".join(self.failures))


class MissingBackendError(PocketBertError):
    """Raised if an optional library is missing; the message ends with the command that installs it."""

    exit_code = ExitCode.MISSING

    def __init__(self, what: str, command: str) -> None:
        self.command = command
        super().__init__(f"{what} is not installed. Install it with: {command}")


class MachineError(PocketBertError):
    """Raised if the machine cannot do the work although the input is right, e.g. because the disk is full."""

    exit_code = ExitCode.MACHINE


KEPT_NOTE = "Unfinished work is kept in "
"""First words of an error's note that names the folder from which the next command resumes."""


_CONTINUES = "; the same command continues there"


def note_kept(error: BaseException, folder: Path, anew: str = "") -> None:
    """Add a note to an error that names the folder of unfinished work.

    Args:
        error: The error that ended the work. An earlier such note of it gets this folder.
        folder: The folder.
        anew: Name of the step that begins anew, since nothing of it is kept; empty if there is none.
    """
    notes = getattr(error, "__notes__", [])
    earlier = next((note for note in notes if note.startswith(KEPT_NOTE)), None)
    end = f", and begins the step {anew} anew." if anew else "."
    end = end if earlier is None else earlier.partition(_CONTINUES)[2]
    others = [note for note in notes if note != earlier]
    error.__notes__ = [*others, f"{KEPT_NOTE}{escape_line(str(folder))}{_CONTINUES}{end}"]


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message; if the message is empty, the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def escape_line(text: str) -> str:
    """Escape line breaks, control and other unprintable characters as Python's `repr` does."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shorten_repr(value: object, most: int = 80) -> str:
    """Return the repr of a value, cut after `most` characters."""
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else f"{text[: most - 4]}..."


def shorten_list(names: Sequence[str], most: int = 20) -> str:
    """Join the first names of a list, quoted and cut, with commas, and add the number of the others."""
    first = ", ".join(shorten_repr(name, 40) for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


_MAX_LISTED, _MAX_COMPARED, _MAX_NAME_LENGTH = 60, 2000, 100


def suggest_allowed(value: str, allowed: Sequence[str], alike: float = 0.6, most: int = _MAX_LISTED) -> str:
    """Return a hint for a wrong value: the closest allowed value, and the list of allowed values.

    Args:
        value: The wrong value.
        allowed: The values that are allowed.
        alike: Smallest similarity (`difflib`) at which an allowed value is suggested as the one meant.
        most: Largest number of allowed values that are listed.

    Returns:
        For example ``did you mean 'lr'? (allowed: lr, seed)``, or ``allowed: a, b, c`` if none is close.
    """
    from difflib import get_close_matches  # only where something is wrong

    start = value[:1].casefold()
    candidates = allowed if len(allowed) <= _MAX_COMPARED else [n for n in allowed if n[:1].casefold() == start]
    candidates = [name for name in candidates[:_MAX_COMPARED] if len(name) <= _MAX_NAME_LENGTH]
    close = get_close_matches(value[:_MAX_NAME_LENGTH], candidates, n=1, cutoff=alike)
    names = [n if len(n) <= _MAX_NAME_LENGTH else f"{n[:_MAX_NAME_LENGTH]}..." for n in sorted(allowed)[:most]]
    more = f" and {len(allowed) - most:,} more" if len(allowed) > most else ""
    listing = f"allowed: {', '.join(names)}{more}"
    return f"did you mean '{close[0]}'? ({listing})" if close else listing
