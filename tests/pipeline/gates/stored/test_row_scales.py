"""Int8 tables with a scale for each row, whose rows a product reads without a norm in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.gates.stored import PreparedModels, compare_constants
from pocketbert.quantize import Plan, quantize
from support.stored_models import CLASSIFY

TABLE = "transformer.encoder.offsets.weight"


@pytest.fixture(scope="module")
def small(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "model_int8.onnx"
    quantize(exported("xlnet"), path, Plan(Format.ONNX, Scheme.INT8))
    return path


@pytest.mark.parametrize("part", [None, "row_scales", "int8"])
def test_a_wrong_row_is_found(part: str | None, small: Path, open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model = onnx.load(small)
    [table] = [t for t in model.graph.initializer if t.name.endswith(f"{TABLE}_{part or 'int8'}")]
    if part is not None:
        value = onnx.numpy_helper.to_array(table)
        changed = value * np.float32(1.1) if part == "row_scales" else np.roll(value, 1, 0)
        table.CopyFrom(onnx.numpy_helper.from_array(changed.astype(value.dtype), table.name))
    onnx.save(model, tmp_path / "model.onnx")
    graphs = format_place(Format.ONNX).constants(tmp_path / "model.onnx")
    assert graphs is not None
    models = PreparedModels(open_tiny("xlnet", 2)[1].path, CLASSIFY, 40)
    found = compare_constants(graphs, models.reference(Format.ONNX, Layout.PLAIN), ()).problems
    assert bool(found) == (part is not None), found
    assert part is None or any("offsets" in problem for problem in found)
