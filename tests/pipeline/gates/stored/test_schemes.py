"""Two matrices of one size that exchanged their schemes: the types gate counts them and sees nothing, the stored gate does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.formats.weight_roles import digest_float_weights, list_weights
from pocketbert.pipeline.gates.stored import PreparedModels, _compare_schemes, compare_constants
from pocketbert.quantize import Plan, find_row, quantize, read_weight_types, weights
from pocketbert.quantize.files import find_weight_problems
from pocketbert.runtime.tflite import TflitePredictor
from support.stored_models import CLASSIFY

QUERY, KEY = "layer.0.attention.query.weight", "layer.0.attention.key.weight"


def chosen(plain: list[WeightRole], end: str, scheme: Scheme, second: Scheme) -> list[WeightRole]:
    """All weights with a scheme, and one with a second one."""
    return [w.model_copy(update={"scheme": second if w.name.endswith(end) else scheme}) for w in plain]


def calibration_rows(folder: ModelFolder) -> list[dict[str, NDArray[np.int64]]]:
    """A few unpadded rows."""
    tokenizer = TextTokenizer(folder.path, 16)
    return [tokenizer.pad([row]) for row in tokenizer.encode(list(SENTENCES)[:4])]


@pytest.mark.parametrize(
    ("base", "scheme", "second", "stored_as"),
    [
        ("model.onnx", Scheme.W4, Scheme.INT8_B32, Scheme.FP32),
        ("model.tflite", Scheme.INT8, Scheme.W4, Scheme.FP32),
        ("Model.mlpackage", Scheme.W8, Scheme.W4, Scheme.FP16),
        ("model.tflite", Scheme.A8W8, Scheme.INT8, Scheme.FP32),
        ("Model.mlpackage", Scheme.A8W8, Scheme.W8, Scheme.FP16),
    ],
)
def test_schemes_that_changed_places_are_found(
    base: str,
    scheme: Scheme,
    second: Scheme,
    stored_as: Scheme,
    every_file: Path,
    models: PreparedModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
    format = {".onnx": Format.ONNX, ".tflite": Format.TFLITE, ".mlpackage": Format.COREML}[Path(base).suffix]
    folder, path = open_model_folder(str(every_file / "model")), tmp_path / base
    held = set(digest_float_weights(every_file / "files" / base, format).values())
    module = prepare(load_model(folder, CLASSIFY), folder.family, CLASSIFY, format)
    plain = [w for w in list_weights(module, stored_as) if w.digest in held]
    asked, other = (chosen(plain, end, scheme, second) for end in (QUERY, KEY))
    rows = (lambda: calibration_rows(folder)) if scheme.static else None
    quantize(every_file / "files" / base, path, Plan(format, scheme, rows=rows, weights=asked))
    row = find_row(format, scheme)
    assert find_weight_problems(path, row, read_weight_types(path, format), "a", other) == []
    graphs = format_place(format).constants(path)
    assert graphs is not None
    lengths = TflitePredictor(path, 1).lengths if format is Format.TFLITE else ()
    found = compare_constants(graphs, models.reference(format, Layout.PLAIN), lengths)
    assert found.problems == []
    assert _compare_schemes(found.weights, asked, row) == []
    problems = _compare_schemes(found.weights, other, row)
    what = {s: f"is stored in {4 if s is Scheme.W4 else 8} bits" for s in (scheme, second)}
    if scheme.static:
        read = "is multiplied with numbers that have"
        what = {scheme: f"{read} a measured range", second: f"{read} no measured range"}
    assert {p.split(".encoder.", 1)[1] for p in problems} == {
        f"{QUERY} {what[second]}, and {scheme} was chosen for it",
        f"{KEY} {what[scheme]}, and {second} was chosen for it",
    }
