"""What a search reads: the exported files, and rows that rank, rows that choose and rows that score, none of them twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.split import hold_out_share
from pocketbert.core.disk.files import sha256_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenization import Text
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.direct.search.sources import Sources
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.gates.confidence import HELD_OUT
from pocketbert.pipeline.gates.stored.prepared import PreparedModels
from pocketbert.pipeline.learn.data import RunData, load_data

SCORING_SHARE = 0.5
"""Share of the evaluation rows that take no part in the choice and score what was chosen."""
TIMED_TEXTS = 100
"""Texts that latencies are measured on."""


@dataclass(frozen=True)
class Material(Sources):
    """What the candidates of all formats are made from and measured on.

    Attributes:
        choosing: Rows whose score decides whether a candidate is inside.
        scoring: Data of the run that writes the folder, with the choosing rows to fit confidences on.
        kept_apart: Number of its rows that are scored and took no part in the choice.
        student: Name of the student, where several are considered.
        against: The same of the recipe's own student, whose exported files decide what is lost; None for its own material.
    """

    choosing: EvalSet
    scoring: RunData
    kept_apart: int
    student: str | None = None
    against: Material | None = None

    @cached_property
    def choosing_digest(self) -> str:
        """Digest of the choosing rows and their labels."""
        rows = self.choosing.rows
        return sha256_json([[r.ids.tolist() for r in rows.encoded], [repr(e.label) for e in rows.examples]])

    @cached_property
    def prepared(self) -> PreparedModels:
        """The model's weights, that the numbers in candidates are compared with."""
        return PreparedModels(self.model.weights, self.model.task, self.model.length)

    @cached_property
    def texts(self) -> list[Text]:
        """Some of the choosing rows' texts."""
        chosen = sorted(self.choosing.rows.examples, key=lambda e: e.digest)[:TIMED_TEXTS]
        return [e.input for e in chosen]


def material_of(model: RunModel, bases: Mapping[Format, Path]) -> Material:
    """Read the rows of a recipe and divide those for evaluation by the hash of their text.

    Args:
        model: The exported model, with a recipe that names both files.
        bases: The exported file of each format.

    Raises:
        InputError: If a file cannot be read, no calibration row is left that is no evaluation row, or a part has no rows.
    """
    data, tokenizer = load_data(model.recipe, model.folder), model.tokenizer
    assert model.recipe.data.eval_source is not None
    title = model.recipe.data.eval_source.title
    choosing, scoring = hold_out_share(data.splits["eval"].examples, SCORING_SHARE)
    if not choosing or not scoring:
        what = f"{Path(title).name} has {len(choosing) + len(scoring):,} rows, too few for rows that choose and rows that score."
        raise InputError(Problem("data.eval", what, "Give more rows: some hundred of each label are better than ten."))
    parts = [data.head.prepare(rows, tokenizer, title) for rows in (choosing, scoring)]
    if not len(parts[0].truth):
        what = f"{Path(title).name} has no scored rows; what a candidate loses cannot be measured on it."
        raise InputError(Problem("data.eval", what, "Give rows with labels."))
    sure = data.head.task.name is TaskName.TEXT_CLASSIFICATION
    fitted = [EvalSet(HELD_OUT, data.head, parts[0])] if sure else []
    return Material(
        model,
        bases,
        data.calibration(tokenizer),
        EvalSet("rows that choose", data.head, parts[0]),
        replace(data, splits={**data.splits, "eval": parts[1]}, selection=fitted),
        len(scoring),
    )
