"""The untouched model in the place of a file, but for one fault: what the matrix has to see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.matrix import measure
from support.matrix.measure import Model


class Changed:
    """A predictor that answers as the model does.

    Args:
        model: The model.
        mask: Whether the mask is read.
        nan_at: The call whose answers are NaN, from 1; -1 for none.
        factor: By which all answers are multiplied.
    """

    engine, engine_version = "changed", "1"
    lengths: tuple[int, ...] = ()

    def __init__(self, model: Model, *, mask: bool = True, nan_at: int = -1, factor: float = 1.0) -> None:
        self.model, self.mask, self.nan_at, self.factor, self.calls = model, mask, nan_at, factor, 0
        self.inputs, self.outputs = model.row.inputs, model.task.outputs

    def run(self, inputs: Mapping[str, Any]) -> Any:
        """Answer as the model, but for the fault."""
        self.calls += 1
        fed = {**inputs} if self.mask else {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}
        factor = np.nan if self.calls == self.nan_at else self.factor
        return {name: value * factor for name, value in self.model.reference.run(fed).items()}


def replace_files(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Measure the models themselves instead of files, with their answers times a factor."""
    made, make = list[Model](), measure.make_model
    monkeypatch.setattr(measure, "make_model", lambda *args: made.append(make(*args)) or made[-1])
    monkeypatch.setattr(measure._Files, "write", lambda *_: Path())
    monkeypatch.setattr(measure, "open_file", lambda *_, **__: Changed(made[-1], factor=factor))
