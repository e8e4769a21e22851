"""The settings of answers that a user chooses in addition to the model: thresholds, temperature, windows, pooling."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, PositiveInt

from pocketbert.core.loading.plain_numbers import PlainNumbers
from pocketbert.core.predict.pooling import PoolingKind
from pocketbert.core.predict.temperature import Temperature

Share = Annotated[float, Field(gt=0, lt=1)]


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
    unknown: Share | None = Field(
        None,
        description="text-classification: probability below which an answer is marked as unknown; it is compared with the largest "
        "probability, after the temperature; default none, so that no answer is marked.",
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
