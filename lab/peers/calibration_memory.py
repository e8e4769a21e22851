"""Measure how much memory the calibration of a static file takes: BERT-base with random weights, rows of 128 tokens.

Run: python lab/peers/calibration_memory.py [--rows 4 512] [--methods minmax mse percentile]

Each row count and method is a process of its own, which opens the fp32 ONNX file and measures the ranges of every input of a
product; its largest resident memory is printed. The last line is of a process that writes the whole static file: ONNX Runtime's
quantizer, which writes the weights, takes more than the calibration. Random weights change ranges, not memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.types import Calibration, Format, Scheme

LENGTH, VOCABULARY = 128, 30522


def write_fp32(path: Path) -> None:
    """Export BERT-base with random weights."""
    import torch
    import transformers

    from pocketbert.core.families import family_of
    from pocketbert.core.models.checkpoints import register_with_transformers
    from pocketbert.core.tasks import TASKS, TaskName
    from pocketbert.export import onnx
    from pocketbert.export.prepare import prepare

    row, task = family_of("bert"), TASKS[TaskName.TEXT_CLASSIFICATION]
    register_with_transformers(row)
    torch.manual_seed(7)
    model = transformers.AutoModelForSequenceClassification.from_config(transformers.BertConfig()).eval()
    example = {name: values for name, values in _row(np.random.default_rng(0)).items() if name in row.inputs}
    onnx.export(prepare(model, row, task, Format.ONNX), row, task, example, path)


def _row(draw: np.random.Generator) -> dict[str, np.ndarray]:
    ids = draw.integers(1000, VOCABULARY, (1, LENGTH))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def calibrate(source: Path, rows: int, method: Calibration, whole: bool) -> dict[str, float]:
    """Measure ranges in this process, or write the static file; its peak memory in MB and the CPU seconds it took."""
    from pocketbert.quantize import Plan, quantize
    from pocketbert.quantize.onnx.dynamic import load_for_quantizer
    from pocketbert.quantize.onnx.static import measure_ranges

    draw, start = np.random.default_rng(1), time.process_time()
    plan = Plan(Format.ONNX, Scheme.A8W8, rows=lambda: (_row(draw) for _ in range(rows)), calibration=method)
    if whole:
        quantize(source, source.with_name("static.onnx"), plan)
    else:
        model = load_for_quantizer(source)
        stored = {t.name for t in model.graph.initializer}
        products = [n for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and n.input[1] in stored]
        measure_ranges(model, [n.input[0] for n in products], plan, source.with_name("measured.onnx"), "static.onnx")
    # not resource.getrusage: its maximum counts what the parent had when this process was forked from it
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1000
    return {"peak_mb": round(peak), "cpu_s": round(time.process_time() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of calibration.")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 512])
    parser.add_argument("--methods", type=Calibration, nargs="+", default=list(Calibration))
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.file:
        print(json.dumps(calibrate(asked.file, asked.rows[0], asked.methods[0], asked.whole)))
        return
    print(f"BERT-base, random weights, {LENGTH} tokens; {describe_machine().summary}\n")
    print("| method | rows | peak, MB | CPU-s |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.onnx"
        write_fp32(source)
        parts = [(method, rows, False) for method in asked.methods for rows in asked.rows]
        for method, rows, whole in [*parts, (asked.methods[0], asked.rows[0], True)]:
            words = [sys.executable, __file__, "--file", str(source), "--rows", str(rows), "--methods", str(method)]
            words += ["--whole"] if whole else []
            made = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            figures = json.loads(made)
            title = f"{method}, the whole file" if whole else str(method)
            print(f"| {title} | {rows} | {figures['peak_mb']:,} | {figures['cpu_s']} |", flush=True)


if __name__ == "__main__":
    main()
