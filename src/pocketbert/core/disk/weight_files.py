"""Reading the weight files of a model folder within bounds: safetensors, whole or split over parts, and ``.bin``.

`read_weight_names` lists the names of the weights without loading them, `find_weight_files` finds the files,
`read_weights` reads them; no other module opens ``.bin`` files. torch and safetensors are imported inside the functions.
"""

from __future__ import annotations

import json
import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, MachineError, Problem, first_line

if TYPE_CHECKING:
    import torch

_State = dict[str, "torch.Tensor"]

WEIGHTS_FILE = "model.safetensors"
_PICKLED_FILE = "pytorch_model.bin"
_INDEX, _PICKLED_INDEX = f"{WEIGHTS_FILE}.index.json", f"{_PICKLED_FILE}.index.json"
"""The files that list the parts over which weights are split."""
_RESAVE = "Open it with transformers 4 ({}=True), and save it with save_pretrained()."
_ORIGINAL = "Take the checkpoint that it was made from."
_FOREIGN = {
    "*-of-*.[sb]*": ("a part of split weights", "Copy or download all parts, with their index (*.index.json)."),
    "*.safetensors": ("a file of another name", f"Rename it to {WEIGHTS_FILE} if it holds the whole model."),
    "*.h5": ("weights of TensorFlow", _RESAVE.format("from_tf")),
    "*.msgpack": ("weights of Flax", _RESAVE.format("from_flax")),
    "*.ckpt*": ("a checkpoint of a training program", "Load it there, and save the model with save_pretrained()."),
    "*.onnx": ("an exported file, which is not read", _ORIGINAL),
    "onnx/*.onnx": ("an exported file, which is not read", _ORIGINAL),
    "*.gguf": ("a converted file, which is not read", _ORIGINAL),
    "*.gz": ("a compressed file", "Unpack it."),
    "*.zip": ("a compressed file", "Unpack it."),
}
"""Patterns of files that people have in place of readable weights: what each is, and what to do."""
_SHOWN_PARTS = 3
_MAX_HEADER_BYTES = 16 << 20
"""Far above the header of any encoder, whose parsed form takes about ten times as much memory."""
_MAX_BIN_BYTES = 8 << 30
_MAX_LISTED = 8
_COPY_AGAIN = "Copy or download the file again."


# --- files and names ------------------------------------------------------------


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """Find the weight files of a folder: the first of model.safetensors, its parts, pytorch_model.bin and its parts.

    Parts are those that an index lists. Incomplete parts are passed over if there is a pytorch_model.bin.

    Raises:
        InputError: If the folder has no weight file, a safetensors file is broken, or a part is missing.
    """
    whole, pickled = folder / WEIGHTS_FILE, folder / _PICKLED_FILE
    if whole.is_file():
        _check_safetensors(whole)
        return (whole,)
    if (folder / _INDEX).is_file():
        with suppress(InputError) if pickled.is_file() else nullcontext():  # of parts that were not all copied
            return tuple(_list_parts(folder))
    if pickled.is_file():
        return (pickled,)
    if (folder / _PICKLED_INDEX).is_file():
        return tuple(_list_parts(folder, _PICKLED_INDEX))
    what = f"has neither {WEIGHTS_FILE} nor {_PICKLED_FILE}."
    for pattern, (kind, fix) in _FOREIGN.items():
        if found := sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern)):
            raise InputError(Problem(str(folder), f"{what} It has {found[0]:.80}, {kind}.", fix))
    raise InputError(Problem(str(folder), what))


def count_fp32_bytes(files: Sequence[Path]) -> int:
    """Count the bytes that weights take in fp32: four for each number in safetensors files; the size of other files."""
    if files[0].suffix != ".safetensors":
        return sum(path.stat().st_size for path in files)
    return sum(4 * math.prod(entry["shape"]) for path in files for entry in _check_safetensors(path).values())


def read_weight_names(folder: Path) -> list[str]:
    """Read the names of the weights in a Hugging Face folder without loading them; empty if no file can be read.

    Of a `.bin` file, all texts in its pickle are listed, and the names are among them; no code in the pickle is run. Of
    split `.bin` files, the names are those in their index.
    """
    safetensors, pickled = folder / WEIGHTS_FILE, folder / _PICKLED_FILE
    if safetensors.is_file() or (folder / _INDEX).is_file():
        try:
            files = [safetensors] if safetensors.is_file() else _list_parts(folder)
            return [name for path in files for name in _check_safetensors(path)]
        except (InputError, MachineError):
            return []
    if not pickled.is_file() and (folder / _PICKLED_INDEX).is_file():
        try:
            return list(_read_index(folder / _PICKLED_INDEX))
        except (InputError, MachineError):
            return []
    if not pickled.is_file() or not zipfile.is_zipfile(pickled):
        return []
    try:
        with zipfile.ZipFile(pickled) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("data.pkl"))
            if entry.file_size > _MAX_HEADER_BYTES:
                return []
            return [text for _, text, _ in pickletools.genops(archive.read(entry)) if isinstance(text, str)]
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return []


def _read_index(index: Path) -> dict[str, str]:
    """Return the file of each weight by the weight's name, from the index of split weights; raise InputError if it lists none."""
    content = read_json(index, _MAX_HEADER_BYTES >> 20)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise InputError(Problem(str(index), "has no weight_map: which file holds which weight.", _COPY_AGAIN))
    return listed


def _list_parts(folder: Path, index_name: str = _INDEX) -> list[Path]:
    """List the files over which the weights of a folder are split, in the order of their names.

    Raises:
        InputError: If the index names a file that is not in the folder, or if the parts do not hold the weights that it
            lists, each of them once. What pickled parts hold is not read.
    """
    index = folder / index_name
    listed, ending = _read_index(index), ".bin" if index_name == _PICKLED_INDEX else ".safetensors"
    names = sorted({str(name) for name in listed.values()})
    outside = [name for name in names if not re.fullmatch(rf"[\w-][\w.-]*\{ending}", name)]
    if outside:
        raise InputError(Problem(str(index), f"names {outside[0]!r:.80}, no file of this folder.", _COPY_AGAIN))
    if missing := [name for name in names if not (folder / name).is_file()]:
        shown = ", ".join(missing[:_SHOWN_PARTS])
        raise InputError(
            Problem(str(folder), f"{len(missing)} of {len(names)} parts are missing: {shown}.", _COPY_AGAIN)
        )
    if ending == ".bin":
        return [folder / name for name in names]
    holder: dict[str, str] = {}
    for name in names:
        for weight in _check_safetensors(folder / name):
            if holder.setdefault(weight, name) != name:
                what = f"{weight[:100]} is in two parts, {holder[weight]} and {name}."
                raise InputError(Problem(str(folder), what, _COPY_AGAIN))
    if wrong := [weight for weight, name in listed.items() if holder.get(weight) != name]:
        what = f"{len(wrong)} weights are not in the part that the index names, e.g. {wrong[0][:100]}."
        raise InputError(Problem(str(index), what, _COPY_AGAIN))
    return [folder / name for name in names]


def _check_safetensors(path: Path) -> dict[str, Any]:
    """Check that a safetensors file is complete, and return its header: dtype, shape and offsets by tensor name.

    Raises:
        InputError: If the file is truncated, or is no safetensors file.
        MachineError: If the file cannot be read.
    """
    try:
        size = path.stat().st_size
        if size == 0:  # a file in /proc, too, whose bytes the system may refuse to give
            raise InputError(Problem(str(path), "is empty.", _COPY_AGAIN))
        with path.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise InputError(Problem(str(path), "not a safetensors file, or its header is cut off.", _COPY_AGAIN))
            header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = max((int(e["data_offsets"][1]) for e in header.values()), default=0)
            if any(type(n) is not int or not 0 <= n < 1 << 40 for e in header.values() for n in e["shape"]):
                raise ValueError("a shape has other sizes than whole numbers")
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(Problem(str(path), f"broken safetensors header: {error}.", _COPY_AGAIN)) from error
    if size != 8 + length + end:
        what = f"truncated: {size:,} bytes, its header describes {8 + length + end:,}."
        raise InputError(Problem(str(path), what, _COPY_AGAIN))
    return header


# --- reading ------------------------------------------------------------


def read_weights(files: Sequence[Path]) -> _State:
    """Read the weight files of a model, all pickled or all safetensors files, as one state dict.

    Raises:
        InputError: If a file is broken, or holds anything but plain tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    state: _State = {}
    if files[0].suffix != ".safetensors":
        for path in files:
            state.update(_read_bin(path))
        return state
    for path in files:
        try:
            state.update(load_file(path))
        except (SafetensorError, ValueError, KeyError) as error:
            raise InputError(Problem(str(path), f"broken safetensors file: {first_sentence(error)}.")) from error
    return state


def _read_bin(path: Path) -> _State:
    """Read a pickled state dict without running any code in it; raise InputError for files above 8 GiB, compressed archives and unusual tensors."""
    import torch

    if path.stat().st_size > _MAX_BIN_BYTES:
        raise InputError(Problem(str(path), f"larger than {_MAX_BIN_BYTES >> 30} GiB, refused."))
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(i.file_size for i in archive.infolist())
            # torch stores tensors uncompressed; a compressed entry may be a thousand times as large as the file
            if unpacked > path.stat().st_size:
                what = f"unpacks to {unpacked:,} bytes, more than the file has; refused."
                raise InputError(Problem(str(path), what))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # a foreign pickle fails in many ways
        what = f"cannot be read as plain weights: {first_sentence(error)}."
        fix = "Convert it to model.safetensors where you trust its origin."
        raise InputError(Problem(str(path), what, fix)) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # of a training program, beside its counters
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise InputError(Problem(str(path), "does not hold a state dict of tensors."))
    unusual = [str(k) for k, v in state.items() if not isinstance(k, str) or not _is_plain(v)]
    if unusual:
        examples = shorten_names(unusual)
        what = f"{len(unusual)} of its tensors are quantized, sparse, without data or otherwise not plain: {examples}."
        raise InputError(Problem(str(path), what, "Save the model in fp32 with save_pretrained()."))
    return state


def _is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor is an ordinary dense one whose storage holds all of its numbers."""
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta or value.is_nested:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's message, without advice such as torch's to load a pickle unsafely."""
    return first_line(error).split(". ")[0].rstrip(".")


def shorten_names(names: Sequence[str]) -> str:
    """Join the first eight names of a list with commas, each cut to 100 characters; ``...`` stands for the others."""
    shown = ", ".join(n if len(n) <= 100 else f"{n[:97]}..." for n in names[:_MAX_LISTED])
    return f"{shown}, ..." if len(names) > _MAX_LISTED else shown
