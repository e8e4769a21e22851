"""int8 engines against each other: LiteRT, ONNX Runtime, optimum, OpenVINO, torch, and the toolkit's `fastest`.

Everything runs batch 1 on the same weights and the same real text, at 1 and 2 threads. Each engine has a
process of its own, in the environment that it needs; all stay open, one at a time works, in short bursts in
a new order each round, and the next one starts when it has stopped using CPU time. Ratios are paired by round.

In a cell (model, threads, length) all engines run a few rounds; those near the fastest one go on, with `fastest`.
The whole is done in several generations: all processes are opened anew, and `fastest` races and chooses anew.

Files are built once (`--cache`), results are kept cell by cell and generation by generation (`--output`, one JSON
per model), and a second call goes on where the first one stopped. At the end the page is written from the JSON files.

Run: python lab/peers/engines.py [--quick] [--models tinybert4 runs/sst2/student ...] [--texts FILE.jsonl.gz]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np
from common import SST2, add_texts_option, real_texts
from engine.columns import BASELINE, REFERENCE, RIVAL, columns
from engine.measure import TEXT, Effort, Part, Pool
from engine.models import LENGTHS, ROOT, SHAPES, Model, build, installed_wing
from engine.results import Agreement, Result, Round
from engine.table import GOAL_LENGTH, GOALS, write_page

from pocketbert.benchmarks.inputs import choose_texts, join_to_length
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.host.system import installed_versions
from pocketbert.core.predict.tokenization import TextTokenizer

QUICK = Effort(rounds=8, least=4, budget_s=4.0)
QUICK_LENGTHS = (32, 128)
CALIBRATION = 300


def main() -> None:
    options = _options()
    if not options.page_only:
        texts, source = real_texts(options.texts, "dev")
        calibration = _calibration(options.texts)
        built = []
        for name in options.models:
            print(f"{name}: files", flush=True)
            model = build(name, options.cache, calibration, options.environments)
            built.append((model, _resumed(model, source, options)))
        # Generation by generation, so that those of a cell lie far apart in time.
        for generation in range(0 if options.build_only else options.generations):
            for model, result in built:
                _measure(model, result, generation, texts, options)
    if not options.build_only:
        write_page(options.output, options.page)
        print(f"written: {options.page}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_texts_option(parser)
    known = ", ".join(SHAPES)
    add(
        "--models",
        nargs="+",
        metavar="MODEL",
        help=f"{known}, or folders with trained weights; default: all "
        "shapes and the students of runs/demo and runs/sst2 if they are there",
    )
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--lengths", type=int, nargs="+", choices=LENGTHS, help="default: all; real text comes on top")
    add("--generations", type=int, default=3, help="how often the processes are opened anew")
    add(
        "--rounds",
        type=int,
        default=42,
        help="quiet rounds wanted of a cell's finalists, all generations together",
    )
    add(
        "--budget",
        type=float,
        default=45.0,
        help="seconds for a cell's finalists, all generations together; "
        f"{Effort.least} rounds of each are made at any rate",
    )
    add("--patience", type=float, default=0.0, help="seconds per cell to wait for other processes to pause")
    add("--quick", action="store_true", help="TinyBERT4, few cells, few rounds; the page goes to --cache")
    add("--build-only", action="store_true", help="make the files, measure nothing")
    add("--page-only", action="store_true", help="write the page anew from the JSON files")
    add("--cache", type=Path, default=ROOT / "runs" / "engines", help="where built files are kept")
    add("--environments", type=Path, help="folder with environments 'optimum' and 'ov' that exist already")
    add("--output", type=Path, help="where the JSON files go; default docs/figures/engines")
    add("--page", type=Path, help="the page to write; default docs/lab/engines.md")
    options = parser.parse_args()
    trained = [str(p) for run in ("demo", "sst2") if (p := ROOT / "runs" / run / "student").is_dir()]
    options.models = options.models or ["tinybert4"] * options.quick or [*SHAPES, *trained]
    options.cache = options.cache.resolve()
    options.texts = options.texts.resolve() if options.texts else None
    docs, quick = ROOT / "docs", options.cache / "quick"
    options.output = options.output or (quick if options.quick else docs / "figures" / "engines")
    options.page = options.page or (quick / "engines.md" if options.quick else docs / "lab" / "engines.md")
    options.lengths = options.lengths or (QUICK_LENGTHS if options.quick else LENGTHS)
    return options


def _calibration(path: Path | None) -> list[str]:
    """Texts to calibrate on: training rows beside the evaluation file where there are some."""
    folder = path.parent if path is not None else SST2
    train = folder / "train.jsonl.gz"
    texts, _ = real_texts(train if train.is_file() else None, "train")
    return [str(t) for t in choose_texts(texts, CALIBRATION)]


def _key(model: Model) -> str:
    """Changes with the files, with the toolkit's engines, and with how engines are set up here."""
    here, runtime = Path(__file__).parent, installed_wing("runtime")
    modules = ("engines", "fastest", "onnx", "openvino", "plan", "race", "tflite")
    sources = [runtime / f"{n}.py" for n in modules]
    sources += [here / "engine/worker.py", here / "engine/columns.py"]
    engines = json.dumps(installed_versions(("ai-edge-litert", "onnxruntime", "openvino", "torch"))).encode()
    digest = hashlib.sha256(b"".join([engines, *(p.read_bytes() for p in sources)])).hexdigest()
    return f"{model.key}-{digest[:12]}"


def _resumed(model: Model, source: str, options: argparse.Namespace) -> Result:
    path = _path(model, options)
    return Result.resume(path, model.name, _key(model), model.weights, describe_machine().summary, source)


def _path(model: Model, options: argparse.Namespace) -> Path:
    return Path(options.output / f"{model.name}.json")


def _measure(model: Model, result: Result, generation: int, texts: list[str], options: argparse.Namespace) -> None:
    """One generation of a model: whatever of it was not measured before."""
    tokenizer = TextTokenizer(model.folder, max(LENGTHS))
    rows = tokenizer.encode(choose_texts(texts))
    inputs = {str(n): [join_to_length(rows, n).ids.tolist()] for n in options.lengths}
    inputs[TEXT] = [row.ids.tolist() for row in rows]
    result.tokens_mean = float(np.mean([len(r) for r in rows]))
    for threads in options.threads:
        missing = [n for n in inputs if result.part(threads, n, generation) is None]
        if missing:
            print(
                f"{model.name}, {threads} threads, generation {generation + 1}: {', '.join(missing)}; "
                f"load {load_average():.1f}",
                flush=True,
            )
            _measure_lengths(model, result, threads, generation, {n: inputs[n] for n in missing}, options)


def _measure_lengths(
    model: Model,
    result: Result,
    threads: int,
    generation: int,
    inputs: dict[str, list[list[int]]],
    options: argparse.Namespace,
) -> None:
    cells = {c.length: c for c in result.cells() if c.threads == threads}
    finalists = {n: cells[n].finalists if generation else [] for n in inputs}
    wanted = {name for names in finalists.values() for name in names}
    share = options.generations
    effort = Effort(math.ceil(options.rounds / share), Effort.least, options.budget / share, options.patience / share)
    effort = QUICK if options.quick else effort
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as memory:
        every = columns(model, Path(memory), options.environments)
        pool = Pool([c for c in every if not generation or c.name in wanted], threads)
        try:
            result.note(threads, generation, pool.workers)
            print(f"  {len(pool.workers)} engines opened in {time.monotonic() - began:.0f} s", flush=True)
            for length, rows in inputs.items():
                began = time.monotonic()
                logits = pool.feed(length, rows, finalists[length] or list(pool.workers))
                if length == TEXT and not generation:
                    result.agreement |= _agreement(logits)
                order = np.random.default_rng(len(result.parts))
                part = pool.measure(length, generation, effort, order, finalists[length], _always(model, length))
                result.parts.append(part)
                result.save(_path(model, options))
                _say(part, time.monotonic() - began)
        finally:
            pool.close()


def _always(model: Model, length: str) -> Collection[str]:
    """Engines that go on besides the finalists: the pair that has a goal."""
    return (BASELINE, RIVAL) if model.name in GOALS and length == GOAL_LENGTH else ()


def _agreement(logits: dict[str, list[list[float]]]) -> dict[str, Agreement]:
    """Every engine's answers against torch's."""
    if REFERENCE not in logits:
        return {}
    right = np.array(logits[REFERENCE])
    spread = float(right.std(axis=0).max()) or 1.0
    out = {}
    for name, values in logits.items():
        given = np.array(values)
        out[name] = Agreement(
            labels=float((given.argmax(1) == right.argmax(1)).mean()),
            worst=float(np.abs(given - right).max() / spread) if np.isfinite(given).all() else float("inf"),
        )
    return out


def _say(part: Part, took_s: float) -> None:
    times = {
        name: float(np.median([Round(part, i).time(name) for i in range(len(engine.wall))]))
        for name, engine in part.engines.items()
    }
    ranking = ", ".join(f"{n} {times[n]:.2f}" for n in sorted(part.finalists, key=times.__getitem__))
    quiet = sum(Round(part, i).quiet for i in range(len(part.others)))
    print(
        f"  {part.length:>4}: {quiet} of {len(part.others)} rounds quiet, {part.round_s:.2f} s each, others had "
        f"{np.mean(part.others):.0%} of the CPU, {took_s:.0f} s; ms: {ranking}",
        flush=True,
    )


if __name__ == "__main__":
    main()
