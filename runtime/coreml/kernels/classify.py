"""The last operation of a classifier."""

from __future__ import annotations

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, Texts, always, kernel
from pocketbert.runtime.coreml.mil_types import Dtype


@kernel(always(Dtype.STRING, Dtype.FP64), exact=True)
def classify(probabilities: Array, classes: Texts) -> tuple[str, dict[str, float]]:
    """The likeliest label, and the probability of each.

    Args:
        probabilities: As many elements as there are classes.
        classes: Labels.

    Returns:
        The first of the likeliest labels; label to probability.
    """
    values = probabilities.reshape(-1)
    if values.size != len(classes):
        raise ValueError(f"{values.size} probabilities for {len(classes)} classes")
    return classes[int(np.argmax(values))], dict(zip(classes, values.tolist(), strict=True))
