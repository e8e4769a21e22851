"""Several processes learn what one learns, stop together, and continue each other's runs."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pocketbert.distill.training import loop
from support import training_cases as cases
from support.launches import run_two_processes, run_with_torchrun
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes leave."""
    out, idle = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("idle")
    run_two_processes(cases.__file__, str(out), cwd=idle)
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Callable[[str], Path]:
    """`one(case)`: the folder in which this process alone left the case."""
    out = tmp_path_factory.mktemp("one")

    def make(name: str) -> Path:
        if not (out / f"{name}.json").is_file():
            run_here(name, out)
        return out

    return make


def run_here(name: str, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "training_dtype", None)  # restored after `run` sets it
        cases.run(name, out)


def losses(folder: Path, name: str) -> list[dict[str, float]]:
    history = json.loads((folder / f"{name}.json").read_text())
    return [{"loss": r["loss"], **r["terms"]} for r in history]


def assert_alike(a: Path, b: Path, name: str, other: str = "", atol: float = 1e-9) -> None:
    for ours, theirs in zip(losses(a, name), losses(b, other or name), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-6)  # summed over processes in float32
    left, right = load_file(a / f"{name}.safetensors"), load_file(b / f"{other or name}.safetensors")
    assert left.keys() == right.keys()
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=atol, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", [name for name in cases.CASES if name != "dropout"])
def test_two_processes_learn_what_one_learns(name, two, one):
    # the losses of TinyBERT's and MobileBERT's states are float32 inside
    assert_alike(two, one(name), name, atol=1e-8 if "bert" in name else 1e-9)
    assert not name.startswith("tinybert") or "layer_projection.maps.2.weight" in load_file(two / f"{name}.safetensors")


def test_portions_learn_what_the_whole_batch_learns(one):
    assert_alike(one("portions"), one("uneven"), "portions", "uneven")


def test_two_processes_resume_bit_for_bit(two):
    whole, resumed = (load_file(f / "dropout.safetensors") for f in (two, two / "resumed"))
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())
    assert losses(two, "dropout") == losses(two / "resumed", "dropout")
    assert (two / "dropout.jsonl").read_text() == (two / "resumed" / "dropout.jsonl").read_text()


def test_one_process_continues_what_two_began(two, one, tmp_path):
    left = tmp_path / "left"
    shutil.copytree(two / "left", left)
    assert (left / "uneven.work" / "latest").read_text() == "step-0000006"
    run_here("uneven", left)
    assert_alike(left, one("uneven"), "uneven")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("one portion of process 1", r"the loss is nan (terms: states nan, tags "),
        ("a gradient of process 1", r"the gradient norm is nan although the loss is "),
        ("process 0, and 1 has no rows", r"the loss is nan (terms: states nan"),
    ],
)
def test_a_nan_in_one_process_stops_all_in_the_same_step(name, what, two):
    said = [json.loads((two / f"{name}.{rank}.json").read_text()) for rank in (0, 1)]
    for own in said:
        assert own["code"] == 3
        assert own["message"].startswith(f"distill.0: step 5 of 8 was not made: {what}")
        assert "The checkpoint of step 3 in " in own["message"]
    if name != "process 0, and 1 has no rows":  # which counts no mean over a term that it never computed
        assert said[0]["message"] == said[1]["message"]
    first, second = (load_file(two / f"{name}.{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())
    assert sorted(p.name for p in (two / f"{name}.work").iterdir()) == ["latest", "step-0000003"]


def test_a_run_that_a_nan_stopped_is_continued_as_if_nothing_had_been(two, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "training_dtype", lambda *_: torch.float32)
    name = "one portion of process 1"
    shutil.copytree(two / f"{name}.work", tmp_path / "left")
    objective, more = cases.POISONED[name]  # poisons process 1 only, and here is none
    made = {"left": cases.tagger(), "whole": cases.tagger()}
    for folder, model in made.items():
        loop.train(model, objective, cases.Rows(), cases.settings(**more), 5, "distill.0", tmp_path / folder)
    theirs = dict(made["whole"].named_parameters())
    for key, value in made["left"].named_parameters():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9)


def changed_weights(two: Path, name: str) -> tuple[set[str], set[str]]:
    """Names of the weights that a case changed, and that it did not."""
    before, after = cases.tagger().state_dict(), load_file(two / f"{name}.safetensors")
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    return changed, set(after) - changed


def test_weights_that_no_term_reaches_stay_as_they_are(two):
    assert losses(two, "nothing labelled") == [{"loss": 0.0, "tags": 0.0}]
    assert changed_weights(two, "nothing labelled")[0] == set()
    changed, same = changed_weights(two, "head unused")
    assert {"classifier.weight", "classifier.bias"} <= same and len(same) < len(changed)
    changed, _ = changed_weights(two, "relations")
    assert {k.split(".")[-2] for k in changed if ".layer.1." in k} == {"query", "key", "value"}
    assert any(".layer.0.output." in k for k in changed)
    assert not any(k.startswith("classifier") for k in changed)


LAUNCHED = """
import os, signal, sys, time
from pocketbert.cli.main import main
from pocketbert.distill.methods.task import Finetune
from pocketbert.distill.teacher import cache
from pocketbert.distill.training import loop
from pocketbert.distill.losses.common import Term

stored, cache._SAVED_BATCHES = cache._stored_bytes, 1
def dying_in_cache(*arguments):
    if os.environ["RANK"] == os.environ.get("KILL_IN_CACHE"):
        time.sleep(3)  # until process 0 has written its part
        os.kill(os.getpid(), signal.SIGKILL)
    return stored(*arguments)
cache._stored_bytes = dying_in_cache

at, step, right = 0, loop.TrainingLoop.step, Finetune.__call__
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
loop.TrainingLoop.step, Finetune.__call__ = dying, poisoned
main()
"""


@pytest.mark.slow
def test_a_launched_run_is_killed_resumed_and_ends_as_one_never_killed(tmp_path, tiny_model, labelled_rows, write_rows):
    rows, training = labelled_rows(60), {"steps": 24, "batch": 7, "checkpoint": 5}
    write_rows(tmp_path / "train.jsonl", rows[:50])
    write_rows(tmp_path / "eval.jsonl", rows[50:])
    recipe = {
        "schema": 1,
        "name": "tiny",
        "task": "text-classification",
        "data": {"train": {"path": "train.jsonl"}, "eval": {"path": "eval.jsonl"}, "max_length": 32},
        "teacher": {"model": str(tiny_model("bert", 2)), "finetune": training},
        "student": {"layers": 1},
        "distill": [{"method": "task", **training, "cache_teacher": "fp16"}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "launched.py").write_text(LAUNCHED)

    def launch(output: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_with_torchrun(2, "launched.py", "distill", "recipe.yaml", "-o", output, folder=tmp_path, **more)

    whole = launch("whole")
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout == "student: whole/student\n"
    assert launch("resumed", KILL_RANK="1").returncode == 1
    assert not (tmp_path / "resumed" / "teacher").exists()
    stopped = launch("resumed", NAN_RANK="1")
    assert stopped.returncode == 1  # torchrun's
    assert stopped.stderr.count("finetune: step 18 of 24 was not made: the loss is nan (terms: labels nan)") == 1
    assert "The checkpoint of step 15 in " in stopped.stderr
    assert "exitcode  : 3" in stopped.stderr  # of the first to end; torchrun may end the other itself
    assert not (tmp_path / "resumed" / "teacher").exists()
    assert not (tmp_path / "resumed" / ".steps" / "teacher.json").exists()
    assert launch("resumed", KILL_RANK="0").returncode == 1
    in_cache = launch("resumed", KILL_IN_CACHE="1")
    assert in_cache.returncode == 1 and (tmp_path / "resumed" / "teacher").exists()
    assert list((tmp_path / "resumed" / ".work").glob("distill.0-*/**/0-progress.json")), "what process 0 wrote is kept"
    resumed = launch("resumed")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("teacher/model.safetensors", "student/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    refused = launch("foreign")
    assert refused.returncode == 1  # torchrun's; the processes end with 2
    assert refused.stderr.count("exists and is not a run folder") == 1
    assert "exitcode  : 2" in refused.stderr


@pytest.mark.slow
def test_a_launched_run_on_plain_text_with_caches_learns_what_one_process_learns(tmp_path, labelled_rows, write_rows):
    tiny_classifier("bert", 2, (), auto_class="AutoModelForMaskedLM").save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    rows = labelled_rows(60)
    for name, part in (("train", rows[:50]), ("eval", rows[50:]), ("a", rows[:30]), ("b", rows[20:])):
        write_rows(tmp_path / f"{name}.jsonl", part)
    training = {"steps": 12, "batch": 7, "precision": "fp32", "dropout": 0.0}
    cached = {"masked_only": True, "weights": {"cosine": 0}, "cache": {"top": 4, "samples": 3}}
    recipe = {
        "schema": 1,
        "name": "tiny",
        "task": "text-classification",
        "data": {
            "train": {"path": "train.jsonl"},
            "eval": {"path": "eval.jsonl"},
            "max_length": 32,
            "corpus": {"sources": [{"path": f"{name}.jsonl", "share": 1} for name in "ab"], "length": 32},
        },
        "teacher": {"model": "model", "finetune": training},
        "student": {"layers": 1},
        "distill": [
            {"method": "distilbert", **training, **cached},
            {"method": "task", **training, "cache_teacher": "fp32"},
        ],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))

    def run_distill(processes: int, output: str) -> subprocess.CompletedProcess[str]:
        command = ("-m", "pocketbert.cli.main", "distill", "recipe.yaml", "-o", output)
        return run_with_torchrun(processes, *command, folder=tmp_path)

    for output, processes in (("one", 1), ("two", 2)):
        ended = run_distill(processes, output)
        assert ended.returncode == 0, ended.stderr
    recipe["data"]["corpus"]["sources"][1]["path"] = "wrong.jsonl"  # as large as the other: one for each process
    (tmp_path / "wrong.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes().replace(b'"text"', b'"texT"'))
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    ended = run_distill(2, "wrong")
    assert "exitcode  : 2" in ended.stderr
    assert ended.stderr.count("wrong.jsonl:1: no column 'text'") == 1
    one, two = (tmp_path / output for output in ("one", "two"))
    written = sorted(p.relative_to(one) for p in (one / "corpus").rglob("*") if p.is_file())
    assert len(written) == 6 and all((one / p).read_bytes() == (two / p).read_bytes() for p in written)
    losses = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (one, two)]
    assert [r["stage"] for r in losses[0]] == ["finetune", "distill.0", "distill.1"]
    for ours, theirs in zip(*losses, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    students = [load_file(f / "student" / "model.safetensors") for f in (one, two)]
    for key, value in students[0].items():
        if not key.endswith("key.bias"):  # its gradient is rounding, which Adam makes large
            torch.testing.assert_close(value, students[1][key], rtol=0, atol=1e-5, msg=key)
