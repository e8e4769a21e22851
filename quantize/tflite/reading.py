"""Reads what is stored in TFLite files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.tflite.graph import TfliteGraph
from pocketbert.quantize.weights import COARSEST, ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

_WEIGHT_OPERATORS = {
    "FULLY_CONNECTED": (1, Use.MATMUL),
    "EMBEDDING_LOOKUP": (1, Use.TABLE),
    "GATHER": (0, Use.TABLE),
}
"""Input that holds the weight, and what it is used for."""

_INTEGER_OPERATORS = (*_WEIGHT_OPERATORS, "QUANTIZE")
"""Operators whose results may be integers of few bits."""
_SCORES = ("ADD", "QUANTIZE", "RESHAPE")
"""Operators between scores, mask and softmax."""
_SMALL = {"int8": 8, "int16": 16}
"""Bits of integers that operators compute with."""


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a file; those of the first signature, which the others share."""
    graph = TfliteGraph(path)
    produced = {o: op for op in graph.operators for o in op.outputs}
    uses = []
    for op in graph.operators:
        if op.name not in _WEIGHT_OPERATORS:
            continue
        place, use = _WEIGHT_OPERATORS[op.name]
        index, dequantized = op.inputs[place], False
        before = produced.get(index)
        if before is not None and before.name == "DEQUANTIZE":
            index, dequantized = before.inputs[0], True
        tensor = graph.tensors[index]
        scales_of_a_table = tensor.shape[-1:] == (1,) and use is Use.TABLE
        if tensor.stored and not scales_of_a_table:
            read = graph.tensors[op.inputs[0]].dtype
            uses.append(
                WeightUse(
                    name=tensor.name,
                    use=use,
                    dtype=tensor.dtype,
                    numbers=tensor.numbers,
                    dequantized=dequantized,
                    per_channel=None if tensor.shape[0] == 1 and tensor.scales == 1 else tensor.scales > 1,
                    block=tensor.block,
                    bits=_SMALL.get(read) if use is Use.MATMUL else None,
                )
            )
    return WeightTypes(
        uses=uses,
        int8_bytes=graph.stored_bytes("int8", "int4"),
        float_bytes=graph.stored_bytes("float32", "float16"),
        operators=graph.operator_counts(),
        integers=[
            op.name
            for op in graph.operators
            if op.name not in _INTEGER_OPERATORS and any(graph.tensors[i].dtype in _SMALL for i in op.outputs)
        ],
        coarse=_coarse(graph),
    )


def _coarse(graph: TfliteGraph) -> list[str]:
    """Inputs of softmax, and what was added to make them, that are integers with steps in which probabilities are lost."""
    produced = {o: op for op in graph.operators for o in op.outputs}
    out = []
    for op in graph.operators:
        indices = list(op.inputs) if op.name == "SOFTMAX" else []
        while indices:
            index = indices.pop()
            tensor, before = graph.tensors[index], produced.get(index)
            if tensor.dtype in _SMALL and tensor.step > COARSEST[_SMALL[tensor.dtype]]:
                out.append(tensor.name)
            if before is not None and before.name in _SCORES:
                indices += [i for i in before.inputs if i >= 0 and not graph.tensors[i].stored]
    return list(dict.fromkeys(out))


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a file, scales of quantized tensors included."""
    yield from TfliteGraph(path).stored()


register_reader(Format.TFLITE, Reader(weight_types, stored_numbers))
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP32, ExpectedWeights(Wanted("float32"), Wanted("float32"))))
