"""The constants of an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.pipeline.formats.stored.numbers import Numbers, compressed, dequantized, numbers_of, range_of
from pocketbert.pipeline.formats.stored.tracker import Constant, Tracker
from pocketbert.quantize.blocks import unpacked
from pocketbert.quantize.onnx.tables import PackedLookup, packed_lookups

_KEPT = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def onnx_constants(path: Path) -> list[list[Constant]]:
    """List the constants of a file, in the order in which its graph uses them."""
    import onnx

    return [_Reader(onnx.load(path).graph).run()]


class _Reader:
    def __init__(self, graph: Any) -> None:
        from onnx import numpy_helper

        self.graph, self.tracker = graph, Tracker()
        self.raw: dict[str, NDArray[Any]] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        widened = {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
        for name, value in self.raw.items():
            self.tracker.store(name, (compressed if name in widened else numbers_of)(value, name))
        self.rounded: set[str] = set()  # what quantized tensors were computed from is that of the tensors
        # scales of activations
        self.units = {n.input[1] for n in graph.node if n.op_type == "QuantizeLinear" and n.input[1] in self.raw}
        self.scales: dict[str, str] = {}  # stored scales that were multiplied with one of them
        # under which names products read tables
        self.tables = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Reshape" and n.input[0] in self.raw}
        self.packed = {p.output: p for p in packed_lookups(graph, self.raw)}
        self.unpacking = frozenset[str]().union(*(p.inside for p in self.packed.values()))

    def run(self) -> list[Constant]:
        for node in self.graph.node:
            handler = getattr(self, f"on_{node.op_type.lower()}", None)
            if node.output[0] in self.unpacking:
                continue
            if node.output[0] in self.packed:
                self._unpacked(self.packed[node.output[0]])
            elif node.op_type in _KEPT:
                self._moved(node)
            elif handler is not None:
                handler(node)
            else:
                self._other(node)
        return self.tracker.finish(o.name for o in self.graph.output)

    def _other(self, node: Any) -> None:
        self.tracker.other(node.output, [name for name in node.input if name])

    def _moved(self, node: Any) -> None:
        source, out = node.input[0], node.output[0]
        value = self.tracker.stored(source)
        shape = self._shape(node, value) if value is not None else None
        if (node.op_type == "Reshape" and value is None) or (value is not None and shape is None):
            self._other(node)  # channels may be split into heads
            self.tracker.move_range(out, source)
        else:
            self.tracker.keep(out, source, None if shape is None else lambda v: v.reshape(shape))

    def _shape(self, node: Any, value: Numbers) -> tuple[int, ...] | None:
        """The shape that a constant gets; None where it is computed."""
        now = value.value.shape
        if node.op_type in ("Cast", "Identity"):
            return now
        given = self.raw.get(node.input[1]) if len(node.input) > 1 else np.array([], np.int64)
        if given is None:
            return None
        if node.op_type == "Reshape":
            return tuple(int(n) or now[i] for i, n in enumerate(given))
        if node.op_type == "Squeeze":
            return tuple(n for i, n in enumerate(now) if n > 1 or (given.size and i not in given % len(now)))
        new = list(now)
        for axis in sorted(int(a) % (len(now) + given.size) for a in given):
            new.insert(axis, 1)
        return tuple(new)

    def on_constant(self, node: Any) -> None:
        from onnx import numpy_helper

        [value] = [a.t for a in node.attribute if a.name == "value"] or [None]
        if value is None:
            self._other(node)
            return
        self.raw[node.output[0]] = numpy_helper.to_array(value)
        self.tracker.store(node.output[0], numbers_of(self.raw[node.output[0]], node.output[0]))

    def on_transpose(self, node: Any) -> None:
        order = [int(i) for a in node.attribute for i in a.ints] or None
        self.tracker.rearrange(node.output[0], node.input[0], lambda v: v.transpose(order))

    def on_gather(self, node: Any) -> None:
        if any(a.name == "axis" and a.i for a in node.attribute):
            self._other(node)
        else:
            self.tracker.lookup(node.output[0], node.input[0], node.input[1])

    def _unpacked(self, lookup: PackedLookup) -> None:
        """Follow the lookup of a table in 4 bits, as one operator."""
        codes, scales = lookup.values(self.raw)
        numbers = Numbers(codes, lookup.table, np.ones_like(codes), bits=4).times(Numbers(scales, halves=1))
        self.tracker.store((lookup.table, "rows"), numbers)
        self.tracker.lookup(lookup.output, (lookup.table, "rows"), lookup.indices)

    def on_matmulnbits(self, node: Any) -> None:
        data, weight, scales = node.input[:3]
        flags = {a.name: a.i for a in node.attribute}
        stored = self.raw.get(self.tables.get(weight, weight))
        if stored is None or scales not in self.raw or len(node.input) > 3:
            self._other(node)
            return
        codes = unpacked(stored.reshape(flags["N"], -1), flags["bits"])
        self._store_blocks((weight, "matrix"), codes, self.raw[scales], flags, weight)
        self.tracker.product(node.output[0], data, (weight, "matrix"))

    def on_gatherblockquantized(self, node: Any) -> None:
        table, indices, scales = node.input[:3]
        flags = {a.name: a.i for a in node.attribute}
        if table not in self.raw or scales not in self.raw or len(node.input) > 3 or flags.get("gather_axis"):
            self._other(node)
            return
        self._store_blocks((table, "rows"), unpacked(self.raw[table], flags["bits"]), self.raw[scales], flags, table)
        self.tracker.lookup(node.output[0], (table, "rows"), indices)

    def _store_blocks(
        self, key: object, codes: NDArray[Any], scales: NDArray[Any], flags: dict[str, int], name: str
    ) -> None:
        """Store rows whose numbers share scales in blocks."""
        width = flags.get("K", codes.shape[1])
        values = codes[:, :width].astype(np.float32) - 2.0 ** (flags["bits"] - 1)
        steps = np.repeat(scales.reshape(len(codes), -1), flags["block_size"], axis=1)[:, :width]
        numbers = Numbers(values, name, np.ones_like(values), bits=flags["bits"])
        self.tracker.store(key, numbers.times(Numbers(steps)))

    def on_quantizelinear(self, node: Any) -> None:
        if node.domain:  # a whole graph in integers: operators read what these made fp32 again
            self.tracker.keep(node.output[0], node.input[0])
            self.rounded.add(node.output[0])
        else:
            self._other(node)
        names = [*node.input, ""]
        scale, zero = self.raw.get(names[1]), self.raw.get(names[2])
        if scale is not None and scale.size == 1 and zero is not None:
            kind = np.iinfo(zero.dtype)
            # what is stored with zero in the middle has as many steps on both sides
            low = -kind.max if kind.min < 0 and not zero.any() else kind.min
            self.tracker.limit(node.output[0], range_of(scale, zero, (low, kind.max)))

    def on_dequantizelinear(self, node: Any) -> None:
        if node.input[0] in self.rounded:
            self.tracker.keep(node.output[0], node.input[0])
            return
        names = [*node.input, ""]
        scale, zero = self.raw.get(names[1]), self.raw.get(names[2])
        axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
        if scale is None:
            self._other(node)
        else:
            self.tracker.dequantize(node.output[0], names[0], lambda n: dequantized(n, scale, zero, axis))

    def on_matmul(self, node: Any) -> None:
        left, right = node.input
        if self.tracker.stored(right) is not None:
            self.tracker.product(node.output[0], left, right, turned=True)
        else:
            self.tracker.product(node.output[0], right, left)

    def on_gemm(self, node: Any) -> None:
        flags = {a.name: a.i for a in node.attribute}
        names = [*node.input, ""]
        if flags.get("transA"):
            self._other(node)
        else:
            self.tracker.product(node.output[0], names[0], names[1], names[2] or None, not flags.get("transB"))

    def on_matmulinteger(self, node: Any) -> None:
        names = [*node.input, "", ""]
        zero, (data, weight) = self.raw.get(names[3]), names[:2]
        stored = self.tracker.stored(weight)
        if stored is None:
            self._other(node)
            return
        one = np.ones(1, np.float32)
        self.tracker.store((weight, "centred"), dequantized(stored, one, zero, stored.value.ndim - 1))
        self.tracker.product(node.output[0], data, (weight, "centred"), turned=True)

    def on_dynamicquantizelinear(self, node: Any) -> None:
        self._other(node)
        self.units.add(node.output[1])

    def on_mul(self, node: Any) -> None:
        left, right = node.input
        for one, other in ((left, right), (right, left)):
            if one in self.units and self.tracker.stored(other) is not None:
                self.scales[node.output[0]] = other
                return
            if one in self.scales:
                self.tracker.scale(node.output[0], other, self.scales[one])
                return
        self.tracker.multiply(node.output[0], left, right)

    def on_add(self, node: Any) -> None:
        self.tracker.add(node.output[0], *node.input)

    def on_layernormalization(self, node: Any) -> None:
        out, (data, *parts) = node.output[0], node.input
        self.tracker.other([out], [data])
        self.tracker.multiply(out, out, parts[0])
        if len(parts) > 1:
            self.tracker.add(out, out, parts[1])
