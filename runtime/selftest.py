"""One golden row before first use: a runtime that miscomputes a file is refused, not believed.

The result is remembered per machine, engine version and file, so that it costs one inference once.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from pocketbert.core.artefacts import FileRecord
from pocketbert.core.errors import GateError
from pocketbert.core.evaluate import worst_difference
from pocketbert.core.files import sha256_file, sha256_json, write_json
from pocketbert.core.golden import FILE_NAME, GoldenRow, read_golden
from pocketbert.core.hardware import machine
from pocketbert.core.predictor import Predictor, run_encoded
from pocketbert.core.tokenization import TextTokenizer
from pocketbert.runtime.cache import cache_folder


def self_test(predictor: Predictor, tokenizer: TextTokenizer, folder: Path, record: FileRecord) -> None:
    """Run one golden row unless this machine, engine version and file passed before.

    Args:
        predictor: The opened file.
        tokenizer: The folder's tokenizer.
        folder: The artefact folder.
        record: The file's record.

    Raises:
        GateError: If the result is outside the row's tolerance.
    """
    golden = folder / FILE_NAME
    if not golden.is_file():
        return
    # what lies on disk, not what the list says: a swapped file or tokenizer must be tested again
    digests = [sha256_file(folder / name) for name in (record.path, "tokenizer.json", FILE_NAME)]
    key = sha256_json([predictor.engine, predictor.engine_version, digests, machine().model_dump()])
    mark = cache_folder() / "selftest" / f"{key}.json"
    if mark.is_file():
        return
    rows = [r for r in read_golden(golden) if record.path in r.outputs]
    if not rows:
        return
    difference = golden_difference(predictor, tokenizer, rows[0], record.path)
    bound = rows[0].tolerance[record.path]
    if not difference <= bound:
        raise GateError([
            f"{record.path}: {predictor.engine} {predictor.engine_version} computes this file wrongly on this "
            f"machine: the first golden row differs by {difference:.3g}, allowed {bound:.3g}. "
            "Use another engine or version, or another file of the folder."
        ])  # fmt: skip
    with contextlib.suppress(OSError):  # a read-only home only means that the test runs again
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_json(mark, {"difference": difference, "allowed": bound})


def golden_difference(predictor: Predictor, tokenizer: TextTokenizer, row: GoldenRow, path: str) -> float:
    """Largest absolute difference between a predictor's logits and a golden row; NaN-sticky."""
    answers = run_encoded(predictor, tokenizer, tokenizer.encode([row.input]))[predictor.outputs[0]]
    return worst_difference(np.asarray(answers[0], np.float32), row.expected(path))
