"""Measure Longformer's attention over blocks of tokens beside that over all pairs: memory and CPU time of an ONNX file.

Run: python lab/longformer_blocks.py > docs/figures/longformer-blocks.json

Random weights, 2 layers of width 128 with 4 heads and windows of 512 tokens. Every measurement is a process with one thread, which
runs the file on a full row; it tells the least CPU time of some runs, and its peak memory beyond that of a row of 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LENGTHS, RUNS, SHORT = (512, 1024, 2048, 4096), 5, 64
SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "attention_window": 512,
    "vocab_size": 5000,
    "max_position_embeddings": 4098,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}


def write(folder: Path) -> None:
    """Export both files, and check that they agree with each other."""
    import numpy as np
    import torch
    import transformers

    from pocketbert.core.families import find_family
    from pocketbert.core.tasks import TASKS, TaskName
    from pocketbert.export import onnx
    from pocketbert.export.prepare import prepare

    task, row = TASKS[TaskName.TOKEN_CLASSIFICATION], find_family("longformer")
    torch.manual_seed(7)
    config = transformers.LongformerConfig(**SIZES, num_labels=3)
    model = transformers.LongformerForTokenClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    for name, family in (("pairs", row), ("blocks", row.over_blocks())):
        onnx.export(prepare(model, family, task), family, task, feed(700, rows=2), folder / f"{name}.onnx")
    inputs = feed(1500)
    inputs["attention_mask"][:, 1300:] = 0
    with torch.no_grad():
        expected = model(**{k: torch.from_numpy(v) for k, v in inputs.items()}).logits.numpy()[:, :1300]
    for name in ("pairs", "blocks"):
        found = session(folder / f"{name}.onnx").run(None, inputs)[0][:, :1300]
        if not np.abs(found - expected).max() < 1e-4 * expected.std():
            raise SystemExit(f"{name}: differs from transformers")


def feed(length: int, rows: int = 1) -> dict[str, Any]:
    """A row of drawn tokens, none of them padding."""
    import numpy as np

    ids = np.random.default_rng(length).integers(5, SIZES["vocab_size"], (rows, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def session(path: Path) -> Any:
    """The file, opened with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def measure(path: Path, length: int) -> dict[str, float]:
    """Peak memory and least CPU time of runs at a length, in this process."""
    opened = session(path)
    opened.run(None, feed(SHORT))
    before, inputs, times = _peak(), feed(length), list[float]()
    for _ in range(RUNS):
        start = time.process_time()
        opened.run(None, inputs)
        times.append(time.process_time() - start)
    return {"mb": round((_peak() - before) / 1024, 1), "cpu_ms": round(1000 * min(times), 1)}


def _peak() -> int:
    """Most memory of this process in KiB; `getrusage` would tell that of the process that started it."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    """Print the figures, or those of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(Path(asked.one[0]), int(asked.one[1]))))
        return
    figures: dict[str, Any] = {"runs": RUNS, "sizes": SIZES, "lengths": {}}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for length in LENGTHS:
            for name in ("pairs", "blocks"):
                words = [sys.executable, __file__, "--one", f"{folder}/{name}.onnx", str(length)]
                out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
                figures["lengths"].setdefault(str(length), {})[name] = json.loads(out)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
