"""Model files that engines must refuse with a message: unknown operators, damage, more memory than there is. And one to open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IR_VERSION = 10
OPSET = 20


def write_engine_files(folder: Path) -> None:
    """Write the files into a new folder."""
    folder.mkdir(parents=True)
    sound = _model("Identity", "Cast", to=TensorProto.FLOAT)
    onnx.save(sound, folder / "sound.onnx")
    whole = sound.SerializeToString()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "text.onnx").write_bytes(b"This is no model. " * 40)
    (folder / "empty.onnx").write_bytes(b"")
    onnx.save(_model("Identity", "NoSuchOperator"), folder / "operator.onnx")
    newer = _model("Identity", "Cast", to=TensorProto.FLOAT)
    newer.ir_version = 99
    onnx.save(newer, folder / "newer.onnx")
    onnx.save(_greedy(), folder / "memory.onnx")
    onnx.save(_shared(), folder / "shared.onnx")
    phone = folder.parent / "phones" / "text-classification"
    (folder / "operator.tflite").write_bytes(_with_unknown_operator((phone / "tflite" / "model.tflite").read_bytes()))


def _with_unknown_operator(model: bytes) -> bytes:
    """A TFLite file in which one kind of operator has a name that no engine knows."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    unpacked = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
    code = unpacked.operatorCodes[0]
    code.builtinCode, code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM, schema.BuiltinOperator.CUSTOM
    code.customCode = b"NoSuchOperator"
    builder = flatbuffers.Builder(len(model))
    builder.Finish(unpacked.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _model(*kinds: str, **last: int) -> onnx.ModelProto:
    """A chain of operators from `input_ids` to `logits`; `last` has the attributes of the last one."""
    names = ["input_ids", *(f"step{i}" for i in range(len(kinds) - 1)), "logits"]
    nodes = [
        helper.make_node(kind, [names[i]], [names[i + 1]], **(last if i == len(kinds) - 1 else {}))
        for i, kind in enumerate(kinds)
    ]
    return _wrapped(nodes, [])


def _greedy() -> onnx.ModelProto:
    """A graph that asks for 2^42 numbers when it runs."""
    size = numpy_helper.from_array(np.array([1 << 42], np.int64), "size")
    nodes = [
        helper.make_node("ConstantOfShape", ["size_of_run"], ["much"]),
        helper.make_node("ReduceSum", ["much"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["numbers", "sum"], ["logits"]),
    ]
    # the size depends on the input: otherwise the optimiser would compute it when the file is opened
    first = [
        helper.make_node("ReduceMax", ["input_ids"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["largest", "size"], ["size_of_run"]),
    ]
    return _wrapped([*first, *nodes], [size])


def _shared() -> onnx.ModelProto:
    """A graph in which two integer products read one int8 weight: sums of every second of 64 numbers, and sums of these."""
    weight = np.zeros((64, 64), np.int8)
    weight[:, ::2] = 127
    constants = {"weight": weight, "zero": np.array(0, np.int8), "scale": np.array(1 / 127, np.float32)}
    nodes = [helper.make_node("Cast", ["input_ids"], ["x0"], to=TensorProto.FLOAT)]
    for i, result in enumerate(("x1", "logits")):
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [f"x{i}"], [f"q{i}", f"scale{i}", f"zero{i}"]),
            helper.make_node("MatMulInteger", [f"q{i}", "weight", f"zero{i}", "zero"], [f"sum{i}"]),
            helper.make_node("Cast", [f"sum{i}"], [f"float{i}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"scale{i}", "scale"], [f"both{i}"]),
            helper.make_node("Mul", [f"float{i}", f"both{i}"], [result]),
        ]
    return _wrapped(nodes, [numpy_helper.from_array(value, name) for name, value in constants.items()])


def _wrapped(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence"])
    graph = helper.make_graph(nodes, "small", [ids], [logits], constants)
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
