"""Folders of texts: a folder for each class, and texts with the annotations of brat beside them.

`list_class_folders` and `list_files` list what is in a folder, `read_class_folder` and `read_brat` yield the rows. The encoding of each text
is detected if the user gives none; `note_encoding` prints one other than UTF-8.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.json_files import Row
from pocketbert.core.data.streams import UTF8, TextFile, count_bytes, guess_encoding, null_byte_error
from pocketbert.core.disk.files import open_regular
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import print_note

_UNLABELLED = ("unsup", "unlabeled", "unlabelled")
"""Folders of texts without a label, as in the IMDB data set."""


def list_files(folder: Path) -> list[str]:
    """List the names of the files in a folder, sorted; links and hidden ones are left out.

    Raises:
        InputError: If the folder cannot be read.
    """
    return [entry.name for entry in _list_entries(folder) if entry.is_file(follow_symlinks=False)]


def list_class_folders(folder: Path) -> list[str]:
    """List the names of the folders in a folder, sorted; links and hidden ones are left out.

    Raises:
        InputError: If the folder cannot be read.
    """
    return [entry.name for entry in _list_entries(folder) if entry.is_dir(follow_symlinks=False)]


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in the order of their names; hidden ones are left out."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise InputError(Problem(str(folder), f"cannot be read: {error.strerror or error}.")) from error


def read_class_folder(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (number, {text, label, file}) for each file in a folder of classes; the subfolder's name is the label.

    Texts in subfolders such as `unsup` have no label (None). Links and hidden files are left out. The limit on the size
    of a file applies to all texts together, the limit on a row to each text.
    """
    number = size = 0
    for name in list_class_folders(file.path):
        label = None if name.lower() in _UNLABELLED else name
        for path in (file.path / name / text for text in list_files(file.path / name)):
            number += 1
            if number > file.limits.rows:
                raise file.limits.row_count_error(file.title, "files")
            text = _read_text(path, file).strip()
            size += count_bytes(text)
            if size > file.limits.total:
                raise file.limits.size_error(file.title)
            yield number, {"text": text, "label": label, "file": f"{name}/{path.name}"}


def _read_text(path: Path, file: TextFile) -> str:
    """Read a text file of a folder in the encoding that is set for the folder, else in the detected one, which is printed if it is not UTF-8."""
    with open_regular(path) as stream:
        raw = stream.read(file.limits.line + 1) or b""
    if len(raw) > file.limits.line:
        raise file.limits.length_error(str(path), 1, "text")
    if not (encoding := file.encoding) and (encoding := guess_encoding(raw)) != UTF8:
        note_encoding(file.title, encoding)
    try:
        text = raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        what = f"not {'UTF-8' if encoding == UTF8 else encoding}: {error}."
        raise InputError(Problem(str(path), what, "Give the encoding of the texts with --encoding.")) from error
    if "\0" in text:
        raise null_byte_error(str(path), 1 + text[: text.index("\0")].count("\n"))
    return text


@cache
def note_encoding(title: str, encoding: str) -> None:
    """Print the encoding that was detected for a file, only once even if the file is read several times."""
    print_note(f"{Path(title).name}: read as {encoding} (--encoding, if that is wrong)")


# --- brat ---

BRAT_ENDING = ".ann"
_BRAT_PLACE = re.compile(r"(\S+) (\d{1,9}) (\d{1,9})")


def read_brat(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (number, {text, spans, file}) for each line of the texts in a folder that brat annotated.

    Lines that one span covers are one row; blank lines without a span are left out. Annotations that cannot be read are added
    to `bad`. The limits are those of a folder of classes.
    """
    number = size = 0
    for name in (name for name in list_files(file.path) if name.endswith(BRAT_ENDING)):
        text = _read_text(file.path / f"{name.removesuffix(BRAT_ENDING)}.txt", file)
        size += count_bytes(text)
        if size > file.limits.total:
            raise file.limits.size_error(file.title)
        spans = _read_standoff(_read_text(file.path / name, file), name, number + 1, bad)
        for span in (span for span in spans if span["start"] >= len(text)):
            what = f"the span {span['start']} to {span['end']} of {name} begins behind the {len(text):,} characters of its text."
            bad.add(number + 1, what, "Take the text that was annotated, with its line ends.")
        at = 0
        for start, end in _part_lines(text, spans):
            number += 1
            if number > file.limits.rows:
                raise file.limits.row_count_error(file.title)
            inside = list[dict[str, Any]]()
            while at < len(spans) and spans[at]["start"] < end:
                inside.append({**spans[at], "start": spans[at]["start"] - start, "end": spans[at]["end"] - start})
                at += 1
            if inside or text[start:end].strip():
                yield number, {"text": text[start:end].rstrip("\r\n"), "spans": inside, "file": name}


def _read_standoff(notes: str, name: str, number: int, bad: BadRows) -> list[dict[str, Any]]:
    """Return the spans that the lines ``T1<tab>PER 0 3<tab>Ann`` of a file of brat list, in order; add those with a gap or of another form to `bad`."""
    spans = []
    for cells in (line.rstrip("\r").split("\t") for line in notes.split("\n") if line.startswith("T")):
        match = _BRAT_PLACE.fullmatch(cells[1]) if len(cells) > 1 else None
        if match is None:
            what = f"annotation {cells[0]:.20} of {name} is no label with one start and one end."
            bad.add(number, what, "Annotate its parts one by one.")
            continue
        text = {"text": cells[2]} if len(cells) > 2 else {}
        spans.append({"start": int(match[2]), "end": int(match[3]), "label": match[1], **text})
    return sorted(spans, key=lambda span: int(span["start"]))


def _part_lines(text: str, spans: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each line of a text; lines that one span covers are joined."""
    start = end = at = reach = 0
    for line in text.split("\n"):
        end = min(end + len(line) + 1, len(text))
        while at < len(spans) and spans[at]["start"] < end:
            reach, at = max(reach, spans[at]["end"]), at + 1
        if reach <= end or end == len(text):
            yield start, end
            start = end
