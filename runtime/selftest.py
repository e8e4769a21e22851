"""Run golden rows (recorded inputs with expected outputs) before a file is first used, to detect engines that err.

`self_test` does so once per machine, engine version and file. A file in the user's cache folder, whose path
`result_cache_file` returns, records that the test passed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import ListedModel
from pocketbert.core.compare import GOLDEN_FILE, MAX_GOLDEN_MIB
from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.disk.files import check_size, sha256_json, sha256_path, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import home_folder
from pocketbert.core.predict.predictor import Predictor, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Runtime, Scheme

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pocketbert.core.compare.golden import GoldenRow

_ROWS = 4
"""Rows that are run: a wrong kernel can be right on one text, and a golden file may hold thousands."""
_LITERT = "litert"


def self_test(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    folder: Path,
    record: ListedModel,
    task: Task,
    digest: str | None = None,
    digest_of: Callable[[Path], str] = sha256_path,
) -> None:
    """Run up to four golden rows (recorded inputs with expected outputs) on a file, unless it passed here before.

    Nothing is run if the folder has no golden rows, or none of this file.

    Args:
        predictor: The opened file.
        tokenizer: The folder's tokenizer.
        folder: The artefact folder.
        record: Record of the model file.
        task: The task that the model computes.
        digest: sha256 of the file on disk; computed if it is not given.
        digest_of: Function that returns the sha256 of a path; used for the folder's other files.

    Raises:
        GateError: If the difference of a result from its row exceeds the row's tolerance.
        InputError: If the file of golden rows is too large or damaged.
    """
    golden = folder / GOLDEN_FILE
    if not golden.is_file():
        return
    check_size(golden, MAX_GOLDEN_MIB)
    # digests of what lies on disk, not those of the list: a swapped file or tokenizer must be tested again
    digests = [digest or sha256_path(folder / record.path)]
    digests += [digest_of(folder / name) for name in ("tokenizer.json", GOLDEN_FILE)]
    key = sha256_json([predictor.engine, predictor.engine_version, digests, astuple(describe_machine()), _ROWS])
    pass_file = result_cache_file("selftest", key)
    if pass_file is not None and pass_file.is_file():
        return
    passed, (rows, shares) = [], read_test_rows(golden, record.path, task)
    for number, row in rows:
        difference = golden_difference(predictor, tokenizer, row, record.path, task, shares)
        bound = row.tolerance[record.path]
        if not difference <= bound:
            raise GateError(
                [
                    f"{record.path}: {predictor.engine} {predictor.engine_version} computes this file wrongly on this "
                    f"machine: golden row {number} differs by {difference:.3g}, allowed {bound:.3g}. "
                    f"{_suggest_fix(predictor, record)}"
                ]
            )
        passed.append({"row": number, "difference": difference, "allowed": bound})
    if pass_file is None or not passed:
        return
    with contextlib.suppress(OSError):  # a read-only home only means that the test runs again
        pass_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(pass_file, {"rows": passed})


def result_cache_file(kind: str, key: str) -> Path | None:
    """Return the path in the user's cache folder for a result about this machine. It need not exist yet.

    Args:
        kind: Kind of the result, a folder name.
        key: Digest of everything that the result depends on.

    Returns:
        A file below ``$POCKETBERT_CACHE``, else below the user's cache folder; None if there is no home folder. Then
        each process computes its results anew, since a temporary folder could be another user's.
    """
    folder = cache_folder(kind)
    return None if folder is None else folder / f"{key}.json"


def cache_folder(kind: str) -> Path | None:
    """Return the folder for files of this kind in the user's cache folder; None if there is no home folder."""
    base = os.environ.get("POCKETBERT_CACHE")
    if base:
        return Path(base) / kind
    caches = os.environ.get("XDG_CACHE_HOME")
    home = home_folder()
    if not caches and home is None:
        return None
    folder = Path(caches) if caches else home / ".cache"  # type: ignore[operator]  # one of them is there
    return folder / "pocketbert" / kind


def read_test_rows(golden: Path, path: str, task: Task) -> tuple[list[tuple[int, GoldenRow]], NDArray[np.floating]]:
    """Read the golden rows that the self-test of the model file `path` runs.

    Returns:
        The rows with their line numbers, and the `tolerance_shares` of the columns.
    """
    from pocketbert.core.compare.golden import read_golden, tolerance_shares  # only where rows must be run

    every = read_golden(golden)
    rows = [(n, r) for n, r in enumerate(every, 1) if path in r.outputs]
    return _choose_rows(rows) if rows else [], tolerance_shares(every, task.heads)


def _choose_rows(rows: Sequence[tuple[int, GoldenRow]]) -> list[tuple[int, GoldenRow]]:
    """Choose up to `_ROWS` golden rows: divide the file into as many equal parts, and take the shortest row of each."""
    parts = min(_ROWS, len(rows))
    edges = [len(rows) * i // parts for i in range(parts + 1)]
    chosen = [min(rows[a:b], key=_count_letters) for a, b in pairwise(edges)]
    return sorted(chosen, key=_count_letters)


def _count_letters(row: tuple[int, GoldenRow]) -> int:
    text = row[1].text
    return len(text) if isinstance(text, str) else sum(map(len, text))


def golden_difference(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    row: GoldenRow,
    path: str,
    task: Task,
    shares: NDArray[np.floating],
) -> float:
    """Run one golden row, and return the largest absolute difference from its expected outputs, NaN if any is NaN.

    Differences are divided by the columns' shares of the tolerance, see `read_test_rows`.
    """
    answer = run_rows(predictor, tokenizer, tokenizer.encode([row.input]), task)[0]
    return worst_difference(row.pick(answer), row.expected(path), shares)


def _suggest_fix(predictor: Predictor, record: ListedModel) -> str:
    """Return advice for a file that an engine computes wrongly. Older TFLite engines have known errors."""
    if record.format is not Format.TFLITE or predictor.engine == _LITERT:
        return "Use another engine or version, or another file of the folder."
    if record.scheme is Scheme.INT8 and record.plain:
        return f"Use the file for {Runtime.TFLITE_2_16} (`--runtime {Runtime.TFLITE_2_16}` adds it), or ai-edge-litert >= 2.3."
    return "Use another file of the folder, or ai-edge-litert >= 2.3."
