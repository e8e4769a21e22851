"""int8 engines against each other: LiteRT, ONNX Runtime, optimum, OpenVINO, torch, and the toolkit's `fastest`.

Everything runs batch 1 on the same weights and the same real text, at 1 and 2 threads. Each engine has a
process of its own, in the environment that it needs; all stay open, one at a time works, in short bursts in
a new order each round, and the next one starts when it has stopped using CPU time. Ratios are paired by round.

Files are built once (`--cache`), results are kept cell by cell (`--output`, one JSON per model), and a second
call goes on where the first one stopped. At the end the page is written from the JSON files.

Run: python benchmarks/peers/engines.py [--quick] [--models tinybert4 runs/sst2/student ...] [--texts FILE.jsonl.gz]
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path

import numpy as np
from common import SST2, add_texts_option, real_texts
from engine_columns import REFERENCE, columns
from engine_measure import TEXT, Cell, Effort, Pool
from engine_models import LENGTHS, ROOT, SHAPES, Model, build, installed_wing
from engine_results import Agreement, Result
from engine_table import write_page

from pocketbert.benchmarks.inputs import choose_texts, row_of_length
from pocketbert.core.hardware import load_average, machine
from pocketbert.core.tokenization import TextTokenizer

QUICK = Effort(rounds=6, least=6, budget_s=10.0)
QUICK_LENGTHS = (32, 128)
CALIBRATION = 300


def main() -> None:
    options = _options()
    if not options.page_only:
        texts, source = real_texts(options.texts, "dev")
        calibration = _calibration(options.texts)
        for name in options.models:
            print(f"{name}: files", flush=True)
            model = build(name, options.cache, calibration, options.environments)
            if not options.build_only:
                path = options.output / f"{model.name}.json"
                result = Result.resume(
                    path, model.name, _key(model), model.weights, machine().summary, source
                )
                _measure(model, result, path, texts, options)
    if not options.build_only:
        write_page(options.output, options.page)
        print(f"written: {options.page}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add_texts_option(parser)
    known = ", ".join(SHAPES)
    add("--models", nargs="+", metavar="MODEL", help=f"{known}, or folders with trained weights; default: all "
        "shapes and the students of runs/demo and runs/sst2 if they are there")  # fmt: skip
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--lengths", type=int, nargs="+", choices=LENGTHS, help="default: all; real text comes on top")
    add("--rounds", type=int, default=Effort.rounds, help="quiet rounds wanted per cell")
    add("--budget", type=float, default=Effort.budget_s, help="seconds per cell, once 6 rounds are made")
    add("--patience", type=float, default=0, help="seconds per cell to wait for other processes to pause")
    add("--quick", action="store_true", help="TinyBERT4, few cells, few rounds; the page goes to --cache")
    add("--build-only", action="store_true", help="make the files, measure nothing")
    add("--page-only", action="store_true", help="write the page anew from the JSON files")
    add("--cache", type=Path, default=ROOT / "runs" / "engines", help="where built files are kept")
    add("--environments", type=Path, help="folder with environments 'optimum' and 'ov' that exist already")
    add("--output", type=Path, help="where the JSON files go; default docs/figures/engines")
    add("--page", type=Path, help="the page to write; default docs/engines.md")
    options = parser.parse_args()
    trained = [str(p) for run in ("demo", "sst2") if (p := ROOT / "runs" / run / "student").is_dir()]
    options.models = options.models or ["tinybert4"] * options.quick or [*SHAPES, *trained]
    options.cache = options.cache.resolve()
    options.texts = options.texts.resolve() if options.texts else None
    docs, quick = ROOT / "docs", options.cache / "quick"
    options.output = options.output or (quick if options.quick else docs / "figures" / "engines")
    options.page = options.page or (quick / "engines.md" if options.quick else docs / "engines.md")
    options.lengths = options.lengths or (QUICK_LENGTHS if options.quick else LENGTHS)
    return options


def _calibration(path: Path | None) -> list[str]:
    """Texts for OpenVINO's calibration: training rows beside the evaluation file where there are some."""
    folder = path.parent if path is not None else SST2
    train = folder / "train.jsonl.gz"
    texts, _ = real_texts(train if train.is_file() else None, "train")
    return [str(t) for t in choose_texts(texts, CALIBRATION)]


def _key(model: Model) -> str:
    """Changes with the files, with the toolkit's engines, and with how engines are set up here."""
    here, runtime = Path(__file__).parent, installed_wing("runtime")
    sources = [runtime / f"{n}.py" for n in ("engines", "fastest", "onnx", "tflite")]
    sources += [here / "engine_worker.py", here / "engine_columns.py"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()
    return f"{model.key}-{digest[:12]}"


def _measure(model: Model, result: Result, path: Path, texts: list[str], options: argparse.Namespace) -> None:
    tokenizer = TextTokenizer(model.folder, max(LENGTHS))
    rows = tokenizer.encode(choose_texts(texts))
    inputs = {str(n): [row_of_length(rows, n).ids.tolist()] for n in options.lengths}
    inputs[TEXT] = [row.ids.tolist() for row in rows]
    result.tokens_mean = float(np.mean([len(r) for r in rows]))
    effort = Effort(options.rounds, budget_s=options.budget, patience_s=options.patience)
    effort = QUICK if options.quick else effort
    for threads in options.threads:
        missing = [length for length in inputs if not result.has(threads, length)]
        if not missing:
            continue
        print(f"{model.name}, {threads} threads: {', '.join(missing)}; load {load_average():.1f}", flush=True)
        with tempfile.TemporaryDirectory() as memory:
            pool = Pool(columns(model, Path(memory), options.environments), threads)
            try:
                result.opened(threads, pool.workers)
                for length in missing:
                    began = time.monotonic()
                    logits = pool.feed(length, inputs[length])
                    if length == TEXT:
                        result.agreement |= _agreement(logits)
                    cell = pool.measure(length, effort, np.random.default_rng(len(result.cells)))
                    result.cells.append(cell)
                    result.save(path)
                    _say(cell, time.monotonic() - began)
            finally:
                pool.close()


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


def _say(cell: Cell, took_s: float) -> None:
    times = {name: float(np.median(cell.series(name))) for name in cell.engines}
    ranking = ", ".join(f"{n} {t:.2f}" for n, t in sorted(times.items(), key=lambda i: i[1])[:4])
    print(f"  {cell.length:>4}: {len(cell.kept())} of {len(cell.others)} rounds kept, others had "
          f"{np.mean(cell.others):.0%} of the CPU, {took_s:.0f} s; ms: {ranking}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
