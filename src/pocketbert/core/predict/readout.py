"""What a model's outputs say of each text: one matrix per text, without its padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import Meter
from pocketbert.core.predict.predictor import PROBABILITIES, Arrays, Predictor, feed, length_batches
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.tasks import Level, Task, TaskName

Matrix = NDArray[np.float32]
"""[P, C]: P is 1, or the text's tokens (of fill-mask: its masked ones); C labels, channels, or start and end."""
Reduce = Callable[[int, Matrix], Matrix]


@dataclass(frozen=True)
class Batching:
    """How rows are put together.

    Attributes:
        rows: Most rows in a batch.
        slack: Largest share of padding in a batch.
    """

    rows: int = 1
    slack: float = 0.0


ALONE = Batching()
"""One unpadded row at a time."""


def answer_of(task: Task, predictor: Predictor) -> tuple[str, ...]:
    """Outputs that a predictor's answer is made from; a file with the score function inside has another one."""
    return (PROBABILITIES,) if PROBABILITIES in predictor.outputs else task.answer


def check_outputs(predictor: Predictor, task: Task, path: Path) -> None:
    """Refuse a file of another task.

    Raises:
        InputError: If it does not give the outputs that the task's answers are made from.
    """
    missing = [n for n in answer_of(task, predictor) if n not in predictor.outputs]
    if missing:
        what = f"gives {', '.join(predictor.outputs)[:100]}; {task.name} needs {', '.join(missing)}: a file of another task?"
        raise InputError(Problem(str(path), what, "Copy the folder again."))


def matrices(
    outputs: Mapping[str, NDArray[np.generic]],
    inputs: Mapping[str, NDArray[np.int64]],
    names: Sequence[str],
    task: Task,
    mask_id: int | None,
) -> list[Matrix]:
    """The rows of some outputs that belong to real tokens.

    Args:
        outputs: Of one batch of B texts: [B, C], [B, L] or [B, L, C] by name.
        inputs: What was fed, [B, L] each.
        names: Outputs that are read together, side by side.
        task: Decides which tokens matter.
        mask_id: Id of the masked token, for fill-mask; texts without any are read at all tokens.

    Returns:
        One matrix per text; full of NaN where the outputs have no row for each token of a task that wants them.
    """
    values = [np.asarray(outputs[name], np.float32) for name in names]
    if values[0].ndim == 2 and task.level is Level.TEXT and names[0] not in _PER_TOKEN:
        return [row[None] for row in values[0]]
    stacked = np.stack(values, -1) if values[0].ndim == 2 else np.concatenate(values, -1)
    real = inputs["attention_mask"].astype(bool)
    if task.name is TaskName.FILL_MASK and mask_id is not None:
        masked = (inputs["input_ids"] == mask_id) & real
        real = np.where(masked.any(-1, keepdims=True), masked, real)
    if stacked.ndim != 3 or stacked.shape[:2] != real.shape:
        return [np.full((int(keep.sum()), stacked.shape[-1]), np.nan, np.float32) for keep in real]
    return [row[keep] for row, keep in zip(stacked, real, strict=True)]


_PER_TOKEN = ("start_logits", "end_logits")
"""Outputs of shape [B, L]; all others of two axes are [B, C], and belong to tasks with a row per text."""


def run_rows(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    encoded: Sequence[Encoded],
    task: Task,
    batching: Batching = ALONE,
    label: str = "",
    names: Sequence[str] = (),
    reduce: Reduce | None = None,
) -> list[Matrix]:
    """Run tokenized rows, batched by length, and put the results back in order.

    The default, one unpadded row at a time, is what verification uses: dynamic int8 ranges depend on the
    whole tensor, so batch and padding change its results a little.

    Args:
        predictor: The engine.
        tokenizer: Pads batches.
        encoded: N rows.
        task: Decides which outputs and tokens matter.
        batching: How rows are put together.
        label: What the progress bar says; empty for none.
        names: Outputs to read; default those that decide the answer.
        reduce: Makes a smaller matrix of a row's number and matrix as soon as it is there: vocabularies are wide.

    Returns:
        One matrix per row.
    """
    chosen = tuple(names) or answer_of(task, predictor)
    out: list[Matrix] = [_NOTHING] * len(encoded)
    with Meter(label, len(encoded)) as meter:
        for batch in length_batches([len(e) for e in encoded], batching.rows, batching.slack):
            inputs = feed(predictor, tokenizer, [encoded[i] for i in batch])
            results: Arrays = predictor.run(inputs)
            for i, matrix in zip(batch, matrices(results, inputs, chosen, task, tokenizer.mask_id), strict=True):
                out[i] = reduce(i, matrix) if reduce else matrix
            if label:
                meter.advance(len(batch))
    return out


_NOTHING = np.empty((0, 0), np.float32)


def whole(parts: Sequence[Matrix]) -> Matrix:
    """All rows of all texts, [sum P, C]."""
    return np.concatenate(list(parts)) if parts else _NOTHING


def per_token(task: Task) -> bool:
    """Whether a text has more than one row."""
    return task.level is Level.TOKEN
