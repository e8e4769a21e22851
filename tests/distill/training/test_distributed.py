from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pocketbert.distill.training import loop
from support import distributed_cases as cases
from support.ports import free_port


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave."""
    out, idle = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("idle")
    launcher = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    argv = [sys.executable, str(Path(cases.__file__)), str(out)]
    started = [
        subprocess.Popen(
            argv,
            stderr=subprocess.PIPE,
            text=True,
            cwd=idle,
            env={**os.environ, **launcher, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    try:
        for process in started:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`one(case)`: the folder in which this process alone left the case."""
    out, done = tmp_path_factory.mktemp("one"), set[str]()

    def make(name: str) -> Path:
        if name not in done:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(cases.loop, "_LOG_EVERY", 1)
                patched.setattr(cases.loop, "training_dtype", None)  # both restored after `run` sets them
                cases.run(name, out)
            done.add(name)
        return out

    return make


def losses(folder: Path, name: str) -> list[dict[str, float]]:
    history = json.loads((folder / f"{name}.json").read_text())
    return [{"loss": r["loss"], **r["terms"]} for r in history]


def assert_alike(a: Path, b: Path, name: str, atol: float = 1e-9) -> None:
    ours, theirs = losses(a, name), losses(b, name)
    assert len(ours) == len(theirs) == 8
    for x, y in zip(ours, theirs, strict=True):
        assert x == pytest.approx(y, rel=2e-6)  # summed over processes in float32
    left, right = (load_file(f / f"{name}.safetensors") for f in (a, b))
    assert left.keys() == right.keys()
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=atol, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize(
    "name",
    [
        "uneven",
        "portions",
        "first row alone labelled",
        "nothing labelled",
        "head unused",
        "one row",
        "relations",
    ],
)
def test_two_processes_learn_what_one_learns(name: str, two: Path, one: Callable[[str], Path]) -> None:
    assert_alike(two, one(name), name)


@pytest.mark.parametrize("name", ["tinybert", "tinybert reference"])
def test_two_processes_learn_what_one_learns_of_layers(name: str, two: Path, one: Callable[[str], Path]) -> None:
    assert_alike(two, one(name), name, 1e-8)  # the loss of states is float32 inside
    assert "layer_projection.maps.2.weight" in load_file(two / f"{name}.safetensors")


def test_two_processes_resume_bit_for_bit(two: Path) -> None:
    whole, resumed = (load_file(f / "dropout.safetensors") for f in (two, two / "resumed"))
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())
    assert losses(two, "dropout") == losses(two / "resumed", "dropout")
    assert (two / "dropout.jsonl").read_text() == (two / "resumed" / "dropout.jsonl").read_text()


def test_one_process_continues_what_two_began(
    two: Path, one: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = one("uneven")
    left = two / "left"
    assert (left / "uneven.work" / "latest").read_text() == "step-0000006"
    for name in ("_LOG_EVERY", "training_dtype"):
        monkeypatch.setattr(cases.loop, name, getattr(cases.loop, name))
    cases.run("uneven", left)
    assert_alike(left, expected, "uneven")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("one portion of process 1", r"the loss is nan (terms: states nan, tags "),
        ("a gradient of process 1", r"the gradient norm is nan although the loss is "),
        ("process 0, and 1 has no rows", r"the loss is nan (terms: states nan"),
    ],
)
def test_a_nan_in_one_process_stops_all_in_the_same_step(name: str, what: str, two: Path) -> None:
    said = [json.loads((two / f"{name}.{rank}.json").read_text()) for rank in (0, 1)]
    for one in said:
        assert one["code"] == 3
        assert one["message"].startswith(f"distill.0: step 5 of 8 was not made: {what}")
        assert "The checkpoint of step 3 in " in one["message"]
        assert one["wall_s"] < 20  # nobody waits for anybody
    if name != "process 0, and 1 has no rows":  # which counts no mean over a term that it never computed
        assert said[0]["message"] == said[1]["message"]
    weights = [load_file(two / f"{name}.{rank}.safetensors") for rank in (0, 1)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert sorted(p.name for p in (two / f"{name}.work").iterdir()) == ["latest", "step-0000003"]


def test_a_run_that_a_nan_stopped_is_continued_as_if_nothing_had_been(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases.loop, "training_dtype", lambda _: torch.float32)
    name = "one portion of process 1"
    left = tmp_path / "left"
    shutil.copytree(two / f"{name}.work", left)
    model, whole = cases.tagger(), cases.tagger()
    objective, more = cases.POISONED[name]  # poisons process 1 only, and here is none
    loop.train(whole, cases.Tagging(), cases.Rows(), cases.settings(**more), 5, "distill.0", tmp_path / "whole")
    loop.train(model, objective, cases.Rows(), cases.settings(**more), 5, "distill.0", left)
    theirs = dict(whole.named_parameters())
    for key, value in model.named_parameters():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9)


def test_a_term_over_nothing_is_zero_and_teaches_nothing(two: Path) -> None:
    assert losses(two, "nothing labelled") == [{"loss": 0.0, "tags": 0.0}] * 8
    before = cases.tagger().state_dict()
    after = load_file(two / "nothing labelled.safetensors")
    assert all(torch.equal(value, before[key]) for key, value in after.items())


def test_a_head_that_no_process_needs_keeps_its_weights(two: Path) -> None:
    before, after = cases.tagger().state_dict(), load_file(two / "head unused.safetensors")
    same = {key for key, value in after.items() if torch.equal(value, before[key])}
    assert {"classifier.weight", "classifier.bias"} <= same
    assert len(same) < len(after) / 2


def test_what_lies_behind_the_relations_keeps_its_weights(two: Path) -> None:
    before, after = cases.tagger().state_dict(), load_file(two / "relations.safetensors")
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert {k.split(".")[-2] for k in changed if ".layer.1." in k} == {"query", "key", "value"}
    assert any(".layer.0.output." in k for k in changed)
    assert not any(k.startswith("classifier") for k in changed)


class Lying:
    """An objective that counts tokens and says it counted something else, or says nothing."""

    def __init__(self, right: Callable[..., object], says: Callable[..., object] | None) -> None:
        self.right, self.weights = right, right.weights  # type: ignore[attr-defined]
        if says is not None:
            self.counts = says

    def __call__(self, model: object, batch: object) -> object:
        return self.right(model, batch)


@pytest.mark.parametrize("says", [None, lambda batch: {"tags": torch.tensor(1000.0)}])
def test_a_wrong_count_is_refused(says: Callable[..., object] | None, tmp_path: Path) -> None:
    objective = Lying(cases.Tagging(), says)
    with pytest.raises(RuntimeError, match=r"Lying: term 'tags' is a mean over \d+ items, but counts\(\) says"):
        loop.train(cases.tagger(), objective, cases.Rows(), cases.settings(micro_batch=3), 5, "a", tmp_path)


def test_portions_learn_what_the_whole_batch_learns(one: Callable[[str], Path], tmp_path: Path) -> None:
    folder = one("uneven")
    one("portions")
    for kind in ("json", "safetensors"):
        (tmp_path / f"uneven.{kind}").write_bytes((folder / f"portions.{kind}").read_bytes())
    assert_alike(tmp_path, folder, "uneven")


LAUNCHED = """
import os, signal, sys
from pocketbert.cli.main import main
from pocketbert.distill.methods import finetune
from pocketbert.distill.training import loop
from pocketbert.distill.losses.common import Term

at, step, right = 0, loop.TrainingLoop.step, finetune.Finetune.__call__
def dying(self):
    global at
    at = self.progress.step
    if os.environ["RANK"] == os.environ.get("KILL_RANK") and at == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self)
def poisoned(self, model, batch):
    terms = right(self, model, batch)
    if os.environ["RANK"] == os.environ.get("NAN_RANK") and at == 17:
        terms = {name: Term(term.mean * float("nan"), term.count) for name, term in terms.items()}
    return terms
loop.TrainingLoop.step, finetune.Finetune.__call__ = dying, poisoned
main()
"""


@pytest.mark.slow
def test_a_launched_run_is_killed_resumed_and_ends_as_one_never_killed(
    tmp_path: Path, open_tiny: Callable[..., Any], labelled_rows: Callable[..., list[dict[str, Any]]]
) -> None:
    folder = open_tiny("bert", 2)[1].path
    rows = [json.dumps(row) for row in labelled_rows(60)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows[:50]) + "\n")
    (tmp_path / "eval.jsonl").write_text("\n".join(rows[50:]) + "\n")
    training = {"steps": 24, "batch": 7, "checkpoint": 5}
    recipe = {
        "schema": 1,
        "name": "tiny",
        "task": "text-classification",
        "data": {"train": {"path": "train.jsonl"}, "eval": {"path": "eval.jsonl"}, "max_length": 32},
        "teacher": {"model": str(folder), "finetune": training},
        "student": {"layers": 1},
        "distill": [{"method": "task", **training}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "launched.py").write_text(LAUNCHED)

    def launched(output: str, **more: str) -> subprocess.CompletedProcess[str]:
        argv = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            f"--master-port={free_port()}",
            "launched.py",
        ]
        return subprocess.run(
            [sys.executable, *argv, "distill", "recipe.yaml", "-o", output],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **more},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    whole = launched("whole")
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout == "student: whole/student\n"
    assert launched("resumed", KILL_RANK="1").returncode == 1
    assert not (tmp_path / "resumed" / "teacher").exists()
    stopped = launched("resumed", NAN_RANK="1")
    assert stopped.returncode == 1  # torchrun's
    assert stopped.stderr.count("finetune: step 18 of 24 was not made: the loss is nan (terms: labels nan)") == 1
    assert "The checkpoint of step 15 in " in stopped.stderr
    assert "exitcode  : 3" in stopped.stderr  # of the first to end; torchrun may end the other itself
    assert not (tmp_path / "resumed" / "teacher").exists()
    assert not (tmp_path / "resumed" / ".steps" / "teacher.json").exists()
    assert launched("resumed", KILL_RANK="0").returncode == 1
    resumed = launched("resumed")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("teacher/model.safetensors", "student/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    refused = launched("foreign")
    assert refused.returncode == 1  # torchrun's; the processes end with 2
    assert refused.stderr.count("exists and is not a run folder") == 1
    assert "exitcode  : 2" in refused.stderr
