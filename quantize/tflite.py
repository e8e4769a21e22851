"""int8, w8 and fp16 for TFLite, by ai-edge-quantizer, checked operator by operator in the written file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row, per_token
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.tflite_graph import TfliteGraph
from pocketbert.quantize.tflite_scales import one_scale_per_tensor
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

_WEIGHT_OPERATORS = {
    "FULLY_CONNECTED": (1, Use.MATMUL),
    "EMBEDDING_LOOKUP": (1, Use.TABLE),
    "GATHER": (0, Use.TABLE),
}
"""Input that holds the weight, and what it is used for."""


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a smaller copy of an fp32 file.

    For TFLite 2.14 and 2.16 the int8 numbers are the same; the per-channel scales, which their kernels drop without an
    error, get operators of their own.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    with quiet():
        from ai_edge_quantizer.quantizer import Quantizer

        quantizer = Quantizer(str(source))
        quantizer.load_quantization_recipe(_recipe(plan.scheme))
        content = bytes(quantizer.quantize().quantized_model)
    destination.write_bytes(one_scale_per_tensor(content) if plan.runtime is Runtime.TFLITE_2_16 else content)


def _recipe(scheme: Scheme) -> ModelQuantizationRecipe:
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager, every = RecipeManager(), TFLOperationName.ALL_SUPPORTED
    if scheme is Scheme.FP16:
        manager.add_weight_only_config(".*", every, num_bits=16, algorithm_key=AlgorithmName.FLOAT_CASTING)
    elif scheme is Scheme.W8:
        manager.add_weight_only_config(".*", every, num_bits=8)
    else:
        manager.add_dynamic_config(".*", every, num_bits=8)
    return manager.get_quantization_recipe()


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
            uses.append(
                WeightUse(
                    name=tensor.name,
                    use=use,
                    dtype=tensor.dtype,
                    numbers=tensor.numbers,
                    dequantized=dequantized,
                    per_channel=None if tensor.shape[0] == 1 and tensor.scales == 1 else tensor.scales > 1,
                )
            )
    return WeightTypes(
        uses=uses,
        int8_bytes=graph.stored_bytes("int8"),
        float_bytes=graph.stored_bytes("float32", "float16"),
        operators=graph.operator_counts(),
    )


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a file, scales of quantized tensors included."""
    yield from TfliteGraph(path).stored()


_HALF, _W8, _COARSE = (
    Wanted("float16", dequantized=True),
    Wanted("int8", dequantized=True, per_channel=True),
    Wanted("int8", per_channel=False),
)
_FLOAT_PRODUCTS = Simulation(weights=per_row, tables=per_row, fixed_positions=True)
_DYNAMIC = Simulation(weights=per_row, tables=per_row, inputs=per_token, fixed_positions=True)
register_reader(Format.TFLITE, Reader(weight_types, stored_numbers))
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP32, ExpectedWeights(Wanted("float32"), Wanted("float32"))))
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP16, ExpectedWeights(_HALF, _HALF), _write))
register_scheme(SchemeRow(Format.TFLITE, Scheme.W8, ExpectedWeights(_W8, _W8), _write, simulation=_FLOAT_PRODUCTS))
register_scheme(
    SchemeRow(
        Format.TFLITE,
        Scheme.INT8,
        ExpectedWeights(products=Wanted("int8", per_channel=True), tables=Wanted("int8")),
        _write,
        simulation=_DYNAMIC,
    )
)
# one scale per tensor: the per-channel scales of a dynamic product are what old kernels get wrong
register_scheme(
    SchemeRow(
        Format.TFLITE, Scheme.INT8, ExpectedWeights(_COARSE, _COARSE), _write, Runtime.TFLITE_2_16, simulation=_DYNAMIC
    )
)
