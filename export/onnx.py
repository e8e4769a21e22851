"""The ONNX exporter: torch.onnx by the dynamo path, weights inside the file, readable by phone builds in use.

`export` converts a module, removes what no runtime reads, checks the versions and writes the file.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.families import Family
from pocketbert.core.host.progress import note_stage
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import LARGE_WEIGHT, load_onnx, write_onnx
from pocketbert.core.tasks import Task

_MAX_IR = 10
_MAX_OPSET = 20
_MUCH_MEMORY = 100_000_000
"""Bytes of weights from which on it is worth a search for objects that hold them."""


def export(
    module: nn.Module,
    family: Family,
    task: Task,
    example: Mapping[str, NDArray[np.int64]],
    path: Path,
    opset: int = _MAX_OPSET,
) -> None:
    """Convert a module prepared for export to an ONNX file with free batch size and length.

    Before it is written, the model is checked to be readable by the versions of ONNX Runtime in use on phones.

    Args:
        module: A module from `pocketbert.export.prepare.prepare`.
        family: The model's family; it names the inputs.
        task: The model's task; it names the outputs.
        example: Input arrays [B, L] with B >= 2, so that no axis is treated as a constant 1.
        path: The file to write.
        opset: Operator set, at most 20.

    Raises:
        MissingBackendError: If onnx or onnxscript is not installed.
        GateError: If ONNX Runtime on phones could not read the model; no file is written then.
    """
    for name in ("onnx", "onnxscript"):
        if version_of(name) is None:
            raise MissingBackendError(name, "pip install 'pocketbert[onnx]'")
    import onnx

    free = torch.export.Dim.DYNAMIC
    inputs = {name: torch.from_numpy(example[name]) for name in family.inputs}
    note_stage("1 of 2, tracing and translating")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            module,
            (),
            kwargs=inputs,
            dynamo=True,
            opset_version=opset,
            input_names=list(inputs),
            output_names=list(task.outputs),
            verbose=False,
            dynamic_shapes={name: {0: free, 1: free} for name in inputs},
        )
    if program is None:  # only the old exporter, which writes a file itself, returns nothing
        raise RuntimeError("torch.onnx.export returned no program")
    note_stage("2 of 2, checking and writing")
    # in protobuf's messages, and in their bytes, the weights would be in memory twice more
    weights = _take_out_weights(program.model.graph)
    model = program.model_proto
    del program
    _forget_weights(module)
    _clean_model(model)
    _check_versions(model, path.name)
    onnx.checker.check_model(model)
    write_onnx(model, weights, path)


def _take_out_weights(graph: Any) -> dict[str, NDArray[Any]]:
    """Replace the large weights in a graph of onnx_ir by tensors without rows, and return their numbers by name."""
    import onnx_ir

    weights = {}
    for name, value in graph.initializers.items():
        if value.const_value is not None and value.const_value.nbytes >= LARGE_WEIGHT:
            numbers = np.ascontiguousarray(value.const_value.numpy())  # of torch's own memory
            weights[name] = numbers
            value.const_value = onnx_ir.tensor(np.empty((0, *numbers.shape[1:]), numbers.dtype), name=name)
    return weights


def _forget_weights(module: torch.nn.Module) -> None:
    """Free a module's weights after an export, from graphs that the rules of onnxscript's optimizer still hold.

    Values that a graph no longer lists, such as a table that was an input at first, hold weights as well, so all
    objects of the process are searched. That takes 0.2 seconds and more, and is not done for modules with fewer bytes
    of weights than `_MUCH_MEMORY`.
    """
    import onnx_ir

    weights = [*module.parameters(), *module.buffers()]
    if sum(w.nbytes for w in weights) < _MUCH_MEMORY:
        return
    own = {w.data_ptr() for w in weights}
    for value in gc.get_objects():
        # by the class itself: `isinstance` would wake what warns when it is looked at
        tensor = value.const_value if onnx_ir.Value in type(value).__mro__ else None
        raw = getattr(tensor, "raw", None)  # of torch's exporter: the torch tensor
        if isinstance(raw, torch.Tensor) and raw.data_ptr() in own:
            value.const_value = None


def _clean_model(model: Any) -> None:
    """Remove from an ONNX model, in place, what no runtime reads, and set its free axis names and versions for phones.

    Stack traces, shapes of intermediate tensors and other metadata are removed; the free axes of inputs and outputs are
    named ``batch`` and ``sequence``; a newer IR version is lowered to the newest that runtimes on phones can read;
    the producer name becomes ``pocketbert``.
    """
    del model.graph.value_info[:]
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    for function in model.functions:
        del function.metadata_props[:]
        for node in function.node:
            del node.metadata_props[:]
    _name_axes(model)
    model.ir_version = min(model.ir_version, _MAX_IR)
    model.producer_name = "pocketbert"


def _name_axes(model: Any) -> None:
    """Rename the free axes of inputs and outputs, such as ``s18`` and ``s41``, to ``batch`` and ``sequence``."""
    free = [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim]
    names = dict(zip(free, ("batch", "sequence"), strict=False))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def check_readable(path: Path) -> None:
    """Check that an ONNX file is valid and not too new, by IR version and operator set, for runtimes in use on phones.

    Raises:
        GateError: If it is too new.
        onnx.checker.ValidationError: If it is not valid.
    """
    import onnx

    _check_versions(load_onnx(path)[0], path.name)
    onnx.checker.check_model(path)


def _check_versions(model: Any, name: str) -> None:
    """Raise GateError, naming the file, if a model's IR version or operator set is newer than phones' runtimes read."""
    newest = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    if model.ir_version > _MAX_IR or newest > _MAX_OPSET:
        raise GateError(
            [f"{name}: IR {model.ir_version}, opset {newest}; phones read IR {_MAX_IR}, opset {_MAX_OPSET}."]
        )
