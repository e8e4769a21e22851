"""What an adapter is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.families import Family
from pocketbert.core.predict.pooling import DEFAULT_POOLING, Pooling
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout


@dataclass(frozen=True)
class ExportPlan:
    """Settings for which a model is prepared for export.

    Attributes:
        family: Its row of the family table: names the inputs and where the layers are.
        task: Names the outputs.
        format: What the graph will be written as: the cheapest graph for one engine is not the cheapest for another.
        layout: How activations lie in memory.
        pooling: How `sentence_embedding` is made, where the task has that output.
        samples: Inputs [B, L] of real text by name, to measure how large numbers become inside the model.
        sentences: Inputs [B, L] of texts that are the same in every run for a model, to find outlier channels on; empty to
            look for none.
    """

    family: Family
    task: Task
    format: Format = Format.ONNX
    layout: Layout = Layout.PLAIN
    pooling: Pooling = DEFAULT_POOLING
    samples: Sequence[Mapping[str, NDArray[np.int64]]] = ()
    sentences: Sequence[Mapping[str, NDArray[np.int64]]] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return self.task.outputs
