"""`quantize` and `verify` end with 3 where the range of one activation in a static file is wrong by a factor of 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.golden import SIMULATED_FILE as FILE_NAME
from pocketbert.core.families.weight_records import Range
from pocketbert.core.types import Format
from pocketbert.quantize.calibration import Ranges
from support.defects import defects_of, relist
from support.tiny_task import Task

FINISHED = {Format.ONNX: "finished", Format.TFLITE: "finished_tflite", Format.COREML: "finished_coreml"}
FILES = {
    Format.ONNX: "onnx/model_a8w8.onnx",
    Format.TFLITE: "tflite/model_a8w8.tflite",
    Format.COREML: "coreml/Model_a8w8.mlpackage",
}


@pytest.mark.parametrize(
    ("format", "factor"),
    [
        (Format.ONNX, 2.0),
        (Format.ONNX, 0.5),
        (Format.TFLITE, 2.0),
        (Format.TFLITE, 0.5),
        (Format.COREML, 2.0),
        (Format.COREML, 0.5),
    ],
)
@pytest.mark.slow
def test_a_wrong_range_ends_with_3(
    format: Format,
    factor: float,
    task: Task,
    cli: Callable[..., Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defects_of(format)
    phone = Path(request.getfixturevalue(FINISHED[format])) / "phone"
    chosen = Ranges.chosen

    def wrong(self: Ranges, title: str) -> dict[str, Range]:
        """The ranges, of which the widest is wrong."""
        found = chosen(self, title)
        widest = max(found, key=lambda n: found[n][1] - found[n][0])
        return {**found, widest: (found[widest][0] * factor, found[widest][1] * factor)}

    monkeypatch.setattr(Ranges, "chosen", wrong)
    arguments = ("--scheme", "a8w8", "--calibrate", task.folder / "train.jsonl")
    result = cli("quantize", "-m", phone, "-o", tmp_path / "out", *arguments)
    assert result.exit_code == 3, result.output
    failed = [line for line in result.stderr.splitlines() if "gate '" in line]
    assert any(f"{FILES[format]}: gate 'stored' failed:" in line for line in failed)
    assert all("on the calibration texts" in line for line in failed if "_a8w8" in line), "no other gate sees it"
    assert not (tmp_path / "out").exists()


def test_verify_reads_the_ranges_that_a_folder_recorded(
    finished: Path, task: Task, cli: Callable[..., Any], tmp_path: Path
) -> None:
    file, phone = FILES[Format.ONNX], tmp_path / "phone"
    arguments = ("--scheme", "a8w8", "--calibrate", task.folder / "train.jsonl")
    made = cli("quantize", "-m", finished / "phone", "-o", phone, *arguments)
    assert made.exit_code == 0, made.output
    content = json.loads((phone / FILE_NAME).read_text())
    ranges = content["ranges"][file]
    assert len(ranges) > 5
    one = next(n for n in ranges if n.endswith("up.weight"))
    for own in ranges[one]:
        own["inputs"] = [2 * end for end in own["inputs"]]
    (phone / FILE_NAME).write_text(json.dumps(content))
    relist(phone, FILE_NAME)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate 'stored' failed: {one} is multiplied with numbers from " in result.stderr
