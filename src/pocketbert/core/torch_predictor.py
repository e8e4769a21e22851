"""A torch module behind the same protocol as a phone's engine: the reference of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predictor import Arrays
from pocketbert.core.tasks import Task
from pocketbert.core.versions import version_of

if TYPE_CHECKING:
    import torch


class TorchPredictor:
    """Runs a transformers model with a head, fp32, without gradients.

    Args:
        model: The model; it is put into eval mode.
        task: Names the outputs.
        inputs: Names of the inputs that its family takes.
    """

    engine = "torch"
    lengths: tuple[int, ...] = ()

    def __init__(self, model: torch.nn.Module, task: Task, inputs: tuple[str, ...]) -> None:
        self.engine_version = version_of("torch") or "unknown"
        self.model = model.eval()
        self.inputs, self.outputs = inputs, task.outputs

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch; see `pocketbert.core.predictor.Predictor`."""
        import torch

        device = next(self.model.parameters()).device
        feed = {name: torch.from_numpy(np.ascontiguousarray(inputs[name])).to(device) for name in self.inputs}
        with torch.inference_mode():
            out = self.model(**feed)
        return {name: out[name].float().cpu().numpy() for name in self.outputs}
