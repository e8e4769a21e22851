"""Moving a finished folder into one that cannot be renamed: file by file, its sign last, continued after a kill.

A mount point (``docker -v out:/out``), the folder that a command was started in, and a folder whose parent refuses new
names keep their place; only what is in them changes. A journal in the workspace lists what goes and what comes, so that
the next command finishes what a killed one began.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.files import read_json, sync, write_json
from pocketbert.core.disk.ownership import remove_abandoned, remove_known, replace_file

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
