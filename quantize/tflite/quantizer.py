"""Files for TFLite in 16, 8 and 4 bits, by ai-edge-quantizer, checked operator by operator in the written file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import four_bits_per_block, per_row, per_token
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import WEIGHTED, SchemeRow, Second, register_scheme
from pocketbert.quantize.tflite.graph import TfliteGraph
from pocketbert.quantize.tflite.left import exactly, leave, named, results_left
from pocketbert.quantize.tflite.scales import one_scale_per_tensor
from pocketbert.quantize.weights import ExpectedWeights, Wanted

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe


_PRODUCT, _LOOKUP = "FULLY_CONNECTED", "EMBEDDING_LOOKUP"
_BLOCKED = (_PRODUCT, _LOOKUP)
"""Operators that read weights in 4 bits."""
BLOCK = 32
"""Numbers that share a scale in 4 bits."""


def write(source: Path, destination: Path, plan: Plan) -> None:
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

        with temporary_folder(destination.parent) as folder:
            plain, results = source, _Results()
            if plan.weights:
                plain = folder / "named.tflite"
                plain.write_bytes(named(source.read_bytes()))
                results = _Results.of(plain.read_bytes(), plan)
            four = results.bits or plan.scheme in (Scheme.SMALL, Scheme.W4)
            tied = _check_blocks(plain, plan.scheme, results) if four else ()
            quantizer = Quantizer(str(plain))
            quantizer.load_quantization_recipe(_recipe(plan.scheme, tied, results))
            content = bytes(quantizer.quantize().quantized_model)
    destination.write_bytes(one_scale_per_tensor(content) if plan.runtime is Runtime.TFLITE_2_16 else content)


@dataclass(frozen=True)
class _Results:
    """Results of the operators whose weights have another scheme than the file.

    Attributes:
        left: Those whose weights stay as they are.
        bits: Bits of the weights that have a second scheme.
    """

    left: Sequence[str] = ()
    bits: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, content: bytes, plan: Plan) -> _Results:
        """Find the results in a file in which all of them have different names."""
        found = {s: results_left(content, digests) for s, digests in plan.seconds.items()}
        bits = {name: 4 if s is Scheme.W4 else 8 for s, names in found.items() for name in names}
        return cls(results_left(content, plan.left), bits)


def _check_blocks(source: Path, scheme: Scheme, results: _Results) -> list[str]:
    """Refuse weights that blocks do not divide; returns the lookups whose table a product reads, too.

    Raises:
        InputError: Naming weights whose rows are no multiple of a block.
    """
    tied, whole = [], dict[str, int]()
    for tensors, operators in TfliteGraph(source).signatures():
        weights = [(op, tensors[op.inputs[1]]) for op in operators if op.name in _BLOCKED]
        multiplied = {weight.buffer for op, weight in weights if op.name == _PRODUCT}
        for op, weight in weights:
            shared = op.name == _LOOKUP and weight.buffer in multiplied
            if shared:
                tied.append(tensors[op.outputs[0]].name)
            result = tensors[op.outputs[0]].name
            usual = scheme is Scheme.W4 or (scheme is Scheme.SMALL and op.name == _LOOKUP and not shared)
            packed = results.bits.get(result, 4 if usual else 8) == 4 and result not in results.left
            if packed and weight.stored and weight.shape[-1] % BLOCK:
                whole[weight.name] = weight.shape[-1]
    if whole:
        raise InputError(
            [
                Problem(
                    name,
                    f"has rows of {width} numbers; 4-bit weights of TFLite have blocks of {BLOCK}.",
                    f"Choose the scheme int8, or a student whose widths are multiples of {BLOCK}.",
                )
                for name, width in whole.items()
            ]
        )
    return tied


def _recipe(scheme: Scheme, tied: Sequence[str] = (), results: _Results | None = None) -> ModelQuantizationRecipe:
    """What ai-edge-quantizer is told.

    Args:
        scheme: The scheme.
        tied: Results of lookups in tables that a product reads, too: they get the numbers of the product.
        results: Results of operators that stay as they are or have a second scheme.
    """
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import QuantGranularity, TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager, every = RecipeManager(), TFLOperationName.ALL_SUPPORTED
    if scheme is Scheme.FP16:
        manager.add_weight_only_config(".*", every, num_bits=16, algorithm_key=AlgorithmName.FLOAT_CASTING)
    elif scheme is Scheme.W8:
        manager.add_weight_only_config(".*", every, num_bits=8)
    else:
        manager.add_dynamic_config(".*", every, num_bits=8)
        for operation in _BLOCKED if scheme is Scheme.W4 else (_LOOKUP,) if scheme is Scheme.SMALL else ():
            name = TFLOperationName(operation)
            manager.add_dynamic_config(".*", name, num_bits=4, granularity=QuantGranularity.BLOCKWISE_32)
        for result in tied if scheme is Scheme.SMALL else ():
            manager.add_dynamic_config(f"^{re.escape(result)}", TFLOperationName(_LOOKUP), num_bits=8)
    own = results or _Results()
    for result, bits in own.bits.items():
        how = {"granularity": QuantGranularity.BLOCKWISE_32} if bits == 4 else {}
        for operation in _BLOCKED:
            manager.add_dynamic_config(exactly(result), TFLOperationName(operation), num_bits=bits, **how)
    leave(manager, list(own.left))
    return manager.get_quantization_recipe()


_HALF, _W8, _COARSE = (
    Wanted("float16", dequantized=True),
    Wanted("int8", dequantized=True, per_channel=True),
    Wanted("int8", per_channel=False),
)
_FOUR = Wanted("int4", block=BLOCK)
_FLOAT_PRODUCTS = Simulation(weights=per_row, tables=per_row, fixed_positions=True)
DYNAMIC = Simulation(weights=per_row, tables=per_row, inputs=per_token, fixed_positions=True)
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP16, ExpectedWeights(_HALF, _HALF), write))
register_scheme(
    SchemeRow(Format.TFLITE, Scheme.W8, ExpectedWeights(_W8, _W8), write, simulation=_FLOAT_PRODUCTS, selective=True)
)
INT8 = ExpectedWeights(products=Wanted("int8", per_channel=True), tables=Wanted("int8"))
_W4 = ExpectedWeights(products=_FOUR, tables=_FOUR)
_BLOCKS = replace(DYNAMIC, weights=four_bits_per_block, tables=four_bits_per_block)
register_scheme(
    SchemeRow(
        Format.TFLITE,
        Scheme.INT8,
        INT8,
        write,
        simulation=DYNAMIC,
        selective=True,
        seconds={Scheme.W4: Second(WEIGHTED, _W4, _BLOCKS)},
    )
)
register_scheme(
    SchemeRow(
        Format.TFLITE,
        Scheme.SMALL,
        ExpectedWeights(products=Wanted("int8", per_channel=True), tables=_FOUR),
        write,
        simulation=replace(DYNAMIC, tables=four_bits_per_block),
    )
)
register_scheme(
    SchemeRow(
        Format.TFLITE,
        Scheme.W4,
        _W4,
        write,
        simulation=_BLOCKS,
        selective=True,
        seconds={Scheme.INT8: Second(WEIGHTED, INT8, DYNAMIC)},
    )
)
# one scale per tensor: the per-channel scales of a dynamic product are what old kernels get wrong
register_scheme(
    SchemeRow(
        Format.TFLITE, Scheme.INT8, ExpectedWeights(_COARSE, _COARSE), write, Runtime.TFLITE_2_16, simulation=DYNAMIC
    )
)
