"""A teacher divided among processes answers as the whole one, and its students learn the same."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.distill.training.sharding import is_sharded, join_remaining_passes, sharded, whole_tensor
from support import sharded_cases as cases
from support.launches import run_two_processes
from support.ports import free_port
from support.tiny import GRAPHS, GUESSING
from support.training_cases import tagger


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes leave."""
    out = tmp_path_factory.mktemp("sharded")
    run_two_processes(cases.__file__, str(out), cwd=tmp_path_factory.mktemp("idle"))
    return out


@pytest.fixture(scope="module")
def found(two) -> list[dict[str, Any]]:
    """What each process found."""
    read: list[dict[str, Any]] = json.loads((two / "found.json").read_text())
    return read


@pytest.mark.parametrize("family", GRAPHS)
def test_the_signals_of_a_sharded_teacher_are_those_of_the_whole_one(family, found):
    both = [own["signals"][family] for own in found]
    assert [own["difference"] for own in both] == [0, 0]
    assert sum(own["share"] for own in both) == pytest.approx(1)
    assert both[0]["share"] < 0.56  # odd numbers of rows: process 0 has one more
    assert family not in GUESSING or [own["guesses"][family] for own in found] == [0, 0]


def test_the_cache_of_a_sharded_teacher_has_the_bytes_of_one_of_the_whole_teacher(two, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cases.cached(tmp_path / "cache", shards=False)
    finally:
        torch.set_num_threads(threads)
    names = sorted(p.name for p in (tmp_path / "cache").iterdir())
    assert names == ["cache.json", "lengths.npy", "records.bin"]
    for name in names:
        assert (two / "cache" / name).read_bytes() == (tmp_path / "cache" / name).read_bytes(), name


@pytest.mark.parametrize("name", cases.TRAININGS)
@pytest.mark.parametrize("method", cases.METHODS)
def test_a_student_of_a_sharded_teacher_is_that_of_the_whole_one(method, name, two):
    folders = [two / kind / f"{method}, {name}" for kind in ("whole", "sharded")]
    whole, divided = (load_file(folder / "student.safetensors") for folder in folders)
    assert whole.keys() == divided.keys()
    assert all(torch.equal(value, divided[key]) for key, value in whole.items())
    start = dict(tagger().named_parameters())
    assert any(not torch.equal(value, start[key]) for key, value in whole.items() if key in start)


def test_one_process_keeps_its_teacher_whole():
    teacher = tagger()
    with sharded(teacher, family_of("bert")):
        assert not is_sharded(teacher)
        join_remaining_passes()
    weight = next(teacher.parameters())
    assert whole_tensor(weight) is weight


RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "tiny",
    "task": "text-classification",
    "data": {"train": {"path": "train.jsonl"}, "eval": {"path": "eval.jsonl"}, "max_length": 32},
    "teacher": {"model": "model", "shard": True},
    "student": {"layers": 1},
    "distill": [{"method": "task", "steps": 12}],
}
CORPUS = {"corpus": {"sources": [{"path": "train.jsonl", "share": 1}], "length": 32}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"student": None, "distill": []}, "there is no student: leave it out"),
    ({"data": {**RECIPE["data"], "train": {"path": "train.jsonl", "teacher": "p"}}}, "its answers are in a column"),
    ({"student": "auto"}, "student: auto tries students in one process"),
    (
        {
            "student": {"layers": 0},
            "distill": [{"method": "task", "steps": 5, "signals": {"logits": 1, "hidden": 0, "attention": 0}}],
        },
        "a student without layers is computed by the whole teacher",
    ),
    (
        {"data": {**RECIPE["data"], **CORPUS}, "distill": [{"method": "mobilebert", "steps": 5}, *RECIPE["distill"]]},
        "method mobilebert of distill.0 ends the teacher's passes early",
    ),
    (
        {"distill": [{"method": "qat", "steps": 5}], "quantize": {"files": ["a8w8"]}},
        "and in distill none does: leave it out",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[case[1] for case in REFUSED])
def test_recipes_whose_teacher_cannot_be_divided_are_refused(changes, message):
    with pytest.raises(InputError, match="teacher.shard") as caught:
        recipe_from_values({**RECIPE, **changes}, "recipe")
    assert message in str(caught.value)
    whole = {**RECIPE, **changes, "teacher": {"model": "model"}}
    recipe_from_values(whole, "recipe")


def test_a_recipe_without_the_key_is_stored_as_before():
    plain = recipe_from_values({**RECIPE, "teacher": {"model": "model"}}, "recipe").model_dump(mode="json")
    assert "shard" not in plain["teacher"]
    assert recipe_from_values(RECIPE, "recipe").model_dump(mode="json")["teacher"]["shard"] is True


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port={port}"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port={port}"]
MACHINES = ["--num_machines=2", "--main_process_ip=127.0.0.1"]
"""`accelerate launch` on CPUs too: with --cpu it starts one process."""


@pytest.mark.slow
def test_launched_runs_with_sharded_teachers_write_the_students_of_whole_ones(
    tmp_path, tiny_model, labelled_rows, write_rows
):
    rows, training = labelled_rows(60), {"steps": 12, "batch": 7, "dropout": 0.0}
    write_rows(tmp_path / "train.jsonl", rows[:50])
    write_rows(tmp_path / "eval.jsonl", rows[50:])
    lm = tiny_model("bert", 2, (), "AutoModelForMaskedLM")
    guesses = {"masked_only": True, "weights": {"cosine": 0}, "cache": {"top": 4, "samples": 3}, "masking": "similar"}
    stages: list[dict[str, Any]] = [
        {"method": "distilbert", **training, **guesses},
        {"method": "minilm", **training},
        {"method": "task", **training, "cache_teacher": "fp32"},
        {"method": "task", **training, "micro_batch": 2},
    ]
    values = {**RECIPE, "data": {**RECIPE["data"], **CORPUS}, "distill": stages}
    teacher = {"model": str(lm), "family": "macbert", "finetune": training}  # whose words are replaced by similar ones
    for name, shard in (("whole", False), ("sharded", True)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**values, "teacher": {**teacher, "shard": shard}}))

    def start(recipe: str, output: str, launcher: list[str], port: int) -> subprocess.Popen[str]:
        argv = [sys.executable, *(word.format(port=port) for word in launcher)]
        return subprocess.Popen(
            [*argv, "-m", "pocketbert.cli.main", "distill", f"{recipe}.yaml", "-o", output],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    launches = [
        ("whole", "whole", [TORCHRUN]),
        ("sharded", "sharded", [TORCHRUN]),
        ("sharded", "accelerate", [ACCELERATE]),
        ("sharded", "machines", [[*ACCELERATE, *MACHINES, f"--machine_rank={rank}"] for rank in (0, 1)]),
    ]
    for recipe, output, launchers in launches:
        port, processes = free_port(), list[subprocess.Popen[str]]()
        for launcher in launchers:
            processes.append(start(recipe, output, launcher, port))
            time.sleep(1)
        try:
            for process in processes:
                said = process.communicate(timeout=300)[1]
                assert process.returncode == 0, said
                if recipe == "sharded" and process is processes[0]:
                    assert said.count("teacher.shard: each process holds") == len(stages)
        finally:
            for process in processes:
                process.kill()
        for path in ("teacher", "distill/0", "student"):
            written = [(tmp_path / name / path / "model.safetensors").read_bytes() for name in ("whole", output)]
            assert written[0] == written[1], (output, path)
