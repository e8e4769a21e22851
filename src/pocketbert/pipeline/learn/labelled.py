"""The labelled rows that no weight was trained on: those that are scored, and those that choose files inside a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.examples import Example
from pocketbert.core.data.split import hold_out_share
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.score import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import head_with, read_training, scoring_batch, teacher_vectors
from pocketbert.pipeline.reference import reference_model

EVAL, SELECTION, HOLDOUT = "eval", "selection", "holdout"


@dataclass(frozen=True)
class LabelledRows:
    """The labelled rows of a run that no weight was trained on.

    Attributes:
        recipe: What is done; `data.selection` divides the eval rows.
        data: Its data.
        run: The run folder, with the teacher.
        length: Longest input in tokens.
    """

    recipe: Recipe
    data: RunData
    run: Path
    length: int

    def named(self, name: str, weights: Path) -> EvalSet | None:
        """Return some of the rows as a model reads them.

        Args:
            name: ``eval`` for the rows that decide the score and choose nothing; ``selection`` for the eval rows that choose files
                inside a budget; ``holdout``.
            weights: Folder of the model, with its tokenizer.

        Returns:
            The rows; None where the recipe has none, or none with labels.

        Raises:
            InputError: If a part of the eval rows is empty.
        """
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        places = self._places(name, split.examples if split is not None else ())
        if split is None or not places:
            return None
        head = head_with(self.recipe, self.data, read_training(weights).thresholds)
        rows = head.prepare([split.examples[i] for i in places], TextTokenizer(weights, self.length), name)
        if not len(rows.truth):  # vectors without scores: the teacher's are what is wanted, known on eval only
            if name == HOLDOUT:
                return None
            rows = replace(rows, truth=teacher_vectors(self.run / "teacher")[places])
        return EvalSet(name, head, rows)

    def count(self, name: str) -> int:
        """Count some of the rows without tokenizing them: as many as `named` returns, 0 where it returns None."""
        split = self.data.splits.get(HOLDOUT if name == HOLDOUT else EVAL)
        if split is None or (name == HOLDOUT and not len(split.truth)):
            return 0
        return len(self._places(name, split.examples))

    def _places(self, name: str, examples: Sequence[Example]) -> list[int]:
        """Places of the rows in their split."""
        share = self.recipe.data.selection
        if name == HOLDOUT or share is None:
            return [] if name == SELECTION else [*range(len(examples))]
        scored, choosing = hold_out_share(examples, share, SELECTION)
        if examples and not (scored and choosing):
            what = f"{len(examples):,} rows are too few for rows that choose files and rows that score these."
            fix = "Give more rows: some hundred of each label are better than ten."
            raise InputError(Problem("data.eval", what, fix))
        wanted = {e.digest for e in (choosing if name == SELECTION else scored)}
        return [i for i, e in enumerate(examples) if e.digest in wanted]

    def torch_score(self, name: str, weights: Path) -> Score | None:
        """Score a torch model of the run on some of the rows; None where there are none.

        A model's recorded score is that of all eval rows: files of a run that divides them are compared with this one.

        Args:
            name: See `named`.
            weights: Folder of the model.
        """
        rows = self.named(name, weights)
        if rows is None:
            return None
        task = self.data.head.task
        predictor = reference_model(open_model_folder(str(weights)), task)
        tokenizer = TextTokenizer(weights, self.length)
        return evaluate(predictor, tokenizer, rows, scoring_batch(task), f"{weights.name} in torch on {name}")[0]
