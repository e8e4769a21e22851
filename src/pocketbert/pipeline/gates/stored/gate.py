"""The gate that compares the numbers in a file with those of the model, by value."""

from __future__ import annotations

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.types import Scheme
from pocketbert.pipeline.formats.gate import Gate, Subject, unread_gate
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.gates.stored.compare import as_floats, compare
from pocketbert.pipeline.gates.stored.prepared import PreparedModels
from pocketbert.pipeline.gates.stored.ranges import range_problems
from pocketbert.pipeline.gates.stored.schemes import scheme_problems

NAME = "stored"
UNDIVIDED = "outlier channels are as in the model"
"""What the gate says of files that were exported before outlier channels were divided."""
TOLD = 3
"""Problems that are told in full."""


def stored_gate(subject: Subject, models: PreparedModels) -> Gate:
    """Whether every constant of a file is a tensor of the model, in its place, and every tensor of the model is in the file.

    Names play no part. Compressed numbers may be off by what their scheme rounds, channel by channel. The ranges of a static
    file must be those that torch measured on the calibration texts, and each weight must have the bits of its scheme.

    Args:
        subject: The file.
        models: The model that it was made of.
    """
    from pocketbert.quantize import row_of

    unread, place = unread_gate(subject, NAME), place_of(subject.format)
    if unread is not None:
        return unread
    if models.absent is not None:
        return _skipped(subject, models.absent)
    try:
        graphs = place.constants(subject.path)
    except MissingBackendError as error:
        return _skipped(subject, str(error).rstrip("."))
    if graphs is None:
        return _skipped(subject, f"nothing reads the constants of {place.info.title} files")
    if subject.scheme is Scheme.FP32:
        graphs = as_floats(graphs)
    layout, lengths = place.layout_of(subject.path), subject.predictor.lengths
    found, note = compare(graphs, models.reference(subject.format, layout), lengths), ""
    row = row_of(subject.format, subject.scheme, subject.runtime)
    told, count = range_problems(found.products, subject.ranges, whole=row.weights.whole)
    told += scheme_problems(found.weights, subject.weights, row)
    if found.problems and (older := models.undivided(subject.format, layout)) is not None:
        as_before = compare(graphs, older, lengths)
        found, note = (found, note) if as_before.problems else (as_before, f"; {UNDIVIDED}")
    problems = [*found.problems, *told]
    more = len(problems) - TOLD
    note += f"; {count} ranges of activations are those of the calibration texts" if count else ""
    return Gate(
        name=NAME,
        file=subject.name,
        passed=not problems,
        value=float(len(problems)),
        bound=0.0,
        detail=f"{'; '.join(problems[:TOLD])}{f' ({more} more)' if more > 0 else ''}."
        if problems
        else f"all {found.count} tensors of the model are in the file, value by value{note}.",
    )


def _skipped(subject: Subject, why: str) -> Gate:
    return Gate(name=NAME, file=subject.name, passed=True, skipped=True, detail=f"not checked: {why}.")
