"""The settings of answers that a user chooses in addition to the model: thresholds, temperature, windows, pooling."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PositiveInt, model_validator

from pocketbert.core.loading.plain_numbers import PlainNumbers
from pocketbert.core.predict.pooling import PoolingKind
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.predict.temperature import Temperature

Share = Annotated[float, Field(gt=0, lt=1)]


class UnknownSettings(PlainNumbers):
    """From which probability a label is believed: a threshold of all files, or an accuracy to fit one of each file for."""

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
    def _one(self) -> UnknownSettings:
        if (self.below is None) == (self.accuracy is None):
            raise ValueError(
                "takes either below, a probability, or accuracy, a share of right labels: {accuracy: 0.95}"
            )
        return self


def _long_form(value: object) -> object:
    return value if value is None or isinstance(value, dict | UnknownSettings) else {"below": value}


def _short_form(chosen: UnknownSettings | None) -> object:
    return chosen if chosen is None else chosen.below or {"accuracy": chosen.accuracy}


_Unknown = Annotated[
    UnknownSettings | None,
    BeforeValidator(_long_form, json_schema_input_type=Share | UnknownSettings | None),
    PlainSerializer(_short_form),
]


class AnswerSettings(PlainNumbers):
    """How outputs become answers; each task reads its own part. Fields say what they mean in their descriptions."""

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

    @property
    def unknown_below(self) -> float | None:
        """The "unknown" threshold of all files; None where there is none, or one is fitted for each."""
        return self.unknown.below if self.unknown is not None else None

    @property
    def unknown_accuracy(self) -> float | None:
        """The accuracy that "unknown" thresholds are fitted for; None where none is fitted."""
        return self.unknown.accuracy if self.unknown is not None else None
