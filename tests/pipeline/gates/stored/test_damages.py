"""Files whose numbers were changed by hand: the gate `stored` finds each, in every format and scheme."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pocketbert.core.types import Format, Layout, Status
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.gates.stored import PreparedModels, compare_constants
from pocketbert.pipeline.gates.verify import verify_artefacts
from pocketbert.runtime.tflite import TflitePredictor
from support.defects import defects_of, format_of
from support.defects.stored import DAMAGES, WORDS, Damage, damage, record_again, rows_lost
from support.stored_models import CLASSIFY

FILES = {
    "model.onnx": False,
    "model_int8.onnx": True,
    "model_a8w8.onnx": True,
    "model_small.onnx": True,
    "model_int8-b32.onnx": True,
    "model_w4.onnx": True,
    "model_a8w8_openvino.onnx": True,
    "model_a8w8_qnn.onnx": True,
    "model_a16w8_qnn.onnx": True,
    "model.tflite": False,
    "model_fp16.tflite": False,
    "model_int8.tflite": True,
    "model_w8.tflite": True,
    "model_a8w8.tflite": True,
    "model_small.tflite": True,
    "model_w4.tflite": True,
    "model_int8_tflite216.tflite": True,
    "model_fp16_gpu.tflite": False,
    "model_a8w8_npu.tflite": True,
    "model_a16w8_npu.tflite": True,
    "Model.mlpackage": False,
    "Model_w8.mlpackage": True,
    "Model_a8w8.mlpackage": True,
    "Model_small.mlpackage": True,
    "Model_w4.mlpackage": True,
}
"""Files of the fixture, and whether their matrices are compressed."""
BY_NAME = {d.name: d for d in DAMAGES}


def problems(path: Path, models: PreparedModels) -> list[str]:
    format = format_of(path)
    graphs = format_place(format).constants(path)
    assert graphs is not None
    lengths = TflitePredictor(path, 1).lengths if format is Format.TFLITE else ()
    return compare_constants(graphs, models.reference(format, Layout.PLAIN), lengths).problems


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_nobody_changed_passes(file: str, every_file: Path, models: PreparedModels) -> None:
    defects_of(format_of(file))
    assert problems(every_file / "files" / file, models) == []


@pytest.mark.parametrize("file", [f for f in FILES if f not in ("model_w8.tflite", "model_fp16.tflite")])
def test_every_damage_is_found(file: str, copied: Callable[[str], Path], models: PreparedModels) -> None:
    defects_of(format_of(file))
    reference = models.reference(format_of(file), Layout.PLAIN)
    passed = []
    for how in DAMAGES:
        if how.compressed and not FILES[file]:
            continue
        path = copied(file)
        damage(path, reference, how)
        if not problems(path, models):
            passed.append(how.name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert passed == []


@dataclass(frozen=True)
class Hidden:
    """A damage that no other gate sees once the golden rows were recorded from the broken file."""

    file: str
    damage: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}-{self.damage}"


HIDDEN = [
    Hidden("onnx/model.onnx", "unseen-words"),
    Hidden("onnx/model_int8.onnx", "unseen-words"),
    Hidden("onnx/model_int8.onnx", "position-tail"),
    Hidden("onnx/model_int8.onnx", "bias"),
    Hidden("onnx/model_int8.onnx", "scale"),
]


@pytest.mark.parametrize("case", HIDDEN, ids=str)
def test_golden_rows_recorded_from_the_broken_file_hide_nothing(case: Hidden, finished: Path, tmp_path: Path) -> None:
    phone = Path(shutil.copytree(finished / "phone", tmp_path / "phone"))
    reference = PreparedModels(phone, CLASSIFY, 40).reference(Format.ONNX, Layout.PLAIN)
    lines = (phone / "golden_tokens.jsonl").read_text().splitlines()
    seen = {i for line in lines for i in json.loads(line)["ids"]}
    rows = len((phone / "vocab.txt").read_text().split())
    unseen = rows_lost(WORDS, [i for i in range(rows) if i not in seen])
    how = BY_NAME.get(case.damage) or Damage("unseen-words", "words that no golden text has are zeroed", unseen)
    damage(phone / case.file, reference, how)
    record_again(phone, case.file)
    result = verify_artefacts(phone)
    assert result.status is Status.FAILED
    failed = {(g.file, g.name) for g in result.gates if not g.passed}
    assert (case.file, "stored") in failed
    # rows of drawn words reach the last position, and selftest.json still has the answers of the whole file
    assert failed <= {(case.file, name) for name in ("stored", "reference", "temperature", "answer")}
