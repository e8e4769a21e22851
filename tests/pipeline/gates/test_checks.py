"""Gates on scores, and the bound on answers of files in few bits: sound models keep them, too low a score closes each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert import api
from pocketbert.core.compare.golden import GOLDEN_FILE, SIMULATED_FILE, read_golden, read_simulated
from pocketbert.core.errors import InputError
from pocketbert.core.formats import _MIN_BOUND, Bounds
from pocketbert.core.predict.scores import Score
from pocketbert.pipeline.gates.checks import check_chance, check_drop, check_kept, check_student
from pocketbert.pipeline.gates.verify import check_file
from pocketbert.pipeline.results import Gate
from support.defects import COREML_W8, ONNX, ONNX_INT8, STEPS, TFLITE_INT8, defects_of, format_of, products, relist
from support.defects import onnx as defects
from support.defects.stored import opened, record_again
from support.tiny_task import Task

Cli = Callable[..., Any]
NAN = float("nan")


def score(value: float, chance: float = 0.5, finite: bool = True) -> Score:
    return Score(metric="accuracy", value=value, others={}, rows=1000, chance=chance, finite=finite)


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        *((check_kept("f", score(v), score(0.90), 0.95), p) for v, p in ((0.855, True), (0.854, False), (NAN, False))),
        *((check_drop("f", score(v), score(0.90), 0.0101, "x"), p) for v, p in ((0.89, 1), (0.88, 0), (NAN, 0))),
        (check_chance("f", score(0.51), "eval"), True),
        (check_chance("f", score(0.5), "eval"), False),
        (check_chance("f", score(0.9, finite=False), "eval"), False),
    ],
    ids=lambda v: v.detail[:60] if isinstance(v, Gate) else "",
)
def test_a_score_passes_up_to_the_bound(gate: Gate, passed: bool) -> None:
    assert gate.passed == bool(passed)


# A student that learnt nothing ends the run right after its training.


@pytest.mark.parametrize(
    ("student", "teacher", "min_kept", "failed"),
    [
        (0.85, 0.9, 0.9, []),
        (0.5, 0.9, 0.9, ["student kept"]),
        (0.5, 0.9, None, []),
        (0.4, 0.9, None, ["student chance"]),
        (0.4, 0.4, 0.9, ["teacher chance", "student chance"]),
    ],
)
def test_a_student_is_judged(student: float, teacher: float, min_kept: float | None, failed: list[str]) -> None:
    gates = check_student(score(student, 0.4), score(teacher, 0.4), min_kept)
    assert [f"{g.file} {g.name}" for g in gates if not g.passed] == failed
    assert check_student(None, None, min_kept) == [], "without scores there is nothing to judge"


def test_no_file_is_exported_of_a_student_of_one_step(task: Any, tmp_path: Path, cli: Cli) -> None:
    recipe, run = task.variant(tmp_path / "r.yaml", verify={"min_kept": 0.9}), tmp_path / "run"
    short = ["distill.0.steps=1", "distill.0.lr=1e-7"]
    assert cli("distill", recipe, *short, "-o", run).exit_code == 0, "who only distils, judges the student"
    result = cli("run", recipe, *short, "-o", run)
    assert result.exit_code == 3, result.output
    assert "student: gate 'kept' failed: keeps" in result.stderr
    assert "train longer than 1 steps of 32 rows (0.053 passes over 600 rows): try distill.0.steps=75" in result.stderr
    assert "distill.0.lr is 1e-07" in result.stderr
    assert "teacher" in result.stderr and "M parameters  accuracy" in result.stderr
    assert (run / "student" / "model.safetensors").is_file()
    assert not (run / "onnx").exists()
    assert not (run / "phone").exists()
    page = (run / "report.html").read_text()
    assert "student torch fp32" in page
    assert "no file was exported" in page


def test_a_lower_bound_needs_no_overwrite(task: Any, tmp_path: Path, cli: Cli) -> None:
    stage = {"method": "task", "steps": 8, "batch": 32, "lr": 3e-3, "dropout": 0.0}
    recipe, run = task.variant(tmp_path / "r.yaml", verify={"min_kept": 0.9}, distill=[stage]), tmp_path / "run"
    assert cli("run", recipe, "-o", run).exit_code == 3
    assert not (run / "onnx").exists()
    result = cli("run", recipe, "verify.min_kept=0.1", "verify.max_drop=0.5", "-o", run)
    assert result.exit_code == 0, result.output
    assert "distill.0, method task: finished before, skipped" in result.stderr


# `verify --data`: files that are wrong in the same way agree with each other, not with torch.


@pytest.fixture
def verified(cli: Cli, task: Task, phone: Path) -> Callable[..., tuple[int, dict[str, dict[str, Any]], str]]:
    """`verified(data=...)`: the exit code, the drop gates by file, and what was said."""

    def run(*options: object, data: Path = task.folder / "eval.jsonl") -> tuple[int, dict[str, dict[str, Any]], str]:
        found = cli("verify", "-m", phone, "--data", data, *options, "--json")
        gates = json.loads(found.stdout.splitlines()[-1])["gates"]
        return found.exit_code, {g["file"]: g for g in gates if g["name"] == "drop"}, found.stderr

    return run


def forget_words(model: defects.Model) -> None:
    """All rows of the table of words but those of the special tokens are zero."""
    defects.change_array(defects.words(model), lambda v: np.where(np.arange(len(v))[:, None] < 5, v, 0))


def test_labels_of_another_order_and_words_that_files_forgot_are_found(
    verified: Any, phone: Path, task: Any, finished: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (task.folder / "eval.jsonl").read_text().splitlines()]
    shift, shifted = {"lamp": "music", "music": "timer", "timer": "lamp"}, tmp_path / "shifted.csv"
    shifted.write_text("sentence,gold\n" + "".join(f"{r['text']},{shift[r['label']]}\n" for r in rows))
    code, _, said = verified("--text", "sentence", "--label", "gold", data=shifted)
    assert (code, f"{ONNX_INT8}: gate 'chance' failed:" in said) == (3, True)

    vocabulary = (finished / "student" / "vocab.txt").read_text().split()
    defects.edit(phone / ONNX_INT8, partial(defects.lose_a_word, vocabulary=vocabulary))
    relist(phone, ONNX_INT8)
    code, drops, _ = verified()
    assert (code, drops[ONNX]["passed"], drops[ONNX_INT8]["passed"]) == (3, True, False)
    assert "the torch model has" in drops[ONNX]["detail"]
    assert drops[ONNX]["value"] <= drops[ONNX]["bound"] == pytest.approx(2 / 150), "two rows may flip"

    for name in (ONNX, ONNX_INT8):
        defects.edit(phone / name, forget_words)
        relist(phone, name)
    code, drops, said = verified()
    assert (code, drops[ONNX]["passed"]) == (3, False)
    assert re.search(r"onnx/model.onnx: gate 'drop' failed: accuracy .*, the torch model has .* points worse", said)


def test_without_weights_the_comparison_is_skipped_and_said(verified: Any, phone: Path) -> None:
    (phone / "model.safetensors").unlink()
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["files"] = [r for r in listed["files"] if r["path"] != "model.safetensors"]
    (phone / "artifacts.json").write_text(json.dumps(listed))
    code, drops, said = verified()
    assert code == 0
    assert (drops[ONNX]["skipped"], drops[ONNX_INT8]["skipped"]) == (True, False)
    assert "skipped  onnx/model.onnx drop: not compared with the torch model on eval.jsonl: the folder has no" in said


# The bound on answers. Golden rows are recorded from the broken file and every digest is made anew, as if the fault had
# been there from the start.

Folder = Callable[[str], Path]
FINISHED = {".onnx": "finished", ".tflite": "finished_tflite", ".mlpackage": "finished_coreml"}


@pytest.fixture
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """`packed(file)`: a copy of the artefact folder with a file, to be broken."""

    def copy(file: str) -> Path:
        defects_of(format_of(file))
        run = Path(request.getfixturevalue(FINISHED[Path(file).suffix]))
        return Path(shutil.copytree(run / "phone", tmp_path / "phone"))

    return copy


def check(folder: Path, file: str) -> dict[str, Gate]:
    """The gates of one file."""
    return {g.name: g for g in check_file(opened(folder, file), read_golden(folder / GOLDEN_FILE))}


@pytest.mark.parametrize("file", STEPS)
def test_a_sound_file_is_off_by_what_the_simulation_says(packed: Folder, file: str) -> None:
    folder = packed(file)
    error, found = read_simulated(folder).errors[file], check(folder, file)["reference"]
    assert found.passed
    assert found.bound == pytest.approx(min(0.5, max(_MIN_BOUND, 3 * error)))
    assert found.value is not None
    # the largest error of few rows, with weights that differ between processors: 1.7 times was seen
    assert found.value <= max(2 * error, _MIN_BOUND / 2)
    assert 0.001 < error < 0.2
    assert f"simulated in torch: {error:.3g}" in found.detail


@pytest.mark.parametrize("file", [ONNX_INT8, TFLITE_INT8, COREML_W8])
@pytest.mark.parametrize(
    "defect", [products.lost_feed_forward, products.lost_attention, products.one_channel_times_8, products.a_tenth_more]
)
def test_only_the_bound_sees_a_broken_file_that_recorded_itself(packed: Folder, file: str, defect: Any) -> None:
    folder = packed(file)
    products.change_products(folder / file, defect)
    record_again(folder, file)
    assert {name for name, gate in check(folder, file).items() if not gate.passed} == {"reference"}


@pytest.mark.parametrize("error", ["NaN", "Infinity", "-1", '"a"', "null"])
def test_an_error_that_is_no_number_is_refused(phone: Path, error: str) -> None:
    (phone / SIMULATED_FILE).write_text(f'{{"texts": 64, "errors": {{"{ONNX_INT8}": {error}}}}}')
    relist(phone, SIMULATED_FILE)
    with pytest.raises(InputError, match=SIMULATED_FILE):
        api.verify(phone)


def bound_of(result: Any) -> Gate:
    return next(g for g in result.gates if g.file == ONNX_INT8 and g.name == "reference")


def test_a_larger_error_and_a_folder_of_an_earlier_version_get_the_fixed_bound(phone: Path) -> None:
    (phone / SIMULATED_FILE).write_text(f'{{"texts": 64, "errors": {{"{ONNX_INT8}": 9.0}}}}')
    assert {g.name for g in api.verify(phone).gates if not g.passed} == {"integrity"}
    relist(phone, SIMULATED_FILE)
    assert bound_of(api.verify(phone)).bound == 0.5
    (phone / SIMULATED_FILE).unlink()
    content = json.loads((phone / "artifacts.json").read_text())
    content["files"] = [r for r in content["files"] if r["path"] != SIMULATED_FILE]
    (phone / "artifacts.json").write_text(json.dumps(content))
    result = api.verify(phone)
    assert all(g.passed for g in result.gates)
    assert bound_of(result).bound == 0.5
    assert "simulated" not in bound_of(result).detail


@pytest.mark.parametrize(
    ("simulated", "allowed"),
    [(None, 0.5), (0.0, _MIN_BOUND), (0.001, _MIN_BOUND), (0.05, 0.15), (0.4, 0.5), (float("inf"), 0.5), (NAN, 0.5)],
)
def test_the_bound_is_three_times_the_error_within_limits(simulated: float | None, allowed: float) -> None:
    assert Bounds(reference=0.5).allowed(simulated) == pytest.approx(allowed)
