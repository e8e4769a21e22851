"""``selftest.json``: five golden rows as an app compares them, with a label and probabilities instead of raw outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import TOKENS_FILE_NAME, GoldenRow, TokenRow, read_golden, read_golden_tokens
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.confidence import tempered
from pocketbert.core.predict.score import probabilities
from pocketbert.core.tasks import TASKS, Level, ScoreFunction, TaskName
from pocketbert.core.types import Client

FILE_NAME = "selftest.json"
ROWS = 5
_DIGITS = 7
_STEEPEST = {ScoreFunction.SOFTMAX: 0.5, ScoreFunction.SIGMOID: 0.25}
"""How far a probability moves at most where every output moves by 1."""


class Expected(BaseModel):
    """What a file answers to a text.

    Attributes:
        values: Numbers, in the order of ``id2label`` or of ``columns``.
        tolerance: Largest difference of a number that a right engine may show.
    """

    values: list[float]
    tolerance: float


class AppRow(BaseModel):
    """One text.

    Attributes:
        text: The text, or the two texts of a pair.
        ids: Token ids with special tokens, without padding.
        label: The label that the files answer; None for tasks without one label per text.
        places: Rows of the output that are recorded (tokens); empty where the output has one row.
        columns: Columns that are recorded; empty for all.
        answers: What each file answers, by its path.
    """

    text: str | tuple[str, str]
    ids: list[int]
    label: str | None = None
    places: list[int] = []
    columns: list[int] = []
    answers: dict[str, Expected]


class AppSelfTest(BaseModel):
    """The content of ``selftest.json``.

    Attributes:
        schema_version: Major part equal means readable.
        task: Hub task name.
        values: What the numbers are: probabilities, or outputs of the file as they are, row by row.
        rows: The texts.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: str = "1.0"
    task: TaskName
    values: Literal["probabilities", "outputs"]
    rows: list[AppRow]


def write_selftest(folder: Path, artefacts: Artefacts) -> None:
    """Write ``selftest.json`` from the golden rows of a folder.

    Args:
        folder: The folder, with its golden rows.
        artefacts: Its list; answers of its model files are written.
    """
    golden, tokens = read_golden(folder / GOLDEN_FILE), read_golden_tokens(folder / TOKENS_FILE_NAME, 1)
    prompts = artefacts.processing.named_prompts
    by_text = {_key(t.input): t for t in tokens}
    read = zip(golden, prompts.put_before([row.input for row in golden]), strict=True)
    ids = {_key(row.input): by_text[_key(text)] for row, text in read if _key(text) in by_text}
    chosen = _chosen(artefacts, [row for row in golden if _key(row.input) in ids])
    likely = _are_probabilities(artefacts, chosen)
    made = AppSelfTest(
        task=artefacts.task,
        values="probabilities" if likely else "outputs",
        rows=[_row(artefacts, row, ids[_key(row.input)], likely) for row in chosen],
    )
    write_json(folder / FILE_NAME, made.model_dump(mode="json"))


def read_selftest(folder: Path) -> AppSelfTest:
    """Read ``selftest.json``.

    Raises:
        InputError: If the file is missing, too long, no JSON or no self-test.
    """
    path = folder / FILE_NAME
    try:
        return AppSelfTest.model_validate(read_json(path))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise InputError(Problem(f"{path} {place}".rstrip(), f"{found['msg']}.", "Copy the folder again.")) from error


def _key(text: object) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text) if isinstance(text, tuple) else ()


def _chosen(artefacts: Artefacts, rows: Sequence[GoldenRow]) -> list[GoldenRow]:
    """Short texts that every file answers, each with another label as far as possible, and clearly."""
    paths = [r.path for r in artefacts.models()]
    whole = [r for r in rows if not r.drawn and all(p in r.outputs for p in paths)] or list(rows)
    fitting = [r for r in whole if isinstance(r.text, str) != artefacts.pair] or whole
    ordered = sorted(fitting, key=lambda r: (not _is_clear(artefacts, r), not _is_ascii(r), len(str(r.text))))
    first = {r.label: r for r in reversed(ordered)}
    distinct = sorted(first.values(), key=ordered.index)
    return [*distinct, *(r for r in ordered if first[r.label] is not r)][:ROWS]


def _is_ascii(row: GoldenRow) -> bool:
    return all(part.isascii() for part in _key(row.text))


def _is_clear(artefacts: Artefacts, row: GoldenRow) -> bool:
    """Whether all files answer with the row's label, however an engine rounds; tasks without one label do not ask."""
    if artefacts.task is not TaskName.TEXT_CLASSIFICATION:
        return True
    names = row.names(artefacts.labels)
    for path, recorded in row.outputs.items():
        values = np.asarray(recorded)
        best = int(values.argmax())
        others = np.delete(values, best)
        if (
            best >= len(names)
            or names[best] != row.label
            or (others.size and values[best] - others.max() <= 2 * row.tolerance[path])
        ):
            return False
    return True


def _are_probabilities(artefacts: Artefacts, rows: Sequence[GoldenRow]) -> bool:
    """Whether whole outputs of texts are recorded, which a score function turns into probabilities."""
    task = TASKS[artefacts.task]
    whole = not any(r.columns or r.places for r in rows)
    return whole and task.level is not Level.TOKEN and artefacts.processing.score in _STEEPEST


def _row(artefacts: Artefacts, row: GoldenRow, tokens: TokenRow, likely: bool) -> AppRow:
    models = [r for r in artefacts.models() if r.path in row.outputs]
    return AppRow(
        text=row.text,
        ids=list(tokens.ids),
        label=row.label if artefacts.task is TaskName.TEXT_CLASSIFICATION else None,
        places=list(row.places),
        columns=list(row.columns),
        answers={r.path: _expected(artefacts, r, row, likely) for r in models},
    )


def _expected(artefacts: Artefacts, record: ModelRecord, row: GoldenRow, likely: bool) -> Expected:
    values, tolerance = np.asarray(row.outputs[record.path], np.float64), row.tolerance[record.path]
    if likely:
        inside, score = (
            record.client is Client.MEDIAPIPE,
            artefacts.processing.score,
        )  # MediaPipe's files have it inside
        if inside:
            tolerance = raised_tolerance(values, tolerance, record.temperature)
        values = tempered(values, record.temperature, inside)
        if not inside:
            values, tolerance = probabilities(values, score), tolerance * _STEEPEST[score] / record.temperature
    return Expected(values=[round(float(v), _DIGITS) for v in values.ravel()], tolerance=tolerance + 10.0**-_DIGITS)


def raised_tolerance(values: NDArray[np.float64], tolerance: float, temperature: float) -> float:
    """How far probabilities may be apart at a temperature where those of the file may be `tolerance` apart.

    Of p^(1/T) / S, where S is the sum over K labels, the numerator moves by at most e: tolerance^(1/T) where T is above 1, and
    tolerance / T below. The fraction then moves by at most e (K + 1) / S.

    Args:
        values: Probabilities of a file, [K].
        tolerance: Largest difference of one of them.
        temperature: T.
    """
    if temperature == 1:
        return tolerance
    moved = tolerance ** (1 / temperature) if temperature > 1 else tolerance / temperature
    return float(min(1.0, moved * (values.size + 1) / (values ** (1 / temperature)).sum()))
