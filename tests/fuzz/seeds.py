"""The sound inputs that are mutated: a tiny model, its artefact folder, a recipe, rows and texts.

The model and the rows are written by the tests' builders; what PocketBERT makes of them, by the PocketBERT that is tested.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import yaml

from fuzz.mutators.recipes import SCHEMA
from fuzz.runner import Ended, Runner
from support.tiny_task import RECIPE, merged
from support.tiny_texts import LABELS, task_rows, write_lines

FORMATS = "onnx,tflite,coreml"
_MODEL = """
from pathlib import Path
import sys
from support.tiny import write_bert
from support.tiny_texts import LABELS
write_bert(Path(sys.argv[1]), LABELS)
"""


def write_seeds(folder: Path, runner: Runner) -> None:
    """Write the sound inputs into a new folder, and warm the runner with the commands that make them."""
    folder.mkdir(parents=True)
    tests = str(Path(__file__).resolve().parents[1])
    code = [sys.executable, "-c", _MODEL, str(folder / "model")]
    subprocess.run(code, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": tests})
    write_recipe(folder)
    _good(runner.warm(["export", "-m", "model", "-o", "phone", "--format", FORMATS, "-q"], folder))
    warm_light(folder, runner)


def warm_light(seeds: Path, runner: Runner) -> None:
    """Let the warm process import what commands import that need no torch, and note the keys of recipes."""
    _good(runner.warm(["verify", "-m", "phone", "-q"], seeds))
    _good(runner.warm(["data", "check", "-q", "recipe.yaml", "data.train.path=rows/rows.parquet"], seeds))
    (seeds / SCHEMA).write_text(_good(runner.run(["recipes", "schema"], seeds)).out)


def warm(seeds: Path, work: Path, runner: Runner) -> None:
    """Let the warm process import what commands import, with sound inputs that are there already."""
    export = ["export", "-m", str(seeds / "model"), "-o", str(work / "warm"), "--format", "onnx", "-q"]
    _good(runner.warm(export, seeds))
    warm_light(seeds, runner)


def _good(ended: Ended) -> Ended:
    assert ended.code == 0, f"the sound inputs could not be made: {ended}"
    return ended


def write_rows(folder: Path, count: int) -> list[dict[str, str]]:
    """Write the same valid rows in every kind of file into a new folder; return them."""
    import pyarrow
    import pyarrow.parquet

    rows = task_rows(count, 7)
    folder.mkdir()
    raw = write_lines(folder / "rows.jsonl", rows).read_bytes()
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(raw, mtime=0))
    for name, tab in (("rows.csv", ","), ("rows.tsv", "\t")):
        cells = [("text", "label"), *((r["text"], r["label"]) for r in rows)]
        (folder / name).write_text("".join(f"{text}{tab}{label}\n" for text, label in cells))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    return rows


def write_recipe(folder: Path) -> None:
    """Write rows, texts, and a recipe that names the rows."""
    write_lines(folder / "train.jsonl", write_rows(folder / "rows", 90))
    write_lines(folder / "eval.jsonl", task_rows(30, 2))
    changes = {"teacher": {"model": "./model"}, "data": {"labels": list(LABELS)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(merged(RECIPE, changes), sort_keys=False))
    (folder / "texts.txt").write_text("dim the lamp in the hall\nplay my song\n")
