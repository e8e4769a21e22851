"""Compare one student with two heads, intent and slots, with two students of one head each: a table of docs/lab/results.md.

Run: python lab/two_heads.py SHARED_DATA FOLDER [--set atis] [--seeds 7 8] [--table]     # trains; a run that was stopped goes on

The three runs have the same shapes, rates and rows (4,000 drawn ones of SNIPS, all of ATIS; `--rows` for others). The encoder of the joint run is trained for as many passes over the rows as the two
encoders of the single runs together (`--joint-passes`), so that both sides cost the same training. ``--apart`` adds a student with both
heads that learns them from the two teachers of the single runs, and has no common one. Scores are those of the int8 files on the
dev rows of SNIPS or the test rows of ATIS, which took no part in training; sizes and times are those of the same files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from kept import FILE, PLAIN, TAGS, WORDS_FOLDER, run_pocketbert, write_if_changed, write_words

from pocketbert.core.disk.files import read_json
from pocketbert.core.host.hardware import describe_machine

HEADS = {"intent": ("intent", PLAIN), "slots": ("tags", TAGS)}
"""Column and task of each head."""
APART = "apart"  # both heads, each with the teacher of its single run
DRAW_SEED = 7


class WordSet(NamedTuple):
    """A set of words with an intent and slots.

    Attributes:
        scored: Name of the file of rows on which students are scored.
        tokens: Longest text in tokens.
        passes: Passes over the rows, of teachers and students of one head.
        rows: Training rows that are drawn; some tags of ATIS are in few rows, so that all are needed.
    """

    scored: str
    tokens: int
    passes: int
    rows: int


SETS = {"snips": WordSet("dev", 48, 2, 4000), "atis": WordSet("test", 64, 4, 4456)}


def write_rows(source: Path, scored: str, rows: int) -> Path:
    """Write some of the training rows, and all rows that are scored, to a folder beside that of all rows, and return it."""
    folder = source.with_name(f"{source.name}-{rows}")
    lines = gzip.decompress((source / "train.jsonl.gz").read_bytes()).splitlines(keepends=True)
    lines = random.Random(DRAW_SEED).sample(lines, min(rows, len(lines)))  # noqa: S311
    contents = {"train": gzip.compress(b"".join(lines), mtime=0), scored: (source / f"{scored}.jsonl.gz").read_bytes()}
    for name, content in contents.items():
        write_if_changed(folder / f"{name}.jsonl.gz", content)
    return folder


def list_settings(
    side: str, words: WordSet, data: Path, seed: int, passes: int, teachers: dict[str, Path]
) -> list[str]:
    """Return the settings of one run.

    Args:
        side: ``intent``, ``slots``, ``both`` or ``apart``.
        words: The set of words.
        data: Folder with its rows.
        seed: Seed of teacher and student.
        passes: Passes over the rows, of the teacher and of the student.
        teachers: A teacher's folder for each head; of `apart` only.
    """
    several = side in ("both", APART)

    def source(name: str) -> str:
        """Return a source of rows; the column of labels is named by the head where there are two."""
        label = {} if several else {"label": HEADS[side][0]}
        text = "text" if side == "intent" else "tokens"
        return json.dumps({"path": str(data / f"{name}.jsonl.gz"), "text": text, **label})

    heads: dict[str, dict[str, Any]] = {n: {"task": task, "label": column} for n, (column, task) in HEADS.items()}
    for name, folder in teachers.items():
        heads[name]["teacher"] = {"model": str(folder)}
    plan = f"epochs: {passes}, batch: 32, lr: 3e-4"
    teacher = "start_only: true" if teachers else f"finetune: {{{plan}}}"
    signals = "logits: 1, labels: 1" + ("" if teachers else ", hidden: 1, attention: 1")
    return [
        *([f"tasks={json.dumps(heads)}"] if several else []),
        f"seed={seed}",
        f"data.train={source('train')}",
        f"data.eval={source(words.scored)}",
        f"data.max_length={words.tokens}",
        f"teacher={{model: minilm-l6, {teacher}}}",
        "student={layers: 3, init: teacher-layers}",
        f"distill=[{{method: task, {plan}, dropout: 0.0, temperature: 2.0, signals: {{{signals}}}}}]",
        f"export={{formats: [onnx], lengths: [{words.tokens}], clients: []}}",
        "verify={max_drop: 0.02, min_kept: 0.85}",
        "benchmark={devices: [local], preset: quick, threads: [1]}",
    ]


def run_side(
    side: str, words: WordSet, data: Path, folder: Path, seed: int, passes: int, teachers: dict[str, Path]
) -> None:
    """Train and export one side in its run folder, and stop with the exit code of the command if it fails."""
    recipe = {"intent": PLAIN, "slots": TAGS}.get(side, "intent-and-slots")
    run_pocketbert("run", recipe, "-o", str(folder), *list_settings(side, words, data, seed, passes, teachers))


def read_figures(folder: Path, side: str) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Return the scores of teacher and int8 file in per cent by head, and the file's size in MB and median time in ms."""
    verified: dict[str, Any] = read_json(folder / "verify.json")
    score, teacher = verified["scores"][FILE]["eval"], verified["teacher"]
    heads = [side] if side in HEADS else HEADS
    own = {name: tuple(s if side in HEADS else s["heads"][name] for s in (teacher, score)) for name in heads}
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
    parser.add_argument("--set", choices=SETS, default="snips")
    parser.add_argument("--rows", type=int, help="training rows; default 4,000 of SNIPS and all of ATIS")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7])
    parser.add_argument("--joint-passes", type=int, help="default: as many as both single runs together")
    parser.add_argument("--apart", action="store_true", help="also both heads with a teacher each")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    work, words = options.folder.resolve(), SETS[options.set]
    work.mkdir(parents=True, exist_ok=True)
    write_words(options.data.resolve(), work)
    rows = options.rows or words.rows
    data = write_rows(work / WORDS_FOLDER / options.set, words.scored, rows)
    joint = options.joint_passes or 2 * words.passes
    passes = dict.fromkeys(HEADS, words.passes) | {"both": joint} | ({APART: joint} if options.apart else {})

    def folder_of(side: str, seed: int) -> Path:
        return work / f"{data.name}-{side}-{passes[side]}-{seed}"

    runs = [(seed, side, folder_of(side, seed)) for seed in options.seeds for side in passes]
    for seed, side, folder in [] if options.table else runs:
        teachers = {name: folder_of(name, seed) / "teacher" for name in HEADS} if side == APART else {}
        run_side(side, words, data, folder, seed, passes[side], teachers)
    print(f"{options.set}; {describe_machine().summary}; {rows:,} training rows")
    print("| run | passes | seed | intent: teacher, int8 (accuracy) | slots: teacher, int8 (span F1) | MB | p50, ms |")
    print("|---|---:|---:|---|---|---:|---:|")
    for seed, side, folder in runs:
        scores, size, p50 = read_figures(folder, side)
        cells = [", ".join(f"{value:.1f}" for value in scores[name]) if name in scores else "" for name in HEADS]
        print(f"| {side} | {passes[side]} | {seed} | {cells[0]} | {cells[1]} | {size:.1f} | {p50:.2f} |")


if __name__ == "__main__":
    main()
