"""Conversions of tiny models to ONNX, TFLite and Core ML files, made once for all tests of a run.

Half of a tiny export is torch's exporter, and hundreds of tests export the same few models. `converted_once` replaces the
exporters by functions that copy a file which was written before from an equal module: `digest` covers its weights, its
attributes, the methods of its classes, and all other arguments. What it does not know is converted anew, and so is everything
in the tests of the exporters themselves: a test that patches what methods read from their modules belongs there.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib
import inspect
import os
import re
import shutil
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig

EXPORTERS = {
    "pocketbert.export.onnx": ("export",),
    "pocketbert.export.tflite": ("export", "export_mediapipe"),
    "pocketbert.export.coreml": ("export",),
}
CONVERTS_ANEW = "tests/export/"
"""Folder of the tests whose subject is the conversion."""
_INTERNAL = frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers"}
"""Attributes of every module, its submodules and hooks among them."""


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Unknown(Exception):
    """Raised for a value that cannot be described."""


def digest(*values: Any) -> str:
    """Return a hash of values: equal ones have equal hashes in every process. Raises Unknown for what it does not know."""
    hasher = hashlib.sha256()
    seen: dict[int, tuple[int, Any]] = {}
    for value in values:
        _describe(value, hasher.update, seen)
    return hasher.hexdigest()


def _describe(value: Any, put: Callable[[bytes], object], seen: dict[int, tuple[int, Any]]) -> None:
    """Put a description of a value, and of all that is in it, into a hash."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | enum.Enum | Path):
        put(f"{type(value).__name__} {value!r};".encode())
        return
    if isinstance(value, torch.dtype | torch.device | torch.Size | np.dtype):
        put(f"{value!r};".encode())
        return
    if id(value) in seen:  # the same object again: weights that are shared, a module that knows its parent
        put(f"again {seen[id(value)][0]};".encode())
        return
    seen[id(value)] = len(seen), value  # kept, for another object could get its id
    put(f"{type(value).__module__}.{type(value).__qualname__}(".encode())
    if isinstance(value, torch.Tensor):
        put(f"{value.dtype} {tuple(value.shape)} {value.requires_grad};".encode())
        put(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        put(f"{value.dtype} {value.shape};".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, torch.nn.Module):
        if any(vars(value)[name] for name in _INTERNAL if name.endswith("_hooks")):
            raise Unknown("a hook")
        for base in type(value).__mro__[: type(value).__mro__.index(torch.nn.Module)]:
            _describe_functions(base, put, seen)
        _describe({k: v for k, v in vars(value).items() if k not in _INTERNAL}, put, seen)
        _describe(dict(value._modules), put, seen)
    elif isinstance(value, PretrainedConfig):
        put(f"{value._attn_implementation} {value.to_json_string(use_diff=False)}".encode())
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _describe(key, put, seen)
            _describe(entry, put, seen)
    elif isinstance(value, set | frozenset):
        put(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, list | tuple):
        for entry in value:
            _describe(entry, put, seen)
    elif isinstance(value, functools.partial):
        _describe([value.func, value.args, value.keywords], put, seen)
    elif isinstance(value, types.MethodType):
        _describe([value.__func__, value.__self__], put, seen)
    elif isinstance(value, types.FunctionType):
        _describe_code(value.__code__, put)
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError as error:  # an empty one
            raise Unknown(value) from error
        _describe([value.__qualname__, cells, value.__defaults__, value.__kwdefaults__], put, seen)
    elif isinstance(value, type):
        put(f"{value.__module__}.{value.__qualname__};".encode())
    elif isinstance(value, types.BuiltinFunctionType):
        put(f"{value.__qualname__};".encode())
    elif is_dataclass(value):
        _describe({f.name: getattr(value, f.name) for f in fields(value)}, put, seen)
    else:
        raise Unknown(type(value))
    put(b")")


def _describe_functions(kind: type, put: Callable[[bytes], object], seen: dict[int, tuple[int, Any]]) -> None:
    """Put the code of a class's methods into a hash, as a test may have changed them."""
    if id(kind) in seen:
        return
    seen[id(kind)] = len(seen), kind
    put(f"class {kind.__module__}.{kind.__qualname__}".encode())
    for name, member in sorted(vars(kind).items()):
        while isinstance(member, types.FunctionType):  # each wrapper around a method, and the method
            put(name.encode())
            _describe_code(member.__code__, put)
            plain = [cell.cell_contents for cell in member.__closure__ or () if _is_plain(cell)]
            put(_ADDRESS.sub("", repr((plain, member.__defaults__, member.__kwdefaults__))).encode())
            member = getattr(member, "__wrapped__", None)


def _is_plain(cell: types.CellType) -> bool:
    """Whether a variable that a function took from around it is a number, a text or a tuple of such."""
    try:
        value = cell.cell_contents
    except ValueError:  # not yet set
        return False
    parts = value if isinstance(value, tuple) else (value,)
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def _describe_code(code: types.CodeType, put: Callable[[bytes], object]) -> None:
    """Put compiled code into a hash, that of functions inside it too."""
    put(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _describe_code(constant, put)
        else:
            put(repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant).encode())


@contextlib.contextmanager
def converted_once(root: Path) -> Iterator[None]:
    """Replace the exporters in the block by functions that convert equal modules once.

    Args:
        root: Folder of the files, common to all test processes.
    """
    root.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):  # torch translates its table of operators again for every file
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        for module, names in EXPORTERS.items():
            imported = importlib.import_module(module)
            for name in names:
                patch.setattr(imported, name, _convert_once(getattr(imported, name), root))
        yield


def _convert_once(export: Callable[..., None], root: Path) -> Callable[..., None]:
    """Return an exporter that copies what was converted from equal arguments before."""
    signature = inspect.signature(export)

    @functools.wraps(export)
    def copy_or_export(*args: Any, **kwargs: Any) -> None:
        if CONVERTS_ANEW in os.environ.get("PYTEST_CURRENT_TEST", ""):
            export(*args, **kwargs)
            return
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        path = Path(given.arguments.pop("path"))
        try:
            kept = root / f"{digest(export.__module__, export.__name__, *given.arguments.items())}{path.suffix}"
        except Unknown:
            export(*args, **kwargs)
            return
        if kept.exists():
            _copy(kept, path)
            return
        export(*args, **kwargs)
        part = kept.with_name(f"{os.getpid()}-{kept.name}")
        _copy(path, part)
        with contextlib.suppress(OSError):  # another process was faster
            part.rename(kept)

    return copy_or_export


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or a package that is a folder."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
