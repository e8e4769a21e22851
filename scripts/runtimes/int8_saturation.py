"""What the settings against saturation change on this processor: answers and CPU time of int8 files, by engine.

x86 processors without VNNI saturate int8 products where ONNX Runtime's `session.x64quantprecision` is not set, and where
OpenVINO's `LP_TRANSFORMS_MODE` is not off; others compute the same with and without the first, and need not have the second.

Run: python scripts/runtimes/int8_saturation.py runs/demo/phone runs/demo-corpus/dev.jsonl.gz --rows 300
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.benchmarks.statistics import paired_ratio
from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.host.hardware import machine
from pocketbert.core.predict.tokenization import TextTokenizer

LENGTHS = (8, 32, 128)
ROUNDS, BURST = 60, 3

Run = Callable[[dict[str, Any]], Any]


def onnx_runtime(path: Path, precise: bool) -> Run:
    """Open a file on one thread."""
    import onnxruntime  # after PocketBERT, which switches its telemetry off

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.add_session_config_entry("session.x64quantprecision", str(int(precise)))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda row: session.run(None, {n: row[n] for n in names})[0]


def openvino(path: Path, precise: bool) -> Run:
    """Open a file on one thread, with what is not int8 in fp32."""
    from pocketbert.core.host.telemetry import without_openvino_telemetry

    with without_openvino_telemetry():
        import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(path, "CPU", {**settings, "LP_TRANSFORMS_MODE": not precise})
    request, names = model.create_infer_request(), [i.get_any_name() for i in model.inputs]
    return lambda row: request.infer({n: row[n] for n in names})[0]


OPENERS: dict[str, Callable[[Path, bool], Run]] = {
    "model_int8.onnx": onnx_runtime,
    "model_a8w8.onnx": onnx_runtime,
    "model_a8w8_openvino.onnx": openvino,
}


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
    exact = onnx_runtime(files / "model.onnx", True)
    right = np.concatenate([exact(row) for row in rows])
    print(machine().summary)
    for name, opened in OPENERS.items():
        path = files / name
        if path.is_file():
            compare(name, opened(path, True), opened(path, False), rows, right)


if __name__ == "__main__":
    main()
