"""A few golden rows before first use: a runtime that miscomputes a file is refused, not believed.

The result is remembered per machine, engine version and file, so that it costs four inferences once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.compare.golden import GOLDEN_FILE, MAX_MIB, GoldenRow, read_golden
from pocketbert.core.disk.files import check_size, sha256_json, sha256_path, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.system import home_folder
from pocketbert.core.predict.predictor import Predictor, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Runtime, Scheme

# --- cache ---
# Where results that belong to this machine are remembered.


def remembered(kind: str, key: str) -> Path | None:
    """Return the file that holds a result of this machine, there or not.

    Args:
        kind: What was found out, a folder name.
        key: Digest of everything that the result depends on.

    Returns:
        A file below ``$POCKETBERT_CACHE``, else below the user's cache folder; None where there is no home folder. Results
        are then found anew by each process: a temporary folder could be another user's.
    """
    base = os.environ.get("POCKETBERT_CACHE")
    if base:
        return Path(base) / kind / f"{key}.json"
    caches = os.environ.get("XDG_CACHE_HOME")
    home = home_folder()
    if not caches and home is None:
        return None
    folder = Path(caches) if caches else home / ".cache"  # type: ignore[operator]  # one of them is there
    return folder / "pocketbert" / kind / f"{key}.json"


ROWS = 4
"""Rows that are run: a wrong kernel can be right on one text, and a golden file may hold thousands."""
_LITERT = "litert"


def self_test(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    folder: Path,
    record: ModelRecord,
    task: Task,
    digest: str | None = None,
) -> None:
    """Run up to `ROWS` golden rows unless this machine, engine version and file passed before.

    Args:
        predictor: The opened file.
        tokenizer: The folder's tokenizer.
        folder: The artefact folder.
        record: The file's record.
        task: What the model does.
        digest: sha256 of the file as it lies there, where the caller has it already.

    Raises:
        GateError: If a result is outside its row's tolerance.
    """
    golden = folder / GOLDEN_FILE
    if not golden.is_file():
        return
    check_size(golden, MAX_MIB)
    # what lies on disk, not what the list says: a swapped file or tokenizer must be tested again
    file = digest or sha256_path(folder / record.path)
    digests = [file, *(sha256_path(folder / name) for name in ("tokenizer.json", GOLDEN_FILE))]
    key = sha256_json([predictor.engine, predictor.engine_version, digests, machine().model_dump(), ROWS])
    mark = remembered("selftest", key)
    if mark is not None and mark.is_file():
        return
    rows = [(n, r) for n, r in enumerate(read_golden(golden), 1) if record.path in r.outputs]
    if not rows:
        return
    passed = []
    for number, row in spread_out(rows):
        difference = golden_difference(predictor, tokenizer, row, record.path, task)
        bound = row.tolerance[record.path]
        if not difference <= bound:
            raise GateError(
                [
                    f"{record.path}: {predictor.engine} {predictor.engine_version} computes this file wrongly on this "
                    f"machine: golden row {number} differs by {difference:.3g}, allowed {bound:.3g}. "
                    f"{_fix(predictor, record)}"
                ]
            )
        passed.append({"row": number, "difference": difference, "allowed": bound})
    if mark is None:
        return
    with contextlib.suppress(OSError):  # a read-only home only means that the test runs again
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_json(mark, {"rows": passed})


def spread_out(rows: Sequence[tuple[int, GoldenRow]]) -> list[tuple[int, GoldenRow]]:
    """The shortest row of each of `ROWS` equal stretches of a file, shortest first; all rows where there are fewer."""
    parts = min(ROWS, len(rows))
    edges = [len(rows) * i // parts for i in range(parts + 1)]
    chosen = [min(rows[a:b], key=_letters) for a, b in pairwise(edges)]
    return sorted(chosen, key=_letters)


def _letters(row: tuple[int, GoldenRow]) -> int:
    text = row[1].text
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _fix(predictor: Predictor, record: ModelRecord) -> str:
    if record.format is not Format.TFLITE or predictor.engine == _LITERT:
        return "Use another engine or version, or another file of the folder."
    if record.scheme is Scheme.INT8 and record.plain:
        return f"Use the file for {Runtime.TFLITE_2_16} (`--runtime {Runtime.TFLITE_2_16}` adds it), or ai-edge-litert >= 2.3."
    return "Use another file of the folder, or ai-edge-litert >= 2.3."


def golden_difference(predictor: Predictor, tokenizer: TextTokenizer, row: GoldenRow, path: str, task: Task) -> float:
    """Largest absolute difference between a predictor's answer and a golden row; NaN-sticky."""
    answer = run_rows(predictor, tokenizer, tokenizer.encode([row.input]), task)[0]
    return worst_difference(row.pick(answer), row.expected(path))
