"""How text becomes the rows of a corpus."""

from __future__ import annotations

from pydantic import ConfigDict, Field, model_validator

from pocketbert.core.loading.plain_numbers import PlainNumbers


class CorpusSettings(PlainNumbers):
    """How text becomes rows; the defaults are DistilBERT's (Sanh et al. 2019, arXiv 1910.01108, and its code)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: int = Field(512, ge=4, le=8192, description="Longest row in tokens, special tokens included.")
    shortest: int = Field(12, ge=1, description="Rows of fewer tokens, special ones included, are dropped.")
    unknown_share: float = Field(
        0.5, gt=0, le=1, description="Rows of which this share or more is the unknown token are dropped."
    )
    packed: bool = Field(
        False,
        description="Whether rows are filled with one text after the other; else a row is one text or a piece of one.",
    )

    @model_validator(mode="after")
    def _some_rows_fit(self) -> CorpusSettings:
        if self.shortest > self.length:
            raise ValueError(
                f"'shortest' ({self.shortest}) is above 'length' ({self.length}): every row would be dropped"
            )
        return self
