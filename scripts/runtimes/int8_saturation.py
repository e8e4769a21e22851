"""What ONNX Runtime's setting `session.x64quantprecision` changes on this processor: answers and CPU time of an int8 file.

x86 processors without VNNI saturate int8 products where it is not set; others compute the same with and without it.

Run: python scripts/runtimes/int8_saturation.py runs/demo/phone runs/demo-corpus/dev.jsonl.gz --rows 300
"""

from __future__ import annotations

import argparse
import time
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


def session(path: Path, precise: bool) -> Any:
    """Open a file on one thread."""
    import onnxruntime  # after PocketBERT, which switches its telemetry off

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.add_session_config_entry("session.x64quantprecision", str(int(precise)))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(opened: Any, row: Any) -> Any:
    """The first output for a row [1, L]."""
    return opened.run(None, {i.name: row[i.name] for i in opened.get_inputs()})[0]


def burst(opened: Any, row: Any) -> float:
    """CPU seconds of a few runs."""
    begin = time.process_time()
    for _ in range(BURST):
        run(opened, row)
    return time.process_time() - begin


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Compare an int8 file with and without saturation.")
    parser.add_argument("folder", type=Path, help="artefact folder with ONNX files")
    parser.add_argument("data", help="rows with a column 'text'")
    parser.add_argument("--rows", type=int, default=300)
    asked = parser.parse_args()
    tokenizer = TextTokenizer(asked.folder, max(LENGTHS))
    texts = [e.text for e in read_examples(DataSource(path=asked.data), labelled=False)][: asked.rows]
    rows = [tokenizer.pad([row]) for row in tokenizer.encode(texts)]
    exact = session(asked.folder / "onnx" / "model.onnx", True)
    kinds = {wanted: session(asked.folder / "onnx" / "model_int8.onnx", wanted) for wanted in (True, False)}
    right = np.concatenate([run(exact, row) for row in rows])
    print(machine().summary)
    for wanted, opened in kinds.items():
        off = rms_error(np.concatenate([run(opened, row) for row in rows]), right)
        print(f"x64quantprecision={int(wanted)}: off by {off:.4f} of the logits' spread, {len(rows)} rows")
    for length in LENGTHS:
        ids = (np.arange(length, dtype=np.int64) * 7 % 997 + 1000)[None, :]
        row = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        times = [[burst(kinds[w], row) for w in (True, False)] for _ in range(ROUNDS)][5:]
        ratio = paired_ratio([t[0] for t in times], [t[1] for t in times])
        print(f"{length} tokens: CPU time with it / without it {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")


if __name__ == "__main__":
    main()
