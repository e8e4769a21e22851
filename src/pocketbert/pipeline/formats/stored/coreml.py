"""The constants of a Core ML package."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.pipeline.formats.stored.numbers import dequantized, from_palette, numbers_of, range_of
from pocketbert.pipeline.formats.stored.tracker import Constant, Tracker
from pocketbert.runtime.coreml.blob import unpack
from pocketbert.runtime.coreml.constants import Constant as Stored
from pocketbert.runtime.coreml.constants import ConstantReader
from pocketbert.runtime.coreml.kernels.constexpr import PREFIX
from pocketbert.runtime.coreml.limits import Budget
from pocketbert.runtime.coreml.mil_types import Dtype
from pocketbert.runtime.coreml.package import read_package

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_KEPT = ("cast", "expand_dims", "squeeze")
_SHIFT_SCALE = f"{PREFIX}blockwise_shift_scale"
_PALETTE = f"{PREFIX}lut_to_dense"
_AFFINE = f"{PREFIX}affine_dequantize"


def coreml_constants(path: Path) -> list[list[Constant]]:
    """List the constants of a package, in the order in which its program uses them."""
    return [_Reader(path).run()]


class _Reader:
    def __init__(self, path: Path) -> None:
        package = read_package(path)
        self.block, self.tracker = package.block, Tracker()
        self.reader = ConstantReader(package, Budget(str(path)))
        self.raw: dict[str, Any] = {}
        self.types: dict[str, Any] = {}

    def run(self) -> list[Constant]:
        for op in self.block.operations:
            handler = getattr(self, f"on_{op.type}", None)
            if op.type == "const":
                self._store(op.outputs[0].name, self.reader.read(op.attributes["val"]))
            elif op.type in (_SHIFT_SCALE, _AFFINE, _PALETTE):
                self._compressed(op)
            elif op.type in _KEPT:
                self._kept(op)
            elif handler is not None:
                handler(op)
            else:
                self._other(op)
        return self.tracker.finish(self.block.outputs)

    def _store(self, name: str, constant: Stored) -> None:
        value = self.raw[name] = constant.value
        self.types[name] = constant.type
        if isinstance(value, np.ndarray):
            self.tracker.store(name, numbers_of(value, name))

    def _name(self, op: pb.Operation, parameter: str) -> str | None:
        """Name of an operand; one that is written in place gets a name here."""
        if parameter not in op.inputs:
            return None
        [binding] = op.inputs[parameter].arguments
        if binding.WhichOneof("binding") == "name":
            return str(binding.name)
        name = f"{op.outputs[0].name}.{parameter}"
        self._store(name, self.reader.read(binding.value))
        return name

    def _value(self, op: pb.Operation, parameter: str) -> Any:
        """Value of a constant operand; None of a computed one."""
        if parameter in op.attributes:
            return self.reader.read(op.attributes[parameter]).value
        name = self._name(op, parameter)
        return None if name is None else self.raw.get(name)

    def _other(self, op: pb.Operation) -> None:
        names = [b.name for a in op.inputs.values() for b in a.arguments if b.name]
        self.tracker.other([o.name for o in op.outputs], names)

    def _compressed(self, op: pb.Operation) -> None:
        if op.type == _PALETTE:
            self._from_palette(op)
            return
        whole = op.type == _SHIFT_SCALE
        data = self._value(op, "data" if whole else "quantized_data")
        scale = np.asarray(self._value(op, "scale"))
        zero = self._value(op, "offset" if whole else "zero_point")
        axis = 0 if whole else int(np.asarray(self._value(op, "axis")))
        numbers = numbers_of(data, op.outputs[0].name)
        if whole:
            name = self._name(op, "data")
            numbers = replace(numbers, bits=8 if name is None else self.types[name].dtype.bits)
            scale = _each(scale, data.shape)
            zero = None if zero is None else _each(np.asarray(zero), data.shape)
        half = scale.dtype == np.float16
        numbers = dequantized(numbers, scale, zero, axis, half)
        self.tracker.store(op.outputs[0].name, numbers)

    def _from_palette(self, op: pb.Operation) -> None:
        places, palette, shape = (self._value(op, name) for name in ("indices", "lut", "shape"))
        palette = np.asarray(palette)
        if palette.size != max(palette.shape):
            raise ValueError(f"{op.outputs[0].name}: several palettes, or palettes of vectors, are not known")
        palette = palette.reshape(-1)
        if shape is not None:  # packed bits
            sizes = tuple(int(n) for n in np.asarray(shape))
            kind = {64: Dtype.UINT6, 16: Dtype.UINT4}[palette.size]
            places = unpack(np.asarray(places).reshape(-1), kind, math.prod(sizes)).reshape(sizes)
        self.tracker.store(op.outputs[0].name, from_palette(places, palette, op.outputs[0].name))

    def _kept(self, op: pb.Operation) -> None:
        source = self._name(op, "x")
        axes = self._value(op, "axes")
        self.tracker.keep(op.outputs[0].name, source, lambda v: _reshaped(v, op.type, axes))

    def on_transpose(self, op: pb.Operation) -> None:
        order = self._value(op, "perm")
        self.tracker.rearrange(op.outputs[0].name, self._name(op, "x"), lambda v: v.transpose(order))

    def on_quantize(self, op: pb.Operation) -> None:
        """Follow an activation into 8 bits."""
        self.on_dequantize(op)
        scale, zero = (self._value(op, name) for name in ("scale", "zero_point"))
        if scale is not None and np.size(scale) == 1:
            ends = (0, 255) if self._value(op, "output_dtype") == "uint8" else (-128, 127)
            self.tracker.limit(op.outputs[0].name, range_of(np.asarray(scale), 0 if zero is None else zero, ends))

    def on_dequantize(self, op: pb.Operation) -> None:
        self.tracker.keep(op.outputs[0].name, self._name(op, "input"))

    def on_gather(self, op: pb.Operation) -> None:
        if np.asarray(self._value(op, "axis")).any():
            self._other(op)
        else:
            self.tracker.lookup(op.outputs[0].name, self._name(op, "x"), self._name(op, "indices"))

    def on_linear(self, op: pb.Operation) -> None:
        out = op.outputs[0].name
        self.tracker.product(out, self._name(op, "x"), self._name(op, "weight"), self._name(op, "bias"))

    on_conv = on_linear

    def on_matmul(self, op: pb.Operation) -> None:
        right = self._name(op, "y")
        if right is None or self.tracker.stored(right) is None or _set(self._value(op, "transpose_x")):
            self._other(op)
        else:
            turned = not _set(self._value(op, "transpose_y"))
            self.tracker.product(op.outputs[0].name, self._name(op, "x"), right, turned=turned)

    def on_add(self, op: pb.Operation) -> None:
        self.tracker.add(op.outputs[0].name, self._name(op, "x"), self._name(op, "y"))

    def on_mul(self, op: pb.Operation) -> None:
        self.tracker.multiply(op.outputs[0].name, self._name(op, "x"), self._name(op, "y"))

    def on_layer_norm(self, op: pb.Operation) -> None:
        out = op.outputs[0].name
        self.tracker.other([out], [self._name(op, "x")])
        for parameter, change in (("gamma", self.tracker.multiply), ("beta", self.tracker.add)):
            name = self._name(op, parameter)
            if name is not None:
                change(out, out, name)


def _each(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of blocks, once for each number of a block."""
    for axis, (have, want) in enumerate(zip(values.shape, shape, strict=True)):
        if 1 < have < want:
            values = np.repeat(values, want // have, axis)
    return values


def _set(value: Any) -> bool:
    return value is not None and bool(np.asarray(value).any())


def _reshaped(value: NDArray[Any], kind: str, axes: Any) -> NDArray[Any]:
    places = () if axes is None else tuple(int(a) for a in np.asarray(axes).reshape(-1))
    if kind == "expand_dims":
        return np.expand_dims(value, places)
    return np.squeeze(value, places or None) if kind == "squeeze" else value
