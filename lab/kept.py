"""Measure what the smallest student of each shared data set keeps of its teacher: the table of docs/lab/results.md.

Run: python lab/kept.py SHARED_DATA FOLDER [SET ...] [--seed 7]     # trains; a run that was stopped goes on
     python lab/kept.py SHARED_DATA FOLDER --table                  # prints what FOLDER holds
     python lab/kept.py SHARED_DATA FOLDER [SET ...] --alone        # beside it: a student of three layers and no choice

Each set is a `pocketbert run` with `student: auto`: the teacher is fine-tuned, students are compared on validation rows, and the int8
file of the one that is taken is scored on rows that took no part in either. CPU seconds are those of the whole command; with
OMP_NUM_THREADS=1 two sets can be trained side by side. ``--alone`` also trains a student of three layers from the same teacher, and
the table then tells how many times its CPU seconds all students took that were tried.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.artefacts.search import TRIED_FILE
from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.host.hardware import describe_machine

FILE = "onnx/model_int8.onnx"
COST_FILE = "cost.json"
ALONE_FILE = "alone.json"  # what a student of three layers took
OF_TEACHER = (
    *(".pocketbert.json", "recipe.resolved.yaml", "run.log", "metrics.jsonl", "data.json", "teacher"),
    *(".steps/data.json", ".steps/teacher.json"),
)  # of a run folder: what a run with another student goes on from
WORDS_FOLDER = "words"  # of FOLDER: the sets whose rows are words, with their joined text
ANY_TEXT = ({"path": "sst2/train_sentences.jsonl.gz"}, {"path": "wikitext2/valid.jsonl.gz"})


@dataclass(frozen=True)
class KeptSet:
    """A data set, and what its run sets.

    Attributes:
        recipe: Shipped recipe that the run starts from.
        folder: Folder of the data set.
        columns: Entries of a source besides its path.
        scored: File whose rows are reported.
        validation: File whose rows compare students; None for a tenth of the training rows.
        keep: Share of the teacher's score that the student has to keep.
        settings: Settings of a recipe that is not of this set, as on the command line.
        transfer: Sources of texts without labels, with paths below the shared data.
        pairs: Pairs drawn from the texts of `transfer`; 0 for none.
    """

    recipe: str
    folder: str
    columns: dict[str, str]
    scored: str
    validation: str | None = None
    keep: float = 0.97
    settings: tuple[str, ...] = ()
    transfer: tuple[dict[str, str], ...] = ()
    pairs: int = 0

    def find_folder(self, data: Path, work: Path) -> Path:
        """Return the folder of the set's files: in the shared data, or where `write_words` writes them."""
        return (work if self.folder.startswith(WORDS_FOLDER) else data) / self.folder

    def list_settings(self, data: Path, work: Path, seed: int) -> Iterator[str]:
        """Yield the recipe keys, as key=value, that the run of this set gets on its command line.

        Args:
            data: Folder of the shared data sets.
            work: Folder of derived data.
            seed: Seed of teacher and students.
        """

        def source(name: str) -> str:
            return json.dumps({"path": str(self.find_folder(data, work) / f"{name}.jsonl.gz"), **self.columns})

        yield f"seed={seed}"
        yield f"data.train={source('train')}"
        yield f"data.eval={source(self.scored)}"
        if self.validation:
            yield f"data.validation={source(self.validation)}"
        if self.transfer:
            sources = [{**entry, "path": str(data / entry["path"])} for entry in self.transfer]
            yield f"data.transfer={json.dumps({'sources': sources} | ({'pairs': self.pairs} if self.pairs else {}))}"
        yield f'student={{"auto": {{"keep": {self.keep}, "if_none_keeps": "best"}}}}'
        yield from ("export.formats=[onnx]", "export.clients=[]", "benchmark=null", "verify={max_drop: 0.02}")
        yield from self.settings


def trained(teacher: str, student: str, length: int, rate: str = "3e-4") -> tuple[str, ...]:
    """Return the settings for passes or steps of teacher and student, such as ``steps: 500``, tokens of a text, and rate."""
    stage = f"method: task, {student}, batch: 32, lr: {rate}, dropout: 0.0, temperature: 2.0"
    return (
        f"teacher.finetune={{{teacher}, batch: 32, lr: {rate}}}",
        f"distill=[{{{stage}, signals: {{logits: 1, hidden: 1, attention: 1}}}}]",
        f"data.max_length={length}",
        f"export.lengths=[{length}]",
    )


WORDS = {"text": "tokens", "label": "tags"}
PAIRS = {"text": "text", "text_pair": "text_pair"}
PLAIN, TAGS = "text-classification", "token-classification"
SETS = {
    "clinc150": KeptSet("clinc150", "clinc150", {"label": "intent"}, "test", "dev"),
    "banking77": KeptSet("banking77", "banking77", {"label": "intent"}, "test"),
    "snips intents": KeptSet(PLAIN, "words/snips", {"text": "text", "label": "intent"}, "dev", settings=trained("epochs: 1", "epochs: 2", 48)),
    "snips slots": KeptSet(TAGS, "words/snips", WORDS, "dev", settings=trained("epochs: 2", "epochs: 2", 48)),
    "atis intents": KeptSet(PLAIN, "words/atis", {"text": "text", "label": "intent"}, "test", "dev", settings=trained("epochs: 4", "epochs: 4", 64)),
    "atis slots": KeptSet(TAGS, "words/atis", WORDS, "test", "dev", settings=trained("epochs: 4", "epochs: 4", 64)),
    "atis slots vocabulary": KeptSet(
        TAGS, "words/atis", WORDS, "test", "dev", settings=(*trained("epochs: 4", "epochs: 4", 64), "student.vocabulary={}"),
    ),
    "sst2": KeptSet("sst2", "sst2", {}, "dev"),
    "stsb": KeptSet(
        "stsb", "stsb", {**PAIRS, "label": "score"}, "test", "dev",
        transfer=({"path": "mrpc/train.jsonl.gz", **PAIRS}, {"path": "rte/train.jsonl.gz", **PAIRS}, ANY_TEXT[0]), pairs=6000,
    ),
    "mrpc": KeptSet("mrpc", "mrpc", PAIRS, "test", "dev"),
    "qnli": KeptSet(PLAIN, "qnli", PAIRS, "dev", settings=trained("epochs: 3", "epochs: 3", 128, "1e-4")),
    "rte": KeptSet(PLAIN, "rte", PAIRS, "dev", settings=trained("epochs: 5", "epochs: 4", 128, "1e-4")),
    "cola": KeptSet(PLAIN, "cola", {}, "dev", settings=trained("epochs: 3", "epochs: 3", 48, "1e-4")),
    "wnut17": KeptSet("wnut17", "wnut17", WORDS, "test", "dev", 0.95, transfer=ANY_TEXT),
    "squad": KeptSet("squad", "squad", {"text": "question", "text_pair": "context", "label": "answers"}, "dev", keep=0.95),
}  # fmt: skip


def write_words(data: Path, work: Path) -> None:
    """Write ATIS and SNIPS with the words joined to a text, without rows of an intent that no training row has or a tag that few have."""
    for name in ("atis", "snips"):
        known: set[str] = set()
        for source in sorted((data / name).glob("*.jsonl.gz"), key=lambda path: path.name != "train.jsonl.gz"):
            rows = read_rows(source)
            counts = Counter(tag for row in rows for tag in set(row["tags"]))
            known = known or {tag for tag in counts if counts[tag] >= 3} | {row["intent"] for row in rows}
            target = work / WORDS_FOLDER / name / source.name
            kept = ({**r, "text": " ".join(r["tokens"])} for r in rows if known.issuperset((*r["tags"], r["intent"])))
            write_if_changed(target, gzip.compress("".join(json.dumps(r) + "\n" for r in kept).encode(), mtime=0))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a .jsonl.gz file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write_if_changed(path: Path, content: bytes) -> None:
    """Write a file, and its folder, unless it has that content: another process may be reading it."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)


def run_pocketbert(*arguments: str) -> None:
    """Run a command of PocketBERT, and stop with its exit code if it fails."""
    code = subprocess.run([sys.executable, "-m", "pocketbert", *arguments], check=False).returncode
    if code:
        sys.exit(code)


def run_folder(name: str, work: Path, seed: int) -> Path:
    """Return the run folder of a set with a seed."""
    return work / f"{name.replace(' ', '-')}-{seed}"


def run_set(name: str, data: Path, work: Path, seed: int) -> Path:
    """Run a set with a seed, add the CPU seconds of the command to those before, and return the run folder."""
    folder = run_folder(name, work, seed)
    chosen = SETS[name]
    before = read_json(folder / COST_FILE)["cpu_s"] if (folder / COST_FILE).is_file() else 0.0
    began = _children_cpu()
    settings = list(chosen.list_settings(data, work, seed))
    command = [sys.executable, "-m", "pocketbert", "run", chosen.recipe, "-o", str(folder), *settings]
    code = None
    try:
        code = subprocess.run(command, check=False).returncode
    finally:  # what an interrupted run took counts, too
        if folder.is_dir():
            cpu = before + _children_cpu() - began
            write_json(folder / COST_FILE, {"cpu_s": cpu, "machine": describe_machine().summary, "exit": code})
    return folder


def train_alone(name: str, data: Path, work: Path, seed: int) -> None:
    """Train a student of three layers from the teacher of a finished run, and write its CPU seconds next to the run's."""
    folder = run_folder(name, work, seed)
    alone = folder.with_name(f"{folder.name}-alone")
    for finished in OF_TEACHER:
        if not (target := alone / finished).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (folder / finished).is_dir() else shutil.copyfile)(folder / finished, target)
    settings = [s for s in SETS[name].list_settings(data, work, seed) if not s.startswith("student=")]
    if SETS[name].validation is None:  # as a run that compares students does
        settings.append("data.validation={fraction: 0.1, at_most: 1000}")
    began = _children_cpu()
    run_pocketbert("distill", SETS[name].recipe, "-o", str(alone), "--overwrite", "student={layers: 3}", *settings)
    write_json(folder / ALONE_FILE, {"cpu_s": _children_cpu() - began})


def _children_cpu() -> float:
    """Return the CPU seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe_run(folder: Path) -> list[str]:
    """Return the table's cells of a finished run, or those of what was tried where no student was taken."""
    tried: dict[str, Any] = read_json(folder / TRIED_FILE)
    rungs = " · ".join(
        f"{s['name']}{'*' if s['chosen'] else ''} {100 * s['kept']:.1f}"
        + (f", {s['bytes'] / 1e6:.1f} MB" if s["bytes"] else "")
        + (f", {s['p50_ms']:.2f} ms" if s["p50_ms"] else "")
        + ("" if s["trained"] == "fully" else " (brief)")
        for s in tried["students"]
        if s["trained"]
    )
    cost = read_json(folder / COST_FILE)
    times = ""
    if (folder / ALONE_FILE).is_file():
        times = f"{sum(s['cpu_s'] for s in tried['students']) / read_json(folder / ALONE_FILE)['cpu_s']:.2f}"
    if not (folder / "verify.json").is_file():  # a gate failed before any file was scored
        return ["no file", "", "", "", "", f"{cost['cpu_s']:,.0f}", times, rungs]
    verified = read_json(folder / "verify.json")
    score = verified["scores"][FILE]["eval"]
    teacher = verified["teacher"]
    kept = score["value"] / teacher["value"]
    cells = [
        f"{100 * teacher['value']:.1f}",
        f"{100 * score['value']:.1f}",
        f"{100 * kept:.1f}",
        f"{cost['cpu_s']:,.0f}",
        times,
    ]
    return [f"{teacher['metric']}, {score['rows']:,} rows", f"{100 * (score['chance'] or 0):.1f}", *cells, rungs]


def main() -> None:
    """Run the sets that the command line names, or print the table of those that have been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the shared data sets")
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"default all: {', '.join(SETS)}")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--alone", action="store_true", help="train a student of three layers beside finished runs")
    parser.add_argument("--table", action="store_true", help="print the table of the runs and train nothing")
    options = parser.parse_args()
    if unknown := sorted(set(options.sets) - set(SETS)):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(SETS)}")
    data, work = options.data.resolve(), options.folder.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if not options.table:
        write_words(data, work)
        for name in options.sets or SETS:
            (train_alone if options.alone else run_set)(name, data, work, options.seed)
    print(
        "| set | metric | chance | teacher | int8 | kept, % | CPU-s | all tried, times 3 layers | students tried: % kept on validation rows, int8 file, ms |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---|")
    for name in options.sets or SETS:
        for folder in sorted(work.glob(f"{name.replace(' ', '-')}-[0-9]*")):
            if (folder / TRIED_FILE).is_file() and (folder / COST_FILE).is_file():
                print(
                    "| " + " | ".join([f"{name}, seed {folder.name.rpartition('-')[2]}", *describe_run(folder)]) + " |"
                )


if __name__ == "__main__":
    main()
