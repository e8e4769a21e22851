"""How a general stage reads plain text: what the sections of all such methods share."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from pocketbert.core.recipe.methods import Stage
from pocketbert.core.recipe.section import Rate
from pocketbert.core.types import MaskingKind, SecondSegment


class GeneralText(Stage):
    """How a general stage reads its plain text."""

    general: ClassVar[bool] = True

    masking: MaskingKind = Field(MaskingKind.NONE, description="How tokens to hide are chosen.")
    mask_share: Rate = Field(0.15, description="Share of the tokens to hide.")
    smoothing: float = Field(
        0.7,
        ge=0,
        description="With masking: frequency, rare tokens are hidden more often: weight count^-smoothing; 0 hides all alike.",
    )
    vectors: Path | None = Field(
        None,
        description="With masking: similar, a text file of word vectors (GloVe, word2vec, fastText) by which words are similar; default "
        "the teacher's own embeddings.",
    )
    pairs: bool = Field(
        False,
        description="Cut rows into two segments, of which every other second one is from elsewhere, as for next-sentence prediction.",
    )
    second: SecondSegment = Field(
        SecondSegment.ELSEWHERE,
        description="With pairs, what every other second segment is: a piece of another row (elsewhere, next-sentence prediction), or the "
        "text before the first one (swapped, sentence-order prediction).",
    )
