"""Print which versions of an engine open the files of a folder and answer right; what `formats/oldest.py` records.

    python lab/runtimes/oldest_engines.py FOLDER --format onnx --version 1.22.1 --version 1.23.0

FOLDER is an artefact folder. Each ``--version`` of ONNX Runtime (or with ``--format tflite`` of LiteRT) is installed from PyPI into
a temporary environment, where this script runs itself on token ids of the golden rows that it made here. ``--python`` names the
interpreter for these environments: old packages are made for old versions of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab" / "peers"))
from engine.worker import LiteRt, OnnxRuntime

PACKAGES = {"onnx": "onnxruntime", "tflite": "ai-edge-litert"}
OLD = ("1.0.", "1.1.", "1.15.", "1.16.", "1.17.", "1.18.")
"""Versions that were built for numpy 1."""
SAME = 0.05
"""Largest difference from the engine that is installed here, of the spread of its answers: kernels of int8 round differently."""


def answer(work: Path, version: str) -> None:
    """Run every file of a work folder on its rows; answers, or the error, into the folder ``answers``."""
    rows = np.load(work / "rows.npz")
    count = max(int(name.split("/")[0]) for name in rows.files) + 1
    feeds = [{n.split("/")[1]: rows[n] for n in rows.files if n.startswith(f"{i}/")} for i in range(count)]
    for path in sorted((work / "files").iterdir()):
        place = work / "answers" / f"{version} {path.name}"
        try:
            engine = OnnxRuntime(str(path), 1, precise=True) if path.suffix == ".onnx" else LiteRt(str(path), 1)
            answers = [engine.run(engine.prepare(row)) for row in feeds]
            np.save(f"{place}.npy", np.concatenate([np.asarray(found).reshape(1, -1) for found in answers]))
        except Exception as error:  # what an engine raises is what is asked
            place.with_name(f"{place.name}.txt").write_text(str(error))


def prepare(folder: Path, format: str, work: Path) -> None:
    """Link the files of a format, and write the token ids of the golden rows."""
    from pocketbert.core.artefacts import read_artefacts
    from pocketbert.core.compare.golden import read_golden
    from pocketbert.core.predict.tokenization import TextTokenizer

    artefacts = read_artefacts(folder)
    for name in ("files", "answers"):
        (work / name).mkdir()
    for record in artefacts.models():
        if record.format == format and record.client is None:
            (work / "files" / Path(record.path).name).symlink_to((folder / record.path).resolve())
    tokenizer = TextTokenizer(folder, artefacts.processing.max_length)
    encoded = tokenizer.encode([row.input for row in read_golden(folder / "golden.jsonl")])
    padded: list[dict[str, Any]] = [tokenizer.pad([row]) for row in encoded]
    arrays: dict[str, Any] = {f"{i}/{name}": value for i, row in enumerate(padded) for name, value in row.items()}
    np.savez(work / "rows.npz", **arrays)


def installed(package: str, version: str, python: str, work: Path) -> Path:
    """Interpreter of a new environment that has a version of an engine."""
    place, uv = work / version, str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "venv", "-q", "-p", python, str(place)], check=True)
    interpreter = place / "bin" / "python"
    wanted = [f"{package}=={version}", "numpy<2" if version.startswith(OLD) else "numpy"]
    subprocess.run([uv, "pip", "install", "-q", "--python", str(interpreter), *wanted], check=True)
    return interpreter


def verdict(work: Path, version: str, name: str) -> str:
    """What a version did with a file."""
    error = work / "answers" / f"{version} {name}.txt"
    if error.is_file():
        return f"refused: {' '.join(error.read_text().split())[:160]}"
    found, right = (np.load(work / "answers" / f"{v} {name}.npy") for v in (version, "here"))
    worst = float(np.abs(found - right).max() / right.std(0).max())
    return f"{'right' if worst <= SAME else 'WRONG'}, worst difference {worst:.1e}"


def main() -> None:
    """Prepare, run every version, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=PACKAGES, default="onnx")
    parser.add_argument("--version", action="append", default=[])
    parser.add_argument("--python", default="3.11", help="interpreter of the environments")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        return answer(arguments.folder, arguments.answer)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        prepare(arguments.folder, arguments.format, work)
        package = PACKAGES[arguments.format]
        places = {"here": Path(sys.executable)}
        places |= {v: installed(package, v, arguments.python, work) for v in arguments.version}
        for version, python in places.items():
            subprocess.run([str(python), __file__, "--answer", version, str(work)], check=True)
        print(json.dumps(str(arguments.folder)))
        print("| file | " + " | ".join(f"{package} {v}" for v in arguments.version) + " |")
        print("|---|" + "---|" * len(arguments.version))
        for path in sorted((work / "files").iterdir()):
            print(f"| {path.name} | " + " | ".join(verdict(work, v, path.name) for v in arguments.version) + " |")
    return None


if __name__ == "__main__":
    main()
