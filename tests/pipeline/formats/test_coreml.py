"""Core ML packages in a run that do not open, or take less than the folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from support.defects import COREML, COREML_W8, source
from support.defects.coreml import Package, edit, no_model, no_weights, one_rank_more, truncated

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (COREML, truncated, "weight.bin"),
        (COREML_W8, partial(edit, change=one_rank_more), "tanh"),
        (COREML, no_model, "model.mlmodel: no Core ML model:"),
        (COREML_W8, no_weights, "weight.bin: file not found."),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a_package_that_cannot_be_opened_is_told_in_one_line(
    cli: Cli, coreml_copy: Path, file: str, change: Callable[[Path], None], said: str
) -> None:
    change(source(coreml_copy, file))
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code in (2, 3), verified.output
    [error] = [line for line in verified.stderr.splitlines() if line.startswith("Error: ")]
    assert said in error
    assert Path(file).name in error
    assert "Traceback" not in verified.output


def test_a_first_file_that_takes_less_than_the_folder(cli: Cli, coreml_copy: Path) -> None:
    # as shapes: fixed makes it where data.max_length is longer than the longest of export.lengths
    def forget_the_longest(package: Package) -> None:
        for feature in package.model.description.input:
            shapes = feature.type.multiArrayType.enumeratedShapes.shapes
            kept = [list(s.shape) for s in shapes if s.shape[1] < 40]
            assert 0 < len(kept) < len(shapes)
            del shapes[len(kept) :]
            for shape, sizes in zip(shapes, kept, strict=True):
                shape.shape[:] = sizes

    for file in (COREML, COREML_W8):
        edit(source(coreml_copy, file), forget_the_longest)
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code == 3  # the long golden rows are recorded for the longer package
    assert "tokenizer.json: gate 'tokenizer' failed" not in verified.stderr
