"""a16w8 and a8w8 for ONNX, written for Qualcomm's NPU: every operator computes in integers, with ranges measured on texts.

Weights of products are int8, symmetric, a scale per output channel; tables uint8, one scale for each; biases int32. Numbers
between operators are uint16. a8w8 has uint8 around products with stored weights, except those with fewer results than terms.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.onnx.dynamic import load_plain
from pocketbert.quantize.onnx.qnn.learned import LearnedTensors
from pocketbert.quantize.onnx.qnn.mask import MaskChain
from pocketbert.quantize.onnx.qnn.writer import DOMAIN, NARROW, WIDE, Writer
from pocketbert.quantize.onnx.ranges import measure
from pocketbert.quantize.onnx.sizes import from_sizes, read_elsewhere
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row, per_tensor
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted

_VERSION = 1
"""Of the operators in `DOMAIN`."""


def _write(source: Path, destination: Path, plan: Plan, product_bits: int) -> None:
    """Write a copy of an fp32 file in integers; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured, or the graph has no mask of the known form.
    """
    model = load_plain(source)
    import onnx
    from onnx import helper

    every, sizes = _floats(model), from_sizes(model.graph)
    chain, floats = MaskChain(model.graph, every, sizes), every - sizes
    constants = [n for n in read_elsewhere(model.graph, sizes) if n in every]
    with temporary_folder(destination.parent) as folder:
        known = chain.counts.union(chain.masks, chain.sources)
        names = [n for node in model.graph.node for n in node.output if n in floats.union(constants) - known]
        ranges = measure(model, names, plan, folder / "measured.onnx", destination.name)
        ranges = chain.lower(ranges, destination.name)
        own = LearnedTensors.of(model.graph, plan.learned)
        Writer(model.graph, floats, constants, chain, ranges, product_bits, own).run()
        model.opset_import.append(helper.make_opsetid(DOMAIN, _VERSION))
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


def _floats(model: Any) -> set[str]:
    """Names of the computed float tensors of a model."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    return {n for n, kind in kinds.items() if kind == onnx.TensorProto.FLOAT}


def _register(scheme: Scheme, bits: int, simulation: Simulation) -> None:
    register_scheme(
        SchemeRow(
            Format.ONNX,
            scheme,
            ExpectedWeights(
                products=Wanted("int8", per_channel=True, bits=bits, fused=True),
                tables=Wanted("int8", dequantized=True),
                whole=True,
            ),
            partial(_write, product_bits=bits),
            Runtime.QNN,
            simulation,
            computes=frozenset(Role),
        )
    )


_WEIGHTS = Simulation(weights=per_row, tables=per_tensor)
_register(Scheme.A16W8, WIDE, _WEIGHTS)
_register(Scheme.A8W8, NARROW, replace(_WEIGHTS, static=True, outputs=True, narrowing=False))
