"""A .tflite as an object: read with all weights inside, checked for what MediaPipe takes, written again."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem
from pocketbert.core.versions import version_of
from pocketbert.export.tflite_files import without_files

IDENTIFIER = b"TFL3"
ALIGNMENT = 16
"""The schema aligns weights to 16 bytes; flatbuffers' Python builder forgets that for vectors of bytes."""

METADATA_NAMES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "segment_ids"}
"""MediaPipe's name of each signature input."""


def load_model(model: bytes) -> Any:
    """Read a model with every buffer inside, however the file stores it.

    ai-edge-quantizer writes weights behind the flatbuffer and leaves offset and size in the buffer table.
    Packing such a model again as it is would lose them without an error.

    Args:
        model: A .tflite file, with or without packed files.

    Returns:
        A `ModelT` of the TFLite schema.

    Raises:
        InputError: If this is no TFLite model, or a buffer points outside the file.
        MissingBackendError: If the TFLite packages are not installed.
    """
    schema = _schema()
    if model[4:8] != IDENTIFIER:
        raise InputError(
            Problem("model", f"no TFLite file: identifier {model[4:8]!r} instead of {IDENTIFIER!r}.")
        )
    plain = without_files(model)
    try:
        loaded = schema.ModelT.InitFromObj(schema.Model.GetRootAs(plain, 0))
    except (struct.error, IndexError, TypeError, ValueError, UnicodeDecodeError) as error:
        raise InputError(Problem("model", f"damaged TFLite file: {error}.")) from error
    for number, buffer in enumerate(loaded.buffers or []):
        if buffer.offset > 1:  # 0 and 1 mean "inside"
            if buffer.offset + buffer.size > len(plain):
                raise InputError(
                    Problem("model", f"buffer {number} lies at {buffer.offset}+{buffer.size}, behind the file's {len(plain)} bytes.",
                            "The weights were cut off: write the file again."))  # fmt: skip
            buffer.data = np.frombuffer(plain, np.uint8, buffer.size, buffer.offset)
        buffer.offset = buffer.size = 0
    for graph in loaded.subgraphs or []:
        for operator in graph.operators or []:
            if operator.largeCustomOptionsOffset > 1:
                raise InputError(
                    Problem("model", "an operator keeps its options behind the flatbuffer; not supported.")
                )
    return loaded


def dump_model(model: Any) -> bytes:
    """Write a model with all buffers inside, aligned to 16 bytes.

    Args:
        model: A `ModelT`, as `load_model` returns it.

    Returns:
        The file.
    """
    import flatbuffers

    class Builder(flatbuffers.Builder):  # type: ignore[misc]
        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:  # noqa: N802, N803
            return super().StartVector(elemSize, numElems, ALIGNMENT if elemSize == 1 else alignment)

    size = sum(len(b.data) for b in model.buffers if b.data is not None)
    builder = Builder(size + (1 << 20))
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


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
    schema = _schema()
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
    graph, schema, out = graphs[0], _schema(), []
    names = sorted(_input_names(model).values())
    inputs = [graph.tensors[i] for i in _listed(graph.inputs)]
    if names != sorted(METADATA_NAMES) or len(inputs) != len(names):
        out.append(
            f"inputs {names} in the signature, {len(inputs)} in the graph; needed are {sorted(METADATA_NAMES)}."
        )
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


def _schema() -> Any:
    for name in ("flatbuffers", "ai-edge-litert"):
        if version_of(name) is None:
            raise MissingBackendError(name, "pip install 'pocketbert[tflite]'")
    from ai_edge_litert import schema_py_generated

    return schema_py_generated
