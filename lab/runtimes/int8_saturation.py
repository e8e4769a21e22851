"""What the settings against saturation change on this processor: answers and CPU time of int8 files, by engine.

x86 processors without VNNI saturate int8 products where ONNX Runtime's `session.x64quantprecision` is not set, and where
OpenVINO's `LP_TRANSFORMS_MODE` is not off; others compute the same with and without the first, and need not have the second.

Run: python lab/runtimes/int8_saturation.py runs/demo/phone runs/demo-corpus/dev.jsonl.gz --rows 300
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.benchmarks.statistics import paired_ratio
from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.predict.tokenization import TextTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab" / "peers"))
from engine.worker import OnnxRuntime, OpenVino

LENGTHS = (8, 32, 128)
ROUNDS, BURST = 60, 3

Run = Callable[[dict[str, Any]], Any]
Settings = dict[str, Any]

FILES: dict[str, tuple[type[OnnxRuntime | OpenVino], Settings, Settings]] = {
    "model_int8.onnx": (OnnxRuntime, {"precise": True}, {"precise": False}),
    "model_a8w8.onnx": (OnnxRuntime, {"precise": True}, {"precise": False}),
    "model_a8w8_openvino.onnx": (
        OpenVino,
        {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": False},
        {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": True},
    ),
}
"""By file: its engine, and the engine's settings with which products do not saturate and with which they may."""


def runner(engine: type[OnnxRuntime | OpenVino], path: Path, settings: Settings) -> Run:
    """Open a file on one thread."""
    opened = engine(str(path), 1, **settings)
    return lambda row: opened.run(opened.prepare(row)).copy()


def burst(run: Run, row: Any) -> float:
    """CPU seconds of a few runs."""
    begin = time.process_time()
    for _ in range(BURST):
        run(row)
    return time.process_time() - begin


def compare(file: str, precise: Run, default: Run, rows: list[Any], right: Any) -> None:
    """Print the errors of a file with and without its engine's setting, and the ratio of CPU time."""
    print(file)
    for title, run in (("with the setting", precise), ("without it", default)):
        off = rms_error(np.concatenate([run(row) for row in rows]), right)
        print(f"  {title}: off by {off:.4f} of the logits' spread, {len(rows)} rows")
    for length in LENGTHS:
        ids = (np.arange(length, dtype=np.int64) * 7 % 997 + 1000)[None, :]
        row = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        times = [[burst(run, row) for run in (precise, default)] for _ in range(ROUNDS)][5:]
        ratio = paired_ratio([t[0] for t in times], [t[1] for t in times])
        print(
            f"  {length} tokens: CPU time with it / without it {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Compare int8 files with and without saturation.")
    parser.add_argument("folder", type=Path, help="artefact folder with ONNX files")
    parser.add_argument("data", help="rows with a column 'text'")
    parser.add_argument("--rows", type=int, default=300)
    asked = parser.parse_args()
    tokenizer, files = TextTokenizer(asked.folder, max(LENGTHS)), asked.folder / "onnx"
    texts = [e.text for e in read_examples(DataSource(path=asked.data), labelled=False)][: asked.rows]
    rows = [tokenizer.pad([row]) for row in tokenizer.encode(texts)]
    exact = runner(OnnxRuntime, files / "model.onnx", {})
    right = np.concatenate([exact(row) for row in rows])
    print(describe_machine().summary)
    for name, (engine, precise, default) in FILES.items():
        path = files / name
        if path.is_file():
            compare(name, runner(engine, path, precise), runner(engine, path, default), rows, right)


if __name__ == "__main__":
    main()
