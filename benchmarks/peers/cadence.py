"""The engines of `engines.py` at two cadences: back to back, and one call after an idle time, as an app calls.

Engines, files, processes and rounds are those of `engines.py`, and so is the cache of built files. The toolkit's
`fastest` takes part twice: with its choice for batches and with its choice for single calls.

Results are kept cell by cell (`--output`, one folder per idle time, one JSON per model, with all samples), and a second
call goes on where the first one stopped. At the end the page is written from the JSON files.

Run: nice python benchmarks/peers/cadence.py [--models runs/sst2/student ...] [--own-only] [--page-only]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import add_texts_option, real_texts
from engine.cadence_page import INTERACTIVE, subject_of, write_page
from engine.columns import FASTEST, columns
from engine.measure import TEXT, Effort, Pool
from engine.models import ROOT, Model, build
from engine.pool import Column
from engine.results import Result
from engines import _calibration, _key

from pocketbert.benchmarks.inputs import choose_texts, row_of_length
from pocketbert.core.host.hardware import load_average, machine
from pocketbert.core.predict.tokenization import TextTokenizer

LENGTHS = (16, 32, 128)


def main() -> None:
    options = _options()
    results = {gap: list[Result]() for gap in options.gaps}
    texts, source = real_texts(options.texts, "dev")
    if options.page_only:
        paths = [(gap, path) for gap in options.gaps for path in sorted(_path("", gap, options).parent.glob("*.json"))]
        for gap, path in paths:
            results[gap].append(Result.model_validate_json(path.read_text()))
    for name in [] if options.page_only else options.models:
        model = build(name, options.cache, _calibration(options.texts), options.environments, options.own_only)
        for gap in options.gaps:
            digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
            key = f"{_key(model)}-{digest}-{'own' if options.own_only else 'all'}"
            path = _path(model.name, gap, options)
            results[gap].append(Result.resume(path, model.name, key, model.weights, machine().summary, source))
        for generation in range(options.generations):
            for threads in options.threads:
                _measure(model, {g: results[g][-1] for g in options.gaps}, threads, generation, texts, options)
    for v in write_page(results, options.page):
        print(f"{v.title}: fastest takes {v.fit.ratio.median:.2f} of the time of {' / '.join(v.fit.names)}")
    print(f"written: {options.page}")


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


def _measure(
    model: Model,
    results: dict[float, Result],
    threads: int,
    generation: int,
    texts: list[str],
    options: argparse.Namespace,
) -> None:
    """One generation at one thread count: whatever of it was not measured before."""
    wanted = [*map(str, options.lengths), TEXT]
    missing = [(n, g) for n in wanted for g, r in results.items() if r.part(threads, n, generation) is None]
    if not missing:
        return
    tokenizer = TextTokenizer(model.folder, 384)
    rows = tokenizer.encode(choose_texts(texts))
    inputs = {str(n): [row_of_length(rows, n).ids.tolist()] for n in options.lengths}
    inputs[TEXT] = [row.ids.tolist() for row in rows]
    share = options.generations
    effort = Effort(math.ceil(options.rounds / share), Effort.least, options.budget / share, options.patience / share)
    print(f"{model.name}, {threads} threads, generation {generation + 1}; load {load_average():.1f}", flush=True)
    with tempfile.TemporaryDirectory() as memory:
        pool = Pool(_columns(model, Path(memory), options), threads)
        try:
            for result in results.values():
                result.tokens_mean = float(np.mean([len(r) for r in rows]))
                result.note(threads, generation, pool.workers)
            for length, gap in missing:
                began, result, pool.gap_ms = time.monotonic(), results[gap], gap
                earlier = next((c for c in result.cells() if (c.threads, c.length) == (threads, length)), None)
                finalists = [n for n in earlier.finalists if n in pool.workers] if generation and earlier else []
                pool.feed(length, inputs[length], finalists or list(pool.workers))
                order = np.random.default_rng(len(result.parts))
                part = pool.measure(length, generation, effort, order, finalists, (subject_of(gap), INTERACTIVE))
                result.parts.append(part)
                result.save(_path(model.name, gap, options))
                took = time.monotonic() - began
                print(f"  {length}, {gap:g} ms idle: {len(part.others)} rounds, {took:.0f} s", flush=True)
        finally:
            pool.close()


def _columns(model: Model, memory: Path, options: argparse.Namespace) -> list[Column]:
    """Those of `engines.py`, and the toolkit's choice for single calls."""
    every = columns(model, memory, options.environments)
    fastest = next(c for c in every if c.name == FASTEST)
    return [*every, replace(fastest, name=INTERACTIVE, options={"cadence": "interactive"})]


if __name__ == "__main__":
    main()
