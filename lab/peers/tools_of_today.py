"""Other tools of today on the demo's task: what each makes of the labelled rows and the teacher, and how its files answer.

Every tool gets an environment of its own from PyPI or npm, one thread and no network, and does what its documentation says: tools that train
start from the corpus of `pocketbert data demo` and all-MiniLM-L6-v2, tools that export or quantize from the teacher and the student that
PocketBERT has trained. `tools/with_NAME.py` has the calls. Then all files answer in turns, each in a process of its own that `tools/answers.py`
starts: every round asks each for the same texts, one at a time; the ratio is that of CPU seconds of the same rounds, to our file in plain ONNX Runtime.

Run: python lab/peers/tools_of_today.py [--out FOLDER] [--only NAME ...] [--anew NAME ...] [--rounds N]

What is made stays in FOLDER/NAME and is not made again; what went wrong is there in `made.json` and `log.txt`, and in the
table by its last line; `--anew NAME` tries again.
About an hour of CPU at first, then a minute a round. Prints a markdown table; FOLDER/results.json has all values.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import print_header
from environments import environment, node_packages

from pocketbert.benchmarks.statistics import paired_ratio
from pocketbert.core.disk.ownership import claim_folder, remove
from pocketbert.core.models.folder import open_model_folder

TOOLS = Path(__file__).parent / "tools"
TEXTS = 200
"""Texts that every file classifies in a round; the first of the test rows."""
OURS = "pocketbert-student"


@dataclass(frozen=True)
class Tool:
    """A way to a file.

    Attributes:
        name: Folder of its results, `script-variant`.
        title: How the table calls it; titles of its answers follow.
        environment: Key of `environments.PACKAGES`; None is PocketBERT's own environment.
        begins: What it is given.
    """

    name: str
    title: str
    environment: str | None
    begins: str

    @property
    def script(self) -> Path:
        return TOOLS / f"with_{self.name.rsplit('-', 1)[0]}.py"


ROWS, TEACHER, STUDENT = "rows, MiniLM", "our teacher", "our student"
ALL = (
    Tool(OURS, "**PocketBERT**, 3 layers", None, ROWS),
    Tool("pocketbert-static", "**PocketBERT**, no layer", None, ROWS),
    Tool("model2vec-classifier", "model2vec", "model2vec", ROWS),
    Tool("heartcut-tfidf", "heartcut, TF-IDF", "heartcut", "rows"),
    Tool("heartcut-setfit", "heartcut, SetFit", "heartcut", ROWS),
    Tool("maatml-encoder", "maatml", "maatml", ROWS),
    Tool("silverspoon-student", "silverspoon-kd", "silverspoon", f"rows, {TEACHER}"),
    Tool("easysmall-student", "easysmallembeddingmodel", "easysmall", ROWS),
    Tool("awembed-student", "awembed", "awembed", ROWS),
    Tool("distill_anything-student", "distill-anything", "distill-anything", f"rows, {TEACHER}"),
    Tool("pocketbert-teacher", "**PocketBERT**, `export`", None, TEACHER),
    Tool("optimum-teacher", "optimum-onnx", "optimum", TEACHER),
    Tool("optimum-student", "optimum-onnx", "optimum", STUDENT),
    Tool("olive-teacher", "olive-ai", "olive", TEACHER),
    Tool("olive-student", "olive-ai", "olive", STUDENT),
    Tool("litert-teacher", "litert-torch, ai-edge-quantizer", None, TEACHER),
    Tool("litert-student", "litert-torch, ai-edge-quantizer", None, STUDENT),
    Tool("transformers_js-teacher", "transformers.js", None, "optimum's file"),
    Tool("transformers_js-student", "transformers.js", None, "our file"),
)


def offline_environment() -> dict[str, str]:
    """Variables of a child process: one thread, no hub, no telemetry, no accelerator."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    switches = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "ORT_DISABLE_TELEMETRY", "DO_NOT_TRACK",
                "OLIVE_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY")  # fmt: skip
    fixed = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **threads, **dict.fromkeys(switches, "1"), **fixed}


def write_rows(folder: Path) -> dict[str, str]:
    """The corpus of the demo as plain JSON lines with text and label; returns the path of each split."""
    corpus = folder / "corpus"
    if not corpus.is_dir():
        subprocess.run([sys.executable, "-m", "pocketbert.cli.main", "data", "demo", "-q", "-o", corpus], check=True)
    paths = {}
    for split in ("train", "dev", "test"):
        paths[split] = str(folder / f"{split}.jsonl")
        with gzip.open(corpus / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            kept = [{k: row[k] for k in ("text", "label")} for row in map(json.loads, lines)]
        Path(paths[split]).write_text("".join(json.dumps(row) + "\n" for row in kept))
    return paths


def make(tool: Tool, out: Path, given: Mapping[str, str]) -> None:
    """Let a tool make its files in a child process, unless it has; write what it took, or why there are none."""
    folder = out / tool.name
    if (folder / "made.json").is_file():
        return
    remove(folder)  # what an interrupted run left
    folder.mkdir()
    job = folder / "job.json"
    job.write_text(json.dumps({**given, "variant": tool.name.rsplit("-", 1)[1], "out": str(folder)}))
    print(f"  {tool.name} ...", file=sys.stderr, flush=True)
    try:
        python = environment(tool.environment) if tool.environment else Path(sys.executable)
        environ = offline_environment() | {"NODE_PACKAGES": str(node_packages()) if "js" in tool.name else ""}
    except (subprocess.CalledProcessError, OSError) as error:
        (folder / "made.json").write_text(json.dumps({"failed": f"its environment could not be made: {error}"}))
        return
    began = time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen([python, tool.script, job], stdout=log, stderr=log, env=environ, cwd=folder)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    made: dict[str, Any] = {"wall": time.perf_counter() - began, "cpu": used.ru_utime + used.ru_stime}
    if (folder / "left_out.json").is_file():
        made = {k: made[k] - v for k, v in json.loads((folder / "left_out.json").read_text()).items()}
    if process.returncode or not (folder / "answers.json").is_file():
        lines = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
        made["failed"] = lines[-1] if lines else f"ended with {process.returncode}"
    else:
        made["answers"] = json.loads((folder / "answers.json").read_text())
    (folder / "made.json").write_text(json.dumps(made, indent=1))


class Answering:
    """A process that classifies texts with one file."""

    def __init__(self, tool: Tool, answer: Mapping[str, Any], log: Path) -> None:
        python = (
            environment(tool.environment)
            if tool.environment and answer["kind"] != "onnxruntime"
            else Path(sys.executable)
        )
        script = [str(python), str(TOOLS / "answers.py")]
        if answer["kind"] == "transformers.js":
            script = ["node", str(TOOLS / "answers.mjs")]
        self._process = subprocess.Popen(
            [*script, json.dumps(answer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=offline_environment(),
        )
        self.versions = self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"ended with {self._process.wait()}")
        return json.loads(line)

    def classify(self, texts: Sequence[str]) -> dict[str, Any]:
        """Labels of texts, median milliseconds of a text, and CPU milliseconds of a text."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(texts)) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = self._read()
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(out: Path, tools: Sequence[Tool], rows: Sequence[Mapping[str, str]], rounds: int) -> list[dict[str, Any]]:
    """Score every answer on the rows, then time all of them in turns.

    Args:
        out: Folder of results.
        tools: Whose answers to measure.
        rows: Test rows.
        rounds: How often each is timed.

    Returns:
        A record for each answer, ours first.
    """
    records: list[dict[str, Any]] = []
    for tool in tools:
        made = json.loads((out / tool.name / "made.json").read_text())
        for number, answer in enumerate(made.pop("answers", [{}])):
            found = {
                "name": tool.name,
                "title": tool.title,
                "begins": tool.begins,
                **made,
                **answer,
                "ms": [],
                "cpu_ms": [],
            }
            records.append(found)
            if not answer:
                continue
            found["bytes"] = sum(Path(file).stat().st_size for file in answer["files"])
            try:
                found["process"] = Answering(tool, answer, out / tool.name / f"answers-{number}.txt")
                found["versions"] = found["process"].versions
                labels = found["process"].classify([row["text"] for row in rows])["labels"]
            except RuntimeError as error:
                found["failed"] = str(error)
                continue
            found["accuracy"] = sum(a == row["label"] for a, row in zip(labels, rows, strict=True)) / len(rows)
    timed, texts = [r for r in records if "accuracy" in r], [row["text"] for row in rows[:TEXTS]]
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for record in timed if number % 2 == 0 else reversed(timed):
            took = record["process"].classify(texts)
            record["ms"].append(took["ms"])
            record["cpu_ms"].append(took["cpu_ms"])
    for record in records:
        if process := record.pop("process", None):
            process.end()
    return records


def print_table(records: Sequence[dict[str, Any]]) -> None:
    """Print the markdown table; ratios are those of CPU times in the same rounds, to our file in plain ONNX Runtime."""
    print("| tool | given | to the file, CPU s (wall) | answers in | MB | accuracy, % | ms a text | CPU, of ours |")
    print("|---|---|---:|---|---:|---:|---:|---:|")
    base = next((r["cpu_ms"] for r in records if r["name"] == OURS and r.get("kind") == "onnxruntime"), [])
    for r in records:
        took = f"{r['cpu']:.0f} ({r['wall']:.0f})" if "cpu" in r else "-"
        if not r["ms"]:
            print(f"| {r['title']} | {r['begins']} | {took} | {r.get('failed', 'not measured')} | | | | |")
            continue
        ratio = f"{paired_ratio(r['cpu_ms'], base).median:.2f}" if base else ""
        kind = ", ".join(r[key] for key in ("kind", "as") if key in r)
        print(
            f"| {r['title']} | {r['begins']} | {took} | {kind} | {r['bytes'] / 1e6:.1f} | {100 * r['accuracy']:.1f} "
            f"| {statistics.median(r['ms']):.2f} | {ratio} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/tools-of-today"))
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[t.name for t in ALL], help="leave the others out")
    parser.add_argument(
        "--anew", nargs="+", metavar="NAME", default=[], choices=[t.name for t in ALL], help="make again"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with claim_folder(out := options.out.resolve(), "comparison of tools"):
        compare_tools(out, options)


def compare_tools(out: Path, options: argparse.Namespace) -> None:
    """Make what is missing, measure all files, write `results.json` and print the table."""
    splits = write_rows(out)
    trained = out / OURS / "run"
    models = {
        "minilm": str(open_model_folder("minilm-l6").path),
        "teacher": trained / "teacher",
        "student": trained / "student",
    }
    given = splits | {name: str(path) for name, path in models.items()}
    tools = [t for t in ALL if not options.only or t.name in options.only or t.name == OURS]
    for tool in tools:
        if tool.name in options.anew:
            remove(out / tool.name)
        make(tool, out, given)
    with Path(splits["test"]).open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    print_header(
        "tools of today on the demo's task, one thread",
        f"demo corpus, {len(rows)} test rows, {options.rounds} rounds of {TEXTS}",
    )
    records = measure(out, tools, rows, options.rounds)
    (out / "results.json").write_text(json.dumps(records, indent=1, default=str))
    print_table(records)


if __name__ == "__main__":
    main()
