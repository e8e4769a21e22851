"""The Core ML exporter: torch.export, coremltools, one ML Program per package, int32 inputs.

`export` writes a package with the settings of `CoremlForm` (iOS version, lengths, precision) and the texts of
`CoremlInfo`.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families import Family
from pocketbert.core.host.progress import note_stage
from pocketbert.core.host.quiet import silence_coremltools, silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import CONVERSION_DATE, PROBABILITIES_OUTPUT, add_classifier, save_package
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Scheme, Shapes
from pocketbert.export.prepare import sample_inputs

_LARGEST_HALF = float(np.finfo(np.float16).max)
_INFINITE = 1e38
"""coremltools casts numbers of this size to infinity, whatever they are."""
_NUMBERS_AT_ONCE = 1 << 22
_SHORTEST = 3
"""Smallest length of a package with a ranged length: MobileBERT reads both neighbours of a token."""


@dataclass(frozen=True)
class CoremlInfo:
    """Texts written into a Core ML package for people: description, author, licence, labels and notes.

    Attributes:
        description: One sentence about the model.
        version: Version of the model.
        author: Who made the model.
        license: Licence of the weights.
        labels: Label names in order of their ids; empty if the model has no labels.
        notes: More facts by name.
    """

    description: str
    version: str
    author: str
    license: str
    labels: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CoremlForm:
    """Settings of a Core ML package: iOS version, lengths and precision.

    Attributes:
        ios: Oldest iOS that opens the package: 16, 17 or 18.
        shapes: Whether inputs have one length, listed lengths or a range.
        precision: fp16 or fp32, in which weights are stored and the model computes.
    """

    ios: int = 18
    shapes: Shapes = Shapes.ENUMERATED
    precision: Scheme = Scheme.FP16


def export(
    module: nn.Module,
    family: Family,
    task: Task,
    lengths: Sequence[int],
    path: Path,
    form: CoremlForm,
    info: CoremlInfo,
) -> None:
    """Convert a module prepared for export to a Core ML package (.mlpackage) and write it.

    A text classifier whose labels `info` lists also returns the predicted label's name (``classLabel``) and every
    label's probability (``classLabel_probs``), beside ``logits``.

    Args:
        module: A module from `pocketbert.export.prepare.prepare`.
        family: The model's family; it names the inputs.
        task: The model's task; it names the outputs.
        lengths: Input lengths L; inputs are [1, L] int32. With a range of lengths the package takes all from 3 to the
            longest, with a fixed length only the longest.
        path: The folder to write.
        form: Settings of the package: iOS version, fixed or ranged lengths, and precision.
        info: Description, author, licence and the like, which are written into the package.

    Raises:
        MissingBackendError: If coremltools is not installed.
    """
    if version_of("coremltools") is None:
        raise MissingBackendError("coremltools", "pip install 'pocketbert[coreml]'")
    lengths = sorted(set(lengths))
    classifies = task.name is TaskName.TEXT_CLASSIFICATION and len(info.labels) > 0
    scored = _Scored(module, family.inputs).eval() if classifies else module
    outputs = [*task.outputs, *([PROBABILITIES_OUTPUT] if classifies else [])]
    with silence_output(), silence_coremltools():
        note_stage("1 of 2, tracing")
        program = _export_program(scored, family, lengths, form.shapes)
        note_stage("2 of 2, translating and writing")
        model = _convert(program, family, outputs, lengths, form)
        spec = model.get_spec()
    if classifies:
        add_classifier(spec, info.labels)
    _describe(spec, info, task, family)
    save_package(spec.SerializeToString(deterministic=True), Path(model.weights_dir) / "weight.bin", path)


def _export_program(
    module: nn.Module, family: Family, lengths: Sequence[int], shapes: Shapes
) -> torch.export.ExportedProgram:
    """Trace a module with torch.export, and return the program, rewritten for coremltools.

    The length axis is free if the package takes several lengths, and else has the longest length. The operation
    ``alias`` is removed, and blocks of tokens are counted by slicing.
    """
    sample = tuple(sample_inputs(family.inputs, lengths[-1], family.extra).values())
    shortest = _SHORTEST if shapes is Shapes.RANGED else lengths[0]
    free: Any = None
    if shapes is Shapes.RANGED or (shapes is Shapes.ENUMERATED and len(lengths) > 1):
        # torch does not prove that a number of blocks fits any length, which a named dimension requires
        bounds = {"min": shortest, "max": lengths[-1]}
        free = torch.export.Dim.DYNAMIC(**bounds) if family.in_blocks else torch.export.Dim("length", **bounds)
    dynamic = None if free is None else tuple({1: free} for _ in family.inputs)
    program = torch.export.export(module, sample, dynamic_shapes=dynamic, strict=False)
    program = program.run_decompositions({})
    for node in list(program.graph.nodes):  # coremltools 9.0 does not convert alias, which does nothing
        if node.target is torch.ops.aten.alias.default:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    _count_blocks_by_slicing(program.graph)
    return cast(torch.export.ExportedProgram, program)


def _count_blocks_by_slicing(graph: torch.fx.Graph) -> None:
    """Replace (L + R - 1) // R, the number of blocks of R tokens, by the length of a slice of every Rth token.

    coremltools 9.0 would convert it to a division of floats.
    """
    for node in list(graph.nodes):
        if node.target is not operator.floordiv:
            continue
        total, size = cast(Any, node.args)
        tensor, axis = cast(Any, next(a.args for a in total.args if isinstance(a, torch.fx.Node)))
        with graph.inserting_before(node):
            every_nth = graph.call_function(torch.ops.aten.slice.Tensor, (tensor, axis, 0, sys.maxsize, size))
            count = graph.call_function(torch.ops.aten.sym_size.int, (every_nth, axis))
        every_nth.meta["val"], count.meta["val"] = tensor.meta["val"][:, ::size], node.meta["val"]
        node.replace_all_uses_with(count)
        graph.erase_node(node)


def _convert(
    program: torch.export.ExportedProgram,
    family: Family,
    outputs: Sequence[str],
    lengths: Sequence[int],
    form: CoremlForm,
) -> Any:
    """Convert a traced program to a Core ML model with the given outputs and lengths, and the settings of `form`."""
    import coremltools as ct

    extra = {i.name: i for i in family.extra}
    length: Any = lengths[-1]
    if form.shapes is Shapes.RANGED:
        length = ct.RangeDim(_SHORTEST, lengths[-1], min(32, lengths[-1]))

    def input_type(name: str) -> Any:
        """Return the coremltools type of an input: its shape at every length, and its number type."""
        one = extra.get(name)
        widths = (one.width,) if one is not None and one.width else ()
        shape: Any = (1, length, *widths)
        if form.shapes is Shapes.ENUMERATED and len(lengths) > 1:
            shape = ct.EnumeratedShapes([(1, n, *widths) for n in lengths], default=(1, lengths[0], *widths))
        return ct.TensorType(name=name, shape=shape, dtype=np.float32 if one is not None and one.is_float else np.int32)

    half = form.precision is Scheme.FP16
    with _overflow_checked_in_parts():
        return ct.convert(
            program,
            convert_to="mlprogram",
            skip_model_load=True,
            inputs=[input_type(name) for name in family.inputs],
            outputs=[ct.TensorType(name=name, dtype=np.float32) for name in outputs],
            minimum_deployment_target=getattr(ct.target, f"iOS{form.ios}"),
            compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
        )


@contextmanager
def _overflow_checked_in_parts() -> Iterator[None]:
    """Inside the block, make coremltools search constants for numbers beyond fp16 part by part, to save memory.

    coremltools 9.0 makes a list of the indices of all numbers of a weight, six times as large as the weight: 5 GB for a
    table of 250,002 words. Other versions of coremltools that have no such method are left as they are.
    """
    from coremltools.converters.mil.mil.passes.defs.quantization import FP16ComputePrecision

    def overflows(op: Any) -> bool:
        """Return whether a constant fp32 input of an operation has finite numbers larger than fp16's largest."""
        for given in op.inputs.values():
            for var in given if isinstance(given, list | tuple) else [given]:
                is_constant = var.op is not None and var.op.op_type == "const"
                if is_constant and var.is_tensor_or_scalar_of(dtype="fp32") and has_large_numbers(var.op.val.val):
                    return True
        return False

    own = vars(FP16ComputePrecision).get("fp16_overflow")
    if own is None:  # another version of coremltools, which may need more memory
        yield
        return
    FP16ComputePrecision.fp16_overflow = staticmethod(overflows)
    try:
        yield
    finally:
        FP16ComputePrecision.fp16_overflow = own


def has_large_numbers(values: ArrayLike) -> bool:
    """Return whether any number is larger in magnitude than fp16's largest.

    Numbers from 1e38 on, which coremltools casts to infinity anyway, do not count.
    """
    flat = np.asarray(values).reshape(-1)
    for start in range(0, flat.size, _NUMBERS_AT_ONCE):
        sizes = np.abs(flat[start : start + _NUMBERS_AT_ONCE])
        if bool(((sizes > _LARGEST_HALF) & (sizes < _INFINITE)).any()):
            return True
    return False


def _describe(spec: Any, info: CoremlInfo, task: Task, family: Family) -> None:
    """Write description, version, author, licence and notes into a package, and a text for each input and output.

    The date of conversion is removed.
    """
    features = {**_FEATURES, **{i.name: i.description for i in family.extra}}
    features |= {h.output: f"Head {h.name}, {h.task.name}: {_LOGITS[h.task.name]}" for h in task.heads}
    metadata = spec.description.metadata
    metadata.shortDescription, metadata.versionString = info.description, info.version
    metadata.author, metadata.license = info.author, info.license
    if CONVERSION_DATE in metadata.userDefined:
        del metadata.userDefined[CONVERSION_DATE]
    for name, value in info.notes:
        metadata.userDefined[name] = value
    for feature in (*spec.description.input, *spec.description.output):
        feature.shortDescription = _LOGITS[task.name] if feature.name == "logits" else features.get(feature.name, "")


_FEATURES = {
    "input_ids": "Token ids, int32 [1, length].",
    "attention_mask": "1 for real tokens, 0 for padding, int32 [1, length].",
    "token_type_ids": "0 for the first text, 1 for the second, int32 [1, length].",
    "classLabel": "The most probable label.",
    "classLabel_probs": "Probability of every label.",
    "start_logits": "Scores of each token as the answer's first, before softmax.",
    "end_logits": "Scores of each token as the answer's last, before softmax.",
    "last_hidden_state": "One vector per token.",
    "sentence_embedding": "One vector per text.",
}
_LOGITS = {
    TaskName.TEXT_CLASSIFICATION: "Scores before softmax.",
    TaskName.MULTI_LABEL: "Scores of the labels before the sigmoid; several labels may hold.",
    TaskName.REGRESSION: "The predicted number.",
    TaskName.MULTIPLE_CHOICE: "The number of a question with one of its choices; the softmax over all its choices gives probabilities.",
    TaskName.TOKEN_CLASSIFICATION: "Scores of the labels for each token, before softmax.",
    TaskName.FILL_MASK: "Scores of all words for each token, before softmax.",
}
"""Descriptions of the output `logits`, which has one name for all clients."""


class _Scored(nn.Module):
    """A classifier that returns its logits and their softmax probabilities."""

    def __init__(self, module: nn.Module, inputs: Sequence[str]) -> None:
        """Wrap a classifier. `inputs` become the argument names of `forward`, which torch.export reads."""
        super().__init__()
        self.module = module

        def forward(*values: Tensor) -> tuple[Tensor, Tensor]:
            (logits,) = self.module(*values)
            return logits, torch.softmax(logits, -1)

        # torch.export takes names and number of inputs from the signature
        places = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in inputs]
        forward.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
        self.forward = forward
