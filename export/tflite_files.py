"""Files packed into a .tflite: an uncompressed zip behind the model, as MediaPipe and Android read it."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

from pocketbert.core.errors import InputError, Problem

MAX_FILES = 16
MAX_BYTES = 64 << 20
"""Bounds on what is read from a file of unknown origin; vocabularies have a few MiB."""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest date a zip can hold: equal input gives equal bytes


def pack_files(model: bytes, files: Mapping[str, bytes]) -> bytes:
    """Append files to a model, in place of those that it carries already.

    Entries are stored, not deflated: MediaPipe maps them in place and refuses anything else.

    Args:
        model: A .tflite file.
        files: Content by plain file name, at least one.

    Returns:
        The model followed by a zip archive; the same bytes for the same input.

    Raises:
        InputError: If a name is a path, there is nothing to pack, or too much.
    """
    problems = [p for name in files if (p := _name_problem(name))]
    total = sum(len(content) for content in files.values())
    if not 0 < len(files) <= MAX_FILES or total > MAX_BYTES:
        problems.append(f"{len(files)} files of {total} bytes; allowed are 1 to {MAX_FILES} of {MAX_BYTES}.")
    if problems:
        raise InputError([Problem("files packed into the model", p) for p in problems])
    stream = io.BytesIO(without_files(model))
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # else the packing machine's own
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return stream.getvalue()


def read_files(model: bytes) -> dict[str, bytes]:
    """Read the files packed into a model.

    Args:
        model: A .tflite file.

    Returns:
        Content by name, in archive order; empty if nothing is packed.

    Raises:
        InputError: If the archive is damaged, too large, compressed, or names paths.
    """
    if not zipfile.is_zipfile(io.BytesIO(model)):
        return {}
    out: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_FILES or sum(e.file_size for e in entries) > MAX_BYTES:
                raise _refused(f"more than {MAX_FILES} files or {MAX_BYTES} bytes.")
            for entry in entries:
                # the raw name: zipfile cuts the other one at a null byte
                if problem := _name_problem(entry.orig_filename):
                    raise _refused(problem)
                if entry.filename in out:
                    raise _refused(f"{entry.filename!r} is packed twice.")
                if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                    raise _refused(f"{entry.filename!r} is compressed; MediaPipe reads stored files only.")
                out[entry.filename] = archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, NotImplementedError, OSError) as error:
        raise _refused(f"not readable: {error}.") from error
    return out


def without_files(model: bytes) -> bytes:
    """The model without the archive behind it.

    Raises:
        InputError: If there is an archive that cannot be read.
    """
    if not zipfile.is_zipfile(io.BytesIO(model)):
        return model
    try:
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            # zipfile counts offsets from the start of the file, whatever stands before the archive
            start = min((e.header_offset for e in archive.infolist()), default=archive.start_dir)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise _refused(f"not readable: {error}.") from error
    return model[:start]


def _name_problem(name: str) -> str:
    if not name or name in (".", "..") or any(c in "/\\:" or not c.isprintable() for c in name):
        return f"{name!r} is not a plain file name."
    return ""


def _refused(what: str) -> InputError:
    return InputError(Problem("files packed into the model", what))
