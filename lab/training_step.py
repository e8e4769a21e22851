"""Measure what part of a training step is matrix products: the time of the products alone, by `torch.mm`, beside that of the whole step.

Run: python lab/training_step.py [--shape demo] [--shape base] [--precision bfloat16] [--rounds 9] [--attention] [--profile] [-o runs/training-step.json]

A step is the toolkit's own: batch, teacher, student, losses, backward pass, clipping, AdamW, checks for NaN. Its matrix products are
recorded by shape, and the same products are then computed by `torch.mm` and `torch.bmm` on fresh matrices. Steps and products take
turns on one core; shown are medians of CPU time and of their ratio. --profile prints the operations that take the rest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_check import Sizes, make_step, training_on
from torch.utils._python_dispatch import TorchDispatchMode

from pocketbert.benchmarks.statistics import paired_ratio
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.distill.training import machine

MINILM = (("hidden_size", 384), ("num_hidden_layers", 6), ("num_attention_heads", 12), ("intermediate_size", 1536))
SHAPES = {
    "demo": ("MiniLM-L6 to 3 layers, 32 rows of 32 tokens", Sizes(batch=32, tokens=32, model=MINILM, layers=3)),
    "minilm": ("MiniLM-L6 to 3 layers, 64 rows of 64 tokens", Sizes(batch=64, tokens=64, model=MINILM, layers=3)),
    "base": ("BERT-base to 6 layers, 16 rows of 128 tokens", Sizes(batch=16, tokens=128, layers=6)),
}
SIGNALS = {"logits, hidden": {"attention": 0}, "logits, hidden, attention": {}}
Product = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shapes of two matrices, or of two batches of them, and their dtype."""


class ProductRecorder(TorchDispatchMode):
    """Counts the matrix products of what runs, by their shapes.

    Attributes:
        products: How often each product was computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = Counter[Product]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation, and count the products in it."""
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "bmm"):
            self._add(args[0], args[1])
        elif name in ("addmm", "baddbmm"):
            self._add(args[1], args[2])
        elif name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
            query, key = args[1:3] if name.endswith("backward") else args[:2]
            query, key = query.flatten(0, 1), key.flatten(0, 1)
            scores = torch.empty(len(query), query.shape[1], key.shape[1], dtype=query.dtype, device="meta")
            # forward: scores and output; backward: the scores anew, and gradients of values, scores, queries and keys
            for _ in range(3 if name.endswith("backward") else 1):
                self._add(query, key.transpose(1, 2))
            for _ in range(2 if name.endswith("backward") else 1):
                self._add(scores, key)
        return func(*args, **(kwargs or {}))

    def _add(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.products[(tuple(one.shape), tuple(other.shape), one.dtype)] += 1


def make_products(products: Counter[Product]) -> Callable[[], None]:
    """Return a function that computes the recorded products, on matrices of random numbers."""
    made = []
    for (one, other, dtype), count in products.items():
        left, right = torch.randn(one).to(dtype), torch.randn(other).to(dtype)
        multiply = torch.mm if len(one) == 2 else torch.bmm
        made.append((multiply, left, right, multiply(left, right), count))

    def compute() -> None:
        for multiply, left, right, out, count in made:
            for _ in range(count):
                multiply(left, right, out=out)

    return compute


def operations_of(products: Counter[Product]) -> int:
    """Return the floating-point operations of recorded products."""
    return sum(2 * int(np.prod(one)) * other[-1] * count for (one, other, _), count in products.items())


def measure(loop: Any, rounds: int) -> dict[str, float]:
    """Return CPU seconds of a step and of its products, and the share of the step that the products alone would take."""
    for _ in range(2):
        loop.step()
    with ProductRecorder() as recorder:
        loop.step()
    products = make_products(recorder.products)
    products()
    steps, alone = list[float](), list[float]()
    for number in range(rounds):
        for seconds, compute in ((steps, loop.step), (alone, products))[:: 1 if number % 2 else -1]:
            began = time.process_time()
            compute()
            seconds.append(time.process_time() - began)
    share = paired_ratio(alone, steps)
    return {
        "step_s": float(np.median(steps)),
        "products_s": float(np.median(alone)),
        "gflop": operations_of(recorder.products) / 1e9,
        "share": share.median,
        "low": share.low,
        "high": share.high,
    }


def compare_attention(loop: Any, rounds: int) -> str:
    """Return how much CPU time a step takes with attention in fp32, as a share of that in bf16; both take turns."""
    chosen, seconds = machine._LONGEST_IN_FP32, {0: list[float](), machine._LONGEST_IN_FP32: list[float]()}
    for number in range(rounds):
        for longest in (0, chosen)[:: 1 if number % 2 else -1]:
            machine._LONGEST_IN_FP32 = longest
            began = time.process_time()
            loop.step()
            seconds[longest].append(time.process_time() - began)
    machine._LONGEST_IN_FP32 = chosen
    ratio = paired_ratio(seconds[chosen], seconds[0])
    return f"attention in fp32: {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of the CPU time in bf16"


def print_profile(loop: Any) -> None:
    """Print the operations that take most of a step."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            loop.step()
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=28, max_name_column_width=60))


def main() -> None:
    """Measure the steps that the command line names, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default demo and base; may be repeated")
    parser.add_argument("--precision", action="append", choices=["float32", "bfloat16"], help="default both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="print the operations of each step")
    parser.add_argument("--attention", action="store_true", help="compare attention in fp32 and in bf16")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the measurements")
    options = parser.parse_args()
    torch.set_num_threads(1)
    title_of_machine = describe_machine().summary
    print(f"{title_of_machine}; load {load_average():.1f}; one core, random weights; provenance measured")
    found = []
    for shape in options.shape or ["demo", "base"]:
        title, sizes = SHAPES[shape]
        for precision in options.precision or ["float32", "bfloat16"]:
            for name, signals in SIGNALS.items():
                with tempfile.TemporaryDirectory() as work, training_on(torch.device("cpu"), precision):
                    loop = make_step(Path(work), sizes, signals)
                    torch.set_num_threads(1)
                    result = measure(loop, options.rounds)
                    print(
                        f"{title}; {name}; {precision}: step {result['step_s']:.3f} CPU s, products alone {result['products_s']:.3f}: "
                        f"{result['share']:.0%} [{result['low']:.0%}, {result['high']:.0%}], {result['gflop']:.0f} GFLOP",
                        flush=True,
                    )
                    if options.attention:
                        print(f"  {compare_attention(loop, options.rounds)}", flush=True)
                    if options.profile:
                        print_profile(loop)
                found.append({"shape": title, "signals": name, "precision": precision, **result})
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(
            json.dumps({"machine": title_of_machine, "provenance": "measured", "steps": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
