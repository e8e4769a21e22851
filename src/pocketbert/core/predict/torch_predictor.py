"""A torch module behind the same protocol as a phone's engine: the reference of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.host.versions import version_of
from pocketbert.core.predict.pooling import DEFAULT_POOLING, Pooling, PoolingKind
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    import torch

EMBEDDING = "sentence_embedding"


class TorchPredictor:
    """Runs a transformers model with a head, fp32, without gradients.

    transformers has no class that gives sentence embeddings, so they are computed here, in float64 and without the code
    that goes into files.

    Args:
        model: The model; it is put into eval mode.
        task: Names the outputs.
        inputs: Names of the inputs that its family takes.
        pooling: How sentence embeddings are made, where they are an output.
    """

    engine = "torch"
    lengths: tuple[int, ...] = ()

    def __init__(
        self, model: torch.nn.Module, task: Task, inputs: tuple[str, ...], pooling: Pooling = DEFAULT_POOLING
    ) -> None:
        self.engine_version = version_of("torch") or "unknown"
        self.model = model.eval()
        self.task, self.inputs, self.outputs, self.pooling = task, inputs, task.outputs, pooling

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch; see `pocketbert.core.predict.predictor.Predictor`."""
        import torch

        device = next(self.model.parameters()).device
        feed = {name: torch.from_numpy(np.ascontiguousarray(inputs[name])).to(device) for name in self.inputs}
        with torch.inference_mode():
            out = self.model(**feed)
        given = [name for name in self.outputs if name != EMBEDDING]
        arrays: Arrays = {name: out[name].float().cpu().numpy() for name in given}
        if EMBEDDING in self.outputs:
            arrays[EMBEDDING] = embeddings(arrays[given[0]], inputs["attention_mask"], self.pooling)
        return arrays


def embeddings(
    states: NDArray[np.generic], attention_mask: NDArray[np.generic], pooling: Pooling
) -> NDArray[np.float32]:
    """Sentence embeddings by their definition, text by text; see `pocketbert.core.predict.pooling.Pooling`.

    Args:
        states: Token states [B, L, H].
        attention_mask: [B, L], 1 for real tokens; at least one in each row.
        pooling: How.

    Returns:
        [B, H].
    """
    vectors = np.empty((states.shape[0], states.shape[2]), np.float64)
    for i, (tokens, mask) in enumerate(zip(states.astype(np.float64), attention_mask, strict=True)):
        own = tokens[:1] if pooling.kind is PoolingKind.CLS else tokens[mask == 1]
        vectors[i] = own.mean(0)
        if pooling.normalize:
            vectors[i] /= max(float(np.linalg.norm(vectors[i])), 1e-12)
    return vectors.astype(np.float32)
