"""What was measured before: one JSON line for each cell, with the state of the code that it was measured at."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from filelock import FileLock

from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import version_of
from support.matrix.cells import Cell

ROOT = Path(__file__).resolve().parents[3]
CODE = ("export", "quantize", "runtime", "src/pocketbert/core", "tests/support/matrix")
"""Folders that decide what a cell measures."""
BUILDERS = ("tests/support/tiny.py", "tests/support/tiny_tokenizers.py")
LIBRARIES = (
    *("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "litert-torch", "ai-edge-quantizer"),
    *("ai-edge-litert", "coremltools", "numpy"),
)


def results_file() -> Path:
    """Where results are kept: `MATRIX_RESULTS`, or runs/matrix/results.jsonl."""
    return Path(os.environ.get("MATRIX_RESULTS", ROOT / "runs/matrix/results.jsonl"))


@dataclass(frozen=True)
class Result:
    """What was measured of a cell; all differences are relative to the spread of the logits."""

    cell: Cell
    passed: bool
    worst: float  # largest difference to the untouched model; of 8-bit files the RMS
    bound: float  # what `worst` may be
    median: float  # over the inputs of the largest difference in each; NaN of 8-bit files
    mask: float  # how far the model's answer moves when padding is not masked
    positions: float  # how far it moves when words change places
    shapes: list[tuple[int, int]]  # batch and length of the inputs
    problem: str = ""
    code: str = field(default_factory=lambda: code_state())
    isa: list[str] = field(default_factory=lambda: describe_machine().isa)
    versions: dict[str, str] = field(default_factory=lambda: library_versions())


@cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that make and run files."""
    return {name: version_of(name) or "missing" for name in LIBRARIES}


@cache
def code_state() -> str:
    """A digest of the code that decides what a cell measures, and of the versions of the libraries."""
    found = hashlib.sha256(json.dumps(library_versions(), sort_keys=True).encode())
    files = [p for folder in CODE for p in sorted((ROOT / folder).rglob("*.py"))]
    for path in [*files, *(ROOT / name for name in BUILDERS)]:
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def write(results: Iterable[Result], path: Path | None = None) -> None:
    """Append results, whatever other processes write."""
    file = path or results_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(asdict(r)) + "\n" for r in results)
    with FileLock(file.with_suffix(".lock")), file.open("a", encoding="utf-8") as out:
        out.write(lines)


def read(path: Path | None = None) -> list[Result]:
    """All results, oldest first; a line that a kill has cut is left out."""
    file = path or results_file()
    out = []
    for line in file.read_text("utf-8").splitlines() if file.is_file() else []:
        try:
            content = json.loads(line)
        except json.JSONDecodeError:
            continue
        out.append(Result(**{**content, "cell": Cell(**content["cell"])}))
    return out


def passed(cells: Iterable[Cell], path: Path | None = None) -> bool:
    """Whether every cell has passed at this state of the code."""
    last = {r.cell: r for r in read(path) if r.code == code_state()}
    return all(c in last and last[c].passed for c in cells)
