"""The TFLite exporter: litert-torch, one signature per length with shared weights, int32 inputs.

`export` writes a file for LiteRT, `export_mediapipe` one for MediaPipe Tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families import Family
from pocketbert.core.host.quiet import silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.tasks import ScoreFunction, Task
from pocketbert.export.prepare import sample_inputs

SIGNATURE = "seq_{length}"
"""Key of the signature for one length."""
MEDIAPIPE_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PROBABILITIES = "probabilities"
EMBEDDING = "sentence_embedding"


def export(module: nn.Module, family: Family, task: Task, lengths: Sequence[int], path: Path) -> None:
    """Convert a module prepared for export to a TFLite file with a signature ``seq_N`` per length and shared weights.

    A free length does not convert (litert-torch 0.10 specialises it), so lengths are listed.

    Args:
        module: A module from `pocketbert.export.prepare.prepare`.
        family: The model's row of the family table; it names the inputs.
        task: The model's task; it names the outputs.
        lengths: Tokens of the inputs [1, L], int32.
        path: The file to write.

    Raises:
        MissingBackendError: If litert-torch is not installed.
    """
    named = _Named(module, task.outputs).eval()
    samples = {n: sample_inputs(family.inputs, n, family.extra) for n in sorted(set(lengths))}
    _convert({SIGNATURE.format(length=n): (named, sample) for n, sample in samples.items()}, path)


def export_mediapipe(module: nn.Module, family: Family, task: Task, length: int, path: Path) -> None:
    """Convert a module prepared for export to a TFLite file for MediaPipe Tasks, without metadata yet.

    The metadata is written afterwards, by `pocketbert.export.tflite_metadata`.

    Args:
        module: A module from `pocketbert.export.prepare.prepare`.
        family: Names the inputs that the module takes; the file has a third one even for a family without segments.
        task: text-classification or feature-extraction.
        length: Tokens of the inputs [1, L].
        path: The file to write.
    """
    whole = _MediaPipe(module, family.inputs, task).eval()
    _convert({SIGNATURE.format(length=length): (whole, sample_inputs(MEDIAPIPE_INPUTS, length))}, path)


def _convert(signatures: Mapping[str, tuple[nn.Module, dict[str, Tensor]]], path: Path) -> None:
    """Convert (module, sample inputs) of each signature key with litert-torch, and write them to one TFLite file."""
    if version_of("litert-torch") is None:
        raise MissingBackendError("litert-torch", "pip install 'pocketbert[tflite]'")
    limit = sys.getrecursionlimit()
    with silence_output():
        import litert_torch
        from litert_torch._convert import core

        converter = litert_torch.Converter()
        for name, (module, sample) in signatures.items():
            converter.signature(name, module, sample_kwargs=sample)
        # lowering decomposes every graph itself: doing so before it is a second trace, which changes no byte of the file
        trace = partial(core.export_torch_signature, run_decompositions=False)
        try:
            with mock.patch.object(core, "export_torch_signature", trace):
                # large constants stay out of the graph until the file is written: less time and memory, the same file
                model = converter.convert(lightweight_conversion=True)
            model.export(str(path))
        finally:
            # it is 100,000 afterwards, with which deeply nested JSON would end the process instead of being refused
            sys.setrecursionlimit(limit)


class _Named(nn.Module):
    """A module that returns its outputs as a dictionary, whose keys become the output names of the TFLite file."""

    def __init__(self, module: nn.Module, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.outputs = module, outputs

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.outputs, self.module(**inputs), strict=True))


class _MediaPipe(nn.Module):
    """A module as MediaPipe needs it: three inputs, and probabilities or one embedding as the only output."""

    def __init__(self, module: nn.Module, inputs: tuple[str, ...], task: Task) -> None:
        super().__init__()
        self.module, self.inputs, self.task = module, inputs, task

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Return {output name: the embedding or the probabilities}; inputs are [1, L]."""
        values = self.module(**{name: inputs[name] for name in self.inputs})
        outputs = dict(zip(self.task.outputs, values, strict=True))
        result = outputs.get(EMBEDDING)
        name = EMBEDDING
        if result is None:
            name, result = PROBABILITIES, outputs["logits"]
            if self.task.score is ScoreFunction.SOFTMAX:
                result = torch.softmax(result, -1)
        return {name: result}
