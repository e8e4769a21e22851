"""Which file of a folder users are pointed to: that of the default file's scheme, never merely the smallest."""

from __future__ import annotations

import pytest

from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.artefacts.folder import choose_file, requested_scheme
from pocketbert.core.types import Format, Scheme


def records(format: str, *schemes: str) -> list[ModelRecord]:
    return [ModelRecord(path=s, sha256="a" * 64, bytes=1, format=Format(format), scheme=Scheme(s)) for s in schemes]


@pytest.mark.parametrize(
    ("default", "format", "schemes", "chosen"),
    [
        (("onnx", "int8"), "tflite", ("fp32", "int8", "small", "w4"), "int8"),
        (("onnx", "int8"), "coreml", ("fp16", "w8", "lut6", "lut4"), "w8"),
        (("onnx", "small"), "coreml", ("fp16", "w8", "small", "lut4"), "small"),
        (("onnx", "small"), "tflite", ("fp32", "int8", "w4"), "int8"),
        (("coreml", "w8"), "onnx", ("fp32", "w4", "int8"), "int8"),
        (("coreml", "fp16"), "onnx", ("fp32", "int8"), "fp32"),
        (("onnx", "fp32"), "coreml", ("fp16", "w8"), "fp16"),
        (("onnx", "int8-b32"), "tflite", ("fp32", "w8"), "w8"),
    ],
)
def test_the_file_of_the_default_s_scheme_is_chosen(
    default: tuple[str, str], format: str, schemes: tuple[str, ...], chosen: str
) -> None:
    [first] = records(*default)
    assert choose_file(records(format, *schemes), requested_scheme(first)).scheme == chosen
