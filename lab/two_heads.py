"""Compare one student with two heads, intent and slots, with two students of one head each, on SNIPS: a table of docs/lab/results.md.

Run: python lab/two_heads.py SHARED_DATA FOLDER [--seeds 7 8] [--table]     # trains; a run that was stopped goes on

The three runs have the same shapes, rates and rows (4,000 drawn ones; `--rows` for others). The encoder of the joint run is trained for as many passes over the rows as the two
encoders of the single runs together (`--joint-passes`), so that both sides cost the same training. Scores are those of the int8 files on the
dev rows, which took no part in training; sizes and times are those of the same files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any

from kept import FILE, PLAIN, TAGS, WORDS_FOLDER, run_pocketbert, write_if_changed, write_words

from pocketbert.core.disk.files import read_json
from pocketbert.core.host.hardware import describe_machine

HEADS = {"intent": ("intent", PLAIN), "slots": ("tags", TAGS)}
"""Column and task of each head."""
SINGLE_PASSES = 2
SIDES = ("intent", "slots", "both")
DRAW_SEED = 7


def write_rows(snips: Path, rows: int) -> Path:
    """Write some of the training rows, and all dev rows, to a folder beside that of all rows, and return it."""
    folder = snips.with_name(f"snips-{rows}")
    lines = gzip.decompress((snips / "train.jsonl.gz").read_bytes()).splitlines(keepends=True)
    lines = random.Random(DRAW_SEED).sample(lines, min(rows, len(lines)))  # noqa: S311
    contents = {"train": gzip.compress(b"".join(lines), mtime=0), "dev": (snips / "dev.jsonl.gz").read_bytes()}
    for name, content in contents.items():
        write_if_changed(folder / f"{name}.jsonl.gz", content)
    return folder


def list_settings(side: str, data: Path, seed: int, passes: int) -> list[str]:
    """Return the settings of one run.

    Args:
        side: ``intent``, ``slots`` or ``both``.
        data: Folder with the joined words of SNIPS.
        seed: Seed of teacher and student.
        passes: Passes over the rows, of the teacher and of the student.
    """

    def source(name: str) -> str:
        """Return a source of rows; the column of labels is named by the head where there are two."""
        label = {} if side == "both" else {"label": HEADS[side][0]}
        text = "text" if side == "intent" else "tokens"
        return json.dumps({"path": str(data / f"{name}.jsonl.gz"), "text": text, **label})

    heads = {name: {"task": task, "label": column} for name, (column, task) in HEADS.items()}
    return [
        *([f"tasks={json.dumps(heads)}"] if side == "both" else []),
        f"seed={seed}",
        f"data.train={source('train')}",
        f"data.eval={source('dev')}",
        "data.max_length=48",
        f"teacher={{model: minilm-l6, finetune: {{epochs: {passes}, batch: 32, lr: 3e-4}}}}",
        "student={layers: 3, init: teacher-layers}",
        f"distill=[{{method: task, epochs: {passes}, batch: 32, lr: 3e-4, dropout: 0.0, temperature: 2.0, "
        "signals: {logits: 1, hidden: 1, attention: 1, labels: 1}}]",
        "export={formats: [onnx], lengths: [48], clients: []}",
        "verify={max_drop: 0.02, min_kept: 0.85}",
        "benchmark={devices: [local], preset: quick, threads: [1]}",
    ]


def run_side(side: str, data: Path, work: Path, seed: int, joint_passes: int) -> None:
    """Train and export one side in its run folder, and stop with the exit code of the command if it fails."""
    passes = joint_passes if side == "both" else SINGLE_PASSES
    folder = work / f"{data.name}-{side}-{passes}-{seed}"
    recipe = {"intent": PLAIN, "slots": TAGS, "both": "intent-and-slots"}[side]
    run_pocketbert("run", recipe, "-o", str(folder), *list_settings(side, data, seed, passes))


def read_figures(folder: Path, side: str) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Return the scores of teacher and int8 file in per cent by head, and the file's size in MB and median time in ms."""
    verified: dict[str, Any] = read_json(folder / "verify.json")
    score, teacher = verified["scores"][FILE]["eval"], verified["teacher"]
    heads = HEADS if side == "both" else [side]
    own = {name: tuple(s["heads"][name] if side == "both" else s for s in (teacher, score)) for name in heads}
    times = [
        m["wall"]["p50"]
        for m in read_json(folder / "benchmark.json")["measurements"]
        if (m["variant"], m["length"]) == ("student ONNX int8", "text")
    ]
    scores = {name: (100 * of["value"], 100 * kept["value"]) for name, (of, kept) in own.items()}
    return scores, (folder / "phone" / FILE).stat().st_size / 1e6, times[0]


def main() -> None:
    """Run the sides for each seed, or print the table of those that have been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the shared data sets")
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--rows", type=int, default=4000, help="training rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7])
    parser.add_argument("--joint-passes", type=int, default=2 * SINGLE_PASSES)
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    work = options.folder.resolve()
    work.mkdir(parents=True, exist_ok=True)
    write_words(options.data.resolve(), work)
    data = write_rows(work / WORDS_FOLDER / "snips", options.rows)
    for seed in options.seeds:
        for side in SIDES:
            if not options.table:
                run_side(side, data, work, seed, options.joint_passes)
    print(f"{describe_machine().summary}; {options.rows:,} training rows")
    print("| run | passes | seed | intent: teacher, int8 (accuracy) | slots: teacher, int8 (span F1) | MB | p50, ms |")
    print("|---|---:|---:|---|---|---:|---:|")
    for seed in options.seeds:
        for side in SIDES:
            passes = options.joint_passes if side == "both" else SINGLE_PASSES
            folder = work / f"{data.name}-{side}-{passes}-{seed}"
            scores, size, p50 = read_figures(folder, side)
            cells = [", ".join(f"{value:.1f}" for value in scores[name]) if name in scores else "" for name in HEADS]
            print(f"| {side} | {passes} | {seed} | {cells[0]} | {cells[1]} | {size:.1f} | {p50:.2f} |")


if __name__ == "__main__":
    main()
