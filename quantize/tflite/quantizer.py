"""int8, w8 and fp16 for TFLite, by ai-edge-quantizer, checked operator by operator in the written file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row, per_token
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, register_scheme
from pocketbert.quantize.tflite.scales import one_scale_per_tensor
from pocketbert.quantize.weights import ExpectedWeights, Wanted

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe


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


_HALF, _W8, _COARSE = (
    Wanted("float16", dequantized=True),
    Wanted("int8", dequantized=True, per_channel=True),
    Wanted("int8", per_channel=False),
)
_FLOAT_PRODUCTS = Simulation(weights=per_row, tables=per_row, fixed_positions=True)
_DYNAMIC = Simulation(weights=per_row, tables=per_row, inputs=per_token, fixed_positions=True)
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
