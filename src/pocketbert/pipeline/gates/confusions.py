"""Which labels a file takes for one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.metrics import confusion, most_confused
from pocketbert.core.predict.readout import whole
from pocketbert.pipeline.formats.gate import Subject


def confusions_of(subject: Subject, rows: EvalSet, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Label pairs that a file confuses most: gold, predicted, rows.

    Args:
        subject: The file.
        rows: Labelled rows of a classification task.
        names: Labels in the order of the logits.
    """
    _, logits = evaluate(subject.predictor, subject.tokenizer, rows, batch=32)
    gold = np.asarray(rows.rows.truth, np.int64)
    counts = confusion(gold, whole(logits).argmax(-1).astype(np.int64), len(names))
    return most_confused(counts, names)
