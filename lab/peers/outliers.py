"""Plant outlier channels into a model, and compare its small files without and with the treatment of outliers.

Run: python lab/peers/outliers.py RUN/student DATA.jsonl.gz TRAIN.jsonl.gz --format onnx --scheme int8,a8w8,w4 --rows 600

The two largest channels of every normalization in the encoder are multiplied by 40, and what reads them is divided by 40, so
that the fp32 model answers as before. Prints a table. `rel` is the RMS error of the logits over their spread, `agree` the
share of rows with the same first label, both against the model in torch; accuracy is that of the rows that were run. The
folder is not changed.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from schemes import CALIBRATED, size_of, texts_of, usual_weights

from pocketbert.core.compare.evaluate import label_agreement, rms_error
from pocketbert.core.families import Family
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Matrix, join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.adapters.outliers import divide_outliers, find_places, measure_channels
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.pipeline.reference import project_texts, tokenize_batches
from pocketbert.quantize import Plan, find_row, quantize
from pocketbert.runtime.engines import open_file

LENGTHS = (16, 32, 64)
TIMES = 40.0
"""How much larger the planted channels become."""


def plant(module: Any, family: Family, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make the two largest channels of every normalization of a prepared module 40 times larger; its answers stay."""
    places = find_places(module, [torch.from_numpy(rows[0][name]) for name in family.inputs])
    for place, sizes in zip(places, measure_channels(module, places, family.inputs, rows), strict=True):
        if not isinstance(place.writers[-1], torch.nn.Linear):
            place.divide(torch.ones_like(sizes).index_fill(0, sizes.topk(2).indices, 1 / TIMES))


def write(module: Any, family: Family, task: Task, format: Format, path: Path) -> None:
    """Export a prepared module."""
    if format is Format.ONNX:
        from pocketbert.export import onnx

        onnx.export(module, family, task, {n: np.ones((2, 12), np.int64) for n in family.inputs}, path)
    elif format is Format.TFLITE:
        from pocketbert.export import tflite

        tflite.export(module, family, task, LENGTHS, path)
    else:
        from pocketbert.export import coreml

        coreml.export(module, family, task, LENGTHS, path, coreml.CoremlForm(), coreml.CoremlInfo("", "", "", ""))


def main() -> None:
    """Measure, and print a line for each file."""
    parser = argparse.ArgumentParser(
        description="Plant outlier channels, and compare files without and with treatment."
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data")
    parser.add_argument("train")
    parser.add_argument("--format", type=Format, required=True)
    parser.add_argument("--scheme", required=True)
    parser.add_argument("--runtime", type=Runtime)
    parser.add_argument("--rows", type=int, default=600)
    asked = parser.parse_args()
    folder = open_model_folder(str(asked.model))
    assert folder.task is not None
    family, task, info = folder.family, TASKS[folder.task], FORMATS[asked.format]
    tokenizer, model = TextTokenizer(folder.path, LENGTHS[-1]), load_model(folder, task)
    texts, labels = texts_of(asked.data, asked.rows)
    encoded, samples = tokenizer.encode(texts), tokenizer.encode(texts_of(asked.train, CALIBRATED)[0])
    sentences = tokenize_batches(tokenizer, project_texts(task, tokenizer))

    def line(title: str, predictor: Any, size: float = 0.0) -> None:
        found: Matrix = join_texts(run_rows(predictor, tokenizer, encoded, task))
        names = folder.labels or []
        right = np.mean([names[i] == want for i, want in zip(found.argmax(-1), labels, strict=True)])
        rel, agree = rms_error(found, exact), label_agreement(found, exact)
        print(f"| {title} | {size:.2f} | {rel:.2g} | {100 * agree:.1f} | {100 * right:.1f} |", flush=True)

    healthy = prepare(model, family, task, asked.format)
    exact: Matrix = join_texts(run_rows(PreparedPredictor(healthy, family, task), tokenizer, encoded, task))
    planted = copy.deepcopy(healthy)
    plant(planted, family, sentences)
    treated, both = copy.deepcopy(planted), copy.deepcopy(healthy)
    for title, module in (("planted", treated), ("healthy", both)):
        for found in divide_outliers(module, family.inputs, sentences):
            print(f"{title}: {found.channels} of {found.of} channels of {found.name}, ratio {found.ratio}")
    print(f"| {info.title}, {len(texts)} rows | MB | rel | agree, % | accuracy, % |\n|---|---:|---:|---:|---:|")
    modules = {"healthy": healthy, "healthy, treated": both, "planted": planted, "planted, treated": treated}
    for kind, module in modules.items():
        line(f"{kind}: torch", PreparedPredictor(module, family, task))
        with tempfile.TemporaryDirectory() as work:
            source = Path(work) / f"{info.stem}{info.suffix}"
            write(module, family, task, asked.format, source)
            line(f"{kind}: {info.base}", open_file(source, asked.format), size_of(source) / 1e6)
            for scheme in map(Scheme, asked.scheme.split(",")):
                rows: Callable[[], Any] | None = (
                    (lambda: [tokenizer.pad([s]) for s in samples]) if scheme.static else None
                )
                path = Path(work) / f"{info.stem}_{scheme}{info.suffix}"
                row = find_row(asked.format, scheme, asked.runtime)
                weights = usual_weights(module, source, row) if row.usual else []
                quantize(source, path, Plan(asked.format, scheme, asked.runtime, rows, weights=weights))
                line(f"{kind}: {scheme}", open_file(path, asked.format, runtime=asked.runtime), size_of(path) / 1e6)


if __name__ == "__main__":
    main()
