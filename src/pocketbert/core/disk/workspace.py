"""Temporary folders in which outputs are built, so that an output is complete or absent even if the process is killed.

`build_folder` makes a new output folder, `add_files` adds files to a folder that may hold other things, `open_workspace` gives the
temporary folder itself, whose work can be resumed (its caller does step 3, with `Workspace.install` or `add`). Each

1. removes what killed processes left for the same output, or resumes it,
2. creates ``.NAME.<random>.pocketbert-tmp`` next to the output, locked and marked as this process's,
3. moves the finished folder to the output's name, and removes the temporary one.

Some outputs cannot be renamed: a mount point (``docker -v out:/out``), the current folder, a folder whose parent
refuses new names. They get the temporary folder inside and are filled file by file, the file by which the output is
recognised last. A journal in the workspace lists the files to remove and to add, so that `finish_interrupted`
completes what a killed process began.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.destination import keeps_place
from pocketbert.core.disk.files import read_json, sync_path, write_json
from pocketbert.core.disk.ownership import (
    LOCK_FILE,
    LOST_FOUND,
    MARKER,
    RENAME_ERRORS,
    TEMPORARY_SUFFIX,
    FindForeign,
    claim_folder,
    install_folder,
    list_entries,
    read_marker,
    refuse_foreign_files,
    remove,
    remove_abandoned,
    remove_listed_files,
    replace_file,
    temporary_prefix,
    try_lock,
)
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem, note_kept

_MARKER_KIND = "temporary folder"
_NEW_FOLDER, _OLD_FOLDER = "new", "old"
_INNER_PREFIX, _INNER_OUTPUT = ".pocketbert.", "."
"""Prefix of workspaces inside their output, and its name in their marker: it may be mounted elsewhere next time."""
_RANDOM_PART = r"[a-z0-9_]{8}"
"""What `tempfile` puts between the prefix and the suffix of a name."""
_JOURNAL_FILE = "moving.json"
"""File in a workspace that lists what is being moved; it stays until the workspace is removed."""


class _Journal(BaseModel):
    """Record on disk of a move of files into an output folder, so that a later process can complete it.

    Attributes:
        made: Path, relative to the workspace, of the folder with the new files.
        old: Files of the older output that are removed, all written by PocketBERT.
        new: The new files, relative to `made` and to the output.
        last: Name of the file that marks a complete output: it is removed first and added last.
    """

    made: str
    old: list[str]
    new: list[str]
    last: str


@dataclass(frozen=True)
class Workspace:
    """A temporary folder, next to an output or in it, in which this process builds the output.

    Attributes:
        path: The temporary folder.
        output: The final path of the output.
        resumed: Whether an earlier process created the folder and was interrupted.
    """

    path: Path
    output: Path
    resumed: bool = False

    def discard(self) -> None:
        """Remove the workspace; first put back an older output that a killed process had moved into it."""
        self._restore_older_output()
        remove(self.path)

    def install(self, made: Path, find_foreign: FindForeign = list_entries, last: str = "") -> None:
        """Rename a finished folder to the output's name, replacing an older output that PocketBERT made.

        If the output folder cannot be renamed (see `keeps_place`), its files are replaced one by one instead.

        Args:
            made: The finished folder, in the workspace.
            find_foreign: Function that lists the files in an older output that PocketBERT did not write.
            last: Name of the file that marks a complete output; with a file by file replacement it is added last.

        Raises:
            InputError: If the older output holds files that PocketBERT did not write; it stays as it is.
        """
        if self.path.parent != self.output:
            try:
                install_folder(made, self.output, self.path / _OLD_FOLDER, find_foreign)
            except OSError as error:
                if error.errno not in RENAME_ERRORS:
                    raise
            else:
                sync_path(self.output.parent)
                remove(self.path / _OLD_FOLDER)
                return
        refuse_foreign_files(self.output, ignore_workspaces(find_foreign))
        ignored = _ignored_names(self.output)
        self._move_files(made, [n for n in _files_below(self.output) if Path(n).parts[0] not in ignored], last)

    def add(self, made: Path, earlier: Sequence[str], last: str) -> None:
        """Move the files of a folder into the output; files that were added before are replaced or removed, all others stay.

        Args:
            made: A folder in the workspace with the files to add.
            earlier: Files in the output that were added before.
            last: Name of the file that lists what was added.

        Raises:
            InputError: If something else has the name of a file or folder to add; nothing was changed.
        """
        names = _files_below(made)
        taken = [n for n in names if n not in earlier and os.path.lexists(self.output / n)]
        taken += [n for n in names if n in earlier and (self.output / n).is_dir()]
        for folder in sorted({p.as_posix() for n in names for p in Path(n).parents if p.name}):
            path = self.output / folder
            if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                taken.append(folder)
        if taken:
            problem = f"has something else under the name {', '.join(sorted(set(taken))[:5])}; nothing was written."
            fix = "Move it away, or choose a new folder, such as a subfolder of this one, with -o/--output."
            raise InputError(Problem(str(self.output), problem, fix))
        self._move_files(made, list(earlier), last)

    def _move_files(self, made: Path, old: list[str], last: str) -> None:
        """Write a journal of the files to move, and move them; after a kill, a later process completes the move."""
        relative = made.relative_to(self.path).as_posix()
        journal = _Journal(made=relative, old=old, new=_files_below(made), last=last)
        write_json(self.path / _JOURNAL_FILE, journal.model_dump())
        sync_path(self.path)
        _follow_journal(self.path, self.output)

    def _restore_older_output(self) -> None:
        """Move an older output back from the workspace to its place, unless a new output is there."""
        aside = self.path / _OLD_FOLDER
        if os.path.lexists(aside) and not os.path.lexists(self.output):
            install_folder(aside, self.output, self.path / "none")


# --- building an output ------------------------------------------------------------


@contextlib.contextmanager
def build_folder(output: Path, find_foreign: FindForeign = list_entries, last: str = "") -> Iterator[Path]:
    """Yield a temporary folder to fill; rename it to the output's name when the block ends without an error.

    An existing output is replaced only at that moment, and only if PocketBERT wrote all files in it.

    Args:
        output: The folder to create.
        find_foreign: Function that lists the files in an existing output that PocketBERT did not write; see
            `pocketbert.core.disk.ownership.FolderContents`.
        last: Name of the file that marks a complete output; see `Workspace.install`.

    Yields:
        The folder to write into.

    Raises:
        InputError: If an existing output holds files that PocketBERT did not write; it stays as it is.
    """
    finish_interrupted(output)
    refuse_foreign_files(output, ignore_workspaces(find_foreign))
    with open_workspace(output) as own:
        new = own.path / _NEW_FOLDER
        new.mkdir()
        yield new
        sync_tree(new)
        own.install(new, find_foreign, last)


@contextlib.contextmanager
def add_files(output: Path, earlier: Sequence[str], last: str) -> Iterator[Path]:
    """Yield a temporary folder to fill; move its files into the output when the block ends without an error.

    Args:
        output: The output folder; created if it is missing.
        earlier: Files in the output that an earlier call added; they are replaced or removed.
        last: Name of the file that lists what was added; it is removed first and added last.

    Yields:
        The folder to write into.

    Raises:
        InputError: If something else has the name of a file or folder to add; nothing was changed.
    """
    with open_workspace(output) as own:
        new = own.path / _NEW_FOLDER
        new.mkdir()
        yield new
        sync_tree(new)
        own.add(new, earlier, last)


@contextlib.contextmanager
def open_workspace(output: Path, resume: str = "") -> Iterator[Workspace]:
    """Create a workspace (temporary folder) for an output, or resume an interrupted one; remove it after the block.

    Args:
        output: The path of the output; its parent folder is created.
        resume: Description of the work. If given, interrupted work with the same description is continued, the
            workspace stays when the block ends with an error, unless it has no file yet (with wrong input only if it was
            resumed), and a second process for the same output is refused. If empty, what killed processes left of such
            work is removed.

    Yields:
        The workspace, locked by this process.

    Raises:
        MachineError: If another process builds the same output, and `resume` is given.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    _remove_unmarked(output)
    with contextlib.ExitStack() as stack:
        own = _resume(output, resume, stack) or _create(output, resume, stack)
        try:
            yield own
        except BaseException as error:
            wrong_input = isinstance(error, InputError | MissingBackendError)  # nothing in it could be continued
            is_empty = not any(p.is_file() and p.name not in (MARKER, LOCK_FILE) for p in own.path.rglob("*"))
            if not resume or is_empty or (wrong_input and not own.resumed):
                own.discard()
            elif not wrong_input:
                note_kept(error, own.path)
            raise
        if own.path.exists():
            own.discard()


def sync_tree(folder: Path) -> None:
    """Flush all files and folders below a folder to disk with fsync, so that a later rename cannot come before them."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync_path(Path(place) / name)
        sync_path(Path(place))


# --- what earlier processes left ------------------------------------------------------------


def remove_interrupted(output: Path, resume: str = "") -> None:
    """Remove the workspaces (temporary folders) that killed processes left for an output and for the work that `resume` describes.

    By default only those of work that is not resumed are removed; workspaces of running processes stay.
    """
    _remove_unmarked(output)
    for path in _list_workspaces(output, resume):
        with contextlib.suppress(MachineError, InputError, OSError), _claim(path, output, resume):
            Workspace(path, output).discard()


def has_interrupted(output: Path, resume: str) -> bool:
    """Return whether an interrupted process left work on an output that `open_workspace` would resume."""
    return bool(_list_workspaces(output, resume))


def finish_interrupted(output: Path) -> None:
    """Complete the moves of files into an output that killed processes had begun."""
    for path in _list_workspaces(output, None):
        if (path / _JOURNAL_FILE).is_file():
            resume = str(read_marker(path, _MARKER_KIND).get("of", ""))
            with contextlib.suppress(MachineError), _claim(path, output, resume):
                _follow_journal(path, output)
                Workspace(path, output).discard()


def list_occupants(output: Path) -> list[str]:
    """List the entries of an output folder, without workspaces and the ``lost+found`` of a file system."""
    ignored = _ignored_names(output)
    return sorted(p.name for p in output.iterdir() if p.name not in ignored)


def ignore_workspaces(find_foreign: FindForeign) -> FindForeign:
    """Wrap a `FindForeign` function so that it ignores workspaces in an output, and ``lost+found``."""

    def find_outside_workspaces(folder: Path) -> list[str]:
        ignored = _ignored_names(folder)
        return [name for name in find_foreign(folder) if Path(name).parts[0] not in ignored]

    return find_outside_workspaces


def _ignored_names(output: Path) -> set[str]:
    """Return the names in an output folder that are not part of the output: temporary workspaces, and ``lost+found``."""
    workspaces = (
        *_list_marked(output, _INNER_PREFIX, {"output": _INNER_OUTPUT}),
        *_list_unmarked(output, _INNER_PREFIX),
    )
    lost = output / LOST_FOUND
    return {p.name for p in workspaces} | ({LOST_FOUND} if lost.is_dir() and not lost.is_symlink() else set())


def _list_workspaces(output: Path, resume: str | None) -> list[Path]:
    """List this user's workspaces for an output, also running ones, with the same `resume` text (None: any)."""
    more = {} if resume is None else {"of": resume}
    beside = _list_marked(output.parent, temporary_prefix(output), {"output": output.name, **more})
    return [*beside, *_list_marked(output, _INNER_PREFIX, {"output": _INNER_OUTPUT, **more})]


def _list_marked(folder: Path, prefix: str, entries: dict[str, str]) -> list[Path]:
    """List this user's folders with a name prefix whose marker file has all of the given entries."""
    paths = _own_folders(folder, re.compile(re.escape(prefix) + ".*", re.DOTALL))
    return [path for path in paths if entries.items() <= read_marker(path, _MARKER_KIND).items()]


def _list_unmarked(folder: Path, prefix: str) -> list[Path]:
    """List this user's workspaces that have no marker yet, including those of running processes."""
    pattern = re.compile(re.escape(prefix) + _RANDOM_PART + re.escape(TEMPORARY_SUFFIX))
    return [path for path in _own_folders(folder, pattern) if _holds_nothing(path)]


def _own_folders(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the subfolders of `folder` that belong to this user and whose whole name matches the regular expression."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                yield folder / entry.name


def _holds_nothing(path: Path) -> bool:
    """Return whether a folder holds nothing but an empty marker file and lock file."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return all(e.name in (MARKER, LOCK_FILE) and e.stat(follow_symlinks=False).st_size == 0 for e in entries)
    return False


# --- creating and resuming a workspace ------------------------------------------------------------


def _create(output: Path, resume: str, stack: contextlib.ExitStack) -> Workspace:
    """Create, mark and lock a new workspace, which `stack` unlocks when it is closed.

    Raises MachineError if another process is doing the same work.

    `resume` describes the work, see `open_workspace`; empty for work that is not resumed.
    """
    inside = keeps_place(output)
    prefix, place = (_INNER_PREFIX, output) if inside else (temporary_prefix(output), output.parent)
    with _locked_new_folder(place, prefix) as path:
        stack.enter_context(_claim(path, output, resume))
    own = Workspace(path, output)
    # after its own is marked: of two processes that begin at once, at least one sees the other
    if resume and any(p != path for p in _list_workspaces(output, resume)):
        own.discard()
        raise _busy_error(output)
    return own


def _resume(output: Path, resume: str, stack: contextlib.ExitStack) -> Workspace | None:
    """Claim the newest interrupted workspace of the same work and remove the others; None if there is none.

    `resume` describes the work, see `open_workspace`; `stack` releases the workspace's lock when it is closed.
    Raises MachineError if another process is doing this work.
    """
    resumed: Workspace | None = None
    for path in sorted(_list_workspaces(output, resume), key=_modification_time, reverse=True):
        try:
            if resume and resumed is None:
                stack.enter_context(_claim(path, output, resume))
                resumed = Workspace(path, output, resumed=True)
                resumed._restore_older_output()
            else:
                with _claim(path, output, resume):
                    Workspace(path, output).discard()
        except MachineError:
            if resume:
                raise _busy_error(output) from None
        except (InputError, OSError):  # its process is removing it at this moment
            continue
    return resumed


def _remove_unmarked(output: Path) -> None:
    """Remove the workspaces of processes that were killed before they could write a marker."""
    for path in (*_list_unmarked(output.parent, temporary_prefix(output)), *_list_unmarked(output, _INNER_PREFIX)):
        with contextlib.suppress(MachineError, InputError, OSError), _lock_unmarked(path), _claim(path, output, ""):
            Workspace(path, output).discard()


@contextlib.contextmanager
def _locked_new_folder(place: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder ``PREFIX<random>.pocketbert-tmp`` in `place`, and yield it locked until the block ends.

    The caller marks it in the block. The lock shows other processes that this one is still running.
    """
    handle = -1
    while handle < 0:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=TEMPORARY_SUFFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another process took it for an abandoned one and removed it
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            # in a file system without locks no process removes it either
            if try_lock(handle) is False or not path.is_dir():
                os.close(handle)
                handle = -1
    try:
        yield path
    finally:
        os.close(handle)


@contextlib.contextmanager
def _lock_unmarked(path: Path) -> Iterator[None]:
    """Lock a temporary folder that has no marker yet until the block ends, so that no other process claims it.

    Raises:
        BlockingIOError: If a running process holds the lock, or the file system has no locks.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not try_lock(handle):
            raise BlockingIOError(f"{path} belongs to a running process")
        yield
    finally:
        os.close(handle)


def _claim(path: Path, output: Path, resume: str) -> contextlib.AbstractContextManager[None]:
    """Claim a workspace for this process: lock it, and write a marker file that names its output and the work."""
    return claim_folder(path, _MARKER_KIND, output=_INNER_OUTPUT if path.parent == output else output.name, of=resume)


def _busy_error(output: Path) -> MachineError:
    return MachineError(
        f"another process is working on {output}. Wait for it, or choose another folder with -o/--output."
    )


def _modification_time(path: Path) -> float:
    """Return the modification time of a folder; 0 if it does not exist any more."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# --- moving file by file ------------------------------------------------------------


def _follow_journal(workspace: Path, output: Path) -> None:
    """Move the files that a workspace's journal names into the output, except those that were moved already."""
    journal = _Journal.model_validate(read_json(workspace / _JOURNAL_FILE))
    made, last = workspace / journal.made, journal.last
    if last and not (made / last).exists():
        return  # it is moved last, so all files are in the output
    outdated = [name for name in journal.old if name not in set(journal.new) - {last}]
    remove_listed_files(output, sorted(outdated, key=lambda name: name != last))
    for name in sorted(journal.new, key=lambda name: name == last):
        if name == last:
            _sync_folders(output, journal.new)
        if (made / name).exists():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(output / name)  # of a copy from another file system
            replace_file(made / name, output / name)
    _sync_folders(output, journal.new)


def _files_below(folder: Path) -> list[str]:
    """List the relative paths of all files and links below a folder."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def _sync_folders(output: Path, names: list[str]) -> None:
    """Flush the output folder, and the folders in it that hold these files, to disk with fsync."""
    for parent in {output / Path(name).parent for name in names} | {output}:
        if parent.is_dir():
            sync_path(parent)
