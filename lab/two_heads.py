"""Compare one student with two heads, intent and slots, with two students of one head each, on SNIPS: a table of docs/lab/results.md.

Run: python lab/two_heads.py SHARED_DATA FOLDER [--seeds 7 8] [--table]     # trains; a run that was stopped goes on

The three runs have the same shapes, rates and rows. The encoder of the joint run is trained for as many passes over the rows as the two
encoders of the single runs together (`--joint-passes`), so that both sides cost the same training. Scores are those of the int8 files on the
dev rows, which took no part in training; sizes and times are those of the same files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kept import FILE, PLAIN, TAGS, WORDS_FOLDER, write_words

from pocketbert.core.disk.files import read_json
from pocketbert.core.host.hardware import describe_machine

HEADS = {"intent": ("intent", PLAIN, "accuracy"), "slots": ("tags", TAGS, "span_f1")}
SINGLE_PASSES = 2
SIDES = ("intent", "slots", "both")


def list_settings(side: str, data: Path, seed: int, passes: int) -> list[str]:
    """Return the settings of one run.

    Args:
        side: ``intent``, ``slots`` or ``both``.
        data: Folder with the joined words of SNIPS.
        seed: Seed of teacher and student.
        passes: Passes over the rows, of the teacher and of the student.
    """

    def source(name: str) -> str:
        columns = {"text": "tokens"} if side == "both" else {"text": "tokens" if side == "slots" else "text", "label": HEADS[side][0]}
        return json.dumps({"path": str(data / f"{name}.jsonl.gz"), **columns})

    heads = {name: {"task": task, "label": column} for name, (column, task, _) in HEADS.items()}
    return [
        *([f"tasks={json.dumps(heads)}"] if side == "both" else []),
        f"seed={seed}",
        f"data.train={source('train')}",
        f"data.eval={source('dev')}",
        "data.max_length=48",
        "teacher={model: minilm-l6, finetune: {epochs: %d, batch: 32, lr: 3e-4}}" % passes,
        "student={layers: 3, init: teacher-layers}",
        "distill=[{method: task, epochs: %d, batch: 32, lr: 3e-4, dropout: 0.0, temperature: 2.0, " % passes
        + "signals: {logits: 1, hidden: 1, attention: 1, labels: 1}}]",
        "export={formats: [onnx], lengths: [48], clients: []}",
        "verify={max_drop: 0.02, min_kept: 0.85}",
        "benchmark={devices: [local], preset: quick, threads: [1]}",
    ]


def run_side(side: str, data: Path, work: Path, seed: int, joint_passes: int) -> Path:
    """Run one side and return its run folder."""
    passes = joint_passes if side == "both" else SINGLE_PASSES
    folder = work / (f"{side}-{passes}-{seed}")
    recipe = {"intent": PLAIN, "slots": TAGS, "both": "intent-and-slots"}[side]
    settings = list_settings(side, data, seed, passes)
    subprocess.run([sys.executable, "-m", "pocketbert", "run", recipe, "-o", str(folder), *settings], check=False)
    return folder


def read_scores(folder: Path, side: str) -> dict[str, tuple[float, float]]:
    """Return the scores of teacher and int8 file in per cent, by head."""
    verified: dict[str, Any] = read_json(folder / "verify.json")
    score, teacher = verified["scores"][FILE]["eval"], verified["teacher"]
    found = {}
    for name, (_, _, metric) in HEADS.items():
        if side == "both":
            key = f"{name}.{metric}"
            found[name] = (100 * teacher["metrics"][key], 100 * score["metrics"][key])
        elif side == name:
            found[name] = (100 * teacher["value"], 100 * score["value"])
    return found


def main() -> None:
    """Run the sides for each seed, or print the table of those that have been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the shared data sets")
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7])
    parser.add_argument("--joint-passes", type=int, default=2 * SINGLE_PASSES)
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    work = options.folder.resolve()
    work.mkdir(parents=True, exist_ok=True)
    write_words(options.data.resolve(), work)
    for seed in options.seeds:
        for side in SIDES:
            if not options.table:
                run_side(side, work / WORDS_FOLDER / "snips", work, seed, options.joint_passes)
    print(describe_machine().summary)
