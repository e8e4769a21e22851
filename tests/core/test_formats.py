from __future__ import annotations

import pytest

from pocketbert.core import formats
from pocketbert.core.formats import FORMATS, FormatInfo
from pocketbert.core.types import Format, Runtime, Scheme


def test_every_format_has_a_row() -> None:
    assert set(FORMATS) == set(Format)
    assert all(info.name is name for name, info in FORMATS.items())


@pytest.mark.parametrize("info", FORMATS.values(), ids=str)
def test_a_row_is_whole(info: FormatInfo) -> None:
    assert info.suffix == (".mlpackage" if info.name is Format.COREML else f".{info.name}")
    assert info.schemes[0] is Scheme.FP32
    assert info.base in info.schemes
    assert info.takes(Scheme.INT8)
    assert set(info.instead.values()) <= set(info.schemes)
    assert info.engines
    assert info.libraries
    assert info.reader


def test_every_scheme_and_runtime_is_served_by_some_format() -> None:
    forms = [form for info in FORMATS.values() for form in info.forms]
    assert {s for info in FORMATS.values() for s in info.schemes} | {s for s, _ in forms} == set(Scheme)
    assert {r for _, r in forms} == set(Runtime)


def test_the_inputs_are_those_that_phones_feed() -> None:
    assert {name: (info.dtype, info.fixed_lengths) for name, info in FORMATS.items()} == {
        Format.ONNX: ("int64", False),
        Format.TFLITE: ("int32", True),
        Format.COREML: ("int32", True),
    }


def test_what_a_recipe_s_scheme_makes_in_each_format() -> None:
    made = {name: {s: info.smaller(s) for s in Scheme if info.takes(s)} for name, info in FORMATS.items()}
    assert made == {
        Format.ONNX: {
            Scheme.FP32: None,
            **{s: s for s in (Scheme.INT8, Scheme.SMALL, Scheme.A8W8, Scheme.INT8_B32, Scheme.W4)},
        },
        Format.TFLITE: {
            Scheme.FP32: None,
            **{s: s for s in (Scheme.FP16, Scheme.W8, Scheme.INT8, Scheme.SMALL, Scheme.W4, Scheme.A8W8)},
        },
        Format.COREML: {
            **{Scheme.FP32: None, Scheme.FP16: None, Scheme.INT8: Scheme.W8},
            **{s: s for s in (Scheme.W8, Scheme.A8W8, Scheme.SMALL, Scheme.W4, Scheme.LUT6, Scheme.LUT4)},
        },
    }


def test_a_stand_in_for_an_engine_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FORMATS[Format.ONNX].timed
    for platform, version, timed in (
        ("linux", "9.0", False),
        ("darwin", None, False),
        ("darwin", "9.0", True),
    ):
        monkeypatch.setattr(formats.sys, "platform", platform)
        monkeypatch.setattr(formats, "version_of", lambda _, v=version: v)
        assert FORMATS[Format.COREML].timed is timed
