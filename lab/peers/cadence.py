"""The engines of `engines.py` at two cadences: back to back, and one call after an idle time, as an app calls.

Engines, files, processes and rounds are those of `engines.py`, and so is the cache of built files. The toolkit's
`fastest` takes part twice: with its choice for batches and with its choice for single calls.

Results are kept cell by cell (`--output`, one folder per idle time, one JSON per model, with all samples), and a second
call goes on where the first one stopped. At the end the page is written from the JSON files.

`--minutes` bounds the run after the files were built (`--prepare` builds them and ends): what is left is divided among
the parts that are left. The page and the last lines tell how much of the CPU other processes took.

Run: nice python lab/peers/cadence.py [--models runs/sst2/student ...] [--minutes 20] [--own-only] [--page-only]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import add_texts_option, real_texts
from engine.cadence_page import INTERACTIVE, disturbance, subject_of, write_page
from engine.columns import FASTEST, columns
from engine.measure import TEXT, Effort, Pool
from engine.models import ROOT, Model, build
from engine.pool import Column
from engine.results import Result
from engines import _calibration, _key

from pocketbert.benchmarks.inputs import choose_texts, join_to_length
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.predict.tokenization import TextTokenizer

LENGTHS = (16, 32, 128)
LEAST_S = 1.0
"""Seconds for the finalists of a part when the time of the run is over: the rounds made at any rate take about so long."""


class Allowance:
    """What a part may take of the time of the whole run.

    Args:
        seconds: For the whole run; 0 for no limit.
        pools: How often processes will be opened.
        parts: How many parts are to be measured.
        otherwise: Seconds of a part where there is no limit.
    """

    def __init__(self, seconds: float, pools: int, parts: int, otherwise: float) -> None:
        self._end = time.monotonic() + seconds if seconds else math.inf
        self._pools, self._parts, self._otherwise = pools, parts, otherwise
        self._opening: list[float] = []

    def opened(self, seconds: float) -> None:
        """Note what the opening of processes took; those to come will take about as long."""
        self._opening.append(seconds)
        self._pools -= 1

    def part(self) -> float:
        """Seconds for the finalists of the next part."""
        to_open = self._pools * float(np.mean(self._opening)) if self._opening else 0.0
        left = self._end - time.monotonic() - to_open
        share, self._parts = left / max(self._parts, 1), self._parts - 1
        return min(self._otherwise, max(LEAST_S, share))


def main() -> None:
    options = _options()
    results = {gap: list[Result]() for gap in options.gaps}
    texts, source = real_texts(options.texts, "dev")
    if options.page_only:
        paths = [(gap, path) for gap in options.gaps for path in sorted(_path("", gap, options).parent.glob("*.json"))]
        for gap, path in paths:
            results[gap].append(Result.model_validate_json(path.read_text()))
    models = [] if options.page_only else [_build(name, options) for name in options.models]
    if options.prepare:
        return
    for model in models:
        for gap in options.gaps:
            digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
            key = f"{_key(model)}-{digest}-{'own' if options.own_only else 'all'}"
            path = _path(model.name, gap, options)
            results[gap].append(Result.resume(path, model.name, key, model.weights, describe_machine().summary, source))
    passes = [(i, g, t) for g in range(options.generations) for i in range(len(models)) for t in options.threads]
    todo = [(i, g, t, _missing({k: r[i] for k, r in results.items()}, t, g, options)) for i, g, t in passes]
    todo = [one for one in todo if one[3]]
    parts = sum(len(missing) for *_, missing in todo)
    allowance = Allowance(options.minutes * 60, len(todo), parts, options.budget / options.generations)
    for i, generation, threads, missing in todo:
        there = {gap: some[i] for gap, some in results.items()}
        _measure(models[i], there, Pass(threads, generation, missing, allowance), texts, options)
    for v in write_page(results, options.page):
        print(f"{v.title}: fastest takes {v.fit.ratio.median:.2f} of the time of {' / '.join(v.fit.names)}")
    print(f"{disturbance(results)}\nwritten: {options.page}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_texts_option(parser)
    add("--models", nargs="+", default=["tinybert4"], help="shapes of engines.py, or folders with trained weights")
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens; real text comes on top")
    add(
        "--gaps", type=float, nargs="+", default=[0.0, 100.0], help="idle times in ms before each call; 0: back to back"
    )
    add("--generations", type=int, default=3, help="how often the processes are opened anew")
    add("--rounds", type=int, default=42, help="quiet rounds wanted of a cell's finalists, all generations together")
    add("--budget", type=float, default=90.0, help="seconds for a cell's finalists, all generations together")
    add("--minutes", type=float, default=0.0, help="for the whole run, after the files were built; 0: no limit")
    add("--prepare", action="store_true", help="build the files and environments, and end")
    add("--patience", type=float, default=0.0, help="seconds per cell to wait for other processes to pause")
    add("--own-only", action="store_true", help="leave out engines that need another environment")
    add("--page-only", action="store_true", help="write the page anew from the JSON files")
    add("--cache", type=Path, default=ROOT / "runs" / "engines", help="where built files are kept")
    add("--environments", type=Path, help="folder with environments 'optimum' and 'ov' that exist already")
    add("--output", type=Path, default=ROOT / "docs" / "figures" / "cadence", help="where the JSON files go")
    add("--page", type=Path, default=ROOT / "docs" / "figures" / "cadence.md", help="the page to write")
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    options.texts = options.texts.resolve() if options.texts else None
    return options


def _path(model: str, gap: float, options: argparse.Namespace) -> Path:
    return Path(options.output / f"gap-{gap:g}" / f"{model}.json")


def _build(name: str, options: argparse.Namespace) -> Model:
    return build(name, options.cache, _calibration(options.texts), options.environments, options.own_only)


@dataclass(frozen=True)
class Pass:
    """One generation of processes at one thread count.

    Attributes:
        threads: Threads within an operator.
        generation: Its number.
        missing: What of it was not measured before: lengths and idle times.
        allowance: Tells how long a part may take.
    """

    threads: int
    generation: int
    missing: list[tuple[str, float]]
    allowance: Allowance


def _missing(
    results: dict[float, Result], threads: int, generation: int, options: argparse.Namespace
) -> list[tuple[str, float]]:
    wanted = [*map(str, options.lengths), TEXT]
    return [(n, g) for n in wanted for g, r in results.items() if r.part(threads, n, generation) is None]


def _measure(
    model: Model, results: dict[float, Result], now: Pass, texts: list[str], options: argparse.Namespace
) -> None:
    """Measure what a pass is missing."""
    tokenizer = TextTokenizer(model.folder, 384)
    rows = tokenizer.encode(choose_texts(texts))
    inputs = {str(n): [join_to_length(rows, n).ids.tolist()] for n in options.lengths}
    inputs[TEXT] = [row.ids.tolist() for row in rows]
    threads, generation = now.threads, now.generation
    wanted, patience = math.ceil(options.rounds / options.generations), options.patience / options.generations
    print(f"{model.name}, {threads} threads, generation {generation + 1}; load {load_average():.1f}", flush=True)
    with tempfile.TemporaryDirectory() as memory:
        began = time.monotonic()
        pool = Pool(_columns(model, Path(memory), options), threads)
        now.allowance.opened(time.monotonic() - began)
        try:
            for result in results.values():
                result.tokens_mean = float(np.mean([len(r) for r in rows]))
                result.note(threads, generation, pool.workers)
            for length, gap in now.missing:
                began, result, pool.gap_ms = time.monotonic(), results[gap], gap
                earlier = next((c for c in result.cells() if (c.threads, c.length) == (threads, length)), None)
                finalists = [n for n in earlier.finalists if n in pool.workers] if generation and earlier else []
                pool.feed(length, inputs[length], finalists or list(pool.workers))
                order = np.random.default_rng(len(result.parts))
                effort = Effort(wanted, _least(gap), now.allowance.part(), patience)
                part = pool.measure(length, generation, effort, order, finalists, (subject_of(gap), INTERACTIVE))
                result.parts.append(part)
                result.save(_path(model.name, gap, options))
                took, others = time.monotonic() - began, float(np.median(part.others))
                told = f"{len(part.others)} rounds, {took:.0f} s, others had {others:.0%} of the CPU"
                print(f"  {length}, {gap:g} ms idle: {told}", flush=True)
        finally:
            pool.close()


def _least(gap_ms: float) -> int:
    """Rounds made at any rate: single calls are mostly idle time, so that half as many take three times as long."""
    return Effort.least // 2 if gap_ms else Effort.least


def _columns(model: Model, memory: Path, options: argparse.Namespace) -> list[Column]:
    """Those of `engines.py`, and the toolkit's choice for single calls."""
    every = columns(model, memory, options.environments)
    fastest = next(c for c in every if c.name == FASTEST)
    return [*every, replace(fastest, name=INTERACTIVE, options={"cadence": "interactive"})]


if __name__ == "__main__":
    main()
