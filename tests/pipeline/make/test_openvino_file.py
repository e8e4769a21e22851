"""The a8w8 file for OpenVINO through the chain: made, calibrated, packed, loaded, and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino", reason="needs pocketbert[openvino]")
onnx = pytest.importorskip("onnx", reason="needs pocketbert[onnx]")

import pocketbert
from pocketbert import api
from pocketbert.benchmarks.cold_start import cold_start
from pocketbert.benchmarks.devices import local
from pocketbert.benchmarks.measurement import BenchmarkOptions
from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.types import Format, Runtime
from pocketbert.pipeline.gates.verify import verify_artefacts
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission, RunFolder
from pocketbert.runtime import openvino as runtime
from pocketbert.runtime import race
from pocketbert.runtime.engines import EngineFile
from support.commands import completed_run
from support.defects import relist
from support.folders import once

Cli = Callable[..., Any]
FILE, INT8 = "onnx/model_a8w8_openvino.onnx", "onnx/model_int8.onnx"
WITH_IT = "quantize={files: [int8, {scheme: a8w8, runtime: openvino}]}"
TEXTS = ["please play the song", "what is the weather", "stop"]


@pytest.fixture(scope="session")
def finished_openvino(task: Any, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run with a file for OpenVINO beside the others; read-only by convention."""
    with once(tmp_path_factory, "tiny-run-openvino") as (folder, there):
        if not there:
            shutil.copytree(finished, folder)
            completed_run(folder, task.recipe, WITH_IT, "--overwrite")
    return Path(folder)


@pytest.fixture
def phone(finished_openvino: Path, tmp_path: Path) -> Path:
    """A copy of its artefact folder, to be broken."""
    return Path(shutil.copytree(finished_openvino / "phone", tmp_path / "phone"))


def records(phone: Path) -> dict[str, Any]:
    return {r["path"]: r for r in json.loads((phone / "artifacts.json").read_text())["files"]}


def test_the_folder_lists_it_beside_the_default(finished_openvino: Path) -> None:
    phone = finished_openvino / "phone"
    listed = records(phone)
    assert (listed[FILE]["runtime"], listed[FILE]["scheme"]) == ("openvino", "a8w8")
    assert [s["engine"] for s in listed[FILE]["seen_right"]] == ["openvino"]
    assert [p for p, r in listed.items() if r.get("default")] == [INT8]
    assert listed["onnx/model_quantized.onnx"]["alias_of"] == INT8
    assert FILE in (phone / "README.md").read_text()


def test_openvino_runs_it_and_agrees_with_fp32(finished_openvino: Path) -> None:
    model, reference = (pocketbert.load(finished_openvino / "phone", file=f) for f in (FILE, "onnx/model.onnx"))
    assert model.predictor.engine == "openvino"
    ours, theirs = ([p.label for p in m.predict(TEXTS)] for m in (model, reference))
    assert ours == theirs
    found = cold_start(
        EngineFile(finished_openvino / "phone" / FILE, Format.ONNX, Runtime.OPENVINO),
        [2, 5, 3],
        threads=1,
        profile_runs=2,
    )
    assert found.start.load_ms > 0
    assert found.ops is None


def test_fastest_lets_it_race_where_openvino_is_installed(
    finished_openvino: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "_ROUNDS", 1)
    phone = finished_openvino / "phone"

    def raced(scheme: str | None) -> set[str]:
        predictor = pocketbert.load(phone, scheme=scheme, engine="fastest", threads=1).predictor
        return {t.file for t in predictor.plan.timings}  # type: ignore[attr-defined]

    assert raced(None) == {"model_int8.onnx", "model_a8w8_openvino.onnx"}
    assert raced("int8") == {"model_int8.onnx"}
    assert raced("fp32") == {"model.onnx"}
    monkeypatch.setattr(runtime, "version_of", lambda _: None)
    assert raced(None) == {"model_int8.onnx"}


def test_ranges_are_measured_on_training_rows_alone(task: Any, finished_openvino: Path) -> None:
    run = Run(load_recipe(task.recipe), finished_openvino)
    rows = {name: {e.digest for e in run.data.splits[name].examples} for name in ("train", "eval")}
    used = run._calibration_batches()
    assert 0 < len(used) <= 300
    assert all(r["input_ids"].shape[0] == 1 and r["attention_mask"].all() for r in used)
    assert not rows["train"] & rows["eval"]
    tokenized = {tuple(r.ids) for r in run.data.splits["eval"].encoded}
    assert not tokenized & {tuple(r["input_ids"][0]) for r in used}


def test_other_training_rows_make_another_file(finished_openvino: Path, task: Any) -> None:
    for more, again in (([], False), (["data.holdout=100"], True)):
        run = Run(load_recipe(task.recipe, [WITH_IT, *more]), finished_openvino)
        plan = RunFolder(finished_openvino, Permission(overwrite=True)).plan(run.steps())
        assert ("onnx-a8w8" in plan.anew) is again


def test_a_file_that_openvino_computes_otherwise_is_refused_at_load(phone: Path) -> None:
    model = onnx.load(phone / FILE)
    quantizers = {n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    for tensor in model.graph.initializer:  # every measured range becomes a tenth of what it was
        if tensor.name in quantizers:
            value = onnx.numpy_helper.to_array(tensor) * np.float32(0.1)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    onnx.save(model, phone / FILE)
    relist(phone, FILE)
    with pytest.raises(GateError, match=rf"{FILE}: openvino [\d.]+ computes this file wrongly"):
        pocketbert.load(phone, file=FILE)


def test_where_openvino_is_missing_the_rest_of_the_folder_works(
    phone: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (runtime, local):
        monkeypatch.setattr(module, "version_of", lambda _: None)
    made = api.benchmark([phone], BenchmarkOptions(runs=1, repeats=1, label="", profile=False, budget_s=1))
    assert [v.name for v in made.variants] == ["onnx/model.onnx", INT8]
    assert f"{FILE}: left out, openvino is not installed" in capsys.readouterr().err
    skipped = [g for g in verify_artefacts(phone).gates if g.skipped]
    assert [(g.name, g.file) for g in skipped] == [("engine", FILE)]
    assert pocketbert.load(phone).record.path == INT8
    with pytest.raises(MissingBackendError, match=r"pocketbert\[openvino\]"):
        pocketbert.load(phone, file=FILE)


def test_quantizing_such_a_folder_anew_leaves_the_file_out(phone: Path, tmp_path: Path, cli: Cli) -> None:
    result = cli("quantize", "-m", phone, "-o", tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert FILE not in records(tmp_path / "again")
    assert INT8 in records(tmp_path / "again")


def test_a_refusal_by_openvino_leaves_fastest_with_the_others(phone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise InputError(Problem("a.onnx", "OpenVINO refuses the file"))

    monkeypatch.setattr(race, "_ROUNDS", 1)
    monkeypatch.setattr(runtime.OpenVinoPredictor, "__init__", refuses)
    predictor: Any = pocketbert.load(phone, engine="fastest", threads=1).predictor
    assert {t.file for t in predictor.plan.timings} == {"model_int8.onnx"}
