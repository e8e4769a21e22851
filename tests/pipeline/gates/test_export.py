"""Faults that are made while a run works: a lost mask, a teacher that learnt nothing, results replaced on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert import api
from pocketbert.benchmarks.devices import register_device, unregister_device
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.core.errors import GateError, InputError
from support.counting_device import counting_device
from support.runs import sign, undo

Cli = Callable[..., Any]


def test_parity_closes_when_the_mask_is_lost(
    cli: Cli, task: Any, run_copy: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.export.adapters import mask_4d

    undo(run_copy, "onnx", "onnx-int8", "golden", "verify", "pack")
    good = mask_4d.Wrapped.run

    def forgetful(self: Any, attention_mask: torch.Tensor, **inputs: torch.Tensor) -> Any:
        return good(self, torch.ones_like(attention_mask), **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(mask_4d.Wrapped, "run", forgetful)
        broken = cli("run", task.recipe, "-o", run_copy)
    assert broken.exit_code == 3, broken.output
    assert "parity of onnx/model.onnx: differs from transformers by" in broken.stderr
    assert "The mask seems to be ignored." in broken.stderr
    assert f"The files stay in {run_copy / 'onnx'}, marked failed; nothing was packed." in broken.stderr
    mark = json.loads((run_copy / ".steps" / "onnx.json").read_text())
    assert mark["status"] == "failed"
    assert len(mark["failures"]) == 2  # the prepared module and the file
    assert (run_copy / "onnx" / "model.onnx").is_file()
    assert not (run_copy / "phone").exists()
    assert not (run_copy / ".steps" / "onnx-int8.json").exists()
    assert cli("pack", "-m", run_copy, "-o", run_copy.parent / "packed").exit_code == 3
    assert not (run_copy.parent / "packed").exists()
    assert cli("verify", "-m", run_copy).exit_code == 2  # golden rows are not there yet

    repaired = cli("run", task.recipe, "-o", run_copy)
    assert repaired.exit_code == 0, repaired.output
    assert "student: finished before, skipped" in repaired.stderr
    assert (run_copy / "phone" / "onnx" / "model.onnx").read_bytes() == (
        finished / "phone" / "onnx" / "model.onnx"
    ).read_bytes()


def test_quantizer_that_skips_a_matrix_stops_the_run(
    cli: Cli, task: Any, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime.quantization

    undo(run_copy, "onnx-int8", "golden", "verify", "pack")
    monkeypatch.setattr(
        onnxruntime.quantization,
        "quantize_dynamic",
        lambda source, target, **_: shutil.copyfile(source, target),
    )
    broken = cli("run", task.recipe, "-o", run_copy)
    assert broken.exit_code == 3, broken.output
    assert "no matrix product has int8 weights; the quantizer did nothing" in broken.stderr
    assert json.loads((run_copy / ".steps" / "onnx-int8.json").read_text())["status"] == "failed"
    assert not (run_copy / "phone").exists()


def test_tflite_parity_closes_when_the_mask_is_lost_and_its_quantizer_when_it_does_nothing(
    cli: Cli, task: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_quantizer")
    from pocketbert.export.adapters import mask_4d
    from pocketbert.quantize.tflite import quantizer

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    changes = ["export.formats=[tflite]", "export.lengths=[16]", "data.max_length=40", "export.clients=[]"]
    command = ["run", task.recipe, *changes, "-o", run]
    assert cli(*command).exit_code == 2  # the results there are another recipe's
    good = mask_4d.Wrapped.run

    def forgetful(self: Any, attention_mask: torch.Tensor, **inputs: torch.Tensor) -> Any:
        # as a converter folds it: the input stays, and nothing depends on it
        return good(self, attention_mask * 0 + 1, **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(mask_4d.Wrapped, "run", forgetful)
        broken = cli(*command, "--overwrite")
    assert broken.exit_code == 3, broken.output
    assert "parity of tflite/model.tflite: differs from transformers by" in broken.stderr
    assert "The mask seems to be ignored." in broken.stderr
    mark = json.loads((run / ".steps" / "tflite.json").read_text())
    assert (mark["status"], len(mark["failures"])) == ("failed", 2)
    assert (run / "tflite" / "model.tflite").is_file()
    assert not (run / ".steps" / "tflite-int8.json").exists()

    from ai_edge_quantizer.recipe_manager import RecipeManager

    nothing = RecipeManager()
    nothing.add_dynamic_config("no operator is called so", "FULLY_CONNECTED", num_bits=8)
    with monkeypatch.context() as patch:
        patch.setattr(quantizer, "_quantizer_recipe", lambda *_: nothing.get_quantization_recipe())
        broken = cli(*command, "--overwrite")
    assert broken.exit_code == 3, broken.output
    assert "model_int8.tflite: no matrix product has int8 weights; the quantizer did nothing" in broken.stderr
    assert json.loads((run / ".steps" / "tflite-int8.json").read_text())["status"] == "failed"
    assert cli("pack", "-m", run, "-o", tmp_path / "packed").exit_code == 3
    assert not (tmp_path / "packed").exists()

    repaired = cli(*command, "--overwrite")
    assert repaired.exit_code == 0, repaired.output
    assert "export to TFLite: finished before, skipped" in repaired.stderr
    listed = json.loads((run / "phone" / "artifacts.json").read_text())
    assert listed["absent"] == {
        "tflite/mediapipe.tflite": "The recipe asked for no file for MediaPipe (export.clients)."
    }
    assert {r["path"] for r in listed["files"] if r["kind"] == "model"} == {
        "tflite/model.tflite",
        "tflite/model_int8.tflite",
    }
    assert cli("pack", "-m", run, "-o", tmp_path / "packed").exit_code == 0


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


def test_other_settings_are_refused_and_replace_only_what_they_change(task: Any, run_copy: Path) -> None:
    changed = api.load_recipe(task.recipe, ["verify.max_drop=0.5"])
    before = {p: p.stat().st_mtime_ns for p in run_copy.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError, match="description was .* pack would be made anew"):
        api.run(api.load_recipe(task.recipe, ["description=for lamps"]), run_copy)
    planned = api.plan(changed, run_copy)  # it only judges: made again without being asked
    assert [s.name for s in planned if s.state != "finished"] == ["verify", "pack"]
    after = {p: p.stat().st_mtime_ns for p in run_copy.rglob("*") if p.is_file() and p.name != ".lock"}
    assert after == before  # a plan, and a refusal, change nothing
    teacher = (run_copy / "teacher" / "model.safetensors").stat().st_mtime_ns
    api.run(changed, run_copy)
    assert (run_copy / "teacher" / "model.safetensors").stat().st_mtime_ns == teacher
    assert "max_drop: 0.5" in (run_copy / "phone" / "recipe.resolved.yaml").read_text()


def test_weights_that_changed_after_training_lose_the_score(task: Any, run_copy: Path) -> None:
    # file and weights agree with each other, so that only the scores can tell
    _spoil(run_copy / "student" / "model.safetensors")
    sign(run_copy, "student")
    undo(run_copy, "onnx", "onnx-int8", "golden", "verify", "pack")
    with pytest.raises(GateError, match="gate 'kept' failed"):
        api.run(api.load_recipe(task.recipe, ["verify.min_kept=0.99"]), run_copy, overwrite=True)
    marks = json.loads((run_copy / ".steps" / "verify.json").read_text())
    assert any("gate 'kept' failed: keeps" in line for line in marks["failures"])
    assert any("gate 'drop' failed" in line and "the torch model has" in line for line in marks["failures"])


def _spoil(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(path)
    name = next(k for k in state if k.endswith("classifier.weight"))
    state[name] = -state[name]
    save_file(state, path, metadata={"format": "pt"})


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
    assert result.report is not None
    assert (result.phone / "benchmark.json").is_file()
    assert "## Latency" in (result.phone / "README.md").read_text()
    assert [row[0] for row in result.table] == ["teacher fp32", "student ONNX fp32", "student ONNX int8 *"]
    page = api.report(run_copy, tmp_path / "again.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<h3>On dummy:a76</h3>" in page
    assert any(title.startswith("dummy:a76: guest instructions, emulated") for title in result.header)
    assert "dummy" not in (result.phone / "README.md").read_text()
    assert str(run_copy) not in (result.phone / "benchmark.json").read_text()
    made = BenchmarkResult.read(run_copy / "benchmark.json")
    (told,) = made.post_processing
    assert told.task == "text-classification"
    assert told.variants == [v.name for v in made.variants]
    assert len(told.wall_ms) == told.texts > 0
