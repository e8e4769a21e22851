"""Core ML packages broken on purpose, each as a mistake of a converter or a hand would break it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.disk.files import sha256_path
from pocketbert.core.model_files import _MODEL, _WEIGHT_FILE
from pocketbert.runtime.coreml.types import Dtype
from pocketbert.runtime.coreml.weights import unpack_bits

CLASSES = 3
PACKED = {25: Dtype.INT4, 35: Dtype.UINT4, 38: Dtype.UINT6}
"""Types of several numbers in a byte, by their number in the schema."""


def packed(array: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of few bits in as few bytes as they take, from the least significant bit on."""
    places = np.unpackbits(np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")
    return np.packbits(places[:, :bits].ravel(), bitorder="little")


class Package:
    """A package in memory: the whole program as objects of coremltools, and the bytes of its weight file."""

    def __init__(self, path: Path) -> None:
        messages = importlib.import_module("coremltools.proto.Model_pb2")
        self.path = path
        self.model = messages.Model.FromString((path / "Data" / _MODEL).read_bytes())
        self.weights = np.fromfile(path / "Data" / _WEIGHT_FILE, np.uint8)
        function = self.model.mlProgram.functions["main"]
        self.inputs = function.inputs
        self.block = function.block_specializations[function.opset]

    def write(self) -> None:
        """Bring it to disk; what changed nothing is a mistake of the test."""
        before = sha256_path(self.path)
        (self.path / "Data" / _MODEL).write_bytes(self.model.SerializeToString(deterministic=True))
        self.weights.tofile(self.path / "Data" / _WEIGHT_FILE)
        assert sha256_path(self.path) != before

    def maker(self, name: str) -> Any:
        """The operation that makes a value."""
        return next(op for op in self.block.operations if any(o.name == name for o in op.outputs))

    def argument(self, operation: Any, parameter: str) -> Any:
        """The operation that makes an argument."""
        return self.maker(operation.inputs[parameter].arguments[0].name)

    def all(self, kind: str) -> list[Any]:
        """Operations of one kind, in order."""
        return [op for op in self.block.operations if op.type == kind]

    def array(self, operation: Any, parameter: str = "val") -> np.ndarray:
        """A stored array, to be changed in place: a const's, or an operand of a compressing operation's."""
        value = self._value(operation, parameter)
        if value.WhichOneof("value") == "blobFileValue":
            at = value.blobFileValue.offset
            size, start = self.weights[at + 8 : at + 24].view(np.uint64)
            raw = self.weights[int(start) : int(start + size)]
        else:
            raw = np.frombuffer(value.immediateValue.tensor.bytes.values, np.uint8).copy()
        tensor = value.type.tensorType
        shape = [d.constant.size for d in tensor.dimensions]
        if tensor.dataType in PACKED:  # a copy, unlike all others
            return unpack_bits(raw, PACKED[tensor.dataType], int(np.prod(shape))).reshape(shape)
        dtype = {10: np.float16, 11: np.float32, 21: np.int8}[tensor.dataType]
        return raw.view(dtype).reshape(shape)

    def store(self, operation: Any, array: np.ndarray, parameter: str = "val") -> None:
        """Put an array of the same type and shape in the place of a stored one."""
        value = self._value(operation, parameter)
        if value.type.tensorType.dataType in PACKED:
            array = packed(array, PACKED[value.type.tensorType.dataType].bits)
            at = value.blobFileValue.offset
            self.weights[(start := int(self.weights[at + 16 : at + 24].view(np.uint64)[0])) : start + array.size] = (
                array
            )
        elif value.WhichOneof("value") == "blobFileValue":
            self.array(operation, parameter)[...] = array
        else:
            value.immediateValue.tensor.bytes.values = np.ascontiguousarray(array).tobytes()

    def _value(self, operation: Any, parameter: str) -> Any:
        if parameter in operation.attributes:
            return operation.attributes[parameter]
        [binding] = operation.inputs[parameter].arguments
        return binding.value if binding.WhichOneof("binding") == "value" else self.maker(binding.name).attributes["val"]

    def insert(self, before: str, kind: str, x: str, y: float, like: Any, name: str) -> None:
        """A new operation `name` = `kind`(x, y) of the type of the value `like`, before the first one that reads `before`."""
        at = next(i for i, op in enumerate(self.block.operations) if before in reads(op))
        made = [type(self.block.operations[0])() for _ in range(2)]
        scalar, operation = made
        scalar.type = "const"
        scalar.outputs.add(name=f"{name}_y").type.tensorType.dataType = like.tensorType.dataType
        value = scalar.attributes["val"]
        value.type.CopyFrom(scalar.outputs[0].type)
        if like.tensorType.dataType == 23:  # int32
            value.immediateValue.tensor.ints.values.append(int(y))
        else:
            value.immediateValue.tensor.bytes.values = np.float16(y).tobytes()
        operation.type = kind
        operation.inputs["x"].arguments.add(name=x)
        operation.inputs["y"].arguments.add(name=f"{name}_y")
        operation.outputs.add(name=name).type.CopyFrom(like)
        rest = [type(op).FromString(op.SerializeToString()) for op in self.block.operations]
        del self.block.operations[:]
        self.block.operations.extend([*rest[:at], *made, *rest[at:]])


def reads(operation: Any) -> list[str]:
    """Names of the values that an operation reads."""
    return [b.name for a in operation.inputs.values() for b in a.arguments]


def edit(path: Path, change: Callable[[Package], None]) -> None:
    """Change a package in place."""
    package = Package(path)
    change(package)
    package.write()


def rewrite(package: Package) -> None:
    package.model.description.metadata.author = "written again"


def ignore_mask(package: Package) -> None:
    [mask] = [i.type for i in package.inputs if i.name == "attention_mask"]
    readers = [op.outputs[0].name for op in package.block.operations if "attention_mask" in reads(op)]
    assert readers
    package.insert("attention_mask", "mul", "attention_mask", 0, mask, "nothing")
    for name in readers:
        for argument in package.maker(name).inputs.values():
            for binding in argument.arguments:
                if binding.name == "attention_mask":
                    binding.name = "ones"
    package.insert("ones", "add", "nothing", 1, mask, "ones")


def classifier(package: Package) -> tuple[Any, Any]:
    """The constants of the last layer: weight and bias."""
    last = package.all("linear")[-1]
    weight, bias = (package.argument(last, p) for p in ("weight", "bias"))
    assert package.array(weight).shape[0] == CLASSES
    return weight, bias


def swap_labels(package: Package) -> None:
    for constant in classifier(package):
        package.store(constant, package.array(constant)[[1, 0, 2]])


def always_the_same(package: Package) -> None:
    weight, _ = classifier(package)
    package.store(weight, package.array(weight) * 0)


def a_little_more(package: Package) -> None:
    for constant in classifier(package):
        package.store(constant, package.array(constant) * np.float16(1.25))


def words(package: Package) -> Any:
    """The operation that makes the table of words: a constant, or a compressing operation."""
    table = next(package.argument(op, "x") for op in package.all("gather") if "input_ids_to_uint16" in reads(op))
    assert table.outputs[0].type.tensorType.dimensions[0].constant.size > 100
    return table


def one_nan(package: Package) -> None:
    package.array(package.argument(package.all("linear")[-2], "weight"))[3, 5] = np.nan


def one_hidden_nan(package: Package) -> None:
    package.array(words(package))[4, 0] = np.nan


def one_nan_scale(package: Package) -> None:
    scales = package.array(words(package), "scale")
    scales.reshape(-1)[4] = np.nan
    assert scales.size > 100


def too_large(package: Package) -> None:
    """The pooler's sums pass fp16's end; tanh makes 1 of infinity, so that no answer shows it."""
    weight = package.argument(package.all("linear")[-2], "weight")
    if weight.type == "const":
        value = package.array(weight)
        value[...] = np.where(value < 0, -60000, 60000)
    else:  # compressed: 255 steps at most, which fp16 still holds
        package.array(weight, "scale")[...] = 250


def other_names(package: Package) -> None:
    """The label names inside change places; the graph stays."""
    [classify] = package.all("classify")
    values = [
        v.immediateValue.tensor.strings
        for v in classify.inputs["classes"].arguments[0].value.immediateValue.list.values
    ]
    names = [v.values[0] for v in values]
    for value, name in zip(values, (names[1], names[0], names[2]), strict=True):
        value.values[0] = name


def turned_probabilities(package: Package) -> None:
    """The classifier reads the softmax of the negative logits; the logits themselves stay right."""
    softmax = package.all("softmax")[-1]
    logits, name = softmax.inputs["x"].arguments[0].name, softmax.outputs[0].name
    like = type(softmax.outputs[0].type).FromString(softmax.outputs[0].type.SerializeToString())
    package.insert(logits, "mul", logits, -1, like, "turned")
    package.maker(name).inputs["x"].arguments[0].name = "turned"


def one_rank_more(package: Package) -> None:
    """An operation declares a result of one more dimension than it makes; the MIL loader of a device refuses that."""
    tensor = package.all("tanh")[-1].outputs[0].type.tensorType
    tensor.dimensions.add().constant.size = 1
    tensor.rank += 1


def truncated(path: Path) -> None:
    weights = path / "Data" / _WEIGHT_FILE
    weights.write_bytes(weights.read_bytes()[:20_000])


def no_model(path: Path) -> None:
    (path / "Data" / _MODEL).write_bytes(b"\xff" * 100)


def no_weights(path: Path) -> None:
    (path / "Data" / _WEIGHT_FILE).unlink()
