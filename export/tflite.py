"""The TFLite exporter: litert-torch, one signature per length with shared weights, int32 inputs.

`export` writes a file for LiteRT, `export_mediapipe` one for MediaPipe Tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families import Family
from pocketbert.core.host.progress import note_stage
from pocketbert.core.host.quiet import silence_output
from pocketbert.core.host.system import release_memory, version_of
from pocketbert.core.tasks import SENTENCE_EMBEDDING, ScoreFunction, Task
from pocketbert.export.prepare import sample_inputs

SIGNATURE = "seq_{length}"
"""Key of the signature for one length."""
MEDIAPIPE_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PROBABILITIES = "probabilities"


def export(module: nn.Module, family: Family, task: Task, lengths: Sequence[int], path: Path) -> None:
    """Convert a module prepared for export to a TFLite file with a signature ``seq_N`` per length and shared weights.

    Lengths are listed, because a free length does not convert: litert-torch 0.10 makes it a fixed one.

    Args:
        module: A module from `pocketbert.export.prepare.prepare`.
        family: The model's family; it names the inputs.
        task: The model's task; it names the outputs.
        lengths: Lengths L of the inputs [1, L], int32.
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
        family: The model's family; it names the inputs of the module. The file has a third input even for a family
            without segments.
        task: text-classification or feature-extraction.
        length: Number of tokens of the inputs [1, L].
        path: The file to write.

    Raises:
        MissingBackendError: If litert-torch is not installed.
    """
    whole = _MediaPipe(module, family.inputs, task).eval()
    _convert({SIGNATURE.format(length=length): (whole, sample_inputs(MEDIAPIPE_INPUTS, length))}, path)


def _convert(signatures: Mapping[str, tuple[nn.Module, dict[str, Tensor]]], path: Path) -> None:
    """Convert modules with litert-torch to one TFLite file, a signature for each.

    `signatures` holds, by signature key, the module and its sample inputs.
    """
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
        trace = _count_traces(partial(core.export_torch_signature, run_decompositions=False), len(signatures))
        try:
            with mock.patch.object(core, "export_torch_signature", trace), _lower_operators_once():
                # large constants stay out of the graph until the file is written: less time and memory, the same file
                model = converter.convert(lightweight_conversion=True)
            del converter, trace  # and the traced graphs with them, before the file is in memory
            release_memory()
            model.export(str(path))
        finally:
            # it is 100,000 afterwards, with which deeply nested JSON would end the process instead of being refused
            sys.setrecursionlimit(limit)


def _count_traces(trace: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function that traces a signature as `trace` does, and first notes its number of `count` as progress."""
    numbers = iter(range(1, count + 1))

    def trace_and_note(*arguments: Any, **named: Any) -> Any:
        """Trace one signature."""
        number = next(numbers)
        note_stage(f"{number} of {count + 1}, tracing a length")
        program = trace(*arguments, **named)
        if number == count:
            note_stage(f"{number + 1} of {number + 1}, lowering and writing")
        return program

    return trace_and_note


_LOWERED: dict[object, bytes] = {}
"""Lowered operators by function, shapes, dtypes and settings: those of all models that this process has converted."""


@contextmanager
def _lower_operators_once() -> Iterator[None]:
    """Make litert-torch, inside the block, convert an operator with JAX only once for the same shapes and settings.

    litert-torch itself stores converted operators within one signature only, and converting them takes most of a small
    model's export time. Its own cache key is used; operators for which it has none are converted each time.
    """
    from litert_torch.backend.jax_bridge import _wrap

    lower, serialize = _wrap._lower_to_ir_text, _wrap._stablehlo_to_vhlo

    def lower_once(
        function: Any, args: Any, kwargs: Any, ir_input_names: Any = None
    ) -> tuple[Callable[[], bytes], Any]:
        """Return a function that gives the serialized form of a lowered operator, and its inputs in the graph."""
        get_text, inputs = lower(function, args, kwargs, ir_input_names=ir_input_names)
        key = _wrap.get_cache_fingerprint((function, args, kwargs, ir_input_names))
        if key is not None:  # in which 1, 1.0 and True are the same
            key = key, tuple(type(leaf) for leaf in tree_leaves((args, kwargs)))

        def get_lowered() -> bytes:
            """Return the serialized operator: the stored one with the same key, or one that is lowered now."""
            if key is None:
                return bytes(serialize(get_text()))
            if key not in _LOWERED:
                _LOWERED[key] = serialize(get_text())
            return _LOWERED[key]

        return get_lowered, inputs

    with (
        mock.patch.object(_wrap, "_lower_to_ir_text", lower_once),
        mock.patch.object(_wrap, "_stablehlo_to_vhlo", lambda lowered: lowered),
    ):
        yield


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
        """Return the sentence embedding or, for a classifier, the probabilities of inputs [1, L], by output name.

        Logits of a task that is not scored by softmax are returned as they are, under the name of the probabilities.
        """
        values = self.module(**{name: inputs[name] for name in self.inputs})
        outputs = dict(zip(self.task.outputs, values, strict=True))
        result = outputs.get(SENTENCE_EMBEDDING)
        name = SENTENCE_EMBEDDING
        if result is None:
            name, result = PROBABILITIES, outputs["logits"]
            if self.task.score is ScoreFunction.SOFTMAX:
                result = torch.softmax(result, -1)
        return {name: result}
