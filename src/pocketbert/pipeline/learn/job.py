"""What the training stages of one folder share: rows, and the one loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.updates import Updates
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Curve

if TYPE_CHECKING:
    from pocketbert.distill.training.loop import Outcome
    from pocketbert.distill.training.train_set import TrainData


@dataclass(frozen=True)
class TrainingJob:
    """What the training stages of one folder share.

    Attributes:
        recipe: What to do.
        source: Where the tokenizer comes from.
        data: The run's data.
        length: Longest input in tokens.
        work: Where checkpoints go.
        metrics: A .jsonl file for losses.
    """

    recipe: Recipe
    source: ModelFolder
    data: RunData
    length: int
    work: Path
    metrics: Path

    def rows(self, purpose: str) -> TrainData:
        """Training rows as the task learns from them: of fill-mask with words hidden anew at every step.

        Args:
            purpose: What is trained; keys the random choices.
        """
        from pocketbert.distill.text.corpora.encoded_rows import EncodedRows
        from pocketbert.distill.text.general_set import GeneralSet
        from pocketbert.distill.text.masking.masking import Masking
        from pocketbert.distill.training.train_set import TrainSet

        rows = self.data.splits["train"]
        tokenizer = TextTokenizer(self.source.tokenizer_folder, self.length)
        if self.data.head.task.name is not TaskName.FILL_MASK:
            return TrainSet(rows, tokenizer)
        assert tokenizer.mask_id is not None
        encoded = EncodedRows(rows.encoded, tokenizer.vocabulary_size)
        masking = Masking(
            encoded.counts, tokenizer.mask_id, tokenizer.special_ids, self.recipe.seed, purpose, smoothing=0.0
        )
        return GeneralSet(encoded, tokenizer, masking)

    def train(self, model: Any, objective: Any, settings: Updates, purpose: str) -> Curve:
        """Train a model in place on the task's rows."""
        from pocketbert.distill.training.loop import train

        rows, seed = self.rows(purpose), self.recipe.seed
        settings = settings.for_rows(len(rows.lengths))
        return curve_of(purpose, train(model, objective, rows, settings, seed, purpose, self.work, self.metrics))


def curve_of(purpose: str, outcome: Outcome) -> Curve:
    """The losses of a stage as they are kept.

    Args:
        purpose: What was trained.
        outcome: What training left behind.
    """
    history = outcome.history
    return Curve(
        stage=purpose,
        steps=[r.step for r in history],
        loss=[r.loss for r in history],
        terms={k: [r.terms.get(k) for r in history] for k in dict.fromkeys(k for r in history for k in r.terms)},
        dtype=outcome.dtype,
        threads=outcome.threads,
    )
