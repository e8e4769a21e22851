"""A stage of method `qat` in a run: the file stores what was learned, a worse student is not kept, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pocketbert.core.errors import InputError
from pocketbert.core.families.weight_records import _FILE_NAME, read_learned_ranges
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.types import Format, Runtime, Scheme


def recipe(
    task: Any,
    finished: Path,
    destination: Path,
    formats: tuple[str, ...] = ("onnx",),
    files: Sequence[Any] = ("a8w8",),
    **stage: Any,
) -> Path:
    """The recipe of a second run, which goes on with a finished student."""
    return Path(
        task.variant(
            destination,
            student={"model": str(finished / "student"), "layers": None},
            teacher={"model": str(finished / "teacher"), "finetune": None},
            distill=[{"method": "qat", "steps": 60, **stage}],
            export={"formats": list(formats)},
            quantize={"files": files},
            verify={"max_drop": 0.1},
        )
    )


def choice(run: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line for line in lines if line["stage"] == "distill.0.choice"]
    return dict(found)


def notes(run: Path) -> str:
    return str(json.loads((run / "student" / "training.json").read_text())["notes"][-1])


def test_a_file_stores_the_ranges_that_were_learned(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = cli("run", recipe(task, finished, tmp_path / "recipe.yaml"), "-o", run)
    assert result.exit_code == 0, result.output
    told = choice(run)
    assert told["kept"]
    assert told["trained_error"] < told["former_error"]
    assert "the trained student is kept" in notes(run)
    learned = read_learned_ranges(run / "student", Scheme.A8W8)
    assert learned is not None
    scales = {np.float32((r.inputs[1] - r.inputs[0]) / 255) for r in learned.products.values() if r.inputs}
    model = onnx.load(run / "onnx-a8w8" / "model_a8w8.onnx")
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    found = {np.float32(stored[n.input[1]]) for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert found == scales, "every range in the file was learned"


@pytest.mark.parametrize(
    ("runtime", "format"),
    [
        (Runtime.QNN, Format.ONNX),
        pytest.param(Runtime.OPENVINO, Format.ONNX, marks=pytest.mark.slow),
        pytest.param(Runtime.NPU, Format.TFLITE, marks=pytest.mark.slow),
    ],
)
def test_the_file_for_a_runtime_stores_the_ranges_and_other_files_measure_theirs(
    runtime: Runtime, format: Format, task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    if runtime is Runtime.OPENVINO:
        pytest.importorskip("openvino")
    run = tmp_path / "run"
    files = ["a8w8", {"scheme": "a8w8", "runtime": runtime.value}]
    stage = {"format": format.value, "runtime": runtime.value}
    path = recipe(task, finished, tmp_path / "recipe.yaml", (format.value,), files, **stage)
    result = cli("run", path, "-o", run)
    assert result.exit_code == 0, result.output  # the stored gate compares the ranges of both files with the right ones
    told = choice(run)
    assert told["kept"]
    assert told["trained_error"] < told["former_error"]
    assert f"a8w8 in {format} for {runtime}, simulated" in notes(run)
    learned = read_learned_ranges(run / "student", Scheme.A8W8, runtime)
    assert learned is not None
    assert read_learned_ranges(run / "student", Scheme.A8W8) is None
    assert all(r.outputs or r.inputs for r in learned.products.values())
    if runtime is Runtime.NPU:
        assert not any(r.inputs for r in learned.products.values()), "inputs are tensors that others read too"
    ranges = json.loads((run / "golden" / "simulated.json").read_text())["ranges"]
    of_runtime, others = (next(r for p, r in ranges.items() if (str(runtime) in p) is own) for own in (True, False))
    wanted = {tuple(float(f"{e:.6g}") for e in r.outputs or r.inputs or ()) for r in learned.products.values()}

    def ends(found: Any) -> set[tuple[float, ...]]:
        return {tuple(e) for own in found.values() for one in own for e in (one["inputs"], one["outputs"]) if e}

    assert wanted <= ends(of_runtime)
    assert not wanted & ends(others)


def test_a_student_that_became_worse_is_not_kept(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = cli("distill", recipe(task, finished, tmp_path / "recipe.yaml", lr=0.5), "-o", run)
    assert result.exit_code == 0, result.output
    told = choice(run)
    assert not told["kept"]
    assert told["trained_error"] > told["former_error"]
    kept = "the student before the stage is kept"
    assert kept in notes(run)
    assert kept in " ".join(result.stderr.split())
    assert kept in (run / "run.log").read_text()
    assert not (run / "student" / _FILE_NAME).exists()
    name = "model.safetensors"
    assert (run / "student" / name).read_bytes() == (finished / "student" / name).read_bytes()


@pytest.mark.parametrize(
    ("stages", "changes", "problem"),
    [
        ([{"method": "qat", "steps": 1}], {}, "which the recipe does not write: add a8w8 to quantize.files"),
        (
            [{"method": "qat", "steps": 1}],
            {"quantize": {"files": ["a8w8"]}, "export": {"formats": ["tflite"]}},
            "add a8w8 to quantize.files and onnx to export.formats",
        ),
        (
            [{"method": "qat", "steps": 1}, {"method": "task", "steps": 1}],
            {"quantize": {"files": ["a8w8"]}},
            "distill.0: qat trains the finished student, a stage after it would undo that",
        ),
        (
            [{"method": "qat", "steps": 1, "scheme": "w4", "format": "coreml"}],
            {"quantize": {"files": ["w4"]}, "export": {"formats": ["coreml"]}},
            "w4 of Core ML is not trained",
        ),
        ([{"method": "qat", "steps": 1, "scheme": "int8"}], {}, "scheme"),
        (
            [{"method": "qat", "steps": 1, "runtime": "qnn"}],
            {"quantize": {"files": ["a8w8"]}},
            "trains for a8w8 for qnn in onnx, which the recipe does not write: add {scheme: a8w8, runtime: qnn} to",
        ),
        (
            [{"method": "qat", "steps": 1, "runtime": "npu"}],
            {"quantize": {"files": [{"scheme": "a8w8", "runtime": "npu"}]}, "export": {"formats": ["onnx", "tflite"]}},
            "trains for a8w8 for npu in onnx, which the recipe does not write",
        ),
        (
            [{"method": "qat", "steps": 1, "scheme": "w4", "runtime": "qnn"}],
            {"quantize": {"files": ["w4"]}},
            "distill.0.runtime: qnn has no w4 file: leave it out, or set scheme: a8w8",
        ),
        (
            [{"method": "qat", "steps": 1, "scheme": "w4", "activation": "relu6"}],
            {"quantize": {"files": ["w4"]}},
            "distill.0.activation: relu6 fixes ranges of activations, and w4 has none",
        ),
    ],
)
def test_what_cannot_be_trained_for_is_refused(
    stages: list[Any], changes: dict[str, Any], problem: str, task: Any, tmp_path: Path
) -> None:
    path = task.variant(tmp_path / "recipe.yaml", distill=stages, **changes)
    with pytest.raises(InputError) as error:
        load_recipe(path)
    assert problem in " ".join(str(error.value).split())
