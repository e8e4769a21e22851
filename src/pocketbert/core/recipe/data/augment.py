"""How training rows are multiplied by replacing words."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveInt

from pocketbert.core.recipe.section import Fraction, Section


class AugmentSection(Section):
    """Copies of the training rows in which words are replaced by similar ones (TinyBERT's data augmentation)."""

    copies: PositiveInt = Field(20, le=1000, description="Copies of each row, at most; the row itself is kept.")
    probability: Fraction = Field(0.4, description="Chance of each word to be replaced.")
    candidates: PositiveInt = Field(15, le=1000, description="Replacements to choose from, the nearest ones.")
    masked_lm: bool | None = Field(
        None,
        description="Ask the teacher's masked-language-model head about words of a single piece; default where it has one.",
    )
    vectors: Path | None = Field(
        None,
        description="Word vectors for the other words, a text file with a word and its numbers on each line (GloVe, word2vec, fastText); "
        "default the teacher's own embeddings.",
    )
