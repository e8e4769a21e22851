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
import time
from pathlib import Path

import numpy as np
from common import SST2, add_texts_option, real_texts
from engine_columns import REFERENCE, columns
from engine_measure import TEXT, Cell, Effort, Pool
from engine_models import ROOT, SHAPES, Model, build
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
    texts, source = real_texts(options.texts, "dev")
    calibration = _calibration(options.texts)
    effort = (
        QUICK
        if options.quick
        else Effort(rounds=options.rounds, budget_s=options.budget, patience_s=options.patience)
    )
    done = []
    for name in options.models:
        print(f"{name}: files", flush=True)
        model = build(name, options.cache, calibration, options.environments)
        if options.build_only:
            continue
        path = options.output / f"{model.name}.json"
        result = Result.resume(path, model.name, _key(model), model.weights, machine().summary, source)
        _measure(model, result, path, texts, options, effort)
        done.append(path)
    if not options.build_only:
        write_page(options.output, options.page)
        print(f"written: {options.page}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_texts_option(parser)
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help=f"{', '.join(SHAPES)}, or folders with trained weights"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="default: all that the model's files have, and real text"
    )
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="quiet rounds wanted per cell")
    parser.add_argument(
        "--budget",
        type=float,
        default=Effort.budget_s,
        help="seconds per cell; 6 rounds are made at any rate",
    )
    parser.add_argument(
        "--patience", type=float, default=0, help="seconds per cell to wait for other processes to pause"
    )
    parser.add_argument("--quick", action="store_true", help="few cells, few rounds")
    parser.add_argument("--build-only", action="store_true", help="make the files, measure nothing")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "runs" / "engines", help="where built files are kept"
    )
    parser.add_argument(
        "--environments", type=Path, help="folder with environments 'optimum' and 'ov' that exist already"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "figures" / "engines", help="where the JSON files go"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "engines.md", help="the page to write")  # fmt: skip
    options = parser.parse_args()
    trained = [str(p) for run in ("demo", "sst2") if (p := ROOT / "runs" / run / "student").is_dir()]
    options.models = options.models or ["tinybert4"] * options.quick or [*SHAPES, *trained]
    options.cache = options.cache.resolve()
    return options


def _calibration(path: Path | None) -> list[str]:
    """Texts for OpenVINO's calibration: training rows beside the evaluation file where there are some."""
    folder = path.parent if path is not None else SST2
    train = folder / "train.jsonl.gz"
    texts, _ = real_texts(train if train.is_file() else None, "train")
    return choose_texts(texts, CALIBRATION)


def _key(model: Model) -> str:
    """Changes with the files, with the toolkit's engines, and with how engines are set up here."""
    here, runtime = Path(__file__).parent, ROOT / "runtime"
    sources = [runtime / f"{n}.py" for n in ("engines", "fastest", "onnx", "tflite")]
    sources += [here / "engine_worker.py", here / "engine_columns.py"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()
    return f"{model.key}-{digest[:12]}"


def _measure(
    model: Model, result: Result, path: Path, texts: list[str], options: argparse.Namespace, effort: Effort
) -> None:
    lengths = [
        n
        for n in options.lengths or (QUICK_LENGTHS if options.quick else model.lengths)
        if n in model.lengths
    ]
    wanted = [*map(str, lengths), TEXT]
    tokenizer = TextTokenizer(model.folder, max(model.lengths))
    rows = tokenizer.encode(choose_texts(texts))
    inputs = {str(n): [row_of_length(rows, n).ids.tolist()] for n in lengths}
    inputs[TEXT] = [row.ids.tolist() for row in rows]
    result.tokens_mean = float(np.mean([len(r) for r in rows]))
    order = np.random.default_rng(0)
    for threads in options.threads:
        missing = [length for length in wanted if not result.has(threads, length)]
        if not missing:
            continue
        print(f"{model.name}, {threads} threads: {', '.join(missing)}; load {load_average():.1f}", flush=True)
        pool = Pool(columns(model, options.cache, options.environments), threads)
        try:
            result.opened(threads, {n: w.version for n, w in pool.workers.items()},
                          {n: w.note for n, w in pool.workers.items() if w.note})  # fmt: skip
            for length in missing:
                logits = pool.feed(length, inputs[length])
                if length == TEXT:
                    result.agreement |= _agreement(logits)
                began = time.monotonic()
                cell = pool.measure(length, effort, order)
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
