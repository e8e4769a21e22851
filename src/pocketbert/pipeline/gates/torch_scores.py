"""Scores of the torch model on labelled rows, which those of exported files are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.models.checkpoints import missing_for_weights
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.predict.score import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.tasks import Task
from pocketbert.pipeline.formats.gate import Gate, Subject
from pocketbert.pipeline.formats.place import bounds_of
from pocketbert.pipeline.gates.common import drop_gate
from pocketbert.pipeline.reference import reference_model

WEIGHTS = "model.safetensors"


def folder_model(folder: Path, task: Task, changed: Sequence[str]) -> tuple[TorchPredictor | None, str]:
    """Open the torch model that an artefact folder's files were made of.

    Args:
        folder: The artefact folder.
        task: What it does.
        changed: Files that are not as the folder lists them.

    Returns:
        The model, or None and the reason why it cannot be run here.
    """
    if not (folder / WEIGHTS).is_file() or WEIGHTS in changed:
        return None, f"the folder has no {WEIGHTS}, or another one than it lists."
    if missing := missing_for_weights():
        return None, f"{' and '.join(missing)} cannot be found here."
    return reference_model(open_model_folder(str(folder)), task), ""


class TorchScores:
    """Compares exported files with the torch model on labelled rows; it scores each set once for each length.

    Args:
        tokenizer: Pads.
        known: Its score on ``eval``, where a run recorded it.
        model: The torch model, where it can be run.
        absent: Why it cannot be; empty where it can, or where no folder promises it.
    """

    def __init__(self, tokenizer: TextTokenizer, known: Score | None, model: Predictor | None, absent: str) -> None:
        self.tokenizer, self.known, self.model, self.absent = tokenizer, known, model, absent
        self._scores: dict[tuple[str, int], Score] = {}

    def gates(self, subject: Subject, rows: EvalSet, score: Score) -> list[Gate]:
        """Compare the score of one file on a set; nothing for files that are made from exported ones."""
        if not subject.exported:
            return []
        if self.absent:
            detail = f"not compared with the torch model on {rows.name}: {self.absent}"
            return [Gate(name="drop", file=subject.name, passed=True, skipped=True, detail=detail)]
        reference = self._reference(rows, subject)
        if reference is None:
            return []
        # they compute what torch computes; a row or two near a tie may flip by rounding
        bound = max(bounds_of(subject).drop, 2 / score.rows)
        return [drop_gate(subject.name, score, reference, bound, "the torch model")]

    def _reference(self, rows: EvalSet, subject: Subject) -> Score | None:
        if rows.name == "eval" and self.known is not None:
            return self.known
        if self.model is None:
            return None
        length = subject.tokenizer.max_length
        if (rows.name, length) not in self._scores:
            label = f"the torch model on {rows.name}"
            self._scores[rows.name, length] = evaluate(self.model, self.tokenizer, rows.within(length), label=label)[0]
        return self._scores[rows.name, length]
