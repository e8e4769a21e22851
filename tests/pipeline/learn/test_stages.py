"""Stages one at a time, through folders: the same student, to the bit, as in one pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.learn import training
from pocketbert.pipeline.learn.corpora import write_corpora
from pocketbert.pipeline.learn.data import load_data, max_length
from pocketbert.pipeline.learn.training import Learning, _train_stage
from pocketbert.pipeline.run_folder import StepPaths

PLAN = {"steps": 6, "batch": 8, "lr": 1e-3, "checkpoint": 4}
TASK = {"method": "task", **PLAN}
OUTPUTS = {**TASK, "signals": {"hidden": 0, "attention": 0}}
WORDS = {"method": "distilbert", **PLAN, "freeze_positions": True}
CACHED = {**WORDS, "masked_only": True, "weights": {"cosine": 0}, "cache": {"top": 8, "samples": 4}}
RELATIONS = {"method": "minilm", **PLAN}
LAYERS = {"method": "tinybert-general", **PLAN, "projection": "per_layer"}
INTERMEDIATE = {"method": "tinybert-intermediate", **PLAN, "projection": "per_layer", "augmented": True}
PREDICTION = {"method": "tinybert-prediction", **PLAN, "augmented": True}
BLOCKS = {"method": "mobilebert", "steps": 6, "transfer_steps": 3, "batch": 8, "truth": 1, "weights": {"attention": 0}}
GUESSED = {**BLOCKS, "truth": 0.5, "weights": {"attention": 1}}
ONE = {"layers": 1}
NARROW = {"layers": 1, "init": "random", "hidden": 16, "heads": 2, "intermediate": 32}
MINI = {"size": "mini", "layers": None}
CHAINS: dict[str, tuple[list[dict[str, Any]], str, dict[str, Any], dict[str, Any]]] = {
    "distilbert, then task": ([WORDS, TASK], "words", ONE, {}),
    "distilbert of another class": ([CACHED, OUTPUTS], "words", {**ONE, "family": "distilbert"}, {}),
    "tinybert": ([LAYERS, INTERMEDIATE, PREDICTION], "encoder", NARROW, {}),
    "minilm, then task": ([RELATIONS, {**TASK, "cache_teacher": "fp32"}], "encoder", ONE, {}),
    "minilm, then distilbert": ([RELATIONS, WORDS, TASK], "words", ONE, {}),
    "mobilebert, two stages": ([RELATIONS, BLOCKS, BLOCKS, OUTPUTS], "wide", MINI, {}),
    "mobilebert of an IB-BERT": ([GUESSED, OUTPUTS], "ib_bert", MINI, {}),
    "guesses for fill-mask": ([GUESSED], "ib_bert", MINI, {"task": "fill-mask"}),
}


@pytest.fixture(scope="module")
def teachers(task: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pre-trained models, as far as the pipeline can tell."""
    import torch
    import transformers

    from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining

    base, tokenizer = tmp_path_factory.mktemp("pre-trained"), task.folder / "teacher"
    sizes = {
        "vocab_size": json.loads((tokenizer / "config.json").read_text())["vocab_size"],
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    kinds = {
        "encoder": (transformers.BertModel, transformers.BertConfig(hidden_size=32, **sizes)),
        "words": (transformers.BertForMaskedLM, transformers.BertConfig(hidden_size=32, **sizes)),
        "wide": (transformers.BertModel, transformers.BertConfig(hidden_size=160, **sizes)),
        "ib_bert": (
            IbBertForPreTraining,
            IbBertConfig(hidden_size=32, embedding_size=16, intra_bottleneck_size=48, **sizes),
        ),
    }
    for name, (kind, config) in kinds.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            kind(config).save_pretrained(base / name)
        for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            shutil.copyfile(tokenizer / file, base / name / file)
    return {name: base / name for name in kinds}


@pytest.fixture
def recipe(task: Any, teachers: dict[str, Path], tmp_path: Path) -> Callable[[str], Recipe]:
    """`recipe(chain)`: the tiny task with the stages of a chain."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join((task.folder / "train.jsonl").read_text().splitlines(keepends=True)[:80]))

    def write(chain: str) -> Recipe:
        stages, teacher, student, more = CHAINS[chain]
        data: dict[str, Any] = {"corpus": {"sources": [{"path": str(text)}], "length": 32}}
        if any(s.get("augmented") for s in stages):
            data["augment"] = {"copies": 1, "candidates": 3}
        if "task" in more:
            data |= {"labels": None, "train": None, "eval": None}
        finetune = None if "task" in more else {"steps": 3, "batch": 8}
        path = task.variant(
            tmp_path / "recipe.yaml",
            distill=stages,
            data=data,
            student=student,
            teacher={"model": str(teachers[teacher]), "finetune": finetune},
            **more,
        )
        return load_recipe(path)

    return write


def learning_of(recipe: Recipe, base: Path) -> Learning:
    """Teacher and corpora of a recipe, made in a folder."""
    model = open_model_folder(recipe.teacher.model)
    data, length = load_data(recipe, model), max_length(recipe.data, model, load_data(recipe, model).head.task)
    corpora = base / "corpora"
    corpora.mkdir(parents=True)
    assert recipe.data.corpus is not None
    write_corpora(recipe.data.corpus, model.path, corpora)
    training.make_teacher(recipe, model, data, length, places(base / "teacher"))
    return Learning(recipe, model, base / "teacher" / "out", data, length, corpora)


def places(folder: Path) -> StepPaths:
    """Folders of one step."""
    (folder / "out").mkdir(parents=True)
    (folder / "work").mkdir()
    return StepPaths(folder / "out", folder / "work", folder / "metrics.jsonl")


def fresh(learning: Learning) -> Learning:
    """The same without the models that were loaded: what another process has."""
    return replace(learning)


def one_by_one(learning: Learning, base: Path) -> Path:
    """Every stage through folders, as if each were a process of its own."""
    before = None
    for number in range(len(learning.recipe.distill)):
        at = places(base / str(number))
        training.make_stage(fresh(learning), number, before, at)
        before = at.output
    assert before is not None
    last = places(base / "student")
    training.make_student(fresh(learning), before, last)
    return last.output


def in_one_pass(learning: Learning, base: Path) -> Path:
    """Every stage on the same objects in memory."""
    at, own, state = places(base), fresh(learning), None
    for number in range(len(own.recipe.distill)):
        state = _train_stage(own, number, state, at)
    assert state is not None
    training._finish_student(own, state, at)
    return at.output


@pytest.mark.parametrize("chain", CHAINS)
def test_stages_through_folders_give_the_student_of_one_pass(
    chain: str, recipe: Callable[[str], Recipe], tmp_path: Path
) -> None:
    learning = learning_of(recipe(chain), tmp_path / "shared")
    whole, apart = in_one_pass(learning, tmp_path / "whole"), one_by_one(learning, tmp_path / "apart")
    names = sorted(p.name for p in whole.iterdir())
    assert names == sorted(p.name for p in apart.iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (apart / name).read_bytes(), name
    curves = json.loads((whole / "training.json").read_text())["curves"]
    assert [c["stage"] for c in curves] == [f"distill.{n}" for n in range(len(learning.recipe.distill))]


def test_a_stage_leaves_a_model_that_transformers_opens_and_what_is_carried(
    recipe: Callable[[str], Recipe], tmp_path: Path
) -> None:
    import transformers
    from safetensors import safe_open

    learning = learning_of(recipe("tinybert"), tmp_path / "shared")
    at = places(tmp_path / "0")
    training.make_stage(learning, 0, None, at)
    model = transformers.AutoModel.from_pretrained(at.output)
    assert model.config.hidden_size == 16
    assert json.loads((at.output / "stage.json").read_text())["carried"] == {
        "projection": {"width": 16, "teacher_width": 32, "layers": 1, "kind": "per_layer"}
    }
    with safe_open(at.output / "carried.safetensors", "pt") as file:
        assert {k.split("/")[0] for k in file.keys()} == {"projection"}  # noqa: SIM118  a file is no dictionary
        assert file.get_tensor("projection/maps.0.weight").shape == (32, 16)


def test_a_stage_that_was_killed_goes_on_where_it_was(
    recipe: Callable[[str], Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.distill.training import loop

    learning = learning_of(recipe("mobilebert, two stages"), tmp_path / "shared")
    first, step = places(tmp_path / "0"), loop.TrainingLoop.step
    training.make_stage(fresh(learning), 0, None, first)
    whole, killed = places(tmp_path / "whole"), places(tmp_path / "killed")
    training.make_stage(fresh(learning), 1, first.output, whole)

    def dying(self: Any) -> float:
        if self.progress.step == 5:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(loop.TrainingLoop, "step", dying)
        with pytest.raises(KeyboardInterrupt):
            training.make_stage(fresh(learning), 1, first.output, killed)
    assert not list(killed.output.iterdir())
    training.make_stage(fresh(learning), 1, first.output, killed)
    for name in ("model.safetensors", "carried.safetensors"):
        assert (whole.output / name).read_bytes() == (killed.output / name).read_bytes(), name
