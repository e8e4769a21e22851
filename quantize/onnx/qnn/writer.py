"""Writes quantization around every operator of an ONNX graph, in the form that Qualcomm's compiler takes as a whole.

Each float tensor is followed by QuantizeLinear and DequantizeLinear, and an operator with its neighbours becomes one of
integers in the compiler. A tensor that one reader wants in 8 bits and another one in 16 is written in both.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.families.ranges import Range
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.onnx.qnn.encodings import Encoding
from pocketbert.quantize.onnx.qnn.learned import LearnedTensors

DOMAIN = "com.microsoft"
"""Where 16-bit QuantizeLinear exists in opset 20; in ONNX itself it came with 21, which older phone builds do not read."""
WIDE, NARROW = 16, 8
LAYOUT = ("Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", "Identity", "Gather", "Flatten", "Expand", "Split")
"""Operators that move numbers: results have the encoding of what they read."""


@dataclass(frozen=True)
class _Written:
    """A tensor that went through integers.

    Attributes:
        name: The float tensor behind DequantizeLinear.
        encoding: Its integers.
    """

    name: str
    encoding: Encoding


class MaskNumbers(Protocol):
    """The float tensors that masks are made of.

    Attributes:
        counts: Names of those that are whole numbers.
        units: Names of those of them that are zeros and ones.
    """

    counts: set[str]
    units: set[str]


class Writer:
    """Rewrites one graph.

    Args:
        graph: The graph, with fp32 numbers; changed by `run`.
        floats: Names of its computed float tensors, without those that become constants once the length is fixed.
        constants: Names of float tensors that become constants, where an operator with another result reads them.
        chain: Names of float tensors that are whole numbers.
        ranges: Of all others.
        product_bits: Bits of what stored weights are multiplied with and of the results. Products with fewer results than
            terms, as the second one of a feed-forward layer and the classifier, have 16: the largest numbers of an encoder
            come from there.
        learned: Ranges that training learned; they take the place of measured ones.
    """

    def __init__(
        self,
        graph: Any,
        floats: set[str],
        constants: Container[str],
        chain: MaskNumbers,
        ranges: Mapping[str, Range],
        product_bits: int,
        learned: LearnedTensors,
    ) -> None:
        self.graph, self._floats, self._bits = graph, floats, product_bits
        self._later, self._chain = constants, chain
        self._ranges = {**ranges, **learned.results}
        self._learned = learned
        self._stored = {t.name: t for t in graph.initializer}
        self._outputs = {o.name for o in graph.output}
        self._written: dict[str, _Written] = {}
        self._copies: dict[tuple[str, int], _Written] = {}
        self._constants: set[str] = set()
        self._nodes: list[Any] = []

    def run(self) -> None:
        """Rewrite the graph, and drop what nothing reads now."""
        for node in [*self.graph.node]:
            copy = type(node)()
            copy.CopyFrom(node)
            encoding = self._operands(copy, node)
            self._nodes.append(copy)
            if encoding is not None:
                self._result(copy, encoding)
            for name in (n for n in node.output if n in self._later):
                self._written[name] = self._through(name, name, self._measured(name, WIDE), None)
        read = {n for node in self._nodes for n in node.input} | self._outputs
        stored = [t for t in self.graph.initializer if t.name in read]
        for field, values in ((self.graph.node, self._nodes), (self.graph.initializer, stored)):
            del field[:]
            field.extend(values)

    def _operands(self, copy: Any, node: Any) -> Encoding | None:
        """Make a node read integers; the encoding of its result, None where that is no float."""
        out = node.output[0]
        if out not in self._floats:
            for at, name in enumerate(node.input):  # such as Shape
                kept = name in self._later or name not in self._written
                copy.input[at] = name if kept else self._written[name].name
            return None
        if node.op_type in LAYOUT:
            source = self._constant(node.input[0], NARROW) if self._is_constant(node.input[0]) else None
            source = source or self._written[node.input[0]]
            copy.input[0] = source.name
            return source.encoding
        if node.op_type in ("MatMul", "Gemm") and self._is_constant(node.input[1]):
            return self._product(copy, node)
        if node.op_type == "LayerNormalization":
            self._norm(copy, node)
        else:
            for at, name in enumerate(node.input):
                if self._is_constant(name):
                    copy.input[at] = self._constant(name, WIDE).name
                elif name in self._written:
                    copy.input[at] = self._in_bits(name, WIDE).name
        if node.op_type == "Clip" and all(self._is_constant(n) for n in node.input[1:]) and len(node.input) > 2:
            # the emulated chip clips by the range of what it writes only
            return Encoding.between(WIDE, *(float(self._value(n)) for n in node.input[1:]))
        return Encoding.fixed(node.op_type, WIDE) or self._measured(out, WIDE)

    def _product(self, copy: Any, node: Any) -> Encoding:
        """A product with a stored weight: int8 with a scale for each output channel, bias in 32 bits."""
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        terms, results = self._stored[node.input[1]].dims[:: -1 if turned else 1]
        bits = WIDE if results < terms else self._bits
        data = self._in_bits(node.input[0], bits)
        copy.input[0] = data.name
        copy.input[1], scales = self._weight(node.input[1], 0 if turned else 1)
        if len(node.input) > 2:
            copy.input[2] = self._bias(node.input[2], np.float32(data.encoding.step) * scales, node.output[0])
        return self._measured(node.output[0], bits)

    def _measured(self, name: str, bits: int) -> Encoding:
        """The integers of what an operator computes."""
        if name in self._chain.units:
            return Encoding.between(WIDE, 0.0, 1.0)
        if name in self._chain.counts:
            return Encoding.counts()
        low, high = self._ranges[name]
        room = ROOM if bits == WIDE and name not in self._learned.results else 1.0
        return Encoding.between(bits, room * low, room * high)

    def _norm(self, copy: Any, node: Any) -> None:
        # the compiler refuses 16-bit factors of a norm
        data, factors = self._in_bits(node.input[0], WIDE), self._constant(node.input[1], NARROW)
        copy.input[0], copy.input[1] = data.name, factors.name
        if len(node.input) > 2:
            unit = np.float32(data.encoding.step * factors.encoding.step)
            copy.input[2] = self._bias(node.input[2], unit, node.output[0])

    def _result(self, node: Any, encoding: Encoding) -> None:
        """Quantize what a node computes, all parts of it; an output of the graph keeps its name."""
        for at, name in enumerate([*node.output]):
            if name in self._outputs:
                node.output[at] = f"{name}_exact"
            out = name if name in self._outputs else None
            self._written[name] = self._through(node.output[at], name, encoding, out)

    def _in_bits(self, name: str, bits: int) -> _Written:
        """A computed tensor in 8 or 16 bits: as it was written, or converted."""
        found = self._written[name]
        if found.encoding.bits == bits:
            return found
        if (name, bits) not in self._copies:
            learned = self._learned.inputs.get(name) if bits == NARROW else None
            low, high = learned or self._ranges.get(name) or _ends(found.encoding)
            self._copies[name, bits] = self._through(
                found.name, f"{name}_in{bits}", Encoding.between(bits, low, high), None
            )
        return self._copies[name, bits]

    def _through(self, source: str, stem: str, encoding: Encoding, out: str | None) -> _Written:
        """Write QuantizeLinear and DequantizeLinear behind a tensor."""
        from onnx import helper

        small, out = f"{stem}_u{encoding.bits}", out or f"{stem}_u{encoding.bits}_fp32"
        units = self._units(small, np.float32(encoding.step), np.array(encoding.zero, encoding.dtype))
        for op_type, read, made in (("QuantizeLinear", source, small), ("DequantizeLinear", small, out)):
            self._nodes.append(helper.make_node(op_type, [read, *units], [made], name=made, domain=DOMAIN))
        return _Written(out, encoding)

    def _is_constant(self, name: str) -> bool:
        return name in self._stored and self._stored[name].data_type == 1

    def _constant(self, name: str, bits: int) -> _Written:
        value = self._value(name)
        encoding = Encoding.of(bits, value)
        zero = np.array(encoding.zero, encoding.dtype)
        return _Written(
            self._widened(f"{name}_u{bits}", encoding.integers(value), np.float32(encoding.step), zero), encoding
        )

    def _weight(self, name: str, axis: int) -> tuple[str, NDArray[np.float32]]:
        """Name of a weight that went through int8, and its scales."""
        value = self._value(name)
        most = np.abs(value).max(1 - axis, keepdims=True)
        scales = (np.maximum(most, np.finfo(np.float32).tiny * 127) / 127).astype(np.float32)
        zeros = np.zeros(scales.size, np.int8)
        small = np.rint(value / scales).astype(np.int8)
        return self._widened(f"{name}_s8", small, scales.ravel(), zeros, axis), scales.ravel()

    def _bias(self, name: str, scale: NDArray[np.float32] | np.float32, reader: str) -> str:
        """Name of an offset in 32 bits, in the units of the sums that it is added to, which are those of one reader."""
        ends = np.iinfo(np.int32)
        small = np.clip(np.rint(self._value(name).astype(np.float64) / scale), ends.min, ends.max).astype(np.int32)
        zeros = np.zeros(np.shape(scale), np.int32)
        return self._widened(f"{reader}_bias_s32", small, scale, zeros, 0 if np.ndim(scale) else None)

    def _widened(self, stem: str, small: NDArray[Any], scale: Any, zero: NDArray[Any], axis: int | None = None) -> str:
        """Store integers, and write the DequantizeLinear behind them."""
        from onnx import helper

        out = f"{stem}_fp32"
        if out not in self._constants:
            self._constants.add(out)
            self._store(stem, small)
            flags = {} if axis is None else {"axis": axis}
            self._nodes.append(
                helper.make_node(
                    "DequantizeLinear", [stem, *self._units(stem, scale, zero)], [out], name=out, domain=DOMAIN, **flags
                )
            )
        return out

    def _units(self, stem: str, scale: Any, zero: NDArray[Any]) -> tuple[str, str]:
        self._store(f"{stem}_scale", np.asarray(scale, np.float32))
        self._store(f"{stem}_zero", zero)
        return f"{stem}_scale", f"{stem}_zero"

    def _value(self, name: str) -> NDArray[np.float32]:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(self._stored[name]), np.float32)

    def _store(self, name: str, value: NDArray[np.generic]) -> None:
        from onnx import numpy_helper

        self.graph.initializer.append(numpy_helper.from_array(np.array(value, order="C"), name))


def _ends(encoding: Encoding) -> Range:
    top = (1 << encoding.bits) - 1
    return -encoding.zero * encoding.step, (top - encoding.zero) * encoding.step
