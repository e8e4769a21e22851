"""Inputs of timed inferences, and the comparison of a device's answers to them with those of this machine.

`choose_texts` takes some of the real texts; `make_feeds` makes inputs of them, at their own length or joined to a given one
(`join_to_length`); `choose_fixed_lengths` chooses the lengths of compiled files. `compare_answers` checks a device's outputs with the bounds
of `Differences`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.measurement import Variant
from pocketbert.benchmarks.records import TEXT, AnswerCheck, Length
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.predictor import smallest_fitting_length
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Provenance, Scheme
from pocketbert.runtime.engines import add_missing_inputs

_MAX_TEXTS = 100
"""Real texts are cycled after this many: enough for a typical mix of lengths."""

Feed = dict[str, NDArray[np.int64]]
"""Inputs of one inference by name, each [1, L]."""


def choose_texts(texts: Sequence[Text], most: int = _MAX_TEXTS) -> list[Text]:
    """Choose at most `most` texts at even distances, so that a sorted list gives a fair mix too.

    Raises:
        InputError: If there are no texts.
    """
    if not texts:
        raise InputError(Problem("texts", "none given.", "Give at least one real text to measure with."))
    if len(texts) <= most:
        return list(texts)
    return [texts[i * len(texts) // most] for i in range(most)]


def join_to_length(rows: Sequence[Encoded], length: int) -> Encoded:
    """Join real texts to one input row of exactly `length` tokens.

    The tokens of all rows, without each row's first and last, are joined, cut or repeated to the length, and put between
    the first row's first and last token (the special tokens). Random ids would not do: dynamic int8 computes ranges from
    the values, and reading random rows of an embedding table is slower than reading those of a text.

    Args:
        rows: Tokenized real texts.
        length: Length of the result in tokens, at least 3.

    Returns:
        The row, with the type ids of a single text.

    Raises:
        InputError: If the texts hold no tokens besides the special ones, or `length` is too small.
    """
    if length < 3:
        raise InputError(
            Problem("lengths", f"{length} leaves no room for text next to 2 special tokens; allowed: 3 or more.")
        )
    inner = np.concatenate([r.ids[1:-1] for r in rows]) if rows else np.zeros(0, np.int64)
    if not inner.size:
        raise InputError(Problem("texts", "hold no tokens except the special ones.", "Give longer texts."))
    ids = np.concatenate([rows[0].ids[:1], np.resize(inner, length - 2), rows[0].ids[-1:]])
    return Encoded(ids, np.zeros(length, np.int64), False)


def choose_fixed_lengths(lengths: Sequence[Length], fixed: Sequence[int], most: int) -> list[int]:
    """Choose the input lengths for which a file is compiled: the requested ones, rounded up to lengths that it takes.

    Lengths above the longest that the file takes are reduced to it.

    Args:
        lengths: Requested lengths in tokens; ``"text"`` is ignored, since it is not one length.
        fixed: The only lengths that the file takes; empty if it takes any.
        most: Longest input of the file in tokens, which is compiled for if no number was requested.
    """
    clipped = [min(int(x), most) for x in lengths if x != TEXT] or [most]
    return list(dict.fromkeys(min((n for n in fixed if n >= x), default=max(fixed, default=x)) for x in clipped))


def make_feeds(
    tokenizer: TextTokenizer, texts: Sequence[Text], length: Length, fixed: Sequence[int] = ()
) -> list[Feed]:
    """Make model inputs of one row each from real texts, padded only if the file takes certain lengths only.

    Args:
        tokenizer: The variant's tokenizer.
        texts: Real texts.
        length: Length in tokens, or ``"text"`` to use each text at its own length.
        fixed: The only lengths that the file takes; empty if it takes any.

    Returns:
        An input for each text with ``"text"``, else a single input.
    """
    rows = tokenizer.encode(list(texts))
    chosen = rows if length == TEXT else [join_to_length(rows, length)]
    return [tokenizer.pad([row], smallest_fitting_length(fixed, len(row))) for row in chosen]


# --- answers of a device ---------------------------------------------------------------------------------------------------------

ANSWERS_COMPARED = 4
"""Inputs of each length that are compared."""
_FLOAT_SHARES = {Scheme.FP32: 1e-3, Scheme.FP16: 1e-2}
_OTHER_SHARE = 0.1


def tolerated_share(scheme: Scheme | None) -> float:
    """Return how far a device's outputs may differ from this machine's, as a fraction of the largest output.

    It is 0.001 for fp32, 0.01 for fp16, and 0.1 for all other files.

    Kernels for different processors add up in different orders, by which fp32 outputs differ by some 1e-6. For dynamic
    int8, kernels also quantize activations differently, by up to 0.03 between x86 and Arm. Wrong kernels differ by 0.9
    and more.
    """
    return _FLOAT_SHARES.get(scheme, _OTHER_SHARE) if scheme is not None else _OTHER_SHARE


class Differences:
    """Differences of a device's outputs from this machine's by output name; each output has its own bound.

    Attributes:
        finite: Whether all outputs of the device have the right shape and are finite.
        equal: Whether all outputs of the device have the same type and bits as this machine's.
    """

    def __init__(self) -> None:
        self.finite = self.equal = True
        self._largest, self._most = dict[str, float](), dict[str, float]()

    def add(self, name: str, here: NDArray[Any], there: NDArray[Any]) -> bool:
        """Compare an output of one input row; return whether the device's output is finite and has the right shape."""
        self.equal &= here.dtype == there.dtype and here.shape == there.shape and here.tobytes() == there.tobytes()
        here, there = here.astype(np.float64), there.astype(np.float64)
        self.scale(name, here)
        if here.shape != there.shape or not np.isfinite(there).all():
            self.finite = self.equal = False
            return False
        self._largest[name] = max(self._largest.get(name, 0.0), float(np.abs(here - there).max()))
        return True

    def scale(self, name: str, here: NDArray[Any]) -> None:
        """Raise the bound of the output `name` to the largest number that this machine computed for a row.

        Rows that only this machine computed count too: if all compared rows had outputs near 0, the bound would be near
        0 without them.
        """
        self._most[name] = max(self._most.get(name, 0.0), float(np.abs(here).max()))

    def worst(self, share: float) -> tuple[float, float]:
        """Return (largest difference, allowed difference) of the output that uses the largest share of what is allowed.

        Both are 0 if nothing could be compared.

        Args:
            share: Allowed difference of an output, as a fraction of its largest number on this machine.
        """
        name = max(self._largest, key=lambda n: self._largest[n] / max(self._most[n], 1e-30), default="")
        return self._largest.get(name, 0.0), share * self._most.get(name, 0.0)


def compare_answers(
    variant: Variant, feeds: Sequence[Feed], answers: Sequence[Mapping[str, NDArray[Any]]], provenance: Provenance
) -> AnswerCheck:
    """Run the inputs on this machine and compare the outputs with those that the device returned.

    Args:
        variant: The model file.
        feeds: The inputs to run.
        answers: The device's outputs for each input, by name.
        provenance: Whether the device's outputs were measured or emulated.

    Returns:
        The result of the comparison. It fails if outputs differ too much, are missing, have another shape or are not
        finite.
    """
    predictor = variant.file.open(1)
    differences = Differences()
    differences.finite = differences.equal = len(answers) == len(feeds)
    for feed, outputs in zip(feeds, answers, strict=False):
        for name, value in predictor.run(add_missing_inputs(predictor, feed)).items():
            differences.add(name, np.asarray(value), np.asarray(outputs.get(name, np.nan)))
    largest, tolerance = differences.worst(tolerated_share(variant.scheme))
    return AnswerCheck(
        variant=variant.name,
        rows=len(feeds),
        largest=largest,
        tolerance=tolerance,
        finite=differences.finite,
        provenance=provenance,
        against="inputs compared with this machine",
        equal=differences.equal,
    )
