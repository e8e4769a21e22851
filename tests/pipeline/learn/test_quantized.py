"""A stage of method `qat`: the files store what was learned, a worse student is not kept, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import numpy_helper

from pocketbert.core.errors import InputError
from pocketbert.core.families.weight_records import read_learned_ranges
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.learn import quantized
from support.tiny_texts import vocabulary
from support.tiny_tokenizers import write_wordpiece

Run = Callable[..., Any]


@pytest.fixture
def write_recipe(task: Any, finished: Path, tmp_path: Path) -> Callable[..., Path]:
    """`write_recipe(formats, files, student=, **stage)`: a second run, which goes on with a finished student."""

    def write(
        formats: Sequence[str] = ("onnx",), files: Sequence[Any] = ("a8w8",), student: Path | None = None, **stage: Any
    ) -> Path:
        # by themselves, TFLite and Core ML compute the products of relu6 without ranges
        roles = {"roles": {"ffn_down": "a8w8"}} if "activation" in stage else {}
        return Path(
            task.variant(
                tmp_path / "recipe.yaml",
                student={"model": str(student or finished / "student"), "layers": None},
                teacher={"model": str(finished / "teacher"), "finetune": None},
                distill=[{"method": "qat", "steps": 60, **stage}],
                export={"formats": [*formats]},
                quantize={"files": [*files], **roles},
                verify={"max_drop": 0.1},
            )
        )

    return write


def read_choice(run: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line for line in lines if line["stage"] == "distill.0.choice"]
    return dict(found)


def last_note(run: Path) -> str:
    return str(json.loads((run / "student" / "training.json").read_text())["notes"][-1])


def read_scales(path: Path) -> tuple[list[np.float32], onnx.ModelProto]:
    """The scales of all activations that a file quantizes."""
    model = onnx.load(path)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [np.float32(stored[n.input[1]]) for n in model.graph.node if n.op_type == "QuantizeLinear"], model


@pytest.mark.parametrize(
    ("runtime", "format"),
    [
        (None, Format.ONNX),
        pytest.param(Runtime.QNN, Format.ONNX, marks=pytest.mark.slow),
        pytest.param(Runtime.OPENVINO, Format.ONNX, marks=pytest.mark.slow),
        pytest.param(Runtime.NPU, Format.TFLITE, marks=pytest.mark.slow),
    ],
)
def test_a_file_stores_the_ranges_that_were_learned_for_it_and_other_files_measure_theirs(
    runtime: Runtime | None, format: Format, write_recipe: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    if runtime is Runtime.OPENVINO:
        pytest.importorskip("openvino")
    run, special = tmp_path / "run", runtime or Runtime.QNN
    # with the default rate the little student becomes better on some processors, and a little worse on others
    stage = {"format": format.value, "lr": 3e-5, **({"runtime": runtime.value} if runtime else {})}
    path = write_recipe([format.value], ["a8w8", {"scheme": "a8w8", "runtime": special.value}], **stage)
    succeed("run", path, "-o", run)  # the stored gate compares the ranges of both files with the right ones
    told = read_choice(run)
    assert told["kept"]
    assert told["trained_error"] < told["former_error"]
    assert "the trained student is kept" in last_note(run)
    assert (f"a8w8 in {format} for {runtime}, simulated" in last_note(run)) is (runtime is not None)
    learned = read_learned_ranges(run / "student", Scheme.A8W8, runtime)
    assert read_learned_ranges(run / "student", Scheme.A8W8, None if runtime else special) is None
    assert all(r.outputs or r.inputs for r in learned.products.values())
    if runtime is None:
        scales = {np.float32((r.inputs[1] - r.inputs[0]) / 255) for r in learned.products.values() if r.inputs}
        found, _ = read_scales(run / "onnx-a8w8" / "model_a8w8.onnx")
        assert {*found} == scales, "every range in the file was learned"
        return
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
    write_recipe: Callable[..., Path], finished: Path, succeed: Run, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = succeed("distill", write_recipe(lr=0.5, steps=8), "-o", run)
    told = read_choice(run)
    assert not told["kept"]
    assert told["trained_error"] > told["former_error"]
    for said in (last_note(run), " ".join(result.stderr.split()), (run / "run.log").read_text()):
        assert "the student before the stage is kept" in said
    assert read_learned_ranges(run / "student", Scheme.A8W8) is None
    before, after = (folder / "student" / "model.safetensors" for folder in (finished, run))
    assert after.read_bytes() == before.read_bytes()


# --- relu6 ---

PARTS = 2
"""Feed-forward parts of the MobileBERT."""


@pytest.fixture(scope="module")
def mobilebert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MobileBERT of one block, as published ones are: NoNorm, relu."""
    folder = tmp_path_factory.mktemp("mobilebert")
    config = transformers.MobileBertConfig(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        embedding_size=16,
        intra_bottleneck_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_feedforward_networks=2,
        max_position_embeddings=64,
        classifier_activation=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.MobileBertModel(config).save_pretrained(folder)
    write_wordpiece(folder, vocabulary())
    return folder


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tflite", marks=pytest.mark.slow), pytest.param("coreml", marks=pytest.mark.slow)]
)
def test_a_mobilebert_becomes_relu6_in_its_files(
    format: str,
    task: Any,
    write_recipe: Callable[..., Path],
    mobilebert: Path,
    succeed: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantized._Choice, "kept", True)  # four steps improve nothing
    student = tmp_path / "run" / "student"
    path = write_recipe([format], student=mobilebert, steps=4, format=format, activation="relu6")
    succeed("distill", path, "-o", tmp_path / "run")
    assert json.loads((student / "config.json").read_text())["hidden_act"] == "relu6"
    assert "after 4 steps with relu6" in last_note(tmp_path / "run")
    learned = read_learned_ranges(student, Scheme.A8W8)
    assert [p.inputs for p in learned.products.values()].count((0.0, 6.0)) == PARTS
    words = ["--format", format, "--scheme", "a8w8", "--calibrate", task.folder / "train.jsonl", "--lengths", "16"]
    succeed("export", "-m", student, "-o", tmp_path / "phone", *words, "--roles", "ffn_down=a8w8")
    if format == "onnx":
        scales, model = read_scales(tmp_path / "phone" / "onnx" / "model_a8w8.onnx")
        assert sum(np.isclose(s, 6 / 255) for s in scales) == PARTS
        assert sum(n.op_type == "Clip" for n in model.graph.node) == PARTS


def test_another_activation_is_refused_before_anything_is_trained(
    write_recipe: Callable[..., Path], refuse: Run, tmp_path: Path
) -> None:
    told = refuse("distill", write_recipe(activation="relu6"), "-o", tmp_path / "run")
    assert "distill.0.activation: relu6 takes the place of relu" in told
    assert "the student's activation is gelu" in told
    assert not (tmp_path / "run" / "data.json").exists()


# --- what cannot be trained for ---

WRITES_NONE = "which the recipe does not write: add "


LAST = "qat trains the finished student, a stage after it would undo that"
QNN = "a8w8 for qnn in onnx, " + WRITES_NONE + "{scheme: a8w8, runtime: qnn} to"


@pytest.mark.parametrize(
    ("stage", "files", "formats", "problem"),
    [
        ("steps: 1", "int8", "onnx", WRITES_NONE + "a8w8 to quantize.files"),
        ("steps: 1", "a8w8", "tflite", "add a8w8 to quantize.files and onnx to export.formats"),
        ("steps: 1}, {method: task, steps: 1", "a8w8", "onnx", LAST),
        ("steps: 1, scheme: w4, format: coreml", "w4", "coreml", "w4 of Core ML is not trained"),
        ("steps: 1, scheme: int8", "a8w8", "onnx", "scheme"),
        ("steps: 1, runtime: qnn", "a8w8", "onnx", QNN),
        ("steps: 1, runtime: npu", "{scheme: a8w8, runtime: npu}", "onnx, tflite", "a8w8 for npu in onnx, which the"),
        ("steps: 1, scheme: w4, runtime: qnn", "w4", "onnx", "qnn has no w4 file: leave it out, or set scheme: a8w8"),
        ("steps: 1, precision: bf16", "a8w8", "onnx", "distill.0.precision: qat computes in fp32"),
        (
            "steps: 1, scheme: w4, activation: relu6",
            "w4",
            "onnx",
            "relu6 fixes ranges of activations, and w4 has none",
        ),
    ],
)
def test_what_cannot_be_trained_for_is_refused(stage: str, files: str, formats: str, problem: str, task: Any) -> None:
    stages = f"distill=[{{method: qat, {stage}}}]"
    with pytest.raises(InputError) as error:
        load_recipe(task.recipe, [stages, f"quantize={{files: [{files}]}}", f"export.formats=[{formats}]"])
    assert problem in " ".join(str(error.value).split())
