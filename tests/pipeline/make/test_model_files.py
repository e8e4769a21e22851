"""Faults that are made while a run works: a lost mask, a teacher that learnt nothing, results replaced on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from pocketbert import api
from pocketbert.benchmarks.devices import register_device, unregister_device
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Format
from pocketbert.export.adapters import mask_4d
from support.counting_device import counting_device
from support.defects import COREML, COREML_W8, ONNX, ONNX_INT8, STEPS, TFLITE, TFLITE_INT8, defects_of, format_of
from support.runs import sign, undo

Cli = Callable[..., Any]
SHORT = ["export.lengths=[16]", "data.max_length=40"]
FORMATS: dict[Format, tuple[str, str, list[str]]] = {
    Format.ONNX: (ONNX, ONNX_INT8, []),
    Format.TFLITE: (TFLITE, TFLITE_INT8, ["export.formats=[tflite]", "export.clients=[]", *SHORT]),
    Format.COREML: (
        COREML,
        COREML_W8,
        [
            "export.formats=[coreml]",
            "export.coreml.shapes=fixed",
            "export.lengths=[16, 40]",
            "benchmark={threads: [1]}",
        ],
    ),
}
"""Exported file, smaller file, and changes of the recipe."""


def lose_mask(patch: pytest.MonkeyPatch) -> None:
    """As a converter folds it: the input stays, and nothing depends on it."""
    good = mask_4d.Wrapped.run

    def forgetful(self: Any, attention_mask: Any, **inputs: Any) -> Any:
        return good(self, attention_mask * 0 + 1, **inputs)

    patch.setattr(mask_4d.Wrapped, "run", forgetful)


def quantize_nothing(patch: pytest.MonkeyPatch, format: Format) -> None:
    if format is Format.ONNX:
        patch.setattr("onnxruntime.quantization.quantize_dynamic", lambda a, b, **_: shutil.copyfile(a, b))
    elif format is Format.COREML:
        patch.setattr("coremltools.optimize.coreml.linear_quantize_weights", lambda model, **_: model)
    else:
        from ai_edge_quantizer.recipe_manager import RecipeManager

        nothing = RecipeManager()
        nothing.add_dynamic_config("no operator is called so", "FULLY_CONNECTED", num_bits=8)
        recipe = nothing.get_quantization_recipe()
        patch.setattr("pocketbert.quantize.tflite.quantizer._quantizer_recipe", lambda *_: recipe)


@pytest.mark.parametrize("format", FORMATS)
def test_a_lost_mask_and_a_quantizer_that_does_nothing_stop_the_run_until_it_is_repaired(
    format: Format, cli: Cli, task: Any, run_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defects_of(format)
    file, smaller, changes = FORMATS[format]
    command = ["run", task.recipe, *changes, "-o", run_copy, *(["--overwrite"] if changes else [])]
    steps = {f: run_copy / ".steps" / f"{STEPS.get(f, format_of(f).value)}.json" for f in (file, smaller)}
    undo(run_copy, "onnx", "onnx-int8", "golden", "verify", "pack")

    def read_failures(one: str) -> list[str]:
        mark = json.loads(steps[one].read_text())
        assert mark["status"] == "failed"
        return list(mark["failures"])

    with monkeypatch.context() as patch:
        lose_mask(patch)
        broken = cli(*command)
    assert broken.exit_code == 3, broken.output
    assert f"parity of {file}: differs from transformers by" in broken.stderr
    assert "The mask seems to be ignored." in broken.stderr
    assert f"The files stay in {run_copy / format.value}, marked failed; nothing was packed." in broken.stderr
    assert len(read_failures(file)) == 2, "the prepared module and the file"
    assert (run_copy / file).exists()
    assert not steps[smaller].exists()
    assert cli("verify", "-m", run_copy).exit_code == 2, "golden rows are not there yet"

    with monkeypatch.context() as patch:
        quantize_nothing(patch, format)
        broken = cli(*command)
    assert broken.exit_code == 3, broken.output
    said = f"{Path(smaller).name}: no matrix product has int8 weights; the quantizer did nothing"
    assert said in broken.stderr
    assert any(said in line for line in read_failures(smaller))
    assert not (run_copy / "phone").exists()
    assert cli("pack", "-m", run_copy, "-o", tmp_path / "packed").exit_code == 3
    assert not (tmp_path / "packed").exists()

    repaired = cli(*command)
    assert repaired.exit_code == 0, repaired.output
    assert "student: finished before, skipped" in repaired.stderr
    listed = json.loads((run_copy / "phone" / "artifacts.json").read_text())
    models = {r["path"] for r in listed["files"] if r["kind"] == "model"}
    assert {file, smaller} <= models
    assert {format_of(m) for m in models if not m.endswith("quantized.onnx")} == {format}
    if format is Format.TFLITE:
        reason = "The recipe asked for no file for MediaPipe (export.clients)."
        assert listed["absent"] == {"tflite/mediapipe.tflite": reason}
    if format is Format.COREML:
        # nothing here can be timed, so that there is no benchmark, although the recipe asks for one
        assert not (run_copy / "benchmark.json").exists()
        card = (run_copy / "phone" / "README.md").read_text()
        assert "`python3 coreml/benchmark_on_mac.py` measures it on a Mac" in card
        alone = cli("benchmark", "-m", run_copy / "phone")
        assert alone.exit_code == 2
        assert "Core ML packages are timed on a Mac" in alone.stderr


def test_a_step_that_failed_under_another_recipe_does_not_matter(
    cli: Cli, task: Any, run_copy: Path, tmp_path: Path
) -> None:
    # ONNX int8 failed once, then the recipe asked for fp32 alone
    path = run_copy / ".steps" / "onnx-int8.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed", "failures": ["types"]}))
    result = cli("run", task.recipe, "quantize.scheme=fp32", "-o", run_copy, "--overwrite")
    assert result.exit_code == 0, result.output
    packed = cli("pack", "-m", run_copy, "-o", tmp_path / "packed")
    assert packed.exit_code == 0, packed.output
    assert [p.name for p in (tmp_path / "packed" / "onnx").iterdir()] == ["model.onnx"]


def test_teacher_at_chance_closes_the_gate(cli: Cli, task: Any, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 1}}, student=None, distill=None)
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 3, result.output
    assert "teacher: gate 'chance' failed: accuracy" in result.stderr
    assert "on eval is at chance level" in result.stderr
    assert not (tmp_path / "run" / "phone").exists()
    packed = cli("pack", "-m", tmp_path / "run", "-o", tmp_path / "packed")
    assert packed.exit_code == 3
    assert "Step verify failed; nothing was packed." in packed.stderr
    assert not (tmp_path / "packed").exists()


def test_results_are_replaced_only_where_they_judge_or_where_it_is_asked_for(task: Any, run_copy: Path) -> None:
    changed = api.load_recipe(task.recipe, ["verify.max_drop=0.5"])

    def list_times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in run_copy.rglob("*") if p.is_file() and p.name != ".lock"}

    before = list_times()
    with pytest.raises(InputError, match="description was .* pack would be made anew"):
        api.run(api.load_recipe(task.recipe, ["description=for lamps"]), run_copy)
    planned = api.plan(changed, run_copy)  # it only judges: made again without being asked
    assert [s.name for s in planned if s.state != "finished"] == ["verify", "pack"]
    assert list_times() == before, "a plan, and a refusal, change nothing"
    api.run(changed, run_copy)
    teacher = run_copy / "teacher" / "model.safetensors"
    assert list_times()[teacher] == before[teacher]
    assert "max_drop: 0.5" in (run_copy / "phone" / "recipe.resolved.yaml").read_text()


def test_weights_that_changed_after_training_lose_the_score(task: Any, run_copy: Path) -> None:
    # file and weights agree with each other, so that only the scores can tell
    path = run_copy / "student" / "model.safetensors"
    state = load_file(path)
    name = next(k for k in state if k.endswith("classifier.weight"))
    save_file({**state, name: -state[name]}, path, metadata={"format": "pt"})
    sign(run_copy, "student")
    undo(run_copy, "onnx", "onnx-int8", "golden", "verify", "pack")
    with pytest.raises(GateError, match="gate 'kept' failed"):
        api.run(api.load_recipe(task.recipe, ["verify.min_kept=0.99"]), run_copy, overwrite=True)
    failures = json.loads((run_copy / ".steps" / "verify.json").read_text())["failures"]
    assert any("gate 'kept' failed: keeps" in line for line in failures)
    assert any("gate 'drop' failed" in line and "the torch model has" in line for line in failures)


@pytest.fixture
def dummy_device() -> Iterator[None]:
    """A device that counts instead of timing, registered as a plug-in does it."""
    register_device(counting_device([]))
    yield
    unregister_device("dummy")


@pytest.mark.usefixtures("dummy_device")
def test_benchmark_report_and_card_of_a_run(task: Any, run_copy: Path, tmp_path: Path) -> None:
    devices = "devices: [local, 'dummy:a76']"
    recipe = api.load_recipe(task.recipe, [f"benchmark={{threads: [1], runs: 10, repeats: 2, gaps_ms: [], {devices}}}"])
    result = api.run(recipe, run_copy, overwrite=True)
    assert result.phone is not None
    assert [row[0] for row in result.table] == ["teacher fp32", "student ONNX fp32", "student ONNX int8 *"]
    assert any(title.startswith("dummy:a76: guest instructions, emulated") for title in result.header)
    card = (result.phone / "README.md").read_text()
    assert "## Latency" in card
    assert "dummy" not in card
    page = api.report(run_copy, tmp_path / "again.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<h3>On dummy:a76</h3>" in page
    assert str(run_copy) not in (result.phone / "benchmark.json").read_text()
    made = BenchmarkResult.read(run_copy / "benchmark.json")
    (told,) = made.post_processing
    assert (told.task, told.variants) == ("text-classification", [v.name for v in made.variants])
    assert len(told.wall_ms) == told.texts > 0
