"""Reads and writes ``artifacts.json``, and compares a folder with it. Written last, readable for ever."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pocketbert.core.artefacts.consistency import contradictions, list_problems
from pocketbert.core.artefacts.records import (
    FILE_NAME,
    SCHEMA_VERSION,
    Artefacts,
    Kind,
)
from pocketbert.core.disk.files import check_schema, path_bytes, read_json, safe_join, sha256_path, write_json
from pocketbert.core.errors import InputError, Problem

MAX_MIB = 16
"""A folder with the most labels that are allowed has a list of a few MiB."""

CARD = "README.md"
"""The model card, which people edit."""
PACKED = "phone"
"""Name of the artefact folder in a run folder."""


def artefact_folder(folder: Path) -> Path:
    """The artefact folder that is meant: a run folder's own where a run folder is named."""
    packed = folder / PACKED
    inside = not (folder / FILE_NAME).is_file() and (packed / FILE_NAME).is_file()
    return packed if inside else folder


def read_artefacts(folder: Path) -> Artefacts:
    """Read and check ``artifacts.json``.

    Raises:
        InputError: If it is missing, of another major schema, wrong, or names paths outside the folder.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise InputError(
            Problem(
                str(folder),
                f"is not an artefact folder: it has no {FILE_NAME}.",
                "Make one with: pocketbert export -m MODEL -o FOLDER",
            )
        )
    content = read_json(path, MAX_MIB)
    check_schema(path, content, SCHEMA_VERSION, "Update PocketBERT.")
    try:
        artefacts = Artefacts.model_validate(content)
    except ValidationError as error:
        raise InputError(
            [
                Problem(f"{path} {'.'.join(map(str, e['loc']))}", f"{e['msg']}.")
                for e in error.errors(include_url=False, include_input=False)[:20]
            ]
        ) from error
    own = contradictions(artefacts.task, artefacts.processing, artefacts.labels, artefacts.files)
    wrong = [*own, *list_problems(artefacts.files)]
    if wrong:
        raise InputError([Problem(str(path), f"{what}.", "Copy the folder again.") for what in wrong])
    for record in artefacts.files:
        safe_join(folder, record.path, str(path))
    return artefacts


def write_artefacts(folder: Path, artefacts: Artefacts) -> None:
    """Write ``artifacts.json``, the last file of a folder."""
    write_json(folder / FILE_NAME, artefacts.model_dump(mode="json", exclude_none=True))


def unopened(folder: Path, relative: str) -> str | None:
    """Tell why a listed path must not be opened: a FIFO would be waited for, a link could lead out of the folder.

    Args:
        folder: The artefact folder.
        relative: Path of a file or package in it, which is there.

    Returns:
        A few words, or None for a regular file and for a folder of regular files; links to regular files inside are followed.
    """
    path, inside = folder / relative, folder.resolve()
    below = sorted(path.rglob("*")) if path.is_dir() else []
    for entry in (path, *below):
        if not entry.exists():
            return "is or contains a link to nothing"
        if not (entry.is_file() or entry.is_dir()):
            return f"is or contains {_kind(entry)}, which is never opened"
        if entry.is_symlink() and not entry.resolve().is_relative_to(inside):
            return "is or contains a link that leaves the folder"
    return None


def _kind(path: Path) -> str:
    """What a path is that is neither a file nor a folder; of a link, what it leads to."""
    try:
        mode = path.stat().st_mode
    except (OSError, RuntimeError):
        return "a link in a circle, or to nothing"
    kinds = {stat.S_ISFIFO: "a FIFO", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "no regular file")


def changed_files(folder: Path, artefacts: Artefacts) -> list[str]:
    """Paths of listed files that are there, but not as they were listed. They are not safe to open."""
    there = [r for r in artefacts.files if (folder / r.path).exists()]
    return [
        r.path
        for r in there
        if unopened(folder, r.path)
        or path_bytes(folder / r.path) != r.bytes
        or sha256_path(folder / r.path) != r.sha256
    ]


def integrity_problems(folder: Path, artefacts: Artefacts, changed: Sequence[str] | None = None) -> list[str]:
    """What differs between the folder and its list: missing, changed and unlisted files, links, FIFOs and the like.

    Documents may be edited and deleted; `edited_documents` lists those.

    Args:
        folder: The folder.
        artefacts: Its list.
        changed: What `changed_files` returned, where the caller has it already.
    """
    differing = set(changed_files(folder, artefacts) if changed is None else changed)
    out = []
    free = {r.path for r in artefacts.files if r.kind is Kind.DOCUMENT and _is_users(folder / r.path)}
    for record in (r for r in artefacts.files if r.path not in free):
        path = folder / record.path
        if not path.exists():
            out.append(f"{record.path}: listed, but not there")
        elif (why := unopened(folder, record.path)) is not None:
            out.append(f"{record.path}: {why}")
        elif record.path in differing:
            out.append(f"{record.path}: changed since it was packed (sha256 differs)")
        elif path.is_symlink() or (path.is_dir() and any(p.is_symlink() for p in path.rglob("*"))):
            out.append(f"{record.path}: is or contains a link; PocketBERT writes none")
    return out + [f"{name}: there, but not listed{_what(folder / name)}" for name in _unlisted(folder, artefacts)]


def _is_users(path: Path) -> bool:
    """Whether a document is as a user may leave it: a plain file, or gone."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def edited_documents(folder: Path, artefacts: Artefacts) -> list[str]:
    """List the documents, such as the card, that a user edited or deleted, one sentence each."""
    documents = [r for r in artefacts.files if r.kind is Kind.DOCUMENT and _is_users(folder / r.path)]
    changed = changed_files(folder, artefacts.model_copy(update={"files": documents}))
    return [
        f"{r.path}: {'edited' if r.path in changed else 'deleted'} since it was packed"
        for r in documents
        if r.path in changed or not (folder / r.path).exists()
    ]


def _what(path: Path) -> str:
    """In brackets what an unlisted path is, where it is no regular file."""
    if path.is_symlink():
        return " (a link)"
    return "" if path.is_file() else f" ({_kind(path)})"


def _unlisted(folder: Path, artefacts: Artefacts) -> list[str]:
    listed = {f.path for f in artefacts.files} | {FILE_NAME}
    out = []
    for path in sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()):
        inside = [path.relative_to(folder), *path.relative_to(folder).parents]  # a package is listed as one
        if not any(p.as_posix() in listed for p in inside):
            out.append(inside[0].as_posix())
    return out


def strangers(folder: Path) -> list[str]:
    """Paths in a folder that a user wrote: those that its list does not name, and edited documents; all of them without a list."""
    try:
        artefacts = read_artefacts(folder)
        documents = artefacts.model_copy(update={"files": [r for r in artefacts.files if r.kind is Kind.DOCUMENT]})
        return sorted([*_unlisted(folder, artefacts), *changed_files(folder, documents)])
    except InputError:
        return sorted(p.name for p in folder.iterdir())
