"""The user's home folder, which containers with an unknown user id do not have."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.errors import InputError, Problem


def home_folder() -> Path | None:
    """Return the home folder; None where neither HOME nor the user database names one."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        return None


def expanded(name: str, where: str) -> Path:
    """Return a path with ``~`` replaced by the home folder.

    Args:
        name: What the user wrote.
        where: What to blame in the error.

    Raises:
        InputError: If there is no such home folder.
    """
    try:
        return Path(name).expanduser()
    except (RuntimeError, KeyError) as error:
        raise InputError(
            Problem(where, f"no home folder is known for '{name[:80]}'.", "Write the path without '~'.")
        ) from error
