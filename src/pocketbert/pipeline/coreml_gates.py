"""Gates that only a Core ML package has: label names inside it, and room in fp16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pocketbert.core.golden import GoldenRow
from pocketbert.core.predictor import feed
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.gates import Gate, Subject, unread_gate

SCANNED = 6
"""Golden rows whose every intermediate result is looked at."""


def coreml_gates(subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
    """What is asked of a Core ML package beside what every file is asked; nothing of other files.

    Args:
        subject: The file.
        rows: Golden rows.
    """
    if subject.format is not Format.COREML:
        return []
    unread = unread_gate(subject, "overflow")
    if unread is not None:
        return [unread]
    labels = [_labels(subject)] if subject.task.name is TaskName.TEXT_CLASSIFICATION else []
    return [*labels, _overflow(subject, rows)]


def _labels(subject: Subject) -> Gate:
    from pocketbert.runtime.coreml.stored import StoredTensors

    inside = StoredTensors(subject.path).labels()
    wrong = [f"'{i}' instead of '{w}'" for i, w in zip(inside, subject.labels, strict=False) if i != w]
    if len(inside) != len(subject.labels):
        wrong.insert(0, f"{len(inside)} labels instead of {len(subject.labels)}")
    return Gate(name="metadata", file=subject.name, passed=not wrong, value=float(len(wrong)), bound=0.0,
                detail=f"labels inside the package: {'; '.join(wrong[:3])}." if wrong
                else f"{len(inside)} labels inside are the folder's.")  # fmt: skip


def _overflow(subject: Subject, rows: Sequence[GoldenRow]) -> Gate:
    """Whether every intermediate result fits into the type that the program declares for it."""
    from pocketbert.runtime.coreml.half import LARGEST
    from pocketbert.runtime.coreml.scan import overflow_scan

    encoded = subject.tokenizer.encode([r.input for r in rows])
    longest_first = sorted(encoded, key=len, reverse=True)[:SCANNED]
    names = subject.predictor.inputs
    batches = (feed(subject.predictor, subject.tokenizer, [e], subject.side) for e in longest_first)
    scan = overflow_scan(subject.path, ({n: b[n].astype(np.int32) for n in names} for b in batches))
    largest = scan.largest.largest if scan.largest else 0.0
    return Gate(name="overflow", file=subject.name, passed=scan.first is None, value=largest, bound=float(LARGEST),
                detail=f"{scan.summary}; {scan.rows} golden rows, every operation.")  # fmt: skip
