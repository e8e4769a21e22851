"""The data of a recipe: what to learn from, and what to judge by."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt, field_validator

from pocketbert.core.data.limits import CORPUS_ROWS
from pocketbert.core.data.numerals import name_problems
from pocketbert.core.data.source import DataSource, EvalSource
from pocketbert.core.recipe.data.augment import AugmentSection
from pocketbert.core.recipe.data.corpus import CorpusSettings
from pocketbert.core.recipe.section import Section

LONGEST = 8192
"""Most tokens of an input that a recipe may ask for."""


class CorpusSource(DataSource):
    """Plain text for general distillation: a file, a data set, or a corpus that `pocketbert data prepare` wrote.

    Of the columns only `text` is read; `path` may name a prepared corpus, a folder.
    """

    share: float = Field(
        1.0, gt=0, description="How much of the mixture comes from here, relative to the other sources."
    )
    max_rows: int = Field(
        CORPUS_ROWS,
        gt=0,
        le=1 << 40,
        description="Most rows of a file, which may have 512 bytes for each of them in all; more end the command with exit code 2.",
    )


class CorpusSection(CorpusSettings):
    """Plain text for general distillation, tokenized once."""

    sources: list[CorpusSource] = Field(min_length=1, description="Where the text comes from.")
    rows: PositiveInt | None = Field(
        None, description="Rows drawn for training, by the sources' shares; default as many as there are."
    )


def _told_apart(names: list[str]) -> list[str]:
    if problems := name_problems(names):
        raise ValueError("; ".join(problems))
    return names


class DataSection(Section):
    """What to learn from and what to judge by; empty where a ready model is only exported."""

    train: DataSource | None = Field(None, description="Training rows; not needed when nothing is trained.")
    eval: EvalSource | None = Field(
        None, description="Rows that decide the score; never trained on. Without them, golden rows decide."
    )
    corpus: CorpusSection | None = Field(None, description="Plain text for general stages.")
    augment: AugmentSection | None = Field(
        None, description="Multiply the training rows by replacing words, for stages with augmented: true."
    )
    holdout: int = Field(
        0,
        ge=0,
        description="Training rows held out by hash: the quantized file is compared with fp32 on them, and each classifier's temperature is "
        "fitted on them.",
    )
    selection: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the eval rows, by hash, that choose the files inside quantize.budget and are not scored; default 0.5 with a "
        "budget, else none.",
    )
    labels: Annotated[list[str], AfterValidator(_told_apart)] | None = Field(
        None, min_length=2, description="Label names, in order of their ids."
    )
    max_length: int | None = Field(
        None,
        ge=4,
        le=LONGEST,
        description="Longest input in tokens; default 128 with data, else the model's own.",
    )

    @field_validator("eval", mode="before")
    @classmethod
    def _as_eval(cls, source: object) -> object:
        """A source of rows is one of rows to score as well."""
        if isinstance(source, DataSource) and not isinstance(source, EvalSource):
            return source.model_dump(exclude_unset=True)
        return source

    @property
    def eval_source(self) -> DataSource | None:
        """Where the rows that decide the score are read from: the training rows' source for a fraction of these."""
        return self.train if self.eval is not None and self.eval.fraction is not None else self.eval
