"""What every engine looks like: torch, ONNX Runtime, and those to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer

Arrays = dict[str, NDArray[np.generic]]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the inputs in their order."""
PROBABILITIES = "probabilities"
"""Name of the output of a file that computes the scores itself."""
_OUTPUTS = (
    "logits",
    PROBABILITIES,
    "start_logits",
    "end_logits",
    "last_hidden_state",
    "sentence_embedding",
)


class Predictor(Protocol):
    """An opened model file or module that can run batches.

    Attributes:
        engine: Engine name, e.g. ``onnxruntime``.
        engine_version: Its version.
        inputs: Names of the inputs it wants.
        outputs: Names of the outputs it gives; the first one decides the task's metric.
        lengths: The only lengths it takes, ascending; empty where any length is taken.
    """

    engine: str
    engine_version: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lengths: tuple[int, ...]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch.

        Args:
            inputs: [B, L] int64 arrays by name; names the model does not want are ignored.

        Returns:
            Outputs by name, float32.
        """
        ...


def input_order(name: str) -> tuple[int, str]:
    """Place of an input where a file keeps none: those of every text first, then others by name."""
    return (INPUTS.index(name) if name in INPUTS else len(INPUTS), name)


def output_order(name: str) -> int:
    """Place of an output where a file keeps none: the one that decides a task's metric comes first."""
    return _OUTPUTS.index(name) if name in _OUTPUTS else len(_OUTPUTS)


def fitting(lengths: Sequence[int], length: int) -> int:
    """The smallest length of a predictor that holds this number of tokens; `length` itself where all are taken.

    Raises:
        InputError: If it is longer than the longest.
    """
    if not lengths:
        return length
    for one in lengths:
        if one >= length:
            return one
    raise InputError(
        Problem(
            "length",
            f"{length} tokens; the file takes {', '.join(map(str, lengths))}.",
            "Cut the text to the longest.",
        )
    )


def feed(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    rows: Sequence[Encoded],
    length: int = 0,
) -> dict[str, NDArray[np.int64]]:
    """Stack rows into a batch of a length that the predictor takes.

    Args:
        predictor: Who will run it.
        tokenizer: Pads.
        rows: B tokenized inputs.
        length: Pad to at least so many tokens.

    Returns:
        Inputs by name, each [B, L] int64; L is the longest row where nothing else is asked for.
    """
    longest = max(length, *(len(r) for r in rows))
    return tokenizer.pad(rows, fitting(predictor.lengths, longest))


def length_batches(lengths: Sequence[int], rows: int, slack: float) -> list[list[int]]:
    """Group row numbers so that little padding is needed.

    Rows are sorted by length; a batch ends when it is full or when its next row would make the share of
    padding larger than `slack`.

    Args:
        lengths: Tokens per row, N of them.
        rows: Most rows in a batch.
        slack: Largest share of padded positions, 0 for batches of equal length only.

    Returns:
        Lists of row numbers that together hold every row once.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    out: list[list[int]] = []
    tokens = 0
    for i in order:
        if out and len(out[-1]) < rows:
            padded = lengths[i] * (len(out[-1]) + 1)
            if padded - (tokens + lengths[i]) <= slack * padded:
                out[-1].append(i)
                tokens += lengths[i]
                continue
        out.append([i])
        tokens = lengths[i]
    return out
