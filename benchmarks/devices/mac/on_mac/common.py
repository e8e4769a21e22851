"""Names and helpers that all parts of the Mac script use."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import logging
import subprocess
from pathlib import Path
from typing import Any

SCHEMA_VERSION = "1.1"
KIND = "pocketbert-mac-benchmark"
UNITS = {"all": "ALL", "cpu-only": "CPU_ONLY", "cpu-and-gpu": "CPU_AND_GPU", "cpu-and-ne": "CPU_AND_NE"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOG = logging.getLogger("benchmark_on_mac")


class RefusalError(Exception):
    """Something is wrong that the user can mend: one line, and the exit code where it is not 2."""


def coremltools() -> Any:
    """The library, or how to get it."""
    try:
        return importlib.import_module("coremltools")
    except ImportError as error:
        raise RefusalError(f"{error}. Install it with: python3 -m pip install coremltools", 4) from error


def load_numpy() -> Any:
    """Import NumPy, which comes with coremltools."""
    return importlib.import_module("numpy")  # which other systems, where this file refuses, may lack


def open_compiled(tools: Any, compiled: str, unit: str) -> Any:
    """Open a compiled package on a compute unit."""
    return tools.models.CompiledMLModel(compiled, compute_units=getattr(tools.ComputeUnit, UNITS[unit]))


def sha256_folder(path: Path) -> str:
    """Digest of a package, which is a folder: of the sorted JSON list of [path inside, sha256 of the file]."""
    files = sorted((p.relative_to(path).as_posix(), p) for p in files_of(path))
    pairs = [[name, hashlib.sha256(p.read_bytes()).hexdigest()] for name, p in files]
    text = json.dumps(pairs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def files_of(path: Path) -> list[Path]:
    """All files inside a package."""
    return [p for p in path.rglob("*") if p.is_file()]


def write_atomic(path: Path, text: str) -> None:
    """Write so that readers see the whole file or none; whatever has the name of the unfinished file is left as it is."""
    for number in itertools.count():
        partial = path.with_name(f".{path.name}.{number}.partial")
        with contextlib.suppress(FileExistsError):
            stream = partial.open("x", encoding="utf-8")
            break
    try:
        with stream:
            stream.write(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def command_output(*words: str) -> str:
    """What a system command prints; empty where it is not there or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""


def ms(nanoseconds: float) -> float:
    """Milliseconds to 0.1 µs."""
    return round(nanoseconds / 1e6, 4)


def reason(error: Exception) -> str:
    """An error in one line of at most 300 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
