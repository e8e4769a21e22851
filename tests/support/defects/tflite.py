"""TFLite files broken on purpose, each as a mistake of a converter or a hand would break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.model_files import dump_model, unpack_int4
from pocketbert.export.tflite_metadata import load_model

Model = Any
"""A ModelT of the TFLite schema: the whole file as objects."""

CLASSES = 3
INT4 = 17
"""Number of the type in the schema."""


def edit(path: Path, change: Callable[[Model], None]) -> None:
    """Change a graph in place; metadata and packed files of a MediaPipe file stay, or their gate would do the work."""
    from pocketbert.export.tflite_metadata import read_files

    raw = path.read_bytes()
    model, packed = load_model(raw), read_files(raw)
    change(model)
    written = dump_model(model)
    if packed:
        from pocketbert.export.tflite_metadata import pack_files

        written = pack_files(written, packed)
    assert written != raw
    path.write_bytes(written)


def operators(model: Model, name: str) -> Iterator[tuple[Model, Model]]:
    """Subgraph and operator, for all operators of a kind."""
    from ai_edge_litert import schema_py_generated as schema

    wanted = getattr(schema.BuiltinOperator, name)
    for graph in model.subgraphs:
        for op in graph.operators:
            code = model.operatorCodes[op.opcodeIndex]
            if max(code.builtinCode, code.deprecatedBuiltinCode) == wanted:
                yield graph, op


def stored(model: Model, tensor: Model, dtype: str) -> np.ndarray:
    """A copy of a tensor's value."""
    data = np.asarray(model.buffers[tensor.buffer].data, np.uint8)
    if dtype == "int4":
        return unpack_int4(data, int(np.prod(tensor.shape))).reshape(tensor.shape)
    return data[: int(np.prod(tensor.shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(tensor.shape).copy()


def store(model: Model, tensor: Model, value: np.ndarray) -> None:
    if tensor.type == INT4:
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8) & 15
        value = flat[0::2] | flat[1::2] << 4
    model.buffers[tensor.buffer].data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def rewrite(model: Model) -> None:
    model.description = b"written again"


def ignore_mask(model: Model) -> None:
    from ai_edge_litert import schema_py_generated as schema

    uses = 0
    for signature in model.signatureDefs:
        graph = model.subgraphs[signature.subgraphIndex]
        mask = next(t.tensorIndex for t in signature.inputs if t.name == b"attention_mask")
        ones, buffer = schema.TensorT(), schema.BufferT()
        ones.name, ones.shape, ones.type = b"ones", graph.tensors[mask].shape, graph.tensors[mask].type
        ones.buffer, ones.hasRank = len(model.buffers), True
        buffer.data = np.ones(int(np.prod(ones.shape)), np.int32).view(np.uint8)
        model.buffers.append(buffer)
        graph.tensors.append(ones)
        for op in graph.operators:
            uses += mask in list(op.inputs)
            op.inputs = [len(graph.tensors) - 1 if i == mask else i for i in op.inputs]
    assert uses >= len(model.signatureDefs)


def classifier(model: Model) -> Iterator[tuple[Model, Model]]:
    """Weight and bias of the last layer, for every signature."""
    found = 0
    for graph, op in operators(model, "FULLY_CONNECTED"):
        weight = graph.tensors[op.inputs[1]]
        if weight.shape[0] == CLASSES:
            found += 1
            yield weight, graph.tensors[op.inputs[2]]
    assert found == len(model.subgraphs)


def change_classifier(model: Model, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Apply a change over the classes to weight, scales and bias; buffers are shared between signatures."""
    from ai_edge_litert import schema_py_generated as schema

    done = set()
    for weight, bias in classifier(model):
        dtype = {schema.TensorType.INT8: "int8", schema.TensorType.FLOAT32: "float32"}[weight.type]
        scaled = weight.quantization is not None and weight.quantization.scale is not None
        if scaled and len(weight.quantization.scale) == CLASSES:
            weight.quantization.scale = change(np.asarray(weight.quantization.scale, np.float32))
        for tensor, kind in ((weight, dtype), (bias, "float32")):
            if tensor.buffer not in done:
                done.add(tensor.buffer)
                store(model, tensor, change(stored(model, tensor, kind)))


def swap_labels(model: Model) -> None:
    change_classifier(model, lambda v: v[[1, 0, 2]])


def always_the_same(model: Model) -> None:
    for weight, _ in classifier(model):
        data = model.buffers[weight.buffer].data
        model.buffers[weight.buffer].data = np.zeros(len(data), np.uint8)


def a_little_more(model: Model) -> None:
    for weight, _ in classifier(model):
        weight.quantization.scale = np.asarray(weight.quantization.scale, np.float32) * np.float32(1.1)


def one_nan(model: Model) -> None:
    graph, op = max(operators(model, "FULLY_CONNECTED"), key=lambda o: int(np.prod(o[0].tensors[o[1].inputs[1]].shape)))
    tensor = graph.tensors[op.inputs[1]]
    value = stored(model, tensor, "float32")
    value[3, 5] = np.nan
    store(model, tensor, value)


def one_hidden_nan(model: Model) -> None:
    graph, op = next(operators(model, "EMBEDDING_LOOKUP"))
    tensor = graph.tensors[op.inputs[1]]
    value = stored(model, tensor, "float32")
    assert value.shape[0] > 100  # words, not segments
    value[4, 0] = np.nan
    store(model, tensor, value)


def one_nan_scale(model: Model) -> None:
    graph, op = next(operators(model, "EMBEDDING_LOOKUP"))
    quantization = graph.tensors[op.inputs[1]].quantization
    scale = np.asarray(quantization.scale, np.float32).copy()
    scale[min(4, len(scale) - 1)] = np.nan
    quantization.scale = scale


def forget_metadata(model: Model) -> None:
    """The file loses what MediaPipe reads about it."""
    model.metadata = []


def without_softmax(model: Model) -> None:
    """A file for MediaPipe answers with numbers that are no probabilities."""
    from ai_edge_litert import schema_py_generated as schema

    [op] = [o for g, o in operators(model, "SOFTMAX") if int(np.prod(g.tensors[o.outputs[0]].shape)) == CLASSES]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ABS
    code.version = 1
    model.operatorCodes.append(code)
    op.opcodeIndex = len(model.operatorCodes) - 1
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.AbsOptions, schema.AbsOptionsT()
