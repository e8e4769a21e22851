"""Files of every family and scheme, many seeds: each is off by what its scheme, simulated in torch, is off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.formats import _MIN_BOUND, FORMATS
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.quantize import Plan, quantize, weights
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import SchemeRow, list_rows
from pocketbert.runtime.engines import open_file
from support.tiny import EXPORTED, tiny_classifier
from support.tiny_tokenizers import write_tokenizer

LABELS = ("negative", "neutral", "positive")
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
LENGTH = 40
SUFFIX = {Format.ONNX: ".onnx", Format.TFLITE: ".tflite", Format.COREML: ".mlpackage"}
SEEDS = {Format.ONNX: 6, Format.TFLITE: 3, Format.COREML: 2}
WIDER = {"mobilebert": {"intra_bottleneck_size": 24}}
"""Sizes of tiny models whose matrices would be too small for Core ML's quantizer."""
NEEDS = {Format.ONNX: "onnx", Format.TFLITE: "ai_edge_quantizer", Format.COREML: "coremltools"}


def export(format: Format, module, family, tokenizer: TextTokenizer, path: Path) -> None:
    if format is Format.ONNX:
        from pocketbert.export import onnx

        rows = tokenizer.encode(list(SENTENCES[:2]))
        onnx.export(module, family, TASK, tokenizer.pad(rows), path)
    elif format is Format.TFLITE:
        from pocketbert.export import tflite

        tflite.export(module, family, TASK, [16, LENGTH], path)
    else:
        from pocketbert.export import coreml

        info = coreml.CoremlInfo("One sentence.", "v", "a", "l", LABELS)
        coreml.export(module, family, TASK, [16, LENGTH], path, coreml.CoremlForm(), info)


def errors(format: Format, name: str, seed: int, folder: Path, rows: list[SchemeRow]) -> dict[str, tuple[float, float]]:
    """By scheme: error of the file, and of its simulation, on the same texts."""
    family = find_family(name)
    write_tokenizer(folder, family.tiny["pad_token_id"])
    tokenizer = TextTokenizer(folder, LENGTH, padding_side=family.padding_side)
    encoded = tokenizer.encode(list(SENTENCES))
    module = prepare(tiny_classifier(name, 2, LABELS, seed=seed, **WIDER.get(name, {})), family, TASK, format)
    exact = PreparedPredictor(module, family, TASK)
    expected = join_texts(run_rows(exact, tokenizer, encoded, TASK))
    base = folder / f"base{SUFFIX[format]}"
    export(format, module, family, tokenizer, base)
    batches = [tokenizer.pad([row]) for row in encoded]  # what other texts reach is cut, which is no rounding
    out = {}
    for row in rows:
        assert row.simulation is not None
        path = folder / f"{row.scheme}_{row.runtime}{SUFFIX[format]}"
        how = row.simulation.made_from(FORMATS[format].base).of_lengths(2)
        calibration = (lambda: batches) if row.calibrated else None
        left = tokenizer.padding_side == "left"
        try:
            quantize(base, path, Plan(format, row.scheme, row.runtime, calibration, pads_left=left))
        except InputError as refused:
            assert "blocks of 32" in str(refused)
            continue  # a tiny model whose widths blocks do not divide
        predictors = [
            open_file(path, format, runtime=row.runtime),
            SimulatedPredictor(exact, how, batches),
        ]
        found = [join_texts(run_rows(p, tokenizer, encoded, TASK)) for p in predictors]
        out[row.title] = rms_error(found[0], expected), rms_error(found[1], expected)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize(("format", "seed"), [(f, s) for f, count in SEEDS.items() for s in range(count)])
def test_a_sound_file_is_off_by_what_the_simulation_says(
    format: Format, name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(NEEDS[format])
    monkeypatch.setattr(weights, "SMALL", 513)  # tiny models have no matrix above the usual bound
    rows = [r for r in list_rows() if r.format is format and r.simulation]
    if any(r.runtime is Runtime.OPENVINO for r in rows):
        pytest.importorskip("openvino")
    least = {r.title: FORMATS[format].bounds[r.scheme, r.runtime].least for r in rows}
    for title, (real, simulated) in errors(format, name, seed, tmp_path, rows).items():
        print(f"{name} {seed} {title}: file {real:.4f}, simulated {simulated:.4f}")
        assert np.isfinite(simulated)
        assert real <= max(1.5 * simulated, least[title] if least[title] > _MIN_BOUND else _MIN_BOUND / 2)
        assert real >= simulated / 2 or simulated < _MIN_BOUND, "a simulation that is far off lets broken files pass"
