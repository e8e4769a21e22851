"""Quantize TFLite files with ai-edge-quantizer: fp16, int8 and 4-bit weights, float or dynamic activations.

`write_quantized` writes the files of these schemes: ``fp16`` and ``w8`` (weights that are dequantized before use),
``int8``, ``small`` and ``w4`` (dynamic, weights in 8 or 4 bits), and ``int8`` for TFLite 2.14 and 2.16.
`_quantizer_recipe` holds the settings of each.

ai-edge-quantizer selects operators by the names of their output tensors. If single weights stay float or have a second
scheme, every output tensor first gets a unique name (`rename_results`), and `find_results_reading` finds the operators
of these weights by digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families.weight_records import matrix_digest
from pocketbert.core.host.quiet import silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.rounding import Simulation, per_row, per_token, tflite_int4_blocks
from pocketbert.quantize.table import WEIGHTED_ROLES, Plan, SchemeRow, SecondScheme, register_scheme
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.quantize.tflite.rewrites import one_scale_per_tensor
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe
    from ai_edge_quantizer.recipe_manager import RecipeManager

BLOCK = 32
"""Numbers that share a scale in 4 bits."""
_PRODUCT, _LOOKUP = "FULLY_CONNECTED", "EMBEDDING_LOOKUP"
_WITH_INT4 = {Scheme.W4: (_PRODUCT, _LOOKUP), Scheme.SMALL: (_LOOKUP,)}
"""Operators whose weights have 4 bits, by scheme."""


def write_quantized(source: Path, destination: Path, plan: Plan) -> None:
    """Write a quantized copy of an fp32 TFLite file with ai-edge-quantizer.

    Files for TFLite 2.14 and 2.16 have the same int8 numbers, but separate operators for the per-channel scales,
    because the kernels of these versions compute them wrongly without an error.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
        InputError: If the row length of a weight that gets 4 bits is no multiple of the block.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    with silence_output():
        from ai_edge_quantizer.quantizer import Quantizer

        with temporary_folder(destination.parent) as folder:
            plain, left, bits = source, list[str](), dict[str, int]()
            if plan.weights:
                plain = folder / "named.tflite"
                model = load_model(source.read_bytes())
                rename_results(model)
                plain.write_bytes(dump_model(model))
                left = find_results_reading(plain.read_bytes(), plan.left)
                for scheme, digests in plan.seconds.items():
                    results = find_results_reading(plain.read_bytes(), digests)
                    bits |= dict.fromkeys(results, 4 if scheme is Scheme.W4 else 8)
            has_int4 = bits or plan.scheme in _WITH_INT4
            tied = _check_blocks(plain, plan.scheme, left, bits) if has_int4 else ()
            quantizer = Quantizer(str(plain))
            quantizer.load_quantization_recipe(_quantizer_recipe(plan.scheme, tied, left, bits))
            content = bytes(quantizer.quantize().quantized_model)
    destination.write_bytes(one_scale_per_tensor(content) if plan.runtime is Runtime.TFLITE_2_16 else content)


def _check_blocks(source: Path, scheme: Scheme, left: Sequence[str], bits: Mapping[str, int]) -> list[str]:
    """Check that every weight that gets 4 bits can be cut into blocks of 32, and find the tied embedding lookups.

    In 4 bits each block of 32 numbers of a row has its own scale. An embedding lookup is tied if a matrix product reads
    the same table (as in models that share input and output embeddings); the scheme ``small`` keeps such tables in 8
    bits.

    Operators are identified by the name of their output tensor, as in ai-edge-quantizer.

    Args:
        source: The fp32 TFLite file.
        scheme: Scheme of the file that will be written.
        left: Output tensor names of the operators whose weights stay float.
        bits: Bits of the weights that do not follow `scheme`, by the output tensor name of their operator.

    Returns:
        Output tensor names of the tied lookups.

    Raises:
        InputError: Naming each weight that would get 4 bits and whose row length is no multiple of 32.
    """
    tied, indivisible = [], dict[str, int]()
    for tensors, operators in TfliteGraph(source).signatures():
        weights = [(op, tensors[op.inputs[1]]) for op in operators if op.name in (_PRODUCT, _LOOKUP)]
        multiplied = {weight.buffer for op, weight in weights if op.name == _PRODUCT}
        for op, weight in weights:
            result = tensors[op.outputs[0]].name
            is_tied = op.name == _LOOKUP and weight.buffer in multiplied
            if is_tied:
                tied.append(result)
            by_default = op.name in _WITH_INT4.get(scheme, ()) and not (is_tied and scheme is Scheme.SMALL)
            is_int4 = bits.get(result, 4 if by_default else 8) == 4 and result not in left
            if is_int4 and weight.stored and weight.shape[-1] % BLOCK:
                indivisible[weight.name] = weight.shape[-1]
    if indivisible:
        raise InputError(
            [
                Problem(
                    name,
                    f"has rows of {width} numbers; 4-bit weights of TFLite have blocks of {BLOCK}.",
                    f"Choose the scheme int8, or a student whose widths are multiples of {BLOCK}.",
                )
                for name, width in indivisible.items()
            ]
        )
    return tied


def _quantizer_recipe(
    scheme: Scheme, tied: Sequence[str] = (), left: Sequence[str] = (), bits: Mapping[str, int] | None = None
) -> ModelQuantizationRecipe:
    """Build the ai-edge-quantizer recipe (which operators get which bits) of a scheme.

    ``fp16`` casts weights, ``w8`` stores weights as int8, all others compute dynamically in int8; ``small`` and ``w4``
    add block-wise 4-bit weights. Operators are identified by the name of their output tensor.

    Args:
        scheme: The scheme.
        tied: Output tensor names of lookups in tables that a matrix product reads too: in ``small`` they have the
            product's 8 bits.
        left: Output tensor names of operators whose weights stay float.
        bits: Bits of the weights that do not follow `scheme`, by the output tensor name of their operator.
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
        for operation in _WITH_INT4.get(scheme, ()):
            name = TFLOperationName(operation)
            manager.add_dynamic_config(".*", name, num_bits=4, granularity=QuantGranularity.BLOCKWISE_32)
        for result in tied if scheme is Scheme.SMALL else ():
            manager.add_dynamic_config(f"^{re.escape(result)}", TFLOperationName(_LOOKUP), num_bits=8)
    for result, result_bits in (bits or {}).items():
        granularity = {"granularity": QuantGranularity.BLOCKWISE_32} if result_bits == 4 else {}
        for operation in (_PRODUCT, _LOOKUP):
            name = TFLOperationName(operation)
            manager.add_dynamic_config(result_pattern(result), name, num_bits=result_bits, **granularity)
    leave_float(manager, left)
    return manager.get_quantization_recipe()


# --- single operators ---


def rename_results(model: Any) -> None:
    """Give every operator's output tensor in a TFLite model a unique name. Inputs and outputs of graphs keep theirs.

    The converter names these tensors after modules: names repeat, and some are those of another module. The quantizer
    identifies tensors by name.

    Args:
        model: A model from `pocketbert.core.model_files.load_model`; changed in place.
    """
    for number, graph in enumerate(model.subgraphs):
        ends = {int(i) for i in (*graph.inputs, *graph.outputs)}
        for at, operator in enumerate(graph.operators):
            for place, index in enumerate(operator.outputs):
                if int(index) not in ends:
                    graph.tensors[index].name = f"operator{at:04d}_{place}_signature{number}".encode()


def find_results_reading(content: bytes | bytearray, digests: frozenset[str]) -> list[str]:
    """Return the output tensor names of the operators that read an fp32 weight with one of the digests.

    All signatures are searched.
    """
    if not digests:
        return []
    model, fp32 = load_model(content), tflite_schema().TensorType.FLOAT32
    digest_by_buffer: dict[int, str | None] = {}

    def digest(tensor: Any) -> str | None:
        """Return the digest of a stored fp32 tensor; None for any other tensor."""
        data = model.buffers[tensor.buffer].data
        if tensor.type != fp32 or data is None or not len(data):
            return None
        if tensor.buffer not in digest_by_buffer:
            numbers = np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.float32)
            digest_by_buffer[tensor.buffer] = matrix_digest(numbers.reshape(tensor.shape))
        return digest_by_buffer[tensor.buffer]

    return [
        graph.tensors[operator.outputs[0]].name.decode()
        for graph in model.subgraphs
        for operator in graph.operators
        if any(i >= 0 and digest(graph.tensors[i]) in digests for i in operator.inputs)
    ]


def result_pattern(result: str) -> str:
    """Return the regular expression by which ai-edge-quantizer selects the operator with this output tensor name."""
    return f"^{re.escape(result)}(;|$)"


def leave_float(manager: RecipeManager, results: Sequence[str]) -> None:
    """Exclude operators, by their output tensor names, from quantization; to be called after all other settings."""
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName

    for name in results:
        manager.add_quantization_config(
            result_pattern(name), TFLOperationName.ALL_SUPPORTED, algorithm_key=AlgorithmName.NO_QUANTIZE
        )


# --- schemes ---

INT8_WEIGHTS = ExpectedWeights(products=ExpectedForm("int8", per_channel=True), tables=ExpectedForm("int8"))
DYNAMIC_SIMULATION = Simulation(weights=per_row, tables=per_row, inputs=per_token, fixed_positions=True)


def _register() -> None:
    """Register the TFLite schemes of this module: fp16, w8, int8, small, w4, and int8 for TFLite 2.16."""

    def register(scheme: Scheme, weights: ExpectedWeights, simulation: Simulation | None = None, **more: Any) -> None:
        register_scheme(SchemeRow(Format.TFLITE, scheme, weights, write_quantized, simulation=simulation, **more))

    half = ExpectedForm("float16", dequantized=True)
    int8 = ExpectedForm("int8", dequantized=True, per_channel=True)
    int4 = ExpectedForm("int4", block=BLOCK)
    int4_weights = ExpectedWeights(products=int4, tables=int4)
    int4_simulation = replace(DYNAMIC_SIMULATION, weights=tflite_int4_blocks, tables=tflite_int4_blocks)

    register(Scheme.FP16, ExpectedWeights(half, half))
    float_products = Simulation(weights=per_row, tables=per_row, fixed_positions=True)
    register(Scheme.W8, ExpectedWeights(int8, int8), float_products, selective=True)
    second = {Scheme.W4: SecondScheme(WEIGHTED_ROLES, int4_weights, int4_simulation)}
    register(Scheme.INT8, INT8_WEIGHTS, DYNAMIC_SIMULATION, selective=True, seconds=second)
    small_weights = ExpectedWeights(products=ExpectedForm("int8", per_channel=True), tables=int4)
    register(Scheme.SMALL, small_weights, replace(DYNAMIC_SIMULATION, tables=tflite_int4_blocks))
    second = {Scheme.INT8: SecondScheme(WEIGHTED_ROLES, INT8_WEIGHTS, DYNAMIC_SIMULATION)}
    register(Scheme.W4, int4_weights, int4_simulation, selective=True, seconds=second)
    # one scale per tensor: the per-channel scales of a dynamic product are what old kernels compute wrongly
    coarse = ExpectedForm("int8", per_channel=False)
    old_weights = ExpectedWeights(coarse, coarse)
    register(Scheme.INT8, old_weights, DYNAMIC_SIMULATION, runtime=Runtime.TFLITE_2_16)


_register()
