"""Gates that only a Core ML package has: label names inside it, and room in fp16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.packages.coreml_classifier import LABEL, SCORES
from pocketbert.core.predict.predictor import feed
from pocketbert.core.predict.score import probabilities
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.gates.common import unread_gate
from pocketbert.pipeline.gates.gate import Gate, Subject

SCANNED = 6
"""Golden rows whose every intermediate result is looked at."""
PROBABILITY = 2e-3
"""How far a probability may be from its logit's: softmax rounded to fp16 is within 1e-3."""


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
    names = subject.predictor.inputs
    encoded = subject.tokenizer.encode([r.input for r in rows])
    longest_first = sorted(encoded, key=len, reverse=True)[:SCANNED]
    batches = [feed(subject.predictor, subject.tokenizer, [e]) for e in longest_first]
    inputs = [{n: b[n].astype(np.int32) for n in names} for b in batches]
    own = [_labels(subject), _classifier(subject, inputs)]
    return [*(own if subject.task.name is TaskName.TEXT_CLASSIFICATION else []), _overflow(subject, inputs)]


def _labels(subject: Subject) -> Gate:
    from pocketbert.runtime.coreml.stored import StoredTensors

    inside = StoredTensors(subject.path).labels()
    wrong = [f"'{i}' instead of '{w}'" for i, w in zip(inside, subject.labels, strict=False) if i != w]
    if len(inside) != len(subject.labels):
        wrong.insert(0, f"{len(inside)} labels instead of {len(subject.labels)}")
    return Gate(
        name="metadata",
        file=subject.name,
        passed=not wrong,
        value=float(len(wrong)),
        bound=0.0,
        detail=f"labels inside the package: {'; '.join(wrong[:3])}."
        if wrong
        else f"{len(inside)} labels inside are the folder's.",
    )


def _classifier(subject: Subject, inputs: Sequence[Mapping[str, NDArray[np.int32]]]) -> Gate:
    """Whether the label and the probabilities that an app reads belong to the logits that everything else here reads."""
    from pocketbert.runtime.coreml.evaluator import Evaluator

    evaluator, differences, wrong = Evaluator(subject.path), list[float](), 0
    for one in inputs:
        out = evaluator.run(one)
        want = probabilities(np.asarray(out[subject.output], np.float32)[0], subject.task.score)
        table, label = out.get(SCORES), out.get(LABEL)
        have = np.array(list(table.values()) if isinstance(table, dict) else [])
        differences.append(worst_difference(have, want))  # NaN where there are more or fewer
        wrong += not (isinstance(table, dict) and label == max(table, key=lambda k: table[k]))
    worst = float(np.max(differences))  # keeps a NaN
    passed = worst <= PROBABILITY and not wrong
    return Gate(
        name="classifier",
        file=subject.name,
        passed=passed,
        value=worst,
        bound=PROBABILITY,
        detail=f"`{SCORES}` differs from the logits' probabilities by {worst:.2g}, `{LABEL}` is another label "
        f"than the most probable one in {wrong} of {len(inputs)} golden rows.",
    )


def _overflow(subject: Subject, inputs: Sequence[Mapping[str, NDArray[np.int32]]]) -> Gate:
    """Whether every intermediate result fits into the type that the program declares for it."""
    from pocketbert.runtime.coreml.half import LARGEST
    from pocketbert.runtime.coreml.scan import overflow_scan

    scan = overflow_scan(subject.path, inputs)
    largest = scan.largest.largest if scan.largest else 0.0
    return Gate(
        name="overflow",
        file=subject.name,
        passed=scan.first is None,
        value=largest,
        bound=float(LARGEST),
        detail=f"{scan.summary}; {scan.rows} golden rows, every operation.",
    )
