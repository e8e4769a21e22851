"""Rows held out of training by the hash of their text: the same rows whatever the file's order."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence

from pocketbert.core.data.cells import GoldAnswer
from pocketbert.core.data.examples import Example
from pocketbert.core.data.spans import Span

_HASHES = 1 << 256


def hold_out(examples: Sequence[Example], rows: int) -> tuple[list[Example], list[Example]]:
    """Split off the `rows` examples whose hashes come first; equal texts always go together.

    Args:
        examples: All rows.
        rows: How many rows to hold out; never more than half of all rows are.

    Returns:
        The rows to keep, and the held-out rows, each in file order.
    """
    half = len(examples) // 2
    if min(rows, half) <= 0:
        return list(examples), []
    digests = [e.digest for e in examples]
    order = sorted(digests)
    limit = order[min(rows, half) - 1]
    # equal texts stay together; where the last of them are too many, none of them goes
    whole = bisect_right(order, limit) <= half
    keep: list[Example] = []
    held: list[Example] = []
    for example, digest in zip(examples, digests, strict=True):
        (held if digest < limit or (whole and digest == limit) else keep).append(example)
    return keep, held


def hold_out_share(
    examples: Sequence[Example], fraction: float, purpose: str = ""
) -> tuple[list[Example], list[Example]]:
    """Split off a share of the rows by the hash of their text.

    Equal texts go together, and further rows in the file move no row from one part to the other. Rows with a label that
    would be missing among the rows to keep are kept.

    Args:
        examples: All rows.
        fraction: Probability of each text to be held out.
        purpose: Makes the division independent of other ones: rows that were split off by their hash before would all
            be in one part.

    Returns:
        The rows to keep, and the held-out rows, each in file order.
    """
    limit = f"{int(fraction * _HASHES):064x}"
    rows = [(example, example.digest) for example in examples]
    chosen = {digest for _, digest in rows if _hashed(digest, purpose) < limit}
    known = {name for example, digest in rows if digest not in chosen for name in _label_names(example)}
    chosen -= {digest for example, digest in rows if not known.issuperset(_label_names(example))}
    return [e for e, digest in rows if digest not in chosen], [e for e, digest in rows if digest in chosen]


def _hashed(digest: str, purpose: str) -> str:
    return hashlib.sha256(f"{purpose} {digest}".encode()).hexdigest() if purpose else digest


def _label_names(example: Example) -> list[object]:
    """What a row is labelled with, as far as these are names: scores and answers to questions are not."""
    label = example.label
    if isinstance(label, tuple):
        return [v.label if isinstance(v, Span) else v for v in label if not isinstance(v, GoldAnswer)]
    return [] if label is None or isinstance(label, float) else [label]


def without(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[Example], int]:
    """Drop the rows whose text also occurs in `others`.

    Returns:
        What is left, and how many rows were dropped.
    """
    seen = {e.digest for e in others}
    left = [e for e in examples if e.digest not in seen]
    return left, len(examples) - len(left)
