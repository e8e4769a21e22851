"""Measure how far the errors of files in 8 bits on golden rows change if the long drawn rows are left out.

Run: python lab/drawn_rows.py FOLDER...

Each folder is an artefact folder. Its golden rows hold the outputs of the torch model and of every file, so nothing is run. The drawn
rows that are left are those on which the error of a scheme is simulated (`pocketbert.pipeline.make.model_files`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import GOLDEN_FILE, GoldenRow, read_golden
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.pipeline.make.model_files import _drop_long_drawn_rows


def rms_error(rows: Sequence[GoldenRow], file: str) -> float:
    """Return the RMS difference between the recorded outputs of a file and of the torch model."""
    parts = [(np.ravel(row.outputs[file]), np.ravel(row.reference)) for row in rows]
    ours, theirs = (np.concatenate(side) for side in zip(*parts, strict=True))
    return float(np.sqrt(np.mean((ours - theirs) ** 2)))


def main() -> None:
    """Print for each quantized file of the folders the error on fewer drawn rows as a share of that on all."""
    for folder in map(Path, sys.argv[1:]):
        artefacts, golden = read_artefacts(folder), read_golden(folder / GOLDEN_FILE)
        tokenizer = TextTokenizer(folder, artefacts.processing.max_length)
        for file in sorted({name for row in golden for name in row.outputs if "int8" in name or "w8" in name}):
            rows = [row for row in golden if file in row.outputs]
            fewer = _drop_long_drawn_rows(rows, tokenizer)
            drawn, others = [r for r in rows if r.drawn], [r for r in rows if not r.drawn]
            share = rms_error(fewer, file) / rms_error(rows, file)
            ratio = rms_error(drawn, file) / rms_error(others, file)
            left = f"{len(rows) - len(fewer)} of {len(drawn)} drawn rows left out"
            print(f"{folder}/{file}: {left}, error {share:.3f} of that on all; drawn rows {ratio:.2f} times the others")


if __name__ == "__main__":
    main()
