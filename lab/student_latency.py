"""Measure how long the files of all students that `student: auto` tries take on the texts of the shared data sets.

Run: OMP_NUM_THREADS=1 python lab/student_latency.py ../shared/data [SET ...]

Files are ONNX int8 with random weights, which take as long as trained ones (`lab/planned_latency.py`), in the shapes that the default
teacher gives them. Sets of one task share files, made for the first of them: a head of other labels takes no time that shows. Students that
label words or mark answers compute the last layer for all tokens. All files of a set are timed in turns, on one thread, one text at
a time (a question with the first window of its context); a cell is the median in ms, none where no such student exists. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from kept import SETS, write_words

from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.plan_probes import PlanGround, Probe, export_probes, time_files
from pocketbert.pipeline.learn.data import load_data, max_length
from pocketbert.pipeline.options import DataFiles
from pocketbert.pipeline.recipes import starting_recipe
from pocketbert.pipeline.reference import open_teacher

TIMED = (
    *("snips intents", "atis intents", "clinc150", "banking77", "sst2", "stsb", "mrpc", "qnli"),
    *("snips slots", "atis slots", "wnut17", "squad"),
)
"""Sets whose teacher is above chance."""
LONGEST = "data.max_length="
"""The setting of a recipe that texts are cut by."""
DEVICE = "local"


def open_set(name: str, data: Path, work: Path) -> PlanGround:
    """Open the reported rows of a set and the default teacher, as `pocketbert plan` does."""
    chosen = SETS[name]
    columns: dict[str, Any] = {"text": "text", "label": "label", **chosen.columns}
    rows = DataFiles(chosen.find_folder(data, work) / f"{chosen.scored}.jsonl.gz", **columns)
    overrides = [setting for setting in chosen.settings if setting.startswith(LONGEST)]
    start = starting_recipe(rows, work, overrides, compare_students=False)
    model = open_teacher(start.recipe)
    loaded = load_data(start.recipe, model)
    return PlanGround(start, model, loaded, max_length(start.recipe.data, model, loaded.head.task), overrides)


def main() -> None:
    """Time the sets that the command line names, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the shared data sets")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"default all: {', '.join(TIMED)}")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.sets) - set(TIMED)):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(TIMED)}")
    files = dict[tuple[TaskName, bool], list[Probe]]()
    rows = list[tuple[str, float, dict[str, float]]]()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_words(asked.data.resolve(), work)
        for name in asked.sets or TIMED:
            ground = open_set(name, asked.data.resolve(), work)
            kind = (ground.data.head.task.name, ground.pairs)
            if kind not in files:
                files[kind] = [Probe(rung.name, rung, ground.pieces, timed=True) for rung in ground.rungs]
                export_probes(ground, files[kind], [Format.ONNX], [Scheme.INT8], work / "-".join(map(str, kind)))
            times, tokens = time_files(ground, files[kind], [Scheme.INT8], [DEVICE], threads=1)
            medians = {p.name: times[p.name, Format.ONNX, Scheme.INT8, DEVICE][0] for p in files[kind]}
            rows.append((name, tokens, medians))
            sizes = {p.name: f"{p.files[Format.ONNX, Scheme.INT8][2] / 1e6:.1f} MB" for p in files[kind]}
            print(name, sizes, medians, *ground.notes, sep="\n", flush=True)
    students = list(max((medians for _, _, medians in rows), key=len))
    print(describe_machine().summary)
    print("| " + " | ".join(["set", "tokens", *students]) + " |", "|---" * (len(students) + 2) + "|", sep="\n")
    for name, tokens, medians in rows:
        cells = [f"{medians[student]:.2f}" if student in medians else "" for student in students]
        print("| " + " | ".join([name, f"{tokens:.0f}", *cells]) + " |")


if __name__ == "__main__":
    main()
