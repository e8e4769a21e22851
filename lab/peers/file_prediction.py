"""Rows per second of `pocketbert predict --file` against optimum's pipeline over the same int8 file, both with all cores.

Each side is a process that reads a .jsonl file of texts and writes one answer per line. optimum-onnx has an environment of its own; its pipeline
gets the rows one by one and 32 at a time, padded to the longest of the batch. The sides take turns; from the time of all rows that of
one row is taken off, so that imports and loading do not count.

Run: python lab/peers/file_prediction.py --model runs/demo/phone
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import add_file_options, print_header, real_texts
from environments import environment

_PIPELINE = """
import json, os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer, pipeline
batch, folder, file, source, target = sys.argv[1:]
model = ORTModelForSequenceClassification.from_pretrained(folder, subfolder=os.path.dirname(file), file_name=os.path.basename(file))
classify = pipeline("text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(folder))
rows = [json.loads(line) for line in open(source)]
with open(target, "w") as out:
    for row, answer in zip(rows, classify([row["text"] for row in rows], batch_size=int(batch))):
        out.write(json.dumps({**row, "answer": answer}) + "\\n")
"""


def list_sides(model: Path, file: str, optimum: Path) -> dict[str, list[str]]:
    """Return the command of each side, without source and target."""
    pipeline, opened = [str(optimum), "-c", _PIPELINE], [str(model), file]
    return {
        "pocketbert predict --file": [sys.executable, "-m", "pocketbert", "predict", "-q", "-m", str(model), "--model-file", file],
        "optimum's pipeline, 1 row": [*pipeline, "1", *opened],
        "optimum's pipeline, 32 rows": [*pipeline, "32", *opened],
    }  # fmt: skip


def time_side(command: list[str], source: Path, target: Path) -> tuple[float, float, list[str]]:
    """Let a side write a new file of answers; return its wall and CPU seconds, and its labels."""
    files = ["--file", str(source), "-o", str(target)] if "pocketbert" in command else [str(source), str(target)]
    began, before = time.perf_counter(), os.times()
    subprocess.run([*command, *files], check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    answers = [json.loads(line)["answer"] for line in target.read_text().splitlines()]
    return wall, spent, [answer["label"] for answer in answers]


def main() -> None:
    """Time the sides in turns and print rows per second, CPU time per row, and how many labels agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_file_options(parser)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--ready", type=Path, help="folder with environments that exist already")
    options = parser.parse_args()
    texts, source = real_texts(options.texts, "train")
    texts = texts[: options.rows]
    sides = list_sides(options.model.resolve(), options.file, environment("optimum", options.ready))
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    labels: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        every, one = Path(folder, "rows.jsonl"), Path(folder, "one.jsonl")
        for path, rows in ((every, texts), (one, texts[:1])):
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        for number in range(options.rounds):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                targets = [
                    Path(folder, f"{number}-{list(sides).index(side)}-{name}.jsonl") for name in ("every", "one")
                ]
                wall, cpu, labels[side] = time_side(sides[side], every, targets[0])
                least_wall, least_cpu, _ = time_side(sides[side], one, targets[1])
                found[side].append((wall - least_wall, cpu - least_cpu))
    print_header(f"{len(texts):,} rows of a file, {options.file}, all cores", source)
    ours, first = found["pocketbert predict --file"], labels["pocketbert predict --file"]
    print("| | rows/s | CPU ms per row | CPU time, ratio to PocketBERT | same labels |\n|---|---:|---:|---:|---:|")
    for side, rounds in found.items():
        wall, cpu = (statistics.median(row[i] for row in rounds) for i in range(2))
        ratio = statistics.median(row[1] / own[1] for row, own in zip(rounds, ours, strict=True))
        same = statistics.mean(a == b for a, b in zip(labels[side], first, strict=True))
        count = len(texts) - 1
        print(f"| {side} | {count / wall:.0f} | {1000 * cpu / count:.2f} | {ratio:.2f} | {100 * same:.1f} % |")


if __name__ == "__main__":
    main()
