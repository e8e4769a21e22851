"""Choosing the files of an artefact folder that an Android app carries in its assets, and writing them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.core.artefacts import (
    FILE_NAME,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    changed_files,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import LEAST_ROWS, TOKENS_FILE_NAME, read_golden, write_golden
from pocketbert.core.disk.files import copy_path, sha256_file
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.config import FILE_NAME as CONFIG_FILE
from pocketbert.core.formats import FORMATS
from pocketbert.core.types import Format, Runtime, Scheme, Status
from pocketbert.pipeline.phone.operators import FILE_NAME as OPERATORS_FILE
from pocketbert.pipeline.phone.operators import missing_reader, write_required_operators

PLATFORM = "android"
_FORMATS = (Format.ONNX, Format.TFLITE)
_BESIDE = (CONFIG_FILE, "tokenizer.json", GOLDEN_FILE, TOKENS_FILE_NAME)
"""What an app needs beside the model files: labels, vocabulary, and what its self-test compares with."""


@dataclass(frozen=True)
class Choice:
    """What is packed.

    Attributes:
        models: Model files, those of the folder's default format first.
        others: The other files.
        absent: Files that an app could use and that are not packed, and why.
    """

    models: list[ModelRecord]
    others: list[FileRecord]
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[FileRecord]:
        """All of them."""
        return [*self.models, *self.others]


def choose(folder: Path, artefacts: Artefacts) -> Choice:
    """Choose the files of an artefact folder that an Android app needs.

    Of ONNX and of TFLite that is the file of the default file's scheme. TFLite up to 2.16 computes the default int8 file
    wrongly, so the file that is made for it goes along.

    Raises:
        InputError: If there is no such model file, a file is missing or changed, the golden rows are too few, or the files take
            more inputs than the text gives.
    """
    if artefacts.form is not None:
        what = f"its files have the form '{artefacts.form}', with inputs that the Android app does not make."
        raise InputError(Problem(str(folder), what, "Export the model again with --form text."))
    wanted, absent, models = _scheme(artefacts.default_model()), dict[str, str](), list[ModelRecord]()
    for format in _FORMATS:
        of_format = [r for r in artefacts.models() if r.format is format and r.status is not Status.FAILED]
        plain = [r for r in of_format if r.plain]
        if not plain:
            absent[f"{format}/"] = f"the folder has no {FORMATS[format].title} file"
            continue
        models.append(next((r for s in (wanted, Scheme.INT8) for r in plain if r.scheme is s), plain[0]))
        if format is Format.TFLITE and models[-1].scheme is Scheme.INT8:
            old = [r for r in of_format if r.client is None and r.runtime is Runtime.TFLITE_2_16]
            models += old
            if not old:
                absent[f"tflite/model_int8_{Runtime.TFLITE_2_16}.tflite"] = (
                    "TFLite up to 2.16 has no int8 file here; 'pocketbert quantize -m FOLDER -o NEW --runtime "
                    f"{Runtime.TFLITE_2_16}' adds it. LiteRT needs none"
                )
    if not models:
        what = "has neither an ONNX nor a TFLite file that passed its gates; Android apps run these."
        raise InputError(Problem(str(folder), what, "Export again with --format onnx,tflite."))
    by_path = {r.path: r for r in artefacts.files}
    choice = Choice(models, [by_path[name] for name in _BESIDE if name in by_path], absent)
    problems = [
        Problem(str(folder / name), what, "Copy the folder again.") for name, what in _damage(folder, artefacts, choice)
    ]
    if problems:
        raise InputError(problems)
    read_golden(folder / GOLDEN_FILE, LEAST_ROWS)
    return choice


def _scheme(default: ModelRecord) -> Scheme:
    """The scheme that other formats have where the folder's default file has its own."""
    info = FORMATS[default.format]
    if default.scheme is info.base:
        return Scheme.FP32
    return next((wish for wish, given in info.instead.items() if given is default.scheme), default.scheme)


def _damage(folder: Path, artefacts: Artefacts, choice: Choice) -> Iterator[tuple[str, str]]:
    listed = {r.path for r in choice.others}
    yield from ((name, "is missing; an app needs it.") for name in _BESIDE if name not in listed)
    yield from ((r.path, "listed, but not there.") for r in choice.files if not (folder / r.path).exists())
    changed = changed_files(folder, artefacts.model_copy(update={"files": choice.files}))
    yield from ((name, "changed since it was packed: its sha256 is not the listed one.") for name in changed)


def earlier_pack(output: Path) -> Artefacts | None:
    """What an earlier command packed into a folder; None where it holds no list.

    Raises:
        InputError: If the folder's list is not one of files packed for this platform.
    """
    path = output / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return None
    try:
        found = read_artefacts(output)
    except InputError:
        found = None
    if found is None or found.packed_for != PLATFORM:
        what = f"holds a {FILE_NAME} that 'pocketbert pack --for {PLATFORM}' did not write; nothing was written."
        raise InputError(Problem(str(output), what, "Choose a new folder with -o/--output."))
    return found


def is_packed(output: Path, earlier: Artefacts, artefacts: Artefacts, choice: Choice) -> bool:
    """Whether an earlier command packed the same files, and all are still as they were."""
    same = earlier.made_from == artefacts.made_from and earlier.absent == _absent(choice)
    packed = [(r.path, r.sha256) for r in earlier.models()]
    if not same or sorted(packed) != sorted((r.path, r.sha256) for r in choice.models):
        return False
    return all((output / r.path).exists() for r in earlier.files) and not changed_files(output, earlier)


def write_assets(folder: Path, artefacts: Artefacts, choice: Choice, destination: Path) -> None:
    """Write the chosen files, golden rows of these only, ONNX Runtime's list of operators and ``artifacts.json``.

    Args:
        folder: The artefact folder.
        artefacts: Its list.
        choice: What is packed.
        destination: Empty folder to write into.
    """
    for record in choice.files:
        (destination / record.path).parent.mkdir(parents=True, exist_ok=True)
        if record.path != GOLDEN_FILE:
            copy_path(folder / record.path, destination / record.path)
    paths = {r.path for r in choice.models}
    rows = [
        row.model_copy(
            update={
                "outputs": {p: v for p, v in row.outputs.items() if p in paths},
                "tolerance": {p: v for p, v in row.tolerance.items() if p in paths},
            }
        )
        for row in read_golden(folder / GOLDEN_FILE)
    ]
    write_golden(destination / GOLDEN_FILE, rows)
    absent, onnx = _absent(choice), [destination / r.path for r in choice.models if r.format is Format.ONNX]
    others = [r for r in choice.others if r.path != GOLDEN_FILE]
    written = [_record(destination, GOLDEN_FILE, Kind.GOLDEN)]
    if onnx and OPERATORS_FILE not in absent:
        write_required_operators(onnx, destination / OPERATORS_FILE)
        written.append(_record(destination, OPERATORS_FILE, Kind.CONFIG))
    default = next((r for r in choice.models if r.default), choice.models[0])
    models = [r.model_copy(update={"default": r is default}) for r in choice.models]
    files = sorted([*models, *others, *written], key=lambda r: r.path)
    update = {"files": files, "absent": absent, "packed_for": PLATFORM}
    write_artefacts(destination, artefacts.model_copy(update=update))


def _absent(choice: Choice) -> dict[str, str]:
    why = missing_reader() if any(r.format is Format.ONNX for r in choice.models) else None
    return {**choice.absent, **({OPERATORS_FILE: why} if why else {})}


def _record(folder: Path, name: str, kind: Kind) -> FileRecord:
    path = folder / name
    return FileRecord(path=name, sha256=sha256_file(path), bytes=path.stat().st_size, kind=kind)
