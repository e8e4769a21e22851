"""Temporary folders next to an output, or in one that keeps its place: found again after a kill, emptied at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.destination import keeps_place
from pocketbert.core.disk.files import read_json, sync, write_json
from pocketbert.core.disk.ownership import (
    LOST_FOUND,
    NOT_RENAMED,
    Recognise,
    claim,
    everything,
    install,
    new_folder,
    of_no_process,
    read_marker,
    refuse_strangers,
    remove,
    remove_abandoned,
    remove_known,
    replace_file,
    sibling_prefix,
    unmarked_in,
)
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem, note_kept

# --- filling ---
# Moving a finished folder into one that cannot be renamed: file by file, its sign last, continued after a kill.
#
# A mount point (``docker -v out:/out``), the folder that a command was started in, and a folder whose parent refuses new
# names keep their place; only what is in them changes. A journal in the workspace lists what goes and what comes, so that
# the next command finishes what a killed one began.


JOURNAL = "moving.json"
"""File in a workspace that tells what is moved; it is there while files are moved, and until the workspace goes."""


class Journal(BaseModel):
    """What is moved.

    Attributes:
        made: Path of the finished folder in the workspace.
        old: Files of the older output, all of them recognised.
        new: Files of the finished folder.
        last: The one that makes the output recognisable; it goes first and comes last.
    """

    made: str
    old: list[str]
    new: list[str]
    last: str


def begin(workspace: Path, made: Path, old: list[str], last: str) -> None:
    """Write down what is moved; from here on it is finished, by this process or by the next one.

    Args:
        workspace: A workspace that this process holds.
        made: The finished folder in it, pushed to disk.
        old: Files of the older output.
        last: Name of the file that makes the output recognisable; empty where there is none.
    """
    journal = Journal(made=made.relative_to(workspace).as_posix(), old=old, new=files_below(made), last=last)
    write_json(workspace / JOURNAL, journal.model_dump())
    sync(workspace)


def carry_out(workspace: Path, output: Path) -> None:
    """Move what the journal of a workspace lists; what was moved before is passed over.

    Args:
        workspace: A workspace that this process holds.
        output: Where the files go.
    """
    journal = Journal.model_validate(read_json(workspace / JOURNAL))
    made, last = workspace / journal.made, journal.last
    if last and not (made / last).exists():
        return  # it came last: all of them are there
    gone = [name for name in journal.old if name not in set(journal.new) - {last}]
    remove_known(output, sorted(gone, key=lambda name: name != last))
    for name in sorted(journal.new, key=lambda name: name == last):
        if name == last:
            _sync_folders(output, journal.new)
        if (made / name).exists():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(output / name)  # of a copy from another file system
            replace_file(made / name, output / name)
    _sync_folders(output, journal.new)


def files_below(folder: Path) -> list[str]:
    """Paths of all files in a folder, and of all links."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def _sync_folders(output: Path, names: list[str]) -> None:
    for parent in {output / Path(name).parent for name in names} | {output}:
        if parent.is_dir():
            sync(parent)


_KIND = "temporary folder"
_NEW, _OLD = "new", "old"
_INSIDE, _ITSELF = ".pocketbert.", "."
"""How workspaces in an output that keeps its place begin, and what they call it: it may have another name next time."""


@dataclass(frozen=True)
class Workspace:
    """A temporary folder next to an output, or in it: ``.NAME.<random>.pocketbert-tmp`` with an owner marker.

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

    def install(self, made: Path, recognise: Recognise = everything, last: str = "") -> None:
        """Rename what was made to the output, in place of an older output that is recognised.

        An output that keeps its place is filled file by file instead.

        Args:
            made: A folder in the workspace, pushed to disk.
            recognise: Names what in an older output was not made by PocketBERT.
            last: Name of the file by which such an output is recognised.

        Raises:
            InputError: If there is anything of that kind; the older output stays.
        """
        if self.path.parent != self.output:
            try:
                install(made, self.output, self.path / _OLD, recognise)
            except OSError as error:
                if error.errno not in NOT_RENAMED:
                    raise
            else:
                sync(self.output.parent)
                remove(self.path / _OLD)
                return
        refuse_strangers(self.output, beside_workspaces(recognise))
        inside = _names_inside(self.output)
        old = [name for name in files_below(self.output) if Path(name).parts[0] not in inside]
        begin(self.path, made, old, last)
        carry_out(self.path, self.output)

    def add(self, made: Path, earlier: Sequence[str], last: str) -> None:
        """Move the files of a folder into the output, in place of files that were added before; all others stay.

        Args:
            made: A folder in the workspace, pushed to disk.
            earlier: Files in the output that were added before.
            last: Name of the file that lists what was added.

        Raises:
            InputError: If something else has the name of a file or folder to add; nothing was changed.
        """
        _refuse_taken(self.output, files_below(made), earlier)
        begin(self.path, made, list(earlier), last)
        carry_out(self.path, self.output)

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
            when the block ends with an error of the machine or of a gate, and a second process for the same output is
            refused.

    Yields:
        The workspace, held by this process.

    Raises:
        MachineError: If another process makes the same output, where `resume` is given.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    _remove_unmarked(output)
    with contextlib.ExitStack() as held:
        own = _take_up(output, resume, held) or _create(output, resume, held)
        try:
            yield own
        except BaseException as error:
            wrong = isinstance(error, InputError | MissingBackendError)  # nothing in it could be continued
            if not resume or (wrong and not own.resumed):
                own.discard()
            elif not wrong:
                note_kept(error, own.path)
            raise
        if own.path.exists():
            own.discard()


def remove_interrupted(output: Path, resume: str = "") -> None:
    """Remove the workspaces that killed processes left for an output."""
    _remove_unmarked(output)
    for path in _siblings(output, resume):
        with contextlib.suppress(MachineError, InputError, OSError), _claimed(path, output, resume):
            Workspace(path, output).discard()


def finish_interrupted(output: Path) -> None:
    """Move what a killed process had not moved yet into an output that keeps its place; its older files are gone by then."""
    for path in _siblings(output, None):
        if (path / JOURNAL).is_file():
            of = str(read_marker(path, _KIND).get("of", ""))
            with contextlib.suppress(MachineError), _claimed(path, output, of):
                carry_out(path, output)
                Workspace(path, output).discard()


def occupants(output: Path) -> list[str]:
    """Names of what is in a folder, without workspaces for it and the ``lost+found`` of a file system."""
    inside = _names_inside(output)
    return sorted(p.name for p in output.iterdir() if p.name not in inside)


def beside_workspaces(recognise: Recognise) -> Recognise:
    """Wrap `recognise` so that it passes over the workspaces in an output and the ``lost+found`` of a file system."""

    def named(folder: Path) -> list[str]:
        inside = _names_inside(folder)
        return [name for name in recognise(folder) if Path(name).parts[0] not in inside]

    return named


def _names_inside(output: Path) -> set[str]:
    lost = {LOST_FOUND} if (output / LOST_FOUND).is_dir() and not (output / LOST_FOUND).is_symlink() else set()
    made = (*_marked_in(output, _INSIDE, {"output": _ITSELF}), *unmarked_in(output, _INSIDE))
    return {p.name for p in made} | lost


@contextlib.contextmanager
def building(output: Path, recognise: Recognise = everything, last: str = "") -> Iterator[Path]:
    """Build a folder in a workspace and rename it to its final name when the block ends without an error.

    An existing output is replaced only at that moment, and only where all of it is recognised.

    Args:
        output: The folder to create.
        recognise: Names what in an existing output was not made by PocketBERT; see
            `pocketbert.core.disk.ownership.Contents`.
        last: Name of the file by which such an output is recognised; see `Workspace.install`.

    Yields:
        The folder to write into.

    Raises:
        InputError: If an existing output holds anything that is not recognised; it stays as it is.
    """
    finish_interrupted(output)
    refuse_strangers(output, beside_workspaces(recognise))
    with workspace(output) as own:
        new = own.path / _NEW
        new.mkdir()
        yield new
        sync_tree(new)
        own.install(new, recognise, last)


@contextlib.contextmanager
def adding(output: Path, earlier: Sequence[str], last: str) -> Iterator[Path]:
    """Build files in a workspace and move them into a folder, that may hold other things, when the block ends without an error.

    Args:
        output: The folder; made where it is not there.
        earlier: Files in it that an earlier call added; they are replaced or removed.
        last: Name of the file that lists what was added: it goes first and comes last.

    Yields:
        The folder to write into.

    Raises:
        InputError: If something else has the name of a file or folder to add; nothing was changed.
    """
    with workspace(output) as own:
        new = own.path / _NEW
        new.mkdir()
        yield new
        sync_tree(new)
        own.add(new, earlier, last)


def _refuse_taken(output: Path, names: Sequence[str], earlier: Sequence[str]) -> None:
    """Refuse names in a folder that are taken by what was not added before: files, and links and files in place of folders."""
    taken = [n for n in names if n not in earlier and os.path.lexists(output / n)]
    taken += [n for n in names if n in earlier and (output / n).is_dir()]
    folders = sorted({p.as_posix() for n in names for p in Path(n).parents if p.name})
    taken += [f for f in folders if os.path.lexists(output / f) and not _is_plain_folder(output / f)]
    if taken:
        raise InputError(
            Problem(
                str(output),
                f"has something else under the name {', '.join(sorted(set(taken))[:5])}; nothing was written.",
                "Move it away, or choose a new folder, such as a subfolder of this one, with -o/--output.",
            )
        )


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def sync_tree(folder: Path) -> None:
    """Push everything below a folder to disk, so that a rename after it cannot be seen before it."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place) / name)
        sync(Path(place))


def _create(output: Path, resume: str, held: contextlib.ExitStack) -> Workspace:
    inside = keeps_place(output)
    prefix, place = (_INSIDE, output) if inside else (sibling_prefix(output), output.parent)
    with new_folder(place, prefix) as path:
        held.enter_context(_claimed(path, output, resume))
    own = Workspace(path, output)
    # after its own is marked: of two processes that begin at once, at least one sees the other
    others = [p for p in _siblings(output, resume) if p != path] if resume else []
    if others:
        own.discard()
        raise _busy(output)
    return own


def _remove_unmarked(output: Path) -> None:
    """Remove the workspaces of processes that were killed before they could mark them."""
    for path in (*unmarked_in(output.parent, sibling_prefix(output)), *unmarked_in(output, _INSIDE)):
        with contextlib.suppress(MachineError, InputError, OSError), of_no_process(path), _claimed(path, output, ""):
            Workspace(path, output).discard()


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
    return claim(path, _KIND, output=_name(path, output), of=resume)


def _name(path: Path, output: Path) -> str:
    return _ITSELF if path.parent == output else output.name


def _siblings(output: Path, resume: str | None) -> list[Path]:
    """Workspaces for an output that this user's processes made, running or not; None: for whatever purpose."""
    of = {} if resume is None else {"of": resume}
    beside = _marked_in(output.parent, sibling_prefix(output), {"output": output.name, **of})
    return [*beside, *_marked_in(output, _INSIDE, {"output": _ITSELF, **of})]


def _marked_in(folder: Path, prefix: str, marked: dict[str, str]) -> list[Path]:
    """Folders of this user that begin with a prefix and whose marker says as much."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
                continue
            path = folder / entry.name
            marker = read_marker(path, _KIND)
            if marked.items() <= marker.items() and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.append(path)
    return found


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
