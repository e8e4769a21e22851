"""Files in integers throughout, broken on purpose in their graphs: what no stored number of the model shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format
from support.defects import format_of

DEEP = 1e4
"""The constant of the mask in files with floats."""


def deep_scores(path: Path) -> None:
    """The range of the first layer's masked scores reaches down to the mask's constant."""
    if format_of(path) is Format.ONNX:
        _edit_onnx(path, lambda graph: _deepen_onnx(graph, _first(graph, "Softmax").input[0]))
    else:
        _edit_tflite(path, lambda model: _deepen_tflite(model, joined=False))


def deep_mask(path: Path) -> None:
    """The range of the mask that is added to them does."""
    if format_of(path) is Format.ONNX:
        _edit_onnx(path, lambda graph: _deepen_onnx(graph, _added(graph)))
    else:
        _edit_tflite(path, lambda model: _deepen_tflite(model, joined=True))


def float_scores(path: Path) -> None:
    """ONNX: the first product of two activations reads what was computed before it became integers."""

    def change(graph: Any) -> None:
        producers = _producers(graph)
        node = next(n for n in graph.node if n.op_type == "MatMul" and all(_unquantized(x, producers) for x in n.input))
        for at, name in enumerate(node.input):
            node.input[at] = _unquantized(name, producers)

    _edit_onnx(path, change)


def float_weight(path: Path) -> None:
    """ONNX: the first product with a large stored weight multiplies floats."""
    from onnx import numpy_helper

    def change(graph: Any) -> None:
        producers, stored = _producers(graph), {t.name: t for t in graph.initializer}
        nodes = [n for n in graph.node if n.op_type in ("MatMul", "Gemm") and _stored(n.input[1], producers, stored)]
        node = max(nodes, key=lambda n: np.prod(_stored(n.input[1], producers, stored).dims))
        small = _stored(node.input[1], producers, stored)
        node.input[0] = _unquantized(node.input[0], producers)
        values = numpy_helper.to_array(small).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(values, "a_float_weight"))
        node.input[1] = "a_float_weight"

    _edit_onnx(path, change)


def _edit_onnx(path: Path, change: Callable[[Any], None]) -> None:
    import onnx

    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)


def _edit_tflite(path: Path, change: Callable[[Any], None]) -> None:
    model = load_model(path.read_bytes())
    change(model)
    path.write_bytes(dump_model(model))


def _producers(graph: Any) -> dict[str, Any]:
    return {name: node for node in graph.node for name in node.output}


def _first(graph: Any, kind: str) -> Any:
    return next(n for n in graph.node if n.op_type == kind)


def _unquantized(name: str, producers: dict[str, Any]) -> str:
    """What a number was before QuantizeLinear and DequantizeLinear; empty where it was stored."""
    node = producers.get(name)
    before = producers.get(node.input[0]) if node is not None and node.op_type == "DequantizeLinear" else None
    return before.input[0] if before is not None and before.op_type == "QuantizeLinear" else ""


def _stored(name: str, producers: dict[str, Any], stored: dict[str, Any]) -> Any:
    node = producers.get(name)
    return stored.get(node.input[0]) if node is not None and node.op_type == "DequantizeLinear" else None


def _added(graph: Any) -> str:
    """The operand of the first masked scores that depends on the mask only: the smaller one."""
    producers = _producers(graph)
    node = producers[_unquantized(_first(graph, "Softmax").input[0], producers)]
    assert node.op_type == "Add"
    return next(n for n in node.input if producers[_unquantized(n, producers)].op_type != "MatMul")


def _deepen_onnx(graph: Any, name: str) -> None:
    from onnx import numpy_helper

    stored = {t.name: t for t in graph.initializer}
    scale, zero = (stored[n] for n in _producers(graph)[name].input[1:3])
    top = np.iinfo(numpy_helper.to_array(zero).dtype).max
    scale.CopyFrom(numpy_helper.from_array(np.array(DEEP / top, np.float32), scale.name))


def _deepen_tflite(model: Any, joined: bool) -> None:
    names = {v: k for k, v in vars(tflite_schema().BuiltinOperator).items() if not k.startswith("_")}
    graph = model.subgraphs[0]

    def kind(op: Any) -> str:
        code = model.operatorCodes[op.opcodeIndex]
        return str(names[max(int(code.builtinCode), int(code.deprecatedBuiltinCode))])

    index = int(next(op for op in graph.operators if kind(op) == "SOFTMAX").inputs[0])
    if joined:
        [add] = [op for op in graph.operators if index in op.outputs and kind(op) == "ADD"]
        index = min((int(i) for i in add.inputs), key=lambda i: np.prod(graph.tensors[i].shape))
    tensor = graph.tensors[index]
    steps = 255 if tensor.type == tflite_schema().TensorType.INT8 else 65535
    tensor.quantization.scale = np.array([DEEP / steps], np.float32)
