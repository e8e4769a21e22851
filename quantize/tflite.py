"""int8, w8 and fp16 for TFLite, by ai-edge-quantizer, checked operator by operator in the written file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Runtime, Scheme
from pocketbert.quantize.tflite_graph import TfliteGraph
from pocketbert.quantize.tflite_scales import one_scale_per_tensor
from pocketbert.quantize.weights import Use, WeightTypes, WeightUse, type_problems

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

_WEIGHT_OPERATORS = {
    "FULLY_CONNECTED": (1, Use.MATMUL),
    "EMBEDDING_LOOKUP": (1, Use.TABLE),
    "GATHER": (0, Use.TABLE),
}
"""Input that holds the weight, and what it is used for."""


def quantize(
    source: Path, destination: Path, scheme: Scheme = Scheme.INT8, runtime: Runtime | None = None
) -> WeightTypes:
    """Write a smaller copy of an fp32 file.

    Args:
        source: A file with fp32 weights.
        destination: Where to write.
        scheme: int8, w8 or fp16.
        runtime: ``tflite-2.16`` for an int8 form that TFLite 2.14 and 2.16 compute right: the same numbers, with the
            per-channel scales, which their kernels drop without an error, in operators of their own.

    Returns:
        The types found in the written file.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
        GateError: If the quantizer left weights as they were: recipes that match nothing are no error to it.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    with quiet():
        from ai_edge_quantizer.quantizer import Quantizer

        quantizer = Quantizer(str(source))
        quantizer.load_quantization_recipe(_recipe(scheme, runtime))
        content = bytes(quantizer.quantize().quantized_model)
    destination.write_bytes(one_scale_per_tensor(content) if runtime is Runtime.TFLITE_2_16 else content)
    types = weight_types(destination)
    problems = type_problems(types, destination.name, scheme, runtime)
    if problems:
        raise GateError(problems)
    return types


def _recipe(scheme: Scheme, runtime: Runtime | None) -> ModelQuantizationRecipe:
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
