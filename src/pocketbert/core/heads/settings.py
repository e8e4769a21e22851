"""What users decide about answers (`AnswerSettings`), in a recipe and in artifacts.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PositiveInt,
    field_validator,
    model_validator,
)

from pocketbert.core.data.source import PlainNumbers
from pocketbert.core.predict.score_records import Temperature
from pocketbert.core.predict.sentence_settings import PoolingKind, Similarity
from pocketbert.core.tasks import HEAD_NAME, check_head_name

Share = Annotated[float, Field(gt=0, lt=1)]
HeadName = Annotated[str, Field(pattern=HEAD_NAME), AfterValidator(check_head_name)]
"""Name of one of several heads: it becomes part of names of outputs and a key of answers."""


class UnknownSettings(PlainNumbers):
    """Which answers count as unknown: those below one threshold for all files, or below one fitted for each file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    below: Share | None = Field(
        None,
        description="an answer with a smaller probability is unknown; a number is the short form of {below: number}.",
    )
    accuracy: Share | None = Field(
        None,
        description="share of right labels that is wanted among the answers that are not unknown: each file gets the threshold "
        "that answers most and shows it on the held-out rows (data.holdout).",
    )

    @model_validator(mode="after")
    def _check(self) -> UnknownSettings:
        """Raise ValueError unless exactly one of the fields is given."""
        if (self.below is None) == (self.accuracy is None):
            raise ValueError(
                "takes either below, a probability, or accuracy, a share of right labels: {accuracy: 0.95}"
            )
        return self


def _long_form(value: object) -> object:
    """Convert the short form of the setting, a number, to {below: number}."""
    return value if value is None or isinstance(value, dict | UnknownSettings) else {"below": value}


def _short_form(settings: UnknownSettings | None) -> object:
    """Convert {below: number} back to the short form, the number."""
    return settings if settings is None else settings.below or {"accuracy": settings.accuracy}


_Unknown = Annotated[
    UnknownSettings | None,
    BeforeValidator(_long_form, json_schema_input_type=Share | UnknownSettings | None),
    PlainSerializer(_short_form),
]


class AnswerSettings(PlainNumbers):
    """Settings that turn a model's outputs into answers; the fields' descriptions say which task reads each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thresholds: Share | list[Share] | None = Field(
        None,
        description="multi-label: probability from which a label is given, one for all or one per label; default the "
        "ones that give the trained model the best F1 on training rows, 0.5 where nothing is trained.",
    )
    temperature: Temperature | None = Field(
        None,
        description="text-classification: what logits are divided by before the softmax, for all files; 1 leaves them as they are; "
        "default the temperature that suits each file best on the held-out rows (data.holdout), 1 without them.",
    )
    unknown: _Unknown = Field(
        None,
        description="text-classification: probability below which an answer is marked as unknown, or {accuracy: 0.95} to fit one for each "
        "file; it is compared with the largest probability, after the temperature; default none, so that no answer is marked.",
    )
    stride: PositiveInt = Field(128, description="question-answering: tokens that two windows of a long context share.")
    answer_length: PositiveInt = Field(30, description="question-answering: longest answer in tokens.")
    null_answers: bool = Field(
        False,
        description="question-answering: whether a question may have no answer; it then has none where the first token scores "
        "higher than every answer.",
    )
    pooling: PoolingKind | None = Field(
        None,
        description="feature-extraction: how token states become one vector; default what the model's own files say, else mean.",
    )
    normalize: bool | None = Field(
        None,
        description="feature-extraction: whether vectors get length 1; default what the model's own files say, else true.",
    )
    similarity: Similarity | None = Field(
        None,
        description="feature-extraction: what two vectors are compared with where pairs are scored; default what the model's own files "
        "say, else cosine.",
    )

    dimensions: list[PositiveInt] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="feature-extraction: lengths to which a vector may be cut, such as [64, 128], for a smaller index; a run that distils "
        "rotates the vectors so that their first numbers hold the most, and trains and scores each length; for a model that is only "
        "exported, the lengths that it was trained for.",
    )

    @field_validator("dimensions")
    @classmethod
    def _sort_dimensions(cls, values: list[int] | None) -> list[int] | None:
        """Return the numbers of dimensions in ascending order, each once."""
        return None if values is None else sorted(set(values))

    @property
    def unknown_below(self) -> float | None:
        """The probability below which answers of all files are unknown; None if unset, or fitted for each file."""
        return self.unknown.below if self.unknown is not None else None

    @property
    def unknown_accuracy(self) -> float | None:
        """The accuracy that answers above each file's fitted threshold should have; None if none is fitted."""
        return self.unknown.accuracy if self.unknown is not None else None
