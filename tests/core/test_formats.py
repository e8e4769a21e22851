from __future__ import annotations

import pytest

from pocketbert.core.formats import FORMATS, FormatInfo
from pocketbert.core.types import Format, Scheme, Target


def test_every_format_has_a_row() -> None:
    assert set(FORMATS) == set(Format)
    assert all(info.name is name for name, info in FORMATS.items())


@pytest.mark.parametrize("info", FORMATS.values(), ids=str)
def test_a_row_is_whole(info: FormatInfo) -> None:
    assert info.suffix == f".{info.name}"
    assert info.schemes[0] is Scheme.FP32
    assert Scheme.INT8 in info.schemes
    assert info.engines
    assert info.libraries
    assert info.reader


def test_every_scheme_and_target_is_served_by_some_format() -> None:
    assert {s for info in FORMATS.values() for s in info.schemes} == set(Scheme)
    assert {t for info in FORMATS.values() for t in info.targets} == set(Target)


def test_the_inputs_are_those_that_phones_feed() -> None:
    assert {name: (info.dtype, info.fixed_lengths) for name, info in FORMATS.items()} == {
        Format.ONNX: ("int64", False),
        Format.TFLITE: ("int32", True),
    }
