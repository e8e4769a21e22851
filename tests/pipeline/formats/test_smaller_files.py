"""Which smaller files a recipe makes: scheme by scheme, runtime by runtime, and what the default file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.formats import FORMATS
from pocketbert.core.recipe.quantize import QuantizedFile, list_quantized_files
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.formats.base import choose_default_file, exported_source, list_model_files
from pocketbert.pipeline.make.model_files import quantization_plan
from pocketbert.quantize.table import find_row_for_plan

OLD = {"scheme": "int8", "runtime": "tflite216"}
STATIC = {"scheme": "a8w8", "runtime": "openvino"}


def recipe(*files: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "a",
            "task": "text-classification",
            "teacher": {"model": "minilm-l6"},
            "data": {"train": {"path": "train.jsonl"}},
            "export": {"clients": []},
            "quantize": {"files": list(files)},
        }
    )


@pytest.mark.parametrize(
    ("files", "sources", "default"),
    [
        (["fp32"], [], "onnx/model.onnx"),
        (
            ["int8"],
            ["onnx-int8/model_int8.onnx", "tflite-int8/model_int8.tflite", "coreml-w8/Model_w8.mlpackage"],
            "onnx/model_int8.onnx",
        ),
        (
            [OLD, "w8", "int8", STATIC],
            [
                "onnx-int8/model_int8.onnx",
                "onnx-a8w8/model_a8w8_openvino.onnx",
                "tflite-int8/model_int8.tflite",
                "tflite-int8/model_int8_tflite216.tflite",
                "tflite-w8/model_w8.tflite",
                "coreml-w8/Model_w8.mlpackage",
            ],
            "onnx/model_int8.onnx",
        ),
        ([STATIC], ["onnx-a8w8/model_a8w8_openvino.onnx"], "onnx/model.onnx"),
        (
            [
                {"scheme": "small", "format": "onnx"},
                {"scheme": "lut6", "format": "coreml"},
                {"scheme": "w8", "format": "tflite"},
            ],
            ["onnx-small/model_small.onnx", "tflite-w8/model_w8.tflite", "coreml-lut6/Model_lut6.mlpackage"],
            "onnx/model_small.onnx",
        ),
    ],
    ids=str,
)
def test_files_of_a_recipe(files: list[Any], sources: list[str], default: str, tmp_path: Path) -> None:
    found = list_model_files(recipe(*files), Path("weights"))
    assert [f.source for f in found if not f.exported] == sources
    assert choose_default_file(found).path == default
    assert all(f.path.count(".") == 1 for f in found), "Android's packer deflates names with two dots"
    for file in found:
        if not file.exported:
            assert exported_source(file, found).exported
            assert find_row_for_plan(quantization_plan(file, list, tmp_path)).calibrated is (file.scheme is Scheme.A8W8)


def test_whatever_a_recipe_may_ask_for_has_a_row(tmp_path: Path) -> None:
    forms = [{"scheme": s, "runtime": r} for info in FORMATS.values() for s, r in info.forms]
    plain = {s for info in FORMATS.values() for s in info.schemes}
    made = {
        (f.format, f.scheme, f.runtime)
        for f in list_model_files(recipe(*plain, *forms), Path("weights"))
        if not f.exported and find_row_for_plan(quantization_plan(f, list, tmp_path))
    }
    wanted = {(f, s, None) for f, info in FORMATS.items() for s in info.schemes if s not in (Scheme.FP32, info.base)}
    assert made == wanted | {(f, s, r) for f, info in FORMATS.items() for s, r in info.forms}


@pytest.mark.parametrize(
    ("schemes", "runtimes", "wanted"),
    [
        (["int8"], [], [("int8", None)]),
        (["int8", "w8"], ["tflite216"], [("int8", None), ("w8", None), ("int8", "tflite216")]),
        (["a8w8"], ["openvino"], [("a8w8", None), ("a8w8", "openvino")]),
        (["int8", "a8w8"], ["openvino"], [("int8", None), ("a8w8", None), ("a8w8", "openvino")]),
        (["a8w8"], [], [("a8w8", None)]),
        (["w8"], ["openvino"], [("w8", None), ("w8", "openvino")]),
        (["int8", "int8"], [], [("int8", None)]),
        (["fp16"], ["gpu"], [("fp16", "gpu")]),
        (["int8", "fp16"], ["gpu"], [("int8", None), ("fp16", "gpu")]),
    ],
)
def test_flags_become_files(schemes: list[str], runtimes: list[str], wanted: list[tuple[str, str | None]]) -> None:
    # those that do not exist are refused afterwards, in the words of the entry
    found = list_quantized_files([Scheme(s) for s in schemes], [Runtime(r) for r in runtimes])
    assert found == [QuantizedFile(scheme=Scheme(s), runtime=Runtime(r) if r else None) for s, r in wanted]


def test_a_format_takes_part_where_it_has_the_scheme() -> None:
    formats = {f.format for f in list_model_files(recipe("int8", "fp16"), Path("weights")) if f.scheme is Scheme.FP16}
    assert formats == {Format.TFLITE, Format.COREML}
