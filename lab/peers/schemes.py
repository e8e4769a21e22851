"""Quantize the exported files of an artefact folder, and compare their answers with those of its fp32 file.

Run: python lab/peers/schemes.py FOLDER DATA.jsonl.gz --format tflite --scheme int8,small,w4 --rows 400
     (static schemes: --calibrate TRAIN.jsonl.gz, of which 300 rows are read)

Prints a table. `rel` is the RMS error of the logits over their spread, `agree` the share of rows with the same first label,
both against the TFLite fp32 file; accuracy is that of the rows that were run. The folder is not changed.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.evaluate import label_agreement, rms_error
from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.predictor import Matrix, join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.tasks import TASKS, Task
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.pipeline.formats.weight_roles import digest_float_weights, list_weights, resolve_schemes
from pocketbert.pipeline.reference import project_text_batches, project_texts, tokenize_batches
from pocketbert.quantize import Plan, find_row, quantize
from pocketbert.quantize.table import SchemeRow
from pocketbert.runtime.engines import open_file

CALIBRATED = 300


def texts_of(path: str, rows: int) -> tuple[list[str], list[str]]:
    """The first texts of a file, and their labels."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in itertools.islice(lines, rows)]
    return [r["text"] for r in found], [r["label"] for r in found]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a package."""
    return sum(p.stat().st_size for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file())


def usual_weights(module: Any, source: Path, row: SchemeRow) -> list[WeightRole]:
    """What becomes of the weights in a file of a scheme where no recipe chooses: single roles may have another one.

    Args:
        module: What the exported file was written from.
        source: The exported file.
        row: Format and scheme.
    """
    held = set(digest_float_weights(source, row.format).values())
    weights = [w for w in list_weights(module, FORMATS[row.format].base) if w.digest in held]
    return resolve_schemes(QuantizeSection(), weights, row.scheme_of)


def prepared(folder: ModelFolder, task: Task, tokenizer: TextTokenizer, format: Format) -> Any:
    """Rewrite the model of an artefact folder as its export did."""
    samples, sentences = (
        tokenize_batches(tokenizer, project_texts(task, tokenizer)),
        project_text_batches(task, tokenizer),
    )
    model = load_model(folder, task)
    return prepare(model, folder.family, task, format, samples=samples, sentences=sentences)


def main() -> None:
    """Measure, and print a line for each file."""
    parser = argparse.ArgumentParser(description="Compare schemes on an artefact folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("data")
    parser.add_argument("--format", type=Format, required=True)
    parser.add_argument("--scheme", required=True)
    parser.add_argument("--runtime", type=Runtime)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--calibrate")
    asked = parser.parse_args()
    artefacts = read_artefacts(asked.folder)
    tokenizer, task = TextTokenizer(asked.folder, artefacts.processing.max_length), TASKS[artefacts.task]
    model = open_model_folder(str(asked.folder))
    texts, labels = texts_of(asked.data, asked.rows)
    encoded = tokenizer.encode(texts)
    samples = tokenizer.encode(texts_of(asked.calibrate, CALIBRATED)[0]) if asked.calibrate else []

    def answers(path: Path, format: Format, runtime: Runtime | None = None) -> Matrix:
        return join_texts(run_rows(open_file(path, format, runtime=runtime), tokenizer, encoded, task))

    def line(title: str, path: Path, found: Matrix) -> None:
        right = np.mean([artefacts.labels[i] == want for i, want in zip(found.argmax(-1), labels, strict=True)])
        rel, agree = rms_error(found, exact), label_agreement(found, exact)
        megabytes = size_of(path) / 1e6
        print(f"| {title} | {megabytes:.2f} | {rel:.4f} | {100 * agree:.1f} | {100 * right:.2f} |", flush=True)

    exact = answers(asked.folder / "tflite/model.tflite", Format.TFLITE)
    info = FORMATS[asked.format]
    source = asked.folder / asked.format / f"{info.stem}{info.suffix}"
    print(f"| {info.title}, {len(texts)} rows | MB | rel | agree, % | accuracy, % |\n|---|---:|---:|---:|---:|")
    line(str(info.base), source, answers(source, asked.format) if asked.format is not Format.TFLITE else exact)
    with tempfile.TemporaryDirectory() as folder:
        for scheme in map(Scheme, asked.scheme.split(",")):
            rows = (lambda: [tokenizer.pad([s]) for s in samples]) if scheme.static else None
            row = find_row(asked.format, scheme, asked.runtime)
            module = prepared(model, task, tokenizer, asked.format) if row.usual else None
            weights = [] if module is None else usual_weights(module, source, row)
            plan = Plan(asked.format, scheme, asked.runtime, rows, weights=weights)
            path = Path(folder) / f"{info.stem}_{scheme}{info.suffix}"
            quantize(source, path, plan)
            line(plan.title, path, answers(path, asked.format, asked.runtime))


if __name__ == "__main__":
    main()
