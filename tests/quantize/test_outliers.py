"""Planted outliers ruin files in int8, and dividing them brings the error back, in every format."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.families import find_family
from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.export.adapters.outliers import divide_outliers
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.quantize import Plan, find_row, quantize
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.runtime.engines import open_file
from support.outliers import ROWS, plant
from support.tiny import NAMES, tiny_classifier

TASK, FAMILY = TASKS[TaskName.TEXT_CLASSIFICATION], find_family("bert")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
LENGTH = 24


def one_by_one() -> Iterator[Mapping[str, NDArray[np.int64]]]:
    """Rows [1, L] without padding."""
    for batch in ROWS:
        for i, length in enumerate(batch["attention_mask"].sum(1)):
            yield {name: value[i : i + 1, :length] for name, value in batch.items()}


def write(module: nn.Module, format: Format, path: Path) -> None:
    if format is Format.ONNX:
        from pocketbert.export import onnx

        onnx.export(module, FAMILY, TASK, ROWS[0], path)
    elif format is Format.TFLITE:
        from pocketbert.export import tflite

        tflite.export(module, FAMILY, TASK, (LENGTH,), path)
    else:
        from pocketbert.export import coreml

        about = coreml.CoremlInfo("", "1", "", "")
        coreml.export(module, FAMILY, TASK, (LENGTH,), path, coreml.CoremlForm(), about)


def modules(format: Format) -> dict[str, nn.Module]:
    """A healthy module, the same with planted outliers, and that one treated; all answer alike in fp32."""
    healthy = prepare(tiny_classifier("bert", 1, NAMES, **SIZES), FAMILY, TASK, format)
    planted = copy.deepcopy(healthy)
    plant(planted, FAMILY.inputs)
    treated = copy.deepcopy(planted)
    assert divide_outliers(treated, FAMILY.inputs, ROWS)
    return {"healthy": healthy, "planted": planted, "treated": treated}


def off(predictor: Predictor, module: nn.Module) -> float:
    """The RMS error of a predictor's logits over their spread, against a module in fp32."""
    found, right = [], []
    for row in one_by_one():
        missing = LENGTH - row["input_ids"].shape[1] if predictor.lengths else 0
        full = {name: np.pad(value, ((0, 0), (0, missing))) for name, value in row.items()}
        found.append(predictor.run(full)["logits"])
        right.append(PreparedPredictor(module, FAMILY, TASK).run(row)["logits"])
    return rms_error(np.concatenate(found), np.concatenate(right))


def check(errors: Mapping[str, float]) -> None:
    assert errors["planted"] > 5 * errors["healthy"], errors
    assert errors["treated"] < 2 * errors["healthy"], errors


def errors_of_files(
    made: Mapping[str, nn.Module], format: Format, schemes: Sequence[Scheme], folder: Path
) -> dict[Scheme, dict[str, float]]:
    """Export each module, and measure its files of some schemes."""
    ending = {Format.ONNX: ".onnx", Format.TFLITE: ".tflite", Format.COREML: ".mlpackage"}[format]
    out: dict[Scheme, dict[str, float]] = {scheme: {} for scheme in schemes}
    for name, module in made.items():
        source = folder / f"{name}{ending}"
        write(module, format, source)
        for scheme in schemes:
            path = folder / f"{name}-{scheme}{ending}"
            rows = (lambda: [*one_by_one()]) if scheme.static else None
            quantize(source, path, Plan(format, scheme, rows=rows))
            out[scheme][name] = off(open_file(path, format), module)
    return out


def test_onnx_files_are_ruined_and_repaired(tmp_path: Path) -> None:
    kept = {
        name: module for name, module in modules(Format.ONNX).items() if name != "healthy"
    }  # an export takes seconds
    for errors in errors_of_files(kept, Format.ONNX, (Scheme.INT8, Scheme.A8W8), tmp_path).values():
        assert errors["planted"] > 5 * errors["treated"], errors


@pytest.mark.slow
def test_tflite_files_with_static_ranges_are_ruined_and_repaired(tmp_path: Path) -> None:
    pytest.importorskip("litert_torch", reason="needs pocketbert[tflite]")
    check(errors_of_files(modules(Format.TFLITE), Format.TFLITE, (Scheme.A8W8,), tmp_path)[Scheme.A8W8])


@pytest.mark.slow
def test_core_ml_packages_with_static_ranges_are_ruined_and_repaired(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    check(errors_of_files(modules(Format.COREML), Format.COREML, (Scheme.A8W8,), tmp_path)[Scheme.A8W8])


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.A8W8])
def test_the_simulation_shows_the_same(scheme: Scheme) -> None:
    how = find_row(Format.ONNX, scheme, None).simulation
    assert how is not None
    errors = {}
    for name, module in modules(Format.ONNX).items():
        rows = [*one_by_one()] if how.static else ()
        made = SimulatedPredictor(PreparedPredictor(module, FAMILY, TASK), how, rows)
        errors[name] = off(made, module)
    check(errors)
