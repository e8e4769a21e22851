"""Measures ranges of tensors inside an ONNX model on calibration rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pocketbert.quantize.calibration import Range, Ranges
from pocketbert.quantize.plan import Plan
from pocketbert.runtime.onnx import OnnxPredictor


def measure(model: Any, names: Iterable[str], plan: Plan, path: Path, title: str) -> dict[str, Range]:
    """Run a copy of a model that has the tensors as outputs on the plan's calibration rows, and choose their ranges.

    By default nothing is clipped: the furthest numbers belong to the first token and the separators, which texts are summed
    up in. With the furthest 1e-5 of each row left out, a teacher's error grew from 0.07 to 0.15 of its logits' spread (SST-2,
    measured on rows of 384 tokens).

    Args:
        model: The fp32 model; unchanged afterwards.
        names: The tensors.
        plan: Its rows and its method.
        path: Where the copy is written.
        title: The file that the ranges are for, which errors name.

    Raises:
        InputError: If the plan has no row.
        GateError: If a tensor has NaN or infinite numbers, or nothing but zeros.
    """
    import onnx
    from onnx import TensorProto, helper

    wanted = list(dict.fromkeys(names))
    outputs = model.graph.output
    declared = {o.name for o in outputs}
    own = len(outputs)
    outputs.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in wanted if n not in declared)
    onnx.save(model, path)
    del outputs[own:]
    predictor, ranges = OnnxPredictor(path), Ranges(wanted, plan.calibration)
    for row in plan.rows() if plan.rows is not None else ():
        ranges.add(predictor.run(row))
    return ranges.chosen(title)
