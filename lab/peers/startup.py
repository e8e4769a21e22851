"""Time from the start of a process: `pocketbert --help`, and the first answer of `pocketbert.load` against a minimal script.

The minimal script is what an application would write with ONNX Runtime and tokenizers alone, without any check. Processes of both take turns;
CPU time is given beside wall time, since other processes only lengthen the latter. The first process of `pocketbert.load` is left out: it checks the
folder whole, and the others find that remembered.

Run: python lab/peers/startup.py --model runs/demo/phone
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import print_header

_TEXT = "wake me at six"
_MINIMAL = """
import json, sys
import numpy as np, onnxruntime, tokenizers
folder, text = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(f"{folder}/onnx/model_int8.onnx", options, providers=["CPUExecutionProvider"])
row = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json").encode(text)
names = json.load(open(f"{folder}/config.json"))["id2label"]
feed = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
logits = session.run(["logits"], {i.name: np.array([feed[i.name]], np.int64) for i in session.get_inputs()})[0][0]
scores = np.exp(logits - logits.max())
print(names[str(int(logits.argmax()))], round(float(scores.max() / scores.sum()), 4))
"""
_OURS = """
import sys
import pocketbert
folder, text = sys.argv[1:]
model = pocketbert.load(folder, "int8", threads=1, format="onnx")
answer = model.predict([text])[0]
print(answer.label, round(answer.score, 4))
"""


def _run(*arguments: str) -> tuple[float, float, float, str]:
    """Run Python with these arguments; return wall seconds, CPU seconds, peak memory in MB, and what it printed."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"python {arguments[:2]} ended with {process.returncode}")
    unit = 1e6 if sys.platform == "darwin" else 1e6 / 1024
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit, printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="artefact folder of a classifier with onnx/model_int8.onnx")
    parser.add_argument("--runs", type=int, default=20, help="processes of each")
    options = parser.parse_args()
    times = [_run("-m", "pocketbert.cli.main", "--help")[0] for _ in range(10)]
    print_header("pocketbert --help, whole process", "none")
    print(f"{min(times):.3f} s fastest, {statistics.median(times):.3f} s median of 10; wanted under 0.5")
    if options.model is None:
        return
    scripts = {"minimal script": _MINIMAL, "pocketbert.load": _OURS}
    _run("-c", _OURS, str(options.model), _TEXT)
    figures: dict[str, list[tuple[float, float, float, str]]] = {name: [] for name in scripts}
    for _ in range(options.runs):
        for name, script in scripts.items():
            figures[name].append(_run("-c", script, str(options.model), _TEXT))
    print_header("first answer, whole process", "none")
    medians = {}
    for name, rows in figures.items():
        wall, cpu, memory = (statistics.median(row[i] for row in rows) for i in range(3))
        medians[name] = (wall, cpu, memory)
        print(f"{name}: {wall:.3f} s wall, {cpu:.3f} s CPU, {memory:.1f} MB, answer {rows[0][3].strip()}")
    wall, cpu, memory = (a / b for a, b in zip(medians["pocketbert.load"], medians["minimal script"], strict=True))
    print(f"ratio: {wall:.2f} wall, {cpu:.2f} CPU (wanted at most 1.5), {memory:.2f} memory (wanted at most 1.1)")


if __name__ == "__main__":
    main()
