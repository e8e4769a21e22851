"""a8w8 for ONNX: the dynamic int8 file with measured ranges, so that answers do not depend on batch and padding.

Only the inputs of products with stored weights are quantized, in ranges that calibration rows had; sums, norms, softmax and
attention products stay fp32. Each DynamicQuantizeLinear becomes a QuantizeLinear with a stored scale and zero point: standard
operators, the same bytes and kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.families.ranges import Range
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.calibration import STEPS
from pocketbert.quantize.onnx.dynamic import load_plain, write_dynamic
from pocketbert.quantize.onnx.ranges import learned_inputs, measure
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 file; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured.
    """
    import onnx

    exact = load_plain(source)
    with temporary_folder(destination.parent) as folder:
        written = folder / destination.name
        write_dynamic(load_plain(source), written, plan.left)
        model = onnx.load(written)
        names = [n.input[0] for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
        ranges = measure(exact, names, plan, folder / "measured.onnx", destination.name)
        _fix_ranges(model.graph, {**ranges, **learned_inputs(exact.graph, names, plan.learned)})
        onnx.save(model, written)
        replace_file(written, destination)


def _fix_ranges(graph: Any, ranges: dict[str, Range]) -> None:
    """Replace every DynamicQuantizeLinear by a QuantizeLinear with a stored scale and zero point."""
    from onnx import helper, numpy_helper

    for node in graph.node:
        if node.op_type != "DynamicQuantizeLinear":
            continue
        low, high = ranges[node.input[0]]
        scale = np.array((high - low) / STEPS, np.float32)
        zero = np.array(np.clip(np.rint(-low / scale), 0, STEPS), np.uint8)
        graph.initializer.extend(
            numpy_helper.from_array(value, name) for value, name in zip((scale, zero), node.output[1:], strict=True)
        )
        fixed = helper.make_node("QuantizeLinear", [node.input[0], *node.output[1:]], [node.output[0]], node.name)
        node.CopyFrom(fixed)


register_scheme(
    SchemeRow(
        Format.ONNX,
        Scheme.A8W8,
        ExpectedWeights(products=Wanted("int8", per_channel=True, bits=8), tables=Wanted("int8", per_channel=True)),
        _write,
        simulation=Simulation(weights=per_row, tables=per_row, static=True),
        selective=True,
    )
)
