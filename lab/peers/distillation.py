"""A distillation step against a plain loop, and against the loop of the original scripts.

Every method of the toolkit, dropout 0, real text. Three sides: (ours) the toolkit's loop; (b) a plain modern loop written straight
with transformers: the same length buckets, the CPU's better number type, real tokens gathered before the vocabulary,
attention maps only where the loss needs them, torch's AdamW as it comes; (a) the loop of the original scripts: fp32,
all rows padded to 128, every position through the vocabulary, attention maps everywhere. Each side lives in a process of
its own and they take turns, so that allocator settings do not help another side. Before anything is timed, all
sides compute the loss of the same first batch with the same weights, and must agree.

Run: python lab/peers/distillation.py [--method NAME] [--texts FILE.jsonl.gz] [--rounds N] [--skip-original]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import SST2, add_texts_option, print_header, real_texts
from gpu_check import count_operations
from loops.cases import BATCHES, GENERAL, TITLES, case

BLOCK = 1
"""Steps of a general method per turn; of `task` as many as take about as long."""
ORIGINAL_ROUNDS = 6
"""Rounds in which the original loop takes part, the fewest whose interval has 95 %."""
AGREE = 1e-3
"""Largest relative difference of two sides' losses of the first batch; in bf16 ten times as much."""
WIKITEXT = SST2.parent / "wikitext2" / "valid.jsonl.gz"


@dataclass(frozen=True)
class Turn:
    """What some steps took: CPU and wall seconds, pages faulted in."""

    cpu: float
    wall: float
    faults: int


def serve(pipe: Connection, name: str, side: str, texts: list[str]) -> None:
    """Live as one side: tell the first loss, then steps, the matrix-product rate and a step's products, when asked."""
    import transformers
    from loops.ours import ours, reference_loss
    from loops.plain import original, plain

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if name == "tinybert" and side == "original":
        pipe.send(reference_loss(case(name, texts)))
    made = case(name, texts)
    loop = ours(made) if side == "ours" else None
    step = loop.step if loop else {"plain": plain, "original": original}[side](made)
    pipe.send(step())
    del texts, made
    answers: dict[str, Callable[[int], object]] = {
        "steps": lambda count: _turn(step, count),
        "products": lambda count: _products(loop, count),
        "rate": lambda _: _rate(),
    }
    while (asked := pipe.recv()) is not None:
        pipe.send(answers[asked[0]](asked[1]))


def _turn(step: Callable[[], float], count: int) -> Turn:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        step()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Turn(cpu, wall, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)


def _products(loop: Any, count: int) -> tuple[float, float]:
    """Floating-point operations of the matrix products of a step, and the CPU seconds of one, both means over the same batches.

    Counting slows a step down, so each batch is gone through twice.
    """
    first = loop.progress.step
    operations = sum(count_operations(loop) for _ in range(count))
    loop.progress.step = first
    return operations / count, _turn(loop.step, count).cpu / count


def _rate() -> float:
    """Operations per CPU-second of a product of the encoder's shape, [1024, 768] x [768, 3072], in the training dtype."""
    import torch

    from pocketbert.distill.training.machine import training_dtype

    a, b = (torch.randn(shape, dtype=training_dtype()) for shape in ((1024, 768), (768, 3072)))
    out, count = torch.mm(a, b), 10
    start = time.process_time()
    for _ in range(count):
        torch.mm(a, b, out=out)
    return count * 2 * 1024 * 768 * 3072 / (time.process_time() - start)


def compare(name: str, texts: list[str], source: str, rounds: int, skip_original: bool) -> None:
    """Measure one method and print it."""
    import numpy as np

    from pocketbert.distill.training.machine import training_dtype

    context, pipes, losses = mp.get_context("spawn"), {}, {}
    sides = ("ours", "plain") if skip_original else ("ours", "plain", "original")
    dtype = str(training_dtype()).removeprefix("torch.")
    print_header(f"distillation step, {TITLES[name]}; {dtype}", source)
    processes = []
    for side in sides:
        near, far = context.Pipe()
        processes.append(context.Process(target=serve, args=(far, name, side, texts), daemon=True))
        processes[-1].start()
        far.close()  # so that a side that fails ends the wait for it
        if name == "tinybert" and side == "original":
            losses["reference"] = near.recv()
        losses[side] = near.recv()
        pipes[side] = near
    _check(losses, name, 1.0 if dtype == "float32" else 10.0)
    block = BLOCK if name in GENERAL else 5 * BLOCK

    def ask(side: str, what: str, count: int = 0) -> object:
        pipes[side].send((what, count))
        return pipes[side].recv()

    for side in sides:
        ask(side, "steps", 1 if name in GENERAL else 3)  # the allocator's and AdamW's first times
    turns: dict[str, list[Turn]] = {side: [] for side in sides}
    rates = []
    for number in range(rounds):
        order = sides if number < ORIGINAL_ROUNDS else sides[:2]
        for side in order if number % 2 == 0 else reversed(order):
            turns[side].append(ask(side, "steps", block))
        rates.append(ask("ours", "rate"))
    operations, seconds = ask("ours", "products", 3 * block)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join()
    _print_turns(turns, block, BATCHES[name])
    rate = float(np.median(rates))
    print(
        f"  torch.mm: {rate / 1e9:.0f} GFLOP per CPU-second in {dtype}; ours: {operations / 1e9:.0f} GFLOP of matrix products "
        f"per step, {operations / seconds / rate:.0%} of that rate over the whole step"
    )


def _print_turns(turns: dict[str, list[Turn]], block: int, batch: int) -> None:
    """Print what the turns of `block` steps of each side took, and the ratios between the sides."""
    import numpy as np

    from pocketbert.benchmarks.statistics import paired_ratio

    labels, sides = {"ours": "ours", "plain": "(b) plain loop", "original": "(a) original loop"}, list(turns)
    for side in sides:
        cpu, faults = (np.median([getattr(t, k) for t in turns[side]]) / block for k in ("cpu", "faults"))
        print(f"  {labels[side]}: {batch / cpu:.1f} samples per CPU-second, {faults:,.0f} page faults per step")
    for other in sides[1:]:
        for kind in ("cpu", "wall"):
            theirs = [getattr(t, kind) for t in turns[other]]
            ratio = paired_ratio(theirs, [getattr(t, kind) for t in turns["ours"]][: len(theirs)])
            print(
                f"  {kind} time: ours is {ratio.median:.3f} times as fast as {labels[other]} [{ratio.low:.3f}, {ratio.high:.3f}], "
                f"{ratio.pairs} paired rounds of {block} steps"
            )
    if "original" in sides:
        old = [t.cpu for t in turns["original"]]
        ratio = paired_ratio(old, [t.cpu for t in turns["plain"]][: len(old)])
        print(f"  cpu time: (b) is {ratio.median:.2f} times as fast as (a)")


def _check(losses: dict[str, float], name: str, slack: float) -> None:
    pairs = [("plain", "ours")]
    if "original" in losses:
        pairs.append(("original", "reference" if name == "tinybert" else "ours"))
    told = []
    for one, other in pairs:
        apart = abs(losses[one] / losses[other] - 1)
        if not apart <= AGREE * slack:
            raise SystemExit(
                f"{name}: {one} has loss {losses[one]}, {other} {losses[other]}: they do not compute the same"
            )
        told.append(f"{one} {losses[one]:.6f}, {other} {losses[other]:.6f}")
    note = " (reference: our `reference: true` on the batch padded to 128)" if "reference" in losses else ""
    print(f"  equal losses of the first batch: {'; '.join(told)}{note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_texts_option(parser)
    parser.add_argument("--method", choices=TITLES, action="append", help="default all; may be repeated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--skip-original", action="store_true", help="leave (a) out: it takes most of the time")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in options.method or TITLES:
        general = name in GENERAL and options.texts is None and WIKITEXT.is_file()
        texts, source = real_texts(WIKITEXT if general else options.texts, "train")
        if options.texts is not None:
            source = f"{options.texts.parent.name}/{options.texts.name}"
        compare(
            name,
            texts[:20_000],
            "WikiText-2 valid" if general else source,
            options.rounds,
            options.skip_original,
        )


if __name__ == "__main__":
    main()
