"""The table of formats."""

from __future__ import annotations

import pytest

from pocketbert.core import formats
from pocketbert.core.formats import FORMATS
from pocketbert.core.types import Format, Runtime, Scheme


def test_every_format_scheme_and_runtime_is_served() -> None:
    assert set(FORMATS) == set(Format)
    forms = [form for info in FORMATS.values() for form in info.forms]
    assert {s for info in FORMATS.values() for s in info.schemes} | {s for s, _ in forms} == set(Scheme)
    assert {r for _, r in forms} == set(Runtime)


@pytest.mark.parametrize(
    ("format", "kept", "others"),
    [
        ("onnx", "int8 small a8w8 int8-b32 w4", {"fp32": None}),
        ("tflite", "fp16 w8 int8 small w4 a8w8", {"fp32": None}),
        ("coreml", "w8 a8w8 small w4 lut6 lut4", {"fp32": None, "fp16": None, "int8": "w8"}),
    ],
)
def test_what_a_recipe_s_scheme_makes_in_each_format(format: str, kept: str, others: dict[str, str | None]) -> None:
    info = FORMATS[Format(format)]
    made = {str(scheme): info.smaller(scheme) for scheme in Scheme if info.takes(scheme)}
    assert made == {name: name for name in kept.split()} | others


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
