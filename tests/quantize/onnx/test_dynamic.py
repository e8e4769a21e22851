"""Dynamic int8 for ONNX: operators, and quantizers that leave something as it was."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

from pocketbert.core.errors import GateError
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx import dynamic as quantizer
from pocketbert.quantize.table import Plan

INT8 = Plan(Format.ONNX, Scheme.INT8)
Exported = Callable[[str], Path]


FAULTY: dict[str, tuple[Callable[..., dict[str, Any]] | None, bool, str]] = {
    "everything": (None, False, "no matrix product has int8 weights; the quantizer did nothing"),
    "tables": (lambda _: {}, False, "no embedding table has int8 numbers"),
    "one matrix": (lambda names: {"nodes_to_exclude": names[:1]}, True, r"still float: .*\(1 in all\)"),
    "a scale per matrix": (lambda _: {"per_channel": False}, True, "one scale per matrix, not per output channel"),
    "a scale per table": (
        lambda _: {"op_types_to_quantize": ["MatMul", "Gemm", "Gather"]},
        False,
        "one scale per matrix, not per output channel: .*embeddings",
    ),
}
"""What a quantizer forgets, its changed settings (None: it copies), whether tables are packed, and what is said."""


@pytest.mark.parametrize("fault", FAULTY)
def test_a_quantizer_that_forgets_something_is_an_error(
    fault: str, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, packs_tables, said = FAULTY[fault]
    names = [n.name for n in onnx.load(exported("bert")).graph.node if n.op_type == "MatMul"]

    def forgetful(source: Path, destination: Path, **given: Any) -> None:
        if settings is None:
            shutil.copyfile(source, destination)
        else:
            quantize_dynamic(source, destination, **{**given, **settings(names)})

    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", forgetful)
    if not packs_tables:
        monkeypatch.setattr(quantizer, "pack_tables_int8", lambda *_: None)
    with pytest.raises(GateError, match=said):
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)


def test_the_applications_logging_is_left_alone(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", logging.INFO)
    quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)
    assert root.level == logging.INFO
