"""Files for TFLite in 16, 8 and 4 bits, by ai-edge-quantizer, checked operator by operator in the written file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families.weight_records import digest_of
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.system import version_of
from pocketbert.core.tflite_file import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.rounding import Simulation, four_bits_per_block, per_row, per_token
from pocketbert.quantize.table import WEIGHTED, Plan, SchemeRow, Second, register_scheme
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.quantize.tflite.rewrites import one_scale_per_tensor
from pocketbert.quantize.weights import ExpectedWeights, Wanted

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe
    from ai_edge_quantizer.recipe_manager import RecipeManager


# --- left ---
# Operators whose weights a plan leaves as they were exported.


def name_results(model: Any) -> None:
    """Give every operator's result a name that no other tensor has; inputs and outputs of the graphs keep theirs.

    The converter's names are those of modules; they repeat, and some belong to another module.

    Args:
        model: What `pocketbert.core.tflite_file.load_model` returned; changed in place.
    """
    for number, graph in enumerate(model.subgraphs):
        ends = {int(i) for i in (*graph.inputs, *graph.outputs)}
        for at, operator in enumerate(graph.operators):
            for place, index in enumerate(operator.outputs):
                if int(index) not in ends:
                    graph.tensors[index].name = f"operator{at:04d}_{place}_signature{number}".encode()


def named(content: bytes) -> bytes:
    """Return a copy of a file in which all results have different names."""
    model = load_model(content)
    name_results(model)
    return dump_model(model)


def results_left(content: bytes, left: frozenset[str]) -> list[str]:
    """Name the results of the operators that read weights with one of some digests, in every signature."""
    if not left:
        return []
    model, kind, digests = load_model(content), tflite_schema().TensorType.FLOAT32, dict[int, str | None]()

    def digest(tensor: Any) -> str | None:
        data = model.buffers[tensor.buffer].data
        if tensor.type != kind or data is None or not len(data):
            return None
        if tensor.buffer not in digests:
            numbers = np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.float32)
            digests[tensor.buffer] = digest_of(numbers.reshape(tensor.shape))
        return digests[tensor.buffer]

    return [
        graph.tensors[operator.outputs[0]].name.decode()
        for graph in model.subgraphs
        for operator in graph.operators
        if any(i >= 0 and digest(graph.tensors[i]) in left for i in operator.inputs)
    ]


def exactly(result: str) -> str:
    """Return the pattern by which ai-edge-quantizer finds the operator with a result."""
    return f"^{re.escape(result)}(;|$)"


def leave(manager: RecipeManager, results: list[str]) -> None:
    """Tell ai-edge-quantizer, after everything else, to leave the operators with these results."""
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName

    for name in results:
        manager.add_quantization_config(
            exactly(name), TFLOperationName.ALL_SUPPORTED, algorithm_key=AlgorithmName.NO_QUANTIZE
        )


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
