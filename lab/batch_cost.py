"""Measure how fast one process prepares training batches, without a model: tokens of the whole batch per CPU second.

Run: OMP_NUM_THREADS=1 python lab/batch_cost.py [--rows 4096] [--tokens 128] [--processes 1 --processes 8] [--repeats 3]

The rows are drawn tokens of a vocabulary of 30,522. Each kind of masking is measured with single segments and with pairs, and
rows of a task without masks. With several processes, the time is that of the process with the most rows. The best of all repeats counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from export_cost import MODELS, make_model

from pocketbert.core.heads.head import Prepared
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.corpus import EncodedRows
from pocketbert.distill.text.masking import masking_of
from pocketbert.distill.text.pairs import GeneralSet, pairs_of
from pocketbert.distill.training.data import TrainData, TrainSet

KINDS = (MaskingKind.FREQUENCY, MaskingKind.DYNAMIC, MaskingKind.WHOLE_WORD, MaskingKind.SPAN, MaskingKind.NONE)
KEPT = 20_000
"""Rows that batches are drawn from."""


def make_rows(folder: Path, tokens: int) -> dict[str, TrainData]:
    """Return sets of training rows by name; rows of a task have lengths from a quarter of `tokens` to `tokens`."""
    tokenizer, draw = TextTokenizer(folder, tokens), np.random.default_rng(7)
    size = tokenizer.vocabulary_size

    def encoded(length: int) -> Encoded:
        ids = np.concatenate([[101], draw.integers(1000, size, length - 2), [102]])
        return Encoded(ids, np.zeros(length, np.int64), truncated=False)

    packed = EncodedRows([encoded(tokens) for _ in range(KEPT)], size)
    sets: dict[str, TrainData] = {}
    for kind in KINDS:
        masking = masking_of(kind, packed.counts, tokenizer, 7, "distill.0")
        sets[f"{kind}, single"] = GeneralSet(packed, tokenizer, masking)
        sets[f"{kind}, pairs"] = GeneralSet(packed, tokenizer, masking, pairs_of(tokenizer, size, 7, "distill.0"))
    labelled = [encoded(int(n)) for n in draw.integers(max(tokens // 4, 3), tokens + 1, KEPT)]
    targets = {"labels": draw.integers(0, 3, KEPT)}
    return sets | {"task rows": TrainSet(Prepared([], labelled, np.arange(KEPT), targets), tokenizer)}


def measure_seconds(data: TrainData, rows: int, processes: int, repeats: int) -> float:
    """Return the fewest CPU seconds in which a process prepared its part of a batch of `rows` rows."""
    numbers, own, best = list(range(rows)), slice(0, -(-rows // processes)), float("inf")
    for step in range(repeats):
        start = time.process_time()
        data.batch(numbers, step) if processes == 1 else data.part(numbers, step, own)  # type: ignore[attr-defined]
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    """Print a table of all kinds of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 4096), ("tokens", 128), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--processes", type=int, action="append", default=[], help="default 1 and 8")
    options = parser.parse_args()
    print(f"{describe_machine().summary}; load {load_average():.1f}; {options.rows} rows of {options.tokens} tokens")
    worlds = options.processes or [1, 8]
    print(f"{'million tokens per CPU second':32}", *(f"{n:4} process{'es' if n > 1 else '  '}" for n in worlds))
    with tempfile.TemporaryDirectory(prefix="pocketbert-batch-cost-") as work:
        sets = make_rows(make_model(MODELS["student"], Path(work)), options.tokens)
    for name, data in sets.items():
        tokens = int(np.asarray(data.lengths[: options.rows]).sum()) / 1e6
        rates = [tokens / measure_seconds(data, options.rows, n, options.repeats) for n in worlds]
        print(f"{name:32}", *(f"{rate:14.1f}" for rate in rates), flush=True)


if __name__ == "__main__":
    main()
