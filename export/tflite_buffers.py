"""What MediaPipe takes of a .tflite, and reading one that carries packed files."""

from __future__ import annotations

import struct
from typing import Any

from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.packages import tflite as tflite_objects
from pocketbert.core.packages.tflite import dump_model, tflite_schema
from pocketbert.export.tflite_files import without_files

__all__ = [
    "METADATA_NAMES",
    "dump_model",
    "graph_problems",
    "inner_metadata",
    "load_model",
    "signature_inputs",
]

METADATA_NAMES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "segment_ids"}
"""MediaPipe's name of each signature input."""


def load_model(model: bytes) -> Any:
    """Read a model with or without packed files; see `pocketbert.core.packages.tflite.load_model`."""
    return tflite_objects.load_model(without_files(model))


def inner_metadata(model: bytes, name: bytes) -> bytes | None:
    """A metadata buffer that lies inside the flatbuffer, the only place where MediaPipe looks.

    Args:
        model: A .tflite file.
        name: Key of the metadata entry.

    Returns:
        The content, or None if there is no such entry, or its content lies elsewhere.

    Raises:
        InputError: If this is no TFLite model.
    """
    schema = tflite_schema()
    try:
        root = schema.Model.GetRootAs(model, 0)
        for entry in (root.Metadata(i) for i in range(root.MetadataLength())):
            if entry.Name() == name and entry.Buffer() < root.BuffersLength():
                buffer = root.Buffers(entry.Buffer())
                return None if buffer.DataIsNone() else buffer.DataAsNumpy().tobytes()
    except (struct.error, IndexError, TypeError, ValueError) as error:
        raise InputError(Problem("model", f"damaged TFLite file: {error}.")) from error
    return None


def graph_problems(model: Any) -> list[str]:
    """Why MediaPipe could not run a graph, leaving metadata aside; empty if it can.

    Args:
        model: A `ModelT`.

    Returns:
        One sentence per problem.
    """
    graphs = model.subgraphs or []
    if len(graphs) != 1:
        return [f"{len(graphs)} subgraphs; MediaPipe takes files with one (one signature)."]
    graph, schema, out = graphs[0], tflite_schema(), []
    names = sorted(_input_names(model).values())
    inputs = [graph.tensors[i] for i in _listed(graph.inputs)]
    if names != sorted(METADATA_NAMES) or len(inputs) != len(names):
        out.append(f"inputs {names} in the signature, {len(inputs)} in the graph; needed are {sorted(METADATA_NAMES)}.")
    shapes = [_listed(t.shape) for t in inputs]
    if any(t.type != schema.TensorType.INT32 for t in inputs):
        out.append("inputs are not all int32.")
    if any(len(s) != 2 or s[0] != 1 or s[1] < 2 or s != shapes[0] for s in shapes):
        out.append(f"inputs have the shapes {shapes}; needed is one [1, L] for all.")
    outputs = [graph.tensors[i] for i in _listed(graph.outputs)]
    if len(outputs) != 1 or outputs[0].type != schema.TensorType.FLOAT32:
        out.append(f"{len(outputs)} outputs, or not float32; needed is one float32 output.")
    elif len(shape := _listed(outputs[0].shape)) != 2 or shape[0] != 1:
        out.append(f"the output has the shape {shape}; needed is [1, N].")
    return out


def signature_inputs(model: Any) -> list[str]:
    """Signature input names in the order of the graph's inputs, which is not the signature's own.

    Raises:
        GateError: If the file is none for MediaPipe.
    """
    if problems := graph_problems(model):
        raise GateError([f"MediaPipe file: {p}" for p in problems])
    names = _input_names(model)
    return [names[i] for i in _listed(model.subgraphs[0].inputs)]


def _input_names(model: Any) -> dict[int, str]:
    """Tensor index to signature name: tensor names carry a prefix, signature names do not."""
    signatures = model.signatureDefs or []
    if len(signatures) != 1:
        return {}
    inside = set(_listed(model.subgraphs[0].inputs))
    return {i.tensorIndex: _text(i.name) for i in signatures[0].inputs or [] if i.tensorIndex in inside}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _listed(value: Any) -> list[int]:
    return [] if value is None else [int(v) for v in value]
