"""Checks of the JSON files that other machines wrote, shared by the readers of Macs and of Android phones.

A file from another machine is not trusted: `ForeignRecord` and the field types bound every text, number and list;
`validate_record` reports what is wrong with a file, `read_records` reads several files and checks with
`check_listed` that their figures belong to model files of the given artefact folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.core.artefacts import FileRecord
from pocketbert.core.errors import InputError, Problem

MAX_PROBLEMS = 20
UNCHECKED = "No artefact folder was given (-m): it was not checked which files these figures belong to."

# No control characters: these texts reach a terminal.
ShortText = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Milliseconds = Annotated[float, Field(gt=0, le=1e8, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**48)]
Length = Annotated[int, Field(ge=1, le=65536)]
Samples = Annotated[
    list[Annotated[list[Milliseconds], Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=1000)
]
"""Times of inferences, [repeats][runs]."""


class ForeignRecord(BaseModel):
    """Base of records read from files of other machines; unknown keys are ignored, so that newer files can be read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


RecordT = TypeVar("RecordT", bound=ForeignRecord)


def read_records(
    paths: Sequence[Path], read: Callable[[Path], RecordT], check: Callable[[Path, RecordT], Sequence[Problem]]
) -> dict[Path, RecordT]:
    """Read and check several result files of one kind; return their records by path.

    Args:
        paths: The result files to read.
        read: Function that reads one file, or raises InputError.
        check: Function that returns the problems of a record, given its path.

    Raises:
        InputError: Listing every problem of all files, including two files with the same results.
    """
    problems: list[Problem] = []
    records: dict[Path, RecordT] = {}
    for path in paths:
        try:
            record = read(path)
        except InputError as error:
            problems += error.problems
            continue
        if record in records.values():
            problems.append(Problem(str(path), "these figures are imported already."))
        records[path] = record
        problems += check(path, record)
    if problems:
        raise InputError(problems)
    return records


def validate_record(path: Path, content: Any, model: type[RecordT]) -> RecordT:
    """Check the content of a file against the record class `model`; return the record.

    Raises:
        InputError: Listing at most `MAX_PROBLEMS` problems with the place of each in the file.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = [
            Problem(f"{path} {'.'.join(map(str, e['loc']))}".strip(), f"{e['msg'].removeprefix('Value error, ')}.")
            for e in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        more = len(problems) - MAX_PROBLEMS
        rest = [Problem(str(path), f"and {more} problems more.")] if more > 0 else []
        raise InputError([*problems[:MAX_PROBLEMS], *rest]) from error


def check_listed(
    path: Path, file: str, sha256: str, listed: Mapping[Path, Sequence[FileRecord]], fix: str, *, name_same_path: bool
) -> list[Problem]:
    """Check that an artefact folder has a model file with the digest of a measured file; return the problem if not.

    Args:
        path: The result file, for the message.
        file: Path of the measured file in its artefact folder.
        sha256: Digest of the measured file.
        listed: Records of the model files of each artefact folder; nothing is checked if it is empty.
        fix: What to do, for the message.
        name_same_path: Whether the message names the digest of a listed file with the same path.

    Returns:
        The problem in a list; an empty list if there is none.
    """
    files = [f for folder_files in listed.values() for f in folder_files]
    if not listed or any(f.sha256 == sha256 for f in files):
        return []
    folders = ", ".join(map(str, listed))
    same = next((f for f in files if f.path == file), None) if name_same_path else None
    instead = f"{folders} lists no such file" if same is None else f"in {folders} that file has sha256 {same.sha256}"
    what = f"measured was a file with sha256 {sha256}; {instead}. Figures belong to the files they were measured on."
    return [Problem(f"{path} {file}", what, fix)]
