"""Whole graphs in integers for Qualcomm's NPU (ONNX, schemes ``a16w8`` and ``a8w8`` for the runtime QNN).

`_write` runs these steps:

1. `_float_tensors` finds the float tensors, `_MaskChain` the part of the graph that is computed from masks and
   positions alone.
2. `measure_ranges` measures the ranges of all other float tensors on calibration rows; `_MaskChain.lower` reduces the
   mask's constant.
3. `_IntegerWriter` writes QuantizeLinear and DequantizeLinear after each float tensor; Qualcomm's compiler fuses each
   operator with those before and after it to one that computes in integers. A tensor that one operator reads in 8 bits
   and another in 16 is written in both.

Weights of products are int8, symmetric, with a scale per output channel; tables are uint8 with one scale each; biases
are int32. Numbers between operators are uint16. In a8w8 they are uint8 around products with stored weights, except
around products with fewer results than terms. `fix_shape` gives a file the one shape that an NPU takes.

Why the mask's constant is reduced: a score plus a mask of -1e4 needs a range of 1e4. In 8 bits its steps are 39 wide
and every score becomes the same number; in 16 bits they are 0.15 wide. A masked score must only be a margin below every
other score, not 1e4 below. The mask is computed from zeros and ones, positions and distances, which are whole numbers:
they get encodings of their own, and their ranges are not measured.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import LearnedRanges, Range
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.onnx.dynamic import find_readers, load_for_quantizer
from pocketbert.quantize.onnx.reading import find_matrices, find_read_elsewhere, find_size_tensors
from pocketbert.quantize.onnx.static import learned_products, measure_ranges
from pocketbert.quantize.rounding import Simulation, per_row, per_tensor
from pocketbert.quantize.table import Plan, SchemeRow
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights

_DOMAIN, _DOMAIN_VERSION = "com.microsoft", 1
"""The domain that has 16-bit QuantizeLinear in opset 20; ONNX has it since 21, which older phone builds do not read."""
_WIDE, _NARROW = 16, 8
_SMALLEST_STEP = 1e-9
"""A step that no tensor of a trained model reaches: it keeps constants of zeros from being divided by zero."""
_LAYOUT = ("Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", "Identity", "Gather", "Flatten", "Expand", "Split")
"""Operators that move numbers: results have the encoding of the input."""
_WHOLE = (
    *("Cast", "Range", "Add", "Sub", "Mul", "Abs", "Neg", "Clip", "CumSum", "ReduceSum", "Min", "Max", "Concat"),
    *_LAYOUT,
)
"""Operators that make whole numbers of whole numbers."""
_MASK = "attention_mask"
_INPUTS = frozenset((_MASK, "token_type_ids", "input_ids"))
_LARGE = 1e3
"""Constants of at least this size are the mask's."""
_MARGIN = 16.0
"""How far a masked score is below every other one: its token gets at most exp(-16) = 1e-7 of another's probability."""


def _write(source: Path, destination: Path, plan: Plan, product_bits: int) -> None:
    """Write an all-integer copy of an fp32 ONNX file for Qualcomm's NPU. Nothing is written if a range is missing.

    `product_bits` are the bits of activations around products with stored weights; see `_IntegerWriter`.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no calibration rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured, or the graph computes its attention mask in an
            unknown way.
    """
    model = load_for_quantizer(source)
    import onnx
    from onnx import helper

    graph = model.graph
    all_floats, sizes = _float_tensors(model), find_size_tensors(graph)
    chain, floats = _MaskChain(graph, all_floats, sizes), all_floats - sizes
    constants = [n for n in find_read_elsewhere(graph, sizes) if n in all_floats]
    with temporary_folder(destination.parent) as folder:
        unmeasured = chain.counts.union(chain.masks, chain.sources)
        names = [n for node in graph.node for n in node.output if n in floats.union(constants) - unmeasured]
        ranges = measure_ranges(model, names, plan, folder / "measured.onnx", destination.name)
        ranges = chain.lower(ranges, destination.name)
        learned = _find_learned_tensors(graph, plan.learned)
        _IntegerWriter(graph, floats, constants, chain, ranges, product_bits, learned).run()
        model.opset_import.append(helper.make_opsetid(_DOMAIN, _DOMAIN_VERSION))
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


def _float_tensors(model: Any) -> set[str]:
    """Return the names of the computed (not stored) float tensors of an ONNX model."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    return {name for name, type_ in types.items() if type_ == onnx.TensorProto.FLOAT}


# --- the mask ---


class _MaskChain:
    """The part of an ONNX graph that computes the attention mask and positions, without tables and weights.

    Args:
        graph: An ONNX graph, which `lower` changes.
        floats: Names of the graph's computed float tensors.
        sizes: Names of the tensors that depend only on the sizes of the graph's inputs.

    Attributes:
        counts: Float tensors of that part that hold whole numbers.
        units: The tensors of `counts` that hold only zeros and ones.
        masks: Float tensors of that part that contain the constant of the mask.
        sources: By the name of the result, in the order of the graph: the scores of every sum of scores and mask, and
            the other factor of every product with whole numbers of that part, such as states times the mask.
    """

    def __init__(self, graph: Any, floats: set[str], sizes: set[str]) -> None:
        """Walk the graph from its inputs, and note the tensors that are computed from mask, segments and ids alone."""
        self._stored = {t.name: t for t in graph.initializer}
        self._floats, self._matrices = floats, find_matrices(graph)
        self._constants: list[Any] = []
        self._sums: list[str] = []
        self.sources: dict[str, str] = {}
        inside, whole, large, units = set(_INPUTS), set[str](), set[str](), {_MASK}
        for node in graph.node:
            # a mask divided by its constant has zeros and ones again
            undone = node.op_type == "Div" and node.input[0] in large and self._is_large(node.input[1])
            if undone or (node.op_type in _WHOLE and all(self._is_whole(n, whole) for n in node.input if n)):
                whole.update(node.output)
                units.update(node.output if undone or self._is_unit(node, units) else ())
            data = [n for n in node.input if n and n not in self._stored and n not in sizes]
            if data and inside.issuperset(data) and self._matrices.isdisjoint(node.input):
                inside.update(node.output)
                large_constants = [self._stored[n] for n in node.input if self._is_large(n)]
                self._constants += large_constants
                if not undone and (large_constants or large.intersection(node.input)):
                    large.update(node.output)
            elif node.op_type == "Add" and large.intersection(node.input):
                self._sums.append(node.output[0])
                self.sources[node.output[0]] = next(n for n in node.input if n not in large)
            elif node.op_type == "Mul" and len(counts := inside & whole & floats & set(node.input)) == 1:
                self.sources[node.output[0]] = next(n for n in node.input if n not in counts)
        self.masks = large & floats
        self.counts = ((inside | sizes) & whole & floats) - large
        self.units = self.counts & units

    def lower(self, ranges: Mapping[str, Range], title: str) -> dict[str, Range]:
        """Reduce the mask's constant, such as -1e4, as far as masked attention scores stay below all others.

        With a smaller constant, more quantization steps are left for the scores.

        Args:
            ranges: Ranges of attention scores, and of tensors that are multiplied with zeros and ones.
            title: Name of the quantized file, for error messages.

        Returns:
            `ranges` with the ranges of the masks, of sums of scores and mask, and of products with zeros and ones
            added.

        Raises:
            GateError: If the graph has no such constant, or does not add it to anything.
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
        constant = ROOM * max(known[n][1] - known[n][0] for n in self._sums) + _MARGIN
        for tensor in self._constants:
            value = np.clip(_value(tensor), np.float32(-constant), np.float32(constant))
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        depth = constant / ROOM  # ranges in 16 bits get room later
        lowered = {name: (known[name][0] - depth, known[name][1]) for name in self._sums}
        return known | dict.fromkeys(self.masks, (-depth, 0.0)) | lowered

    def _is_whole(self, name: str, whole: set[str]) -> bool:
        """Return whether a tensor is known to hold whole numbers only."""
        if name not in self._stored:
            return name in whole or name not in self._floats
        if name in self._matrices and self._stored[name].data_type == 1:
            return False  # a weight, which takes long to look through
        value = _value(self._stored[name])
        return bool(value.dtype.kind != "f" or np.array_equal(value, np.rint(value)))

    def _is_unit(self, node: Any, units: set[str]) -> bool:
        """Return whether the results of a node hold only zeros and ones. `units` are tensors known to do so."""
        computed = [n for n in node.input if n and n not in self._stored]
        ends = [_value(self._stored[n]) for n in node.input[1:] if n in self._stored]
        if node.op_type == "Clip":
            return len(ends) == 2 and [float(e) for e in ends] == [0.0, 1.0]
        if node.op_type == "Sub":  # 1 - x
            first = self._stored.get(node.input[0])
            return first is not None and bool((_value(first) == 1).all()) and node.input[1] in units
        if node.op_type == "Mul":
            return len(computed) == 2 and units.issuperset(computed)
        return node.op_type in ("Cast", *_LAYOUT) and node.input[0] in units

    def _is_large(self, name: str) -> bool:
        tensor = self._stored.get(name)
        return tensor is not None and tensor.data_type == 1 and float(np.abs(_value(tensor)).max()) >= _LARGE


def _value(tensor: Any) -> NDArray[Any]:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor))


# --- encodings and learned ranges ---


@dataclass(frozen=True)
class Encoding:
    """How floats are stored as unsigned integers: a number is (integer - zero) times step.

    Attributes:
        bits: 8 or 16.
        step: Difference between the numbers of two neighbouring integers.
        zero: The integer that stands for 0.
    """

    bits: int
    step: float
    zero: int

    @classmethod
    def of_range(cls, bits: int, low: float, high: float) -> Encoding:
        """Return the encoding whose integers span the range from `low` to `high`, widened to include zero."""
        low, high, top = min(low, 0.0), max(high, 0.0), (1 << bits) - 1
        step = max((high - low) / top, _SMALLEST_STEP)
        return cls(bits, step, int(np.clip(round(-low / step), 0, top)))

    @classmethod
    def of_counts(cls) -> Encoding:
        """Return the 16-bit encoding for whole numbers from -4,096 to 4,095, all of them exact.

        A longer range would need larger steps, with which the emulator of Qualcomm's NPU multiplies less exactly.
        """
        return cls(16, 2.0**-3, 1 << 15)

    @classmethod
    def of_constants(cls, bits: int, values: NDArray[np.floating]) -> Encoding:
        """Return the encoding of stored constants. Its step is a power of two if all constants are multiples of it.

        Factors such as 1, 2 and 4 are then exact.
        """
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        step = 2.0 ** np.ceil(np.log2(max((high - low) / ((1 << bits) - 1), _SMALLEST_STEP)))
        if not np.array_equal(np.rint(values / step) * step, values):
            return cls.of_range(bits, low, high)
        return cls(bits, step, round(-low / step))

    @classmethod
    def prescribed(cls, op_type: str, bits: int) -> Encoding | None:
        """Return the fixed encoding that Qualcomm's compiler demands for an operator's results; None if it has none."""
        if op_type in ("Softmax", "Sigmoid"):
            return cls(bits, 2.0**-bits, 0)
        return cls(bits, 2.0 ** (1 - bits), 1 << (bits - 1)) if op_type == "Tanh" else None

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The type of its integers."""
        return np.uint8 if self.bits == 8 else np.uint16

    @property
    def range(self) -> Range:
        """The smallest and the largest number."""
        return -self.zero * self.step, ((1 << self.bits) - 1 - self.zero) * self.step

    def to_integers(self, values: NDArray[np.floating]) -> NDArray[np.unsignedinteger]:
        """Round numbers to this encoding's integers. Those outside its range are clipped."""
        rounded = np.rint(values / np.float32(self.step)) + self.zero
        return np.asarray(np.clip(rounded, 0, (1 << self.bits) - 1), self.dtype)


@dataclass(frozen=True)
class _LearnedTensors:
    """Ranges that training learned around products with stored weights, by tensor name.

    Attributes:
        inputs: Ranges of the inputs of products.
        results: Ranges of the results of products, bias included.
    """

    inputs: dict[str, Range]
    results: dict[str, Range]


def _find_learned_tensors(graph: Any, learned: LearnedRanges | None) -> _LearnedTensors:
    """Return the activation ranges that training learned, by the names of the tensors in an fp32 graph.

    These are the tensors that matrix products with stored weights read and write.
    """
    inputs, results = dict[str, Range](), dict[str, Range]()
    stored, products = {tensor.name for tensor in graph.initializer}, [*learned_products(graph, learned)]
    readers = find_readers(graph, {product.output[0] for product, _, _ in products})
    for product, at, known in products:
        if known.inputs is not None:
            inputs[product.input[at]] = known.inputs
        if known.outputs is not None:
            result, following = product.output[0], readers.get(product.output[0], [])
            # an exporter may add the offset in an operator of its own
            if len(following) == 1 and following[0].op_type == "Add" and not stored.isdisjoint(following[0].input):
                result = following[0].output[0]
            results[str(result)] = known.outputs
    return _LearnedTensors(inputs, results)


# --- the graph in integers ---

_Encoded = tuple[str, Encoding]
"""Name of a float tensor behind DequantizeLinear, and the encoding that it went through."""


class _IntegerWriter:
    """Rewrites an fp32 ONNX graph so that every float tensor passes through QuantizeLinear and DequantizeLinear.

    Args:
        graph: The graph, with fp32 numbers; changed by `run`.
        floats: Names of the graph's computed float tensors, without those that become constants once the length is
            fixed.
        constants: Names of float tensors that become constants and are read by an operator whose result does not.
        chain: The part of the graph that computes the mask.
        ranges: Ranges of all float tensors for which `chain` gives no encoding.
        product_bits: Bits of inputs and results of products with stored weights. Products with fewer results than
            terms, such as the second one of a feed-forward layer and the classifier, have 16, because the largest
            numbers of an encoder come from there.
        learned: Ranges that training learned; they replace measured ones.
    """

    def __init__(
        self,
        graph: Any,
        floats: set[str],
        constants: Container[str],
        chain: _MaskChain,
        ranges: Mapping[str, Range],
        product_bits: int,
        learned: _LearnedTensors,
    ) -> None:
        """Store the graph and the ranges. `run` rewrites the graph."""
        self.graph, self._floats, self._bits = graph, floats, product_bits
        self._later_constants, self._chain = constants, chain
        self._ranges = {**ranges, **learned.results}
        self._learned = learned
        self._stored = {t.name: t for t in graph.initializer}
        self._outputs = {o.name for o in graph.output}
        self._encoded: dict[str, _Encoded] = {}
        self._converted: dict[tuple[str, int], _Encoded] = {}
        self._constants: set[str] = set()
        self._nodes: list[Any] = []

    def run(self) -> None:
        """Quantize operands and results of the graph's nodes, and remove stored tensors that no node reads any more."""
        for node in [*self.graph.node]:
            copy = type(node)()
            copy.CopyFrom(node)
            encoding = self._encode_operands(copy, node)
            self._nodes.append(copy)
            if encoding is not None:
                self._encode_results(copy, encoding)
            for name in (n for n in node.output if n in self._later_constants):
                self._encoded[name] = self._add_quantization(name, name, self._encoding_of(name, _WIDE), None)
        read = {n for node in self._nodes for n in node.input} | self._outputs
        stored = [t for t in self.graph.initializer if t.name in read]
        for field, values in ((self.graph.node, self._nodes), (self.graph.initializer, stored)):
            del field[:]
            field.extend(values)

    def _encode_operands(self, copy: Any, node: Any) -> Encoding | None:
        """Replace the inputs of `copy`, a copy of `node`, by their quantized and dequantized versions.

        Returns:
            The encoding (range and bits) of the node's result; None if the result is not float, or becomes a constant
            once the length is fixed.
        """
        out = node.output[0]
        if out not in self._floats:
            for at, name in enumerate(node.input):  # such as Shape
                unchanged = name in self._later_constants or name not in self._encoded
                copy.input[at] = name if unchanged else self._encoded[name][0]
            return None
        if node.op_type in _LAYOUT:
            is_constant = self._is_constant(node.input[0])
            source = self._encode_constant(node.input[0], _NARROW) if is_constant else self._encoded[node.input[0]]
            copy.input[0] = source[0]
            return source[1]
        if node.op_type in ("MatMul", "Gemm") and self._is_constant(node.input[1]):
            return self._encode_product(copy, node)
        if node.op_type == "LayerNormalization":
            self._encode_norm(copy, node)
        else:
            for at, name in enumerate(node.input):
                if self._is_constant(name):
                    copy.input[at] = self._encode_constant(name, _WIDE)[0]
                elif name in self._encoded:
                    copy.input[at] = self._in_bits(name, _WIDE)[0]
        if node.op_type == "Clip" and all(self._is_constant(n) for n in node.input[1:]) and len(node.input) > 2:
            # the emulated chip clips by the range of its result only
            return Encoding.of_range(_WIDE, *(float(self._fp32(n)) for n in node.input[1:]))
        return Encoding.prescribed(node.op_type, _WIDE) or self._encoding_of(out, _WIDE)

    def _encode_product(self, copy: Any, node: Any) -> Encoding:
        """Quantize a matrix product's operands (weight int8 per output channel, bias int32).

        The inputs of `copy`, a copy of `node`, are replaced. Returns the encoding of the product's result.
        """
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        terms, results = self._stored[node.input[1]].dims[:: -1 if transposed else 1]
        bits = _WIDE if results < terms else self._bits
        copy.input[0], encoding = self._in_bits(node.input[0], bits)
        copy.input[1], scales = self._encode_weight(node.input[1], 0 if transposed else 1)
        if len(node.input) > 2:
            copy.input[2] = self._encode_bias(node.input[2], np.float32(encoding.step) * scales, node.output[0])
        return self._encoding_of(node.output[0], bits)

    def _encode_norm(self, copy: Any, node: Any) -> None:
        """Quantize the operands of a LayerNormalization. Its factors get 8 bits, because the compiler refuses 16.

        The inputs of `copy`, a copy of `node`, are replaced.
        """
        copy.input[0], data = self._in_bits(node.input[0], _WIDE)
        copy.input[1], factors = self._encode_constant(node.input[1], _NARROW)
        if len(node.input) > 2:
            scale = np.float32(data.step * factors.step)
            copy.input[2] = self._encode_bias(node.input[2], scale, node.output[0])

    def _encode_results(self, node: Any, encoding: Encoding) -> None:
        """Add QuantizeLinear and DequantizeLinear after a node's results. An output of the graph keeps its name."""
        for at, name in enumerate([*node.output]):
            if name in self._outputs:
                node.output[at] = f"{name}_exact"
            out = name if name in self._outputs else None
            self._encoded[name] = self._add_quantization(node.output[at], name, encoding, out)

    def _encoding_of(self, name: str, bits: int) -> Encoding:
        """Return the encoding (range and bits) of a computed tensor, from its measured or learned range.

        In 16 bits, measured ranges are widened by `ROOM`. Whole numbers of the mask's part have fixed encodings.
        """
        if name in self._chain.units:
            return Encoding.of_range(_WIDE, 0.0, 1.0)
        if name in self._chain.counts:
            return Encoding.of_counts()
        low, high = self._ranges[name]
        room = ROOM if bits == _WIDE and name not in self._learned.results else 1.0
        return Encoding.of_range(bits, room * low, room * high)

    def _in_bits(self, name: str, bits: int) -> _Encoded:
        """Return a computed tensor's dequantized name and encoding in `bits` bits; add a conversion if needed."""
        source, encoding = self._encoded[name]
        if encoding.bits == bits:
            return source, encoding
        if (name, bits) not in self._converted:
            learned = self._learned.inputs.get(name) if bits == _NARROW else None
            low, high = learned or self._ranges.get(name) or encoding.range
            converted = Encoding.of_range(bits, low, high)
            self._converted[name, bits] = self._add_quantization(source, f"{name}_in{bits}", converted, None)
        return self._converted[name, bits]

    def _add_quantization(self, source: str, stem: str, encoding: Encoding, out: str | None) -> _Encoded:
        """Add QuantizeLinear and DequantizeLinear after a tensor, and return the result's name and the encoding.

        `stem` begins the names of the new tensors; `out` is the name of the result, None for a new one.
        """
        from onnx import helper

        small, out = f"{stem}_u{encoding.bits}", out or f"{stem}_u{encoding.bits}_fp32"
        units = self._store_units(small, np.float32(encoding.step), np.array(encoding.zero, encoding.dtype))
        for op_type, read, made in (("QuantizeLinear", source, small), ("DequantizeLinear", small, out)):
            self._nodes.append(helper.make_node(op_type, [read, *units], [made], name=made, domain=_DOMAIN))
        return out, encoding

    def _is_constant(self, name: str) -> bool:
        return name in self._stored and self._stored[name].data_type == 1

    def _encode_constant(self, name: str, bits: int) -> _Encoded:
        """Store a constant in 8 or 16 bits, and return the name of its dequantized numbers and the encoding."""
        value = self._fp32(name)
        encoding = Encoding.of_constants(bits, value)
        zero = np.array(encoding.zero, encoding.dtype)
        integers = encoding.to_integers(value)
        return self._add_dequantization(f"{name}_u{bits}", integers, np.float32(encoding.step), zero), encoding

    def _encode_weight(self, name: str, axis: int) -> tuple[str, NDArray[np.float32]]:
        """Store a weight in int8, a scale per index of `axis`; return the dequantized weight's name and the scales."""
        value = self._fp32(name)
        largest = np.abs(value).max(1 - axis, keepdims=True)
        scales = (np.maximum(largest, np.finfo(np.float32).tiny * 127) / 127).astype(np.float32)
        zeros = np.zeros(scales.size, np.int8)
        integers = np.rint(value / scales).astype(np.int8)
        return self._add_dequantization(f"{name}_s8", integers, scales.ravel(), zeros, axis), scales.ravel()

    def _encode_bias(self, name: str, scale: NDArray[np.float32] | np.float32, reader: str) -> str:
        """Store a bias in int32, and return the name of its dequantized numbers.

        `scale` is that of the sums to which the bias is added. `reader` is the name of the result, from which names are
        made.
        """
        ends = np.iinfo(np.int32)
        integers = np.clip(np.rint(self._fp32(name).astype(np.float64) / scale), ends.min, ends.max).astype(np.int32)
        zeros = np.zeros(np.shape(scale), np.int32)
        axis = 0 if np.ndim(scale) else None
        return self._add_dequantization(f"{reader}_bias_s32", integers, scale, zeros, axis)

    def _add_dequantization(
        self, stem: str, integers: NDArray[Any], scale: Any, zero: NDArray[Any], axis: int | None = None
    ) -> str:
        """Store integers and add a DequantizeLinear after them, and return the name of its result."""
        from onnx import helper

        out = f"{stem}_fp32"
        if out not in self._constants:
            self._constants.add(out)
            self._store(stem, integers)
            inputs = [stem, *self._store_units(stem, scale, zero)]
            attributes = {} if axis is None else {"axis": axis}
            self._nodes.append(
                helper.make_node("DequantizeLinear", inputs, [out], name=out, domain=_DOMAIN, **attributes)
            )
        return out

    def _store_units(self, stem: str, scale: Any, zero: NDArray[Any]) -> tuple[str, str]:
        self._store(f"{stem}_scale", np.asarray(scale, np.float32))
        self._store(f"{stem}_zero", zero)
        return f"{stem}_scale", f"{stem}_zero"

    def _fp32(self, name: str) -> NDArray[np.float32]:
        return np.asarray(_value(self._stored[name]), np.float32)

    def _store(self, name: str, value: NDArray[np.generic]) -> None:
        from onnx import numpy_helper

        self.graph.initializer.append(numpy_helper.from_array(np.array(value, order="C"), name))


# --- one shape ---


def fix_shape(path: Path, length: int) -> None:
    """Set batch size 1 and a fixed length in an ONNX file with free axes, since an NPU takes fixed shapes only.

    Args:
        path: The file; it is replaced.
        length: Number of tokens of the inputs.
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


def _row(scheme: Scheme, bits: int, simulation: Simulation) -> SchemeRow:
    """Build the table row of a QNN scheme, in which matrix products read activations of `bits` bits.

    All operators compute in integers.
    """
    weights = ExpectedWeights(
        products=ExpectedForm("int8", per_channel=True, bits=bits, fused=True),
        tables=ExpectedForm("int8", dequantized=True),
        whole=True,
    )
    write = partial(_write, product_bits=bits)
    return SchemeRow(Format.ONNX, scheme, weights, write, Runtime.QNN, simulation, computes=frozenset(Role))


_WEIGHTS = Simulation(weights=per_row, tables=per_tensor)
ROWS = (
    _row(Scheme.A16W8, _WIDE, _WEIGHTS),
    _row(Scheme.A8W8, _NARROW, replace(_WEIGHTS, static=True, outputs=True, narrowing=False)),
)
