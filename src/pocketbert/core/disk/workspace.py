"""Temporary folders next to an output: built completely, renamed at the end, found again after a kill."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.disk.files import sync
from pocketbert.core.disk.ownership import (
    Recognise,
    claim,
    everything,
    install,
    read_marker,
    refuse_strangers,
    remove,
    sibling_prefix,
)
from pocketbert.core.errors import InputError, MachineError

_KIND = "temporary folder"
_NEW, _OLD = "new", "old"


@dataclass(frozen=True)
class Workspace:
    """A temporary folder next to an output: ``.NAME.<random>`` with an owner marker.

    Attributes:
        path: The folder.
        output: What is made in it.
        resumed: Whether an earlier process made it and was interrupted.
    """

    path: Path
    output: Path
    resumed: bool = False

    def discard(self) -> None:
        """Remove the folder. An older output that a killed process had moved aside is put back first."""
        self._put_back()
        remove(self.path)

    def install(self, made: Path, recognise: Recognise = everything) -> None:
        """Rename what was made to the output, in place of an older output that is recognised.

        Args:
            made: A folder in the workspace.
            recognise: Names what in an older output was not made by PocketBERT.

        Raises:
            InputError: If there is anything of that kind; the older output stays.
        """
        install(made, self.output, self.path / _OLD, recognise)
        sync(self.output.parent)
        remove(self.path / _OLD)

    def _put_back(self) -> None:
        aside = self.path / _OLD
        if os.path.lexists(aside) and not os.path.lexists(self.output):
            install(aside, self.output, self.path / "none")


@contextlib.contextmanager
def workspace(output: Path, resume: str = "") -> Iterator[Workspace]:
    """A workspace for an output. It is removed when the block ends.

    What killed processes left for the same output is removed, or taken up where `resume` is given.

    Args:
        output: What will be made; its folder is created.
        resume: What is made, in words, where interrupted work of the same kind is continued. Such a workspace also stays
            when the block ends with an error, and a second process for the same output is refused.

    Yields:
        The workspace, held by this process.

    Raises:
        MachineError: If another process makes the same output, where `resume` is given.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        own = _take_up(output, resume, held) or _create(output, resume, held)
        try:
            yield own
        except BaseException:
            if not resume:
                own.discard()
            raise
        if own.path.exists():
            own.discard()


def remove_interrupted(output: Path, resume: str = "") -> None:
    """Remove the workspaces that killed processes left for an output."""
    for path in _siblings(output, resume):
        with contextlib.suppress(MachineError, InputError, OSError), _claimed(path, output, resume):
            Workspace(path, output).discard()


@contextlib.contextmanager
def building(output: Path, recognise: Recognise = everything) -> Iterator[Path]:
    """Build a folder in a workspace and rename it to its final name when the block ends without an error.

    An existing output is replaced only at that moment, and only where all of it is recognised.

    Args:
        output: The folder to create.
        recognise: Names what in an existing output was not made by PocketBERT; see
            `pocketbert.core.disk.ownership.Contents`.

    Yields:
        The folder to write into.

    Raises:
        InputError: If an existing output holds anything that is not recognised; it stays as it is.
    """
    refuse_strangers(output, recognise)
    with workspace(output) as own:
        new = own.path / _NEW
        new.mkdir()
        yield new
        sync_tree(new)
        own.install(new, recognise)


def sync_tree(folder: Path) -> None:
    """Push everything below a folder to disk, so that a rename after it cannot be seen before it."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place) / name)
        sync(Path(place))


def _create(output: Path, resume: str, held: contextlib.ExitStack) -> Workspace:
    path = Path(tempfile.mkdtemp(prefix=sibling_prefix(output), dir=output.parent))
    held.enter_context(_claimed(path, output, resume))
    own = Workspace(path, output)
    # after its own is marked: of two processes that begin at once, at least one sees the other
    others = [p for p in _siblings(output, resume) if p != path] if resume else []
    if others:
        own.discard()
        raise _busy(output)
    return own


def _take_up(output: Path, resume: str, held: contextlib.ExitStack) -> Workspace | None:
    """Continue in the newest workspace that was interrupted; the others are removed."""
    taken: Workspace | None = None
    for path in sorted(_siblings(output, resume), key=_age, reverse=True):
        try:
            if resume and taken is None:
                held.enter_context(_claimed(path, output, resume))
                taken = Workspace(path, output, resumed=True)
                taken._put_back()
            else:
                with _claimed(path, output, resume):
                    Workspace(path, output).discard()
        except MachineError:
            if resume:
                raise _busy(output) from None
        except (InputError, OSError):  # its process is removing it at this moment
            continue
    return taken


def _busy(output: Path) -> MachineError:
    return MachineError(
        f"another process is working on {output}. Wait for it, or choose another folder with -o/--output."
    )


def _claimed(path: Path, output: Path, resume: str) -> contextlib.AbstractContextManager[None]:
    return claim(path, _KIND, output=output.name, of=resume)


def _siblings(output: Path, resume: str) -> list[Path]:
    """Workspaces for an output that this user's processes made, running or not."""
    prefix, marked = sibling_prefix(output), {"output": output.name, "of": resume}
    found = []
    with os.scandir(output.parent) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            marker = read_marker(path, _KIND)
            if marked.items() <= marker.items() and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.append(path)
    return found


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
