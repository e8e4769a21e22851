"""Time a student with fewer feed-forward neurons under `engine="fastest"` against optimum's int8 file of the unpruned one.

Both run the same SST-2 texts at batch 1, each engine in a separate process; one works at a time, in a new order each round.
Ratios are paired by round, with the 95 % interval of the median. Processes are opened anew in each generation, in which
`fastest` races and chooses anew. Files are kept in --cache.

Run: python lab/peers/pruned.py STUDENT PRUNED [--texts FILE.jsonl.gz] [--output RESULT.json]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import add_texts_option, print_header, real_texts
from engine.columns import FASTEST, RIVAL, columns
from engine.measure import TEXT, Effort, Part, Pool, typical
from engine.models import LENGTHS, ROOT, Model, build
from engine.pool import Column
from pydantic import BaseModel

from pocketbert.benchmarks.inputs import choose_texts
from pocketbert.benchmarks.statistics import Ratio, paired_ratio
from pocketbert.core.disk.files import write_json
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import installed_versions
from pocketbert.core.predict.tokenization import TextTokenizer

CALIBRATION = 300
OPTIMUM = "optimum int8"
WHOLE, PRUNED = "unpruned", "pruned"
EFFORT = Effort(rounds=20, least=12, budget_s=60.0)


class Compared(BaseModel):
    """What the comparison found.

    Attributes:
        machine: Where it was measured.
        versions: Libraries by name.
        threads: Threads of every engine.
        texts: What was read.
        tokens_mean: Mean length of these texts in tokens.
        choices: What `fastest` chose in each generation, by model.
        parts: Raw samples of each generation.
    """

    machine: str
    versions: dict[str, str]
    threads: int
    texts: str
    tokens_mean: float
    choices: dict[str, list[str]]
    parts: list[Part]

    def times(self, name: str) -> list[float]:
        """Time of an engine in each round, in ms a text."""
        return [typical(wall, TEXT) for part in self.parts for wall in part.engines[name].wall]

    def ratio(self, name: str, base: str) -> Ratio:
        """Time of an engine over that of another one, paired by round."""
        return paired_ratio(self.times(name), self.times(base))


def engines_of(model: Model, title: str, names: tuple[str, ...], memory: Path, ready: Path | None) -> list[Column]:
    """Some engines of a model, named after it."""
    found = [c for c in columns(model, memory, ready) if c.name in names]
    return [replace(c, name=f"{title}, {c.name}") for c in found]


def measure(
    models: dict[str, Model], rows: list[list[int]], options: argparse.Namespace, generation: int
) -> tuple[Part, dict[str, str]]:
    """Open all processes, run the rounds of one generation, and tell what `fastest` chose."""
    wanted = {WHOLE: (OPTIMUM, RIVAL, FASTEST), PRUNED: (RIVAL, FASTEST)}
    with tempfile.TemporaryDirectory() as memory:
        every = []
        for title, model in models.items():
            folder = Path(memory) / title
            folder.mkdir()
            every += engines_of(model, title, wanted[title], folder, options.environments)
        pool = Pool(every, options.threads)
        try:
            names = list(pool.workers)
            pool.feed(TEXT, rows, names)
            order = np.random.default_rng(generation)
            part = pool.measure(TEXT, generation, EFFORT, order, finalists=names)
            chosen = {t: str(pool.workers[f"{t}, {FASTEST}"].mixed) for t in models}
        finally:
            pool.close()
    return part, chosen


def main() -> None:
    """Build the files, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student", type=Path, help="folder of the unpruned student")
    parser.add_argument("pruned", type=Path, help="folder of the pruned one, with the same tokenizer")
    add_texts_option(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "engines")
    parser.add_argument(
        "--environments", type=Path, help="folder with environments 'optimum' and 'ov' that exist already"
    )
    parser.add_argument("--output", type=Path, help="also write the raw samples to this JSON file")
    options = parser.parse_args()
    texts, source = real_texts(options.texts, "dev")
    training, _ = real_texts(None, "train")
    calibration = [str(t) for t in choose_texts(training, CALIBRATION)]
    # each model in a cache folder that is named after it: both student folders may be called `student`
    models = {
        title: build(str(path), (options.cache / title).resolve(), calibration, options.environments)
        for title, path in ((WHOLE, options.student), (PRUNED, options.pruned))
    }
    rows = [row.ids.tolist() for row in TextTokenizer(models[WHOLE].folder, max(LENGTHS)).encode(choose_texts(texts))]
    result = Compared(
        machine=describe_machine().summary,
        versions=installed_versions(("onnxruntime", "ai-edge-litert", "openvino")),
        threads=options.threads,
        texts=source,
        tokens_mean=float(np.mean([len(r) for r in rows])),
        choices={WHOLE: [], PRUNED: []},
        parts=[],
    )
    for generation in range(options.generations):
        part, chosen = measure(models, rows, options, generation)
        result.parts.append(part)
        for title, choice in chosen.items():
            result.choices[title].append(choice)
        print(
            f"generation {generation + 1}: {len(part.others)} rounds, others had {np.mean(part.others):.0%} of the CPU"
        )
        if options.output is not None:
            write_json(options.output, result.model_dump(mode="json"))
    show(result)


def show(result: Compared) -> None:
    """Print p50 and p90 of each engine, and its ratio to optimum's file."""
    title = f"{result.threads} thread(s), texts of {result.tokens_mean:.0f} tokens, batch 1"
    print_header(title, result.texts)
    base = f"{WHOLE}, {OPTIMUM}"
    print(
        "\n| student, engine | p50, ms | p90, ms | time over optimum's int8 of the unpruned student |\n|---|---:|---:|---|"
    )
    for name in result.parts[0].engines:
        wall = [ms for part in result.parts for burst in part.engines[name].wall for ms in burst]
        found = result.ratio(name, base)
        p50, p90 = np.percentile(wall, [50, 90])
        print(f"| {name} | {p50:.2f} | {p90:.2f} | {found.median:.3f} [{found.low:.3f}, {found.high:.3f}] |")
    for title, choices in result.choices.items():
        print(f"{title}: fastest chose {'; '.join(choices)}")


if __name__ == "__main__":
    main()
