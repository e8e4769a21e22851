"""Writes quantization around every operator of an ONNX graph, in the form that Qualcomm's compiler takes as a whole.

Each float tensor is followed by QuantizeLinear and DequantizeLinear, and an operator with its neighbours becomes one of
integers in the compiler. A tensor that one reader wants in 8 bits and another one in 16 is written in both.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import LearnedRanges, Range
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.onnx.dynamic import load_plain, readers
from pocketbert.quantize.onnx.reading import from_sizes, matrices, read_elsewhere
from pocketbert.quantize.onnx.static import learned_products, measure
from pocketbert.quantize.rounding import Simulation, per_row, per_tensor
from pocketbert.quantize.table import Plan, SchemeRow, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted

# --- encodings ---
# How the numbers of one tensor become unsigned integers of 8 or 16 bits.


_LEAST = 1e-9
"""A step that no tensor of a trained model reaches: it keeps constants of zeros from being divided by zero."""


@dataclass(frozen=True)
class Encoding:
    """Integers of a tensor: a number is (integer - zero) times step.

    Attributes:
        bits: 8 or 16.
        step: Distance of two neighbours.
        zero: The integer that means 0.
    """

    bits: int
    step: float
    zero: int

    @classmethod
    def between(cls, bits: int, low: float, high: float) -> Encoding:
        """Make the encoding of a range, widened to hold zero."""
        low, high, top = min(low, 0.0), max(high, 0.0), (1 << bits) - 1
        step = max((high - low) / top, _LEAST)
        return cls(bits, step, int(np.clip(round(-low / step), 0, top)))

    @classmethod
    def counts(cls) -> Encoding:
        """Make the encoding of whole numbers from -4,096 to 4,095, each of which is exact in 16 bits.

        Coarser steps, which reach further, are multiplied coarsely in the emulator of Qualcomm's NPU.
        """
        return cls(16, 2.0**-3, 1 << 15)

    @classmethod
    def of(cls, bits: int, values: NDArray[np.floating]) -> Encoding:
        """Make the encoding of constants; factors such as 1, 2 and 4 are exact in a step that is a power of two."""
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        step = 2.0 ** np.ceil(np.log2(max((high - low) / ((1 << bits) - 1), _LEAST)))
        if not np.array_equal(np.rint(values / step) * step, values):
            return cls.between(bits, low, high)
        return cls(bits, step, round(-low / step))

    @classmethod
    def fixed(cls, op_type: str, bits: int) -> Encoding | None:
        """Make the encoding that the compiler prescribes for the results of an operator; None where it prescribes none."""
        if op_type in ("Softmax", "Sigmoid"):
            return cls(bits, 2.0**-bits, 0)
        return cls(bits, 2.0 ** (1 - bits), 1 << (bits - 1)) if op_type == "Tanh" else None

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The type of its integers."""
        return np.uint8 if self.bits == 8 else np.uint16

    def integers(self, values: NDArray[np.floating]) -> NDArray[np.unsignedinteger]:
        """Round numbers to integers; what lies outside the range goes to its end."""
        rounded = np.rint(values / np.float32(self.step)) + self.zero
        return np.asarray(np.clip(rounded, 0, (1 << self.bits) - 1), self.dtype)


# --- learned ---
# Ranges that training learned, by the tensors of a graph that have them.


@dataclass(frozen=True)
class LearnedTensors:
    """Ranges of what products with stored weights read and make.

    Attributes:
        inputs: Of what they read, by tensor.
        results: Of what they make, their offset included, by tensor.
    """

    inputs: dict[str, Range]
    results: dict[str, Range]

    @staticmethod
    def of(graph: Any, learned: LearnedRanges | None) -> LearnedTensors:
        """Find the tensors of a graph.

        Args:
            graph: The graph of the fp32 model.
            learned: Ranges by the weights of the product; None without any.
        """
        inputs, results = dict[str, Range](), dict[str, Range]()
        stored, products = {tensor.name for tensor in graph.initializer}, [*learned_products(graph, learned)]
        behind = readers(graph, {product.output[0] for product, _, _ in products})
        for product, at, own in products:
            if own.inputs is not None:
                inputs[product.input[at]] = own.inputs
            if own.outputs is not None:
                results[_result(product, behind.get(product.output[0], []), stored)] = own.outputs
        return LearnedTensors(inputs, results)


def _result(product: Any, behind: list[Any], stored: set[str]) -> str:
    """The tensor with the offset of a product, which an exporter may add in an operator of its own."""
    one = behind[0] if len(behind) == 1 else None
    apart = one is not None and one.op_type == "Add" and any(name in stored for name in one.input)
    return str(one.output[0] if one is not None and apart else product.output[0])


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


# --- mask ---
# The attention mask in whole-graph integers: its constant of 1e4 becomes one that leaves attention scores their steps.
#
# A score plus a mask of -1e4 needs a range of 1e4. In 8 bits its steps are 39 wide and no score is left of it; in 16 bits they
# are 0.15 wide. The mask has to lose by a margin against every score and need not lose by 1e4. What it is made of, zeros and
# ones, places and distances, are whole numbers: they have separate steps, and no range is measured.


MASK = "attention_mask"
INPUTS = frozenset((MASK, "token_type_ids", "input_ids"))
_LARGE = 1e3
"""Constants of at least this size are the mask's."""
_MARGIN = 16.0
"""By how much a masked score is below every other one: a masked token gets at most exp(-16) = 1e-7 of another's probability."""
_WHOLE = (
    "Cast",
    "Range",
    "Add",
    "Sub",
    "Mul",
    "Abs",
    "Neg",
    "Clip",
    "CumSum",
    "ReduceSum",
    "Min",
    "Max",
    "Concat",
    *LAYOUT,
)
"""Operators that make whole numbers of whole numbers."""


class MaskChain:
    """The part of a graph that is computed from masks, segments, ids and places, without tables and weights.

    Args:
        graph: An ONNX graph, which `lower` changes.
        floats: Names of its computed float tensors.
        sizes: Names of the tensors that only the sizes of its inputs decide.

    Attributes:
        counts: Float tensors of that part which are whole numbers.
        units: Those of them which are zeros and ones.
        masks: Float tensors of that part which the constant is in.
        sources: Of scores plus mask, and of numbers times zeros and ones, such as states times the mask, these scores and
            numbers, in the order of the graph.
    """

    def __init__(self, graph: Any, floats: set[str], sizes: set[str]) -> None:
        self._stored = {t.name: t for t in graph.initializer}
        self._floats, self._matrices = floats, matrices(graph)
        self._constants: list[Any] = []
        self._sums: list[str] = []
        self.sources: dict[str, str] = {}
        inside, whole, large, units = set(INPUTS), set[str](), set[str](), {MASK}
        for node in graph.node:
            undone = node.op_type == "Div" and node.input[0] in large and self._is_large(node.input[1])
            if undone or (node.op_type in _WHOLE and all(self._is_whole(n, whole) for n in node.input if n)):
                whole.update(node.output)
                units.update(node.output if undone or self._is_unit(node, units) else ())
            data = [n for n in node.input if n and n not in self._stored and n not in sizes]
            if data and inside.issuperset(data) and self._matrices.isdisjoint(node.input):
                inside.update(node.output)
                found = [self._stored[n] for n in node.input if self._is_large(n)]
                self._constants += found
                if not undone and (found or large.intersection(node.input)):
                    large.update(node.output)
            elif node.op_type == "Add" and large.intersection(node.input):
                self._sums.append(node.output[0])
                self.sources[node.output[0]] = next(n for n in node.input if n not in large)
            elif node.op_type == "Mul" and len(known := inside & whole & floats & set(node.input)) == 1:
                self.sources[node.output[0]] = next(n for n in node.input if n not in known)
        self.masks = large & floats
        self.counts = ((inside | sizes) & whole & floats) - large
        self.units = self.counts & units

    def lower(self, ranges: Mapping[str, Range], title: str) -> dict[str, Range]:
        """Set the constant to the least that does its work.

        Args:
            ranges: Of scores, and of numbers that counts are multiplied with.
            title: The file, which errors name.

        Returns:
            These ranges, and those of the masks, the sums and the products.

        Raises:
            GateError: If there is no such constant, or no sum with it.
        """
        from onnx import numpy_helper

        if not self._constants or not self._sums:
            raise GateError(
                [
                    f"{title}: no large negative constant is added to attention scores in this graph, so its mask cannot be "
                    "written in integers; make another scheme for this model."
                ]
            )
        # where no text has two segments, products with them are nothing but zeros, which would be no range
        known = {**ranges}
        for name, source in self.sources.items():
            known[name] = known[source]
        least = ROOM * max(known[n][1] - known[n][0] for n in self._sums) + _MARGIN
        for tensor in self._constants:
            value = np.clip(self._value(tensor), np.float32(-least), np.float32(least))
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        depth = least / ROOM  # ranges in 16 bits get room later
        lowered = {name: (known[name][0] - depth, known[name][1]) for name in self._sums}
        return known | dict.fromkeys(self.masks, (-depth, 0.0)) | lowered

    def _is_whole(self, name: str, known: set[str]) -> bool:
        if name not in self._stored:
            return name in known or name not in self._floats
        if name in self._matrices and self._stored[name].data_type == 1:
            return False  # a weight, which takes long to look through
        value = self._value(self._stored[name])
        return bool(value.dtype.kind != "f" or np.array_equal(value, np.rint(value)))

    def _is_unit(self, node: Any, known: set[str]) -> bool:
        """Whether zeros and ones come of a node that reads whole numbers."""
        computed = [n for n in node.input if n and n not in self._stored]
        ends = [self._value(self._stored[n]) for n in node.input[1:] if n in self._stored]
        if node.op_type == "Clip":
            return len(ends) == 2 and [float(e) for e in ends] == [0.0, 1.0]
        if node.op_type == "Sub":  # 1 - x
            first = self._stored.get(node.input[0])
            return first is not None and bool((self._value(first) == 1).all()) and node.input[1] in known
        if node.op_type == "Mul":
            return len(computed) == 2 and known.issuperset(computed)
        return node.op_type in ("Cast", *LAYOUT) and node.input[0] in known

    def _is_large(self, name: str) -> bool:
        tensor = self._stored.get(name)
        return tensor is not None and tensor.data_type == 1 and float(np.abs(self._value(tensor)).max()) >= _LARGE

    @staticmethod
    def _value(tensor: Any) -> NDArray[Any]:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(tensor))


# --- scheme ---
# a16w8 and a8w8 for ONNX, written for Qualcomm's NPU: every operator computes in integers, with ranges measured on texts.
#
# Weights of products are int8, symmetric, a scale per output channel; tables uint8, one scale for each; biases int32. Numbers
# between operators are uint16. a8w8 has uint8 around products with stored weights, except those with fewer results than terms.


_VERSION = 1
"""Of the operators in `DOMAIN`."""


def _write(source: Path, destination: Path, plan: Plan, product_bits: int) -> None:
    """Write a copy of an fp32 file in integers; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured, or the graph has no mask of the known form.
    """
    model = load_plain(source)
    import onnx
    from onnx import helper

    every, sizes = _floats(model), from_sizes(model.graph)
    chain, floats = MaskChain(model.graph, every, sizes), every - sizes
    constants = [n for n in read_elsewhere(model.graph, sizes) if n in every]
    with temporary_folder(destination.parent) as folder:
        known = chain.counts.union(chain.masks, chain.sources)
        names = [n for node in model.graph.node for n in node.output if n in floats.union(constants) - known]
        ranges = measure(model, names, plan, folder / "measured.onnx", destination.name)
        ranges = chain.lower(ranges, destination.name)
        own = LearnedTensors.of(model.graph, plan.learned)
        Writer(model.graph, floats, constants, chain, ranges, product_bits, own).run()
        model.opset_import.append(helper.make_opsetid(DOMAIN, _VERSION))
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


def _floats(model: Any) -> set[str]:
    """Names of the computed float tensors of a model."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    return {n for n, kind in kinds.items() if kind == onnx.TensorProto.FLOAT}


def _register(scheme: Scheme, bits: int, simulation: Simulation) -> None:
    register_scheme(
        SchemeRow(
            Format.ONNX,
            scheme,
            ExpectedWeights(
                products=Wanted("int8", per_channel=True, bits=bits, fused=True),
                tables=Wanted("int8", dequantized=True),
                whole=True,
            ),
            partial(_write, product_bits=bits),
            Runtime.QNN,
            simulation,
            computes=frozenset(Role),
        )
    )


_WEIGHTS = Simulation(weights=per_row, tables=per_tensor)
_register(Scheme.A16W8, WIDE, _WEIGHTS)
_register(Scheme.A8W8, NARROW, replace(_WEIGHTS, static=True, outputs=True, narrowing=False))


# --- shape ---
# Gives a file for an NPU the one shape that it takes: a row of a fixed number of tokens.


def fix_shape(path: Path, length: int) -> None:
    """Set batch and length of an ONNX file with free axes.

    An NPU takes fixed shapes only.

    Args:
        path: The file; it is replaced.
        length: Tokens of its inputs.
    """
    import onnx

    model = onnx.load(path)
    sizes: dict[str, int] = {}
    for tensor in model.graph.input:
        for axis, size in zip(tensor.type.tensor_type.shape.dim, (1, length), strict=False):
            sizes[axis.dim_param] = size
            axis.dim_value = size
    for tensor in model.graph.output:
        for axis in tensor.type.tensor_type.shape.dim:
            if sizes.get(axis.dim_param):
                axis.dim_value = sizes[axis.dim_param]
    with temporary_folder(path.parent) as folder:
        onnx.save(model, folder / path.name)
        replace_file(folder / path.name, path)
