"""Rows held out of training by the hash of their text: the same rows whatever the file's order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pocketbert.core.data.examples import Example


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


def without(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[Example], int]:
    """Drop the rows whose text also occurs in `others`.

    Returns:
        What is left, and how many rows were dropped.
    """
    seen = {e.digest for e in others}
    left = [e for e in examples if e.digest not in seen]
    return left, len(examples) - len(left)
