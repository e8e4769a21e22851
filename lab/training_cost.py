"""Measure what it costs to train a teacher and distil it into students: wall and CPU seconds, and peak memory, step by step.

Run: python lab/training_cost.py BERT-base [--layers 3 --layers 6] [--steps 6] [--batch 32] [--tokens 128] [-o runs/training-cost.json]

The teacher has a published shape (`lab/export_cost.py` lists them), random weights and three labels; the rows are drawn words, as
long as `--tokens`. Times hold loading and scoring of a few rows; memory is that of the process and its children.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from export_cost import MODELS, make_model, measure_steps, print_costs

from pocketbert.core.disk.files import write_json
from pocketbert.core.host.hardware import describe_machine, load_average, usable_memory
from pocketbert.core.host.system import installed_versions

ROWS, SCORED = 96, 16
RECIPE = """\
schema: 1
name: training-cost
description: What training costs.
task: text-classification
seed: 7
data:
  train: {{path: {rows}, label: label}}
  eval: {{path: {eval}, label: label}}
  max_length: {tokens}
teacher:
  model: {model}
  finetune: {{steps: {steps}, batch: {batch}}}
student: {{layers: {layers}, init: teacher-layers}}
distill: [{{method: task, steps: {steps}, batch: {batch}, signals: {{logits: 1, hidden: 1}}}}]
export: {{formats: [onnx]}}
"""


def write_rows(path: Path, tokens: int, count: int) -> Path:
    """Write a JSONL file of texts of drawn words, each longer than `tokens`, with one of three labels."""
    draw = np.random.default_rng(7)
    words = "good bad film music play weather time day book light house green water small large night".split()
    rows = ({"text": " ".join(draw.choice(words, tokens)), "label": f"label {i % 3}"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def main() -> None:
    """Measure the trainings that the command line names, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--layers", type=int, action="append", default=[], help="layers of a student; default 3 and 6")
    for name, default in (("steps", 6), ("batch", 32), ("tokens", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the costs")
    options = parser.parse_args()
    machine = f"{describe_machine().summary}, {usable_memory() / 1e9:.0f} GB"
    print(f"{machine}; load {load_average():.1f}; random weights, 3 labels; provenance measured")
    found = []
    with tempfile.TemporaryDirectory(prefix="pocketbert-training-cost-") as work:
        model = make_model(MODELS[options.model], Path(work) / "model")
        files = {"rows": ROWS, "eval": SCORED}
        paths = {name: write_rows(Path(work) / f"{name}.jsonl", options.tokens, n) for name, n in files.items()}
        for layers in options.layers or [3, 6]:
            recipe = Path(work) / f"{layers}.yaml"
            sizes = {"steps": options.steps, "batch": options.batch, "tokens": options.tokens}
            recipe.write_text(RECIPE.format(**paths, model=model, layers=layers, **sizes))
            command = [sys.executable, "-m", "pocketbert", "distill", str(recipe), "-o", f"{work}/run-{layers}"]
            costs = measure_steps(command, Path(work) / "log", (0, 3))  # a few steps do not beat chance
            print_costs(f"{options.model} to {layers} layers, {options.steps} steps of {options.batch} rows", costs)
            found.append({"layers": layers, **sizes, "steps_cost": [asdict(c) for c in costs]})
    if options.output:
        versions = installed_versions(("pocketbert", "torch", "transformers"))
        content = {"machine": machine, "provenance": "measured", "weights": "random", "model": options.model}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.output, {**content, "versions": versions, "costs": found})


if __name__ == "__main__":
    main()
