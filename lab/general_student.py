"""Compare students that go on from one general student with students of the same shape from random weights: a table of docs/lab/results.md.

Run: python lab/general_student.py SHARED_DATA FOLDER [--seeds 7 8] [--table]     # trains; a run that was stopped goes on

A TinyBERT4 (4 layers of 312 numbers) learns MiniLM-L6's layers on plain text, once. Its folder is then `student.model` of two tasks,
intents of SNIPS and of ATIS, with its projection to the teacher's width. Beside each, the same stages with the same rows start from
random weights, as a stage behind no general one does. Scores are those of the fp32 students on rows that took no part in training.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kept import WORDS_FOLDER, run_pocketbert, write_words

from pocketbert.core.disk.files import read_json
from pocketbert.core.host.hardware import describe_machine

SCORED = {"snips": "dev", "atis": "test"}
"""Sets whose intents are learned, and their rows that are scored."""
TINY = {"layers": 4, "hidden": 312, "heads": 12, "intermediate": 1200, "init": "random"}
RATES = {"batch": 32, "lr": 3e-4}
GENERAL = {"method": "tinybert-general", "steps": 300, "dropout": 0.0, **RATES}
STAGES = [
    {"method": "tinybert-intermediate", "steps": 150, "dropout": 0.0, **RATES},
    {"method": "tinybert-prediction", "steps": 150, "dropout": 0.0, **RATES},
]
TUNED = f"teacher={json.dumps({'model': 'minilm-l6', 'finetune': {'steps': 300, **RATES}})}"
SIDES = ("general", "random")


def list_settings(name: str, work: Path, seed: int) -> list[str]:
    """Return the settings, as on the command line, that all recipes of a set have in common."""
    rows = {
        part: {"path": str(work / WORDS_FOLDER / name / f"{part}.jsonl.gz"), "text": "text", "label": "intent"}
        for part in ("train", SCORED[name])
    }
    return [
        f"seed={seed}",
        f"data.train={json.dumps(rows['train'])}",
        f"data.eval={json.dumps(rows[SCORED[name]])}",
        "data.max_length=64",
    ]


def train(data: Path, work: Path, seed: int) -> None:
    """Train the general student, and for each set its teacher and a student of each side; finished runs are skipped."""

    def run(command: str, folder: Path, name: str, *settings: str) -> None:
        """Run a command on a set; it skips what is finished."""
        common = list_settings(name, work, seed)
        run_pocketbert(command, "text-classification", "-o", str(folder), *common, *settings)

    first = work / f"general-{seed}"
    text = [{"path": str(path)} for path in sorted((data / "wikitext2").glob("*.jsonl.gz"))]
    corpus = f"data.corpus={json.dumps({'sources': text, 'length': 64})}"
    one_step = [GENERAL, {**STAGES[1], "steps": 1}]  # a recipe needs a stage on a task
    run("distill", first, "snips", corpus, TUNED, f"student={json.dumps(TINY)}", f"distill={json.dumps(one_step)}")
    starts = {"general": {"model": str(first / "distill/0")}, "random": TINY}
    for name in SCORED:
        tuned = work / f"{name}-teacher-{seed}"
        run("finetune", tuned, name, TUNED)
        teacher = f"teacher={json.dumps({'model': str(tuned / 'teacher'), 'finetune': None})}"
        for side in SIDES:
            student = (f"student={json.dumps(starts[side])}", f"distill={json.dumps(STAGES)}")
            run("distill", work / f"{name}-{side}-{seed}", name, teacher, *student)


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the shared data sets")
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8])
    parser.add_argument("--table", action="store_true", help="print the table of the runs and train nothing")
    options = parser.parse_args()
    data, work = options.data.resolve(), options.folder.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if not options.table:
        write_words(data, work)
        for seed in options.seeds:
            train(data, work, seed)
    print(
        f"{describe_machine().summary}\n\n| intents of | seed | teacher | from the general student | from random weights |"
    )
    print("|---|---:|---:|---:|---:|")
    for name in SCORED:
        for seed in options.seeds:
            folders = [work / f"{name}-teacher-{seed}/teacher", *(work / f"{name}-{s}-{seed}/student" for s in SIDES)]
            scores = [read_json(folder / "training.json")["score"]["value"] for folder in folders]
            print(f"| {name} | {seed} | " + " | ".join(f"{100 * score:.1f}" for score in scores) + " |")


if __name__ == "__main__":
    main()
