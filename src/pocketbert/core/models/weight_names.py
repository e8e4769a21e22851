"""Names of the weights of a model folder, and whether its file is whole; without torch, and without reading the weights."""

from __future__ import annotations

import json
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

from pocketbert.core.errors import InputError, MachineError, Problem

_HEADER_BYTES = 16 << 20
"""Far above the header of any encoder, whose parsed form takes about ten times as much memory."""
_AGAIN = "Copy or download the file again."


def weight_names(folder: Path) -> list[str]:
    """List the names of the weights of a model folder; empty where they cannot be read, which loading them reports.

    Args:
        folder: A Hugging Face model folder.
    """
    stored = folder / "model.safetensors"
    if stored.is_file():
        try:
            return [name for name in check_safetensors(stored) if name != "__metadata__"]
        except (InputError, MachineError):
            return []
    pickled = folder / "pytorch_model.bin"
    return _pickled_names(pickled) if pickled.is_file() and zipfile.is_zipfile(pickled) else []


def _pickled_names(path: Path) -> list[str]:
    """Texts in the pickle of a `.bin` file, the names of its weights among them; nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("data.pkl"))
            if entry.file_size > _HEADER_BYTES:
                return []
            return [text for _, text, _ in pickletools.genops(archive.read(entry)) if isinstance(text, str)]
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return []


def check_safetensors(path: Path) -> dict[str, Any]:
    """Check by its header that a safetensors file is complete.

    Returns:
        The header.

    Raises:
        InputError: If it is truncated or no safetensors file.
        MachineError: If it cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(size - 8, _HEADER_BYTES):
                raise InputError(Problem(str(path), "not a safetensors file, or its header is cut off.", _AGAIN))
            header = json.loads(stream.read(length))
            end = max((e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"), default=0)
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(Problem(str(path), f"broken safetensors header: {error}.", _AGAIN)) from error
    if size != 8 + length + end:
        raise InputError(
            Problem(str(path), f"truncated: {size:,} bytes, its header describes {8 + length + end:,}.", _AGAIN)
        )
    return dict(header)
