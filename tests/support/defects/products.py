"""Matrix products of a file with int8 weights, in their order: lost ones, and outputs that are too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.types import Format
from support.defects import defects_of, format_of

Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Product:
    """One product with a stored weight: how many numbers go in and come out, and how what is stored is replaced."""

    inputs: int
    outputs: int
    change_numbers: Callable[[Change], None]  # the int8 numbers
    change_scales: Callable[[Change], None]  # one per output
    change_bias: Callable[[Change], None] | None = None  # None where the product has none

    def lose(self) -> None:
        """Make every output 0, before its bias."""
        self.change_numbers(np.zeros_like)

    def grow(self, factor: float, channel: int | None = None) -> None:
        """Multiply all outputs with a number, or one of them."""
        factors = np.full(self.outputs, factor, np.float32)
        if channel is not None:
            factors[np.arange(self.outputs) != channel] = 1
        self.change_scales(lambda v: (v.reshape(self.outputs, -1) * factors[:, None]).reshape(v.shape))
        if self.change_bias is not None:
            self.change_bias(lambda v: v * factors)


def onnx_products(model: Any) -> list[Product]:
    """The products of an ONNX file."""
    from support.defects.onnx import change_array

    stored = {t.name: t for t in model.graph.initializer}

    def product(weight: str) -> Product:
        numbers, scales = stored[weight], stored[weight.removesuffix("_quantized") + "_scale"]
        inputs, outputs = numbers.dims
        return Product(inputs, outputs, lambda how: change_array(numbers, how), lambda how: change_array(scales, how))

    return [product(n.input[1]) for n in model.graph.node if n.op_type == "MatMulInteger"]


def tflite_products(model: Any) -> list[Product]:
    """The products of a TFLite file; the signatures share their numbers, each has the scales."""
    from support.defects.tflite import operators, store, stored

    by_buffer: dict[int, list[tuple[Any, Any]]] = {}
    for graph, op in operators(model, "FULLY_CONNECTED"):
        weight = graph.tensors[op.inputs[1]]
        bias = graph.tensors[op.inputs[2]] if len(op.inputs) > 2 and op.inputs[2] >= 0 else None
        by_buffer.setdefault(weight.buffer, []).append((weight, bias))

    def product(uses: list[tuple[Any, Any]]) -> Product:
        weight, bias = uses[0]

        def change_scales(how: Change) -> None:
            for one, _ in uses:
                one.quantization.scale = how(np.asarray(one.quantization.scale, np.float32)).astype(np.float32)

        def change_bias(how: Change) -> None:
            store(model, bias, how(stored(model, bias, "float32")).astype(np.float32))

        return Product(
            weight.shape[1],
            weight.shape[0],
            lambda how: store(model, weight, how(stored(model, weight, "int8"))),
            change_scales,
            change_bias if bias is not None else None,
        )

    return [product(uses) for uses in by_buffer.values()]


def coreml_products(package: Any) -> list[Product]:
    """The products of a Core ML package."""

    def product(operation: Any) -> Product:
        weight = package.argument(operation, "weight")
        # a compressed weight is lost with its scales: its numbers have an offset; a small one is fp16, row by row
        where = "val" if weight.type == "const" else "scale"
        outputs, inputs = (d.constant.size for d in weight.outputs[0].type.tensorType.dimensions)

        def change(how: Change) -> None:
            value = package.array(weight, where)
            package.store(weight, how(value.reshape(outputs, -1)).reshape(value.shape).astype(value.dtype), where)

        return Product(inputs, outputs, change, change)

    return [product(op) for op in package.all("linear")]


_READERS = {Format.ONNX: onnx_products, Format.TFLITE: tflite_products, Format.COREML: coreml_products}


def change_products(path: Path, change: Callable[[list[Product]], None]) -> None:
    """Change the products of a file in place."""
    format = format_of(path)
    defects_of(format).edit(path, lambda model: change(_READERS[format](model)))


def lost_feed_forward(products: list[Product]) -> None:
    """The first layer's feed-forward part adds nothing but a bias."""
    products[_up(products) + 1].lose()


def lost_attention(products: list[Product]) -> None:
    """The first layer's attention adds nothing but a bias."""
    products[_up(products) - 1].lose()


def one_channel_times_8(products: list[Product]) -> None:
    """One channel of what the first layer's attention adds is eight times as large."""
    products[_up(products) - 1].grow(8, channel=3)


def a_tenth_more(products: list[Product]) -> None:
    """Every logit grows by a tenth."""
    products[-1].grow(1.1)


def _up(products: list[Product]) -> int:
    """The product that widens the states of the first layer."""
    return next(i for i, p in enumerate(products) if p.outputs > p.inputs)
