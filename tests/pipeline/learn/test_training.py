"""Teacher and student of a recipe: stages of every method through folders, resumed, and what is refused before training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, VectorLayer, write_modules
from pocketbert.core.recipe.file import load_recipe, recipe_from_values
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining
from pocketbert.distill.teacher import sparse
from pocketbert.distill.training import loop
from pocketbert.pipeline.learn import training
from pocketbert.pipeline.learn.corpora import write_corpora
from pocketbert.pipeline.learn.data import load_data, max_length
from pocketbert.pipeline.learn.finishing import pooling_for
from pocketbert.pipeline.learn.training import Learning
from pocketbert.pipeline.run_folder import StepPaths
from support.own_method import registered
from support.tiny_texts import task_rows, vocabulary, write_lines
from support.tiny_tokenizers import write_wordpiece

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
JOINT = {**BLOCKS, "strategy": "joint"}
GUESSED = {**BLOCKS, "truth": 0.5, "weights": {"attention": 1}}
ONE = {"layers": 1}
NARROW = {"layers": 1, "init": "random", "hidden": 16, "heads": 4, "intermediate": 32}
MINI = {"size": "mini", "layers": None}
FILL = {"task": "fill-mask"}
BLOCK_TERMS = {"layer_1", "layer_2", "guesses", "next_sentence"}
SIGNALS = {"attention", "hidden", "logits"}
QKV = {"query", "key", "value"}
TINY = {"attention", "hidden", "embeddings"}


@dataclass(frozen=True)
class Chain:
    """A recipe, and what its student is to become: terms of each stage's loss, class, width."""

    stages: list[dict[str, Any]]
    teacher: str
    student: dict[str, Any]
    terms: list[set[str]]
    made: str = "BertForSequenceClassification"
    width: int = 16
    more: dict[str, Any] = field(default_factory=dict)  # a recipe with other keys fine-tunes no teacher


KEPT = {**OUTPUTS, "cache_teacher": "fp32"}
SHALLOW = {"layers": 1, "hidden": 16}
MOBILE = "MobileBertForSequenceClassification"
CHAINS = {
    "distilbert of another class": Chain(
        [CACHED, OUTPUTS],
        "words",
        {**ONE, "family": "distilbert"},
        [{"logits", "mlm"}, {"logits"}],
        "DistilBertForSequenceClassification",
        32,
    ),
    "tinybert": Chain([LAYERS, INTERMEDIATE, PREDICTION], "encoder", {**NARROW, "heads": 2}, [TINY, TINY, {"logits"}]),
    "minilm, then task": Chain([RELATIONS, KEPT], "encoder", NARROW, [QKV, {"logits"}]),
    "minilm, then distilbert": Chain(
        [RELATIONS, WORDS, TASK], "words", ONE, [QKV, {"logits", "mlm", "cosine"}, SIGNALS], width=32
    ),
    "narrow, from embeddings": Chain(
        [RELATIONS, TASK, {**TASK, "cache_teacher": "fp32"}], "encoder", SHALLOW, [QKV, SIGNALS, SIGNALS]
    ),
    "mobilebert, two stages": Chain(
        [RELATIONS, JOINT, BLOCKS, OUTPUTS], "wide", MINI, [QKV, BLOCK_TERMS, BLOCK_TERMS, {"logits"}], MOBILE, 128
    ),
    "mobilebert of an IB-BERT": Chain([GUESSED, OUTPUTS], "ib_bert", MINI, [BLOCK_TERMS, {"logits"}], MOBILE, 32),
    "guesses for fill-mask": Chain([GUESSED], "ib_bert", MINI, [BLOCK_TERMS], "MobileBertForMaskedLM", 32, FILL),
    "fill-mask without that head": Chain(
        [RELATIONS, {"method": "task", "steps": 4, "batch": 8}],
        "words",
        ONE,
        [QKV, SIGNALS],
        "BertForMaskedLM",
        32,
        FILL,
    ),
}
SIZES = {
    "vocab_size": len(vocabulary()),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pre-trained models, as far as the pipeline can tell."""
    base, narrow = tmp_path_factory.mktemp("pre-trained"), {"embedding_size": 16, "initializer_range": 0.15}
    bert, mobile = transformers.BertConfig, transformers.MobileBertConfig
    kinds = {
        "encoder": (transformers.BertModel, bert(**SIZES)),
        "words": (transformers.BertForMaskedLM, bert(**SIZES)),
        "wide": (transformers.BertModel, bert(**{**SIZES, "hidden_size": 160})),
        "ib_bert": (IbBertForPreTraining, IbBertConfig(**SIZES, **narrow, intra_bottleneck_size=48)),
        "mobilebert": (transformers.MobileBertModel, mobile(**SIZES, **narrow, intra_bottleneck_size=16)),
        "other": (transformers.BertModel, bert(**SIZES)),
    }
    for name, (kind, config) in kinds.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            kind(config).save_pretrained(base / name)
        write_wordpiece(base / name, sorted(vocabulary()) if name == "other" else vocabulary())
    return {name: base / name for name in kinds}


Run = Callable[..., Any]
Write = Callable[..., Path]
Places = Callable[[Path], StepPaths]


@pytest.fixture(scope="module")
def write_recipe(task: Any, teachers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Write:
    """`write_recipe(stages, teacher, student, finetune=, data=, **changes)`: the tiny task, on 80 rows of plain text."""
    base = tmp_path_factory.mktemp("recipes")
    text = write_lines(base / "text.jsonl", [{"text": r["text"]} for r in task_rows(80, 9)])
    rows = write_lines(base / "train.jsonl", task_rows(60, 1))

    def write(
        stages: list[dict[str, Any]] | None,
        teacher: str = "encoder",
        student: Any = ONE,
        data: dict[str, Any] | None = None,
        finetune: dict[str, Any] | None = {"steps": 3, "batch": 8},  # noqa: B006
        **changes: Any,
    ) -> Path:
        said: dict[str, Any] = {"train": {"path": str(rows)}}
        if any(
            s["method"] not in ("task", "tinybert-intermediate", "tinybert-prediction", "qat") for s in stages or ()
        ):
            said["corpus"] = {"sources": [{"path": str(text)}], "length": 32}
        if any(s.get("augmented") for s in stages or ()):
            said["augment"] = {"copies": 1, "candidates": 3}
        if changes.get("task") == "fill-mask":
            said["labels"] = None
        return Path(
            task.variant(
                base / "recipe.yaml",
                distill=stages,
                data={**said, **(data or {})},
                student=student,
                teacher={"model": str(teachers[teacher]), "finetune": finetune},
                **changes,
            )
        )

    return write


# --- stages through folders, and in one pass ---


def start_learning(recipe: Recipe, base: Path, make_places: Places) -> Learning:
    """Teacher and corpora of a recipe, made in a folder."""
    model = open_model_folder(recipe.teacher.model)
    data = load_data(recipe, model)
    length, corpora = max_length(recipe.data, model, data.head.task), base / "corpora"
    corpora.mkdir(parents=True)
    assert recipe.data.corpus is not None
    write_corpora(recipe.data.corpus, model.path, corpora)
    training.make_teacher(recipe, model, data, length, make_places(base / "teacher"))
    return Learning(recipe, model, base / "teacher" / "out", data, length, corpora)


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [({}, ("mean", "max")), ({"pooling": "mean"}, ("mean",)), ({"pooling": "max"}, ("max",))],
    ids=str,
)
def test_the_pooling_of_the_recipe_replaces_all_kinds_of_the_model(
    answer: dict[str, str], kinds: tuple[str, ...], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model("distilbert", 2), tmp_path / "model")
    width = json.loads((folder / "config.json").read_text())["dim"]
    write_modules(folder, Pooling(PoolingKind.MEAN, True, (PoolingKind.MAX,)), width, 32)
    content = {"schema": 1, "name": "a", "task": "feature-extraction", "teacher": {"model": str(folder)}}
    recipe = recipe_from_values({**content, "answer": answer}, "test")
    assert pooling_for(recipe, open_model_folder(str(folder))).kinds == kinds
    weights = {"linear.weight": np.ones((3, 2 * width), "f"), "linear.bias": np.ones(3, "f")}
    layers = (VectorLayer("Dense", 3, "Tanh", weights=weights),)
    write_modules(folder, Pooling(PoolingKind.MEAN, True, (PoolingKind.MAX,), layers), width, 32)
    if answer:  # the width is read whatever name the family has for it
        with pytest.raises(InputError, match=f"Dense layer takes {2 * width} numbers, 1 pooled states have {width}"):
            pooling_for(recipe, open_model_folder(str(folder)))
    else:
        assert len(pooling_for(recipe, open_model_folder(str(folder))).layers) == 1


def forget_models(learning: Learning) -> Learning:
    """The same without the models that were loaded: what another process has."""
    return replace(learning)


@pytest.fixture(scope="module")
def chains(
    write_recipe: Write, make_places: Places, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Learning, Path]]:
    """`chains(name)`: a chain whose stages went through folders, each as if it were a process of its own."""
    made: dict[str, tuple[Learning, Path]] = {}

    def make(name: str) -> tuple[Learning, Path]:
        if name not in made:
            chain, base, before = CHAINS[name], tmp_path_factory.mktemp("chain"), None
            finetune = None if chain.more else {"steps": 3, "batch": 8}
            path = write_recipe(chain.stages, chain.teacher, chain.student, finetune=finetune, **chain.more)
            learning = start_learning(load_recipe(path), base / "shared", make_places)
            for number in range(len(chain.stages)):
                at = make_places(base / str(number))
                training.make_stage(forget_models(learning), number, before, at)
                before = at.output
            assert before is not None
            training.make_student(forget_models(learning), before, make_places(base / "student"))
            made[name] = learning, base
        return made[name]

    return make


Chains = Callable[[str], tuple[Learning, Path]]


@pytest.mark.parametrize("name", CHAINS)
def test_stages_through_folders_learn_their_signals_and_give_the_student_of_one_pass(
    name: str, chains: Chains, make_places: Places, tmp_path: Path
) -> None:
    (learning, base), chain = chains(name), CHAINS[name]
    apart = base / "student" / "out"
    told, config = json.loads((apart / "training.json").read_text()), read_config(apart)
    assert [c["stage"] for c in told["curves"]] == [f"distill.{n}" for n in range(len(chain.terms))]
    assert [set(c["terms"]) for c in told["curves"]] == chain.terms
    assert config["architectures"] == [chain.made]
    assert (config.get("hidden_size") or config["dim"]) == chain.width
    names = load_file(apart / "model.safetensors")
    assert not [n for n in names if "projection" in n], "a projection is no part of the student"

    own, state, at = forget_models(learning), None, make_places(tmp_path)
    for number in range(len(own.recipe.distill)):
        state = training._train_stage(own, number, state, at)
    assert state is not None
    training._finish_student(own, state, at)
    whole = {p.name: p.read_bytes() for p in at.output.iterdir()}
    assert whole.keys() == {p.name for p in apart.iterdir()}
    for file, content in whole.items():
        assert (apart / file).read_bytes() == content, file


def test_notes_tell_what_was_reduced(chains: Chains) -> None:
    reduced = "reduced to 6 of 520,000 steps, batch 8 instead of 2,048"
    for chain, kinds in (
        ("mobilebert of an IB-BERT", ["progressive"]),
        ("mobilebert, two stages", ["joint", "progressive"]),
    ):
        notes = json.loads((chains(chain)[1] / "student" / "out" / "training.json").read_text())["notes"]
        assert notes[-len(kinds) :] == [f"MobileBERT transfer: {kind}, {reduced}" for kind in kinds]
    assert notes[0].startswith("BERT has no bottlenecks: 128 principal components of its states")


def test_a_stage_leaves_a_model_that_transformers_opens_and_what_is_carried(chains: Chains) -> None:
    base = chains("tinybert")[1]
    assert transformers.AutoModel.from_pretrained(base / "0" / "out").config.hidden_size == 16
    assert json.loads((base / "0" / "out" / "stage.json").read_text())["carried"] == {
        "projection": {"width": 16, "teacher_width": 32, "layers": 1, "kind": "per_layer"}
    }
    before, after = (load_file(base / n / "out" / "carried.safetensors") for n in "01")
    assert {k.split("/")[0] for k in before} == {"projection"}
    weight = "projection/maps.0.weight"
    assert before[weight].shape == (32, 16)
    apart = (after[weight] - before[weight]).abs().max()
    assert 0 < apart < 0.02, "the next stage goes on with it: six steps of 0.001"


@pytest.mark.parametrize(("chain", "number"), [("mobilebert, two stages", 2), ("distilbert of another class", 0)])
def test_a_stage_that_was_killed_goes_on_where_it_was(
    chain: str, number: int, chains: Chains, make_places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (learning, base), killed = chains(chain), make_places(tmp_path)
    before = base / str(number - 1) / "out" if number else None
    step, sparsify, asked = loop.TrainingLoop.step, sparse.sparsify, []

    def dying(self: Any) -> float:
        if self.progress.step == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(sparse, "sparsify", lambda *a: asked.append(1) or sparsify(*a))
    with monkeypatch.context() as patched:
        patched.setattr(loop.TrainingLoop, "step", dying)
        with pytest.raises(KeyboardInterrupt):
            training.make_stage(forget_models(learning), number, before, killed)
    assert not list(killed.output.iterdir())
    training.make_stage(forget_models(learning), number, before, killed)
    assert len(asked) == (6 if "cache" in CHAINS[chain].stages[number] else 0), "a cached teacher is asked once"
    for name in ("model.safetensors", "carried.safetensors"):
        assert (base / str(number) / "out" / name).read_bytes() == (killed.output / name).read_bytes(), name


# --- through the command line ---


def read_config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def test_a_run_makes_corpora_and_copies_for_its_stages(write_recipe: Write, succeed: Run, tmp_path: Path) -> None:
    chain = CHAINS["tinybert"]
    run = succeed("distill", write_recipe(chain.stages, chain.teacher, chain.student), "-o", tmp_path / "run")
    assert "augmented: 60 rows and " in run.stderr
    assert read_config(tmp_path / "run" / "student")["hidden_size"] == 16


def test_a_method_of_another_package_trains_a_student(task: Any, succeed: Run, refuse: Run, tmp_path: Path) -> None:
    stages = [{"method": "logits", "steps": 40, "batch": 8, "lr": 3e-3}, {"method": "logits", "steps": 2, "batch": 8}]
    path = task.variant(tmp_path / "recipe.yaml", distill=stages, teacher={"finetune": {"steps": 10}})
    with registered():
        succeed("distill", path, "-o", tmp_path / "run")
    told = json.loads((tmp_path / "run" / "student" / "training.json").read_text())
    assert [c["stage"] for c in told["curves"]] == ["distill.0", "distill.1"]
    assert told["curves"][0]["loss"][-1] < told["curves"][0]["loss"][0]
    assert told["notes"] == ["scales [1.0]", "scales [1.0, 1.0]"]
    assert "method 'logits' is unknown" in refuse("distill", path, "-o", tmp_path / "other")


@pytest.fixture
def go_on(task: Any, finished: Path, tmp_path: Path) -> Write:
    """`go_on(steps=2, **student)`: a recipe with the finished run's teacher and a pruned student."""

    def write(steps: int = 2, **student: Any) -> Path:
        stage = {"method": "task", "steps": steps, "batch": 32, "lr": 3e-3, "dropout": 0.0}
        told = {"layers": None, "init": "pruned", "intermediate": 10, **student}
        teacher = {"model": str(finished / "teacher"), "finetune": None}
        return Path(task.variant(tmp_path / "recipe.yaml", student=told, teacher=teacher, distill=[stage]))

    return write


def test_a_trained_student_is_pruned_and_learns_again(
    go_on: Write, finished: Path, succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    have = read_config(finished / "student")["intermediate_size"]
    path = go_on(40, model=str(finished / "student"), intermediate=have // 2)
    result = succeed("distill", path, "-o", tmp_path / "run")
    assert f"pruned: {have // 2} of {have} feed-forward neurons stay in each layer" in result.stderr
    assert "(chosen on 300 training rows)" in result.stderr
    assert read_config(tmp_path / "run" / "student")["intermediate_size"] == have // 2
    assert read_config(tmp_path / "run" / "teacher")["intermediate_size"] == have
    before, after = (json.loads((f / "student" / "training.json").read_text()) for f in (finished, tmp_path / "run"))
    assert after["score"]["value"] >= before["score"]["value"] - 0.02
    # a student of another width is another student
    refuse("distill", path, "-o", tmp_path / "run", "student.intermediate=8")


@pytest.mark.parametrize(
    ("student", "wanted"),
    [
        ({"model": "teacher", "layers": 1}, {"num_hidden_layers": 1, "intermediate_size": 10}),
        ({"layers": 1, "family": "distilbert"}, {"model_type": "distilbert", "n_layers": 1, "hidden_dim": 10}),
    ],
)
def test_pruning_goes_with_fewer_layers_and_another_family(
    student: dict[str, Any], wanted: dict[str, Any], go_on: Write, finished: Path, succeed: Run, tmp_path: Path
) -> None:
    told = {k: str(finished / v) if k == "model" else v for k, v in student.items()}
    succeed("distill", go_on(**told), "-o", tmp_path / "run")
    made = read_config(tmp_path / "run" / "student")
    assert {key: made[key] for key in wanted} == wanted


def test_a_general_student_serves_two_recipes_with_its_projection(
    write_recipe: Write, succeed: Run, tmp_path: Path
) -> None:
    stages = [{**LAYERS, "steps": 12}, {**OUTPUTS, "steps": 1}]
    run = succeed("distill", write_recipe(stages, student={**NARROW, "heads": 2}), "-o", tmp_path / "first")
    assert "distill/0 in the run folder is the general student: student.model of other recipes" in run.stderr
    made = tmp_path / "first" / "distill" / "0"
    student, before = {"model": str(made), "layers": None}, load_file(made / "carried.safetensors")
    assert before
    other: dict[str, Any] = {"labels": ["0", "1"]}
    for split, rows in (("train", task_rows(60, 3)), ("eval", task_rows(20, 4))):
        rows = [{**r, "label": str(len(r["text"]) % 2)} for r in rows]
        other[split] = {"path": str(write_lines(tmp_path / f"{split}.jsonl", rows))}
    still = {"steps": 1, "lr": 1e-9, "augmented": False}
    stages = [{**INTERMEDIATE, **still}, {**PREDICTION, "augmented": False}]
    for labels, data in ((3, {}), (2, other)):
        out = tmp_path / str(labels)
        run = succeed("distill", write_recipe(stages, student=student, data=data), "-o", out)
        assert "student.model: its projection from 16 to 32 numbers goes on" in run.stderr
        after = load_file(out / "distill" / "0" / "carried.safetensors")
        assert before.keys() == after.keys()
        assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
        encoder = load_file(made / "model.safetensors")
        trained = load_file(out / "distill" / "0" / "model.safetensors")
        for name in encoder.keys() & {n.removeprefix("bert.") for n in trained}:
            assert torch.allclose(encoder[name], trained[f"bert.{name}"], atol=1e-6), name
        assert len(read_config(out / "student")["id2label"]) == labels
    again = succeed("distill", write_recipe([OUTPUTS], "wide", student), "-o", tmp_path / "other")
    assert "numbers is left out, this teacher is 160 wide" in again.stderr


@pytest.mark.parametrize("pairs", [True, False])
def test_pre_training_goes_on_with_a_model_that_has_the_heads(
    pairs: bool, write_recipe: Write, teachers: dict[str, Path], succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    plan = {"method": "pretrain", "steps": 3, "batch": 8, "lr": 1e-9, "pairs": pairs}
    recipe = write_recipe([plan], "words", {"model": str(teachers["words"]), "layers": None}, **FILL, finetune=None)
    succeed("distill", recipe, "-o", tmp_path / "run")
    before, after = (load_file(f / "model.safetensors") for f in (teachers["words"], tmp_path / "run" / "student"))
    for name in ("cls.predictions.bias", "bert.encoder.layer.0.output.dense.weight"):
        assert torch.allclose(before[name], after[name], atol=1e-6), name
    said = refuse("distill", recipe, "-o", tmp_path / "other", "distill.0.masking=none")
    assert "distill.0.masking: none hides no tokens to learn from" in said


# --- IB-BERT, which no exporter writes ---


@pytest.mark.parametrize(
    ("student", "where"), [(None, "teacher.model"), (ONE, "student.family"), ("itself", "student.model")]
)
def test_exporting_an_ib_bert_is_refused_before_anything_is_trained(
    student: Any, where: str, write_recipe: Write, teachers: Any, refuse: Run, tmp_path: Path
) -> None:
    own = {"model": str(teachers["ib_bert"]), "layers": None} if student == "itself" else student
    path = write_recipe([TASK] if own else None, "ib_bert", own)
    for more in ((), ("--dry-run",)):
        said = refuse("run", path, "-o", tmp_path / "run", *more)
        assert f"{where}: no exporter writes IB-BERT" in said
        assert "Distil a MobileBERT student" in said
    assert not (tmp_path / "run" / "teacher").exists()
    said = refuse("export", "-m", teachers["ib_bert"], "-o", tmp_path / "phone", "--task", "fill-mask")
    assert "--model: no exporter writes IB-BERT" in said
    assert not (tmp_path / "phone").exists()


def test_an_ib_bert_teacher_is_not_exported_to_compare_with(
    write_recipe: Write, teachers: Any, succeed: Run, tmp_path: Path
) -> None:
    student = {"model": str(teachers["mobilebert"]), "layers": None}
    path = write_recipe([TASK], "ib_bert", student, benchmark={"threads": [1]})
    planned = succeed("run", path, "-o", tmp_path / "run", "--dry-run")
    steps = [line.split("\t")[0] for line in planned.stdout.splitlines()]
    assert "benchmark" in steps
    assert not [step for step in steps if step.endswith("-teacher")]


def test_what_is_not_exported_may_be_an_ib_bert(write_recipe: Write, succeed: Run, tmp_path: Path) -> None:
    succeed("distill", write_recipe([TASK], "ib_bert"), "-o", tmp_path / "run")
    student = read_config(tmp_path / "run" / "student")
    assert (student["model_type"], student["num_hidden_layers"]) == ("ib_bert", 1)
    path = write_recipe(None, "ib_bert", None, task="fill-mask", finetune={"steps": 20, "lr": 1e-2, "dropout": 0.0})
    succeed("finetune", path, "-o", tmp_path / "words")
    assert read_config(tmp_path / "words" / "teacher")["architectures"] == ["IbBertForMaskedLM"]


def test_an_ib_bert_is_trained_from_plain_text_by_a_recipe_and_teaches_a_mobilebert(
    write_recipe: Write, succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    plan = {"method": "pretrain", "steps": 4, "batch": 8, "optimizer": "lamb", "checkpoint": 2}
    recipe = write_recipe([plan], "words", {"size": "ib-bert-mini", "layers": None}, **FILL, finetune=None)
    succeed("distill", recipe, "-o", tmp_path / "ib")
    general, student = (tmp_path / "ib" / name for name in ("distill/0", "student"))
    model = transformers.AutoModelForPreTraining.from_pretrained(general)
    assert type(model).__name__ == "IbBertForPreTraining"
    config = model.config
    assert (config.vocab_size, config.num_hidden_layers, config.hidden_size) == (len(vocabulary()), 6, 128)
    assert read_config(student)["architectures"] == ["IbBertForMaskedLM"]
    (curve,) = json.loads((student / "training.json").read_text())["curves"]
    assert set(curve["terms"]) == {"mlm", "next_sentence"}
    said = refuse("run", recipe, "-o", tmp_path / "files")
    assert "student.size: no exporter writes IB-BERT. Fix: Distil a MobileBERT student from it" in said
    recipe = write_recipe([{**GUESSED, "steps": 12, "transfer_steps": 6}, OUTPUTS], "ib_bert", MINI)
    succeed("distill", recipe, "-o", tmp_path / "run", f"teacher.model={general}")
    assert read_config(tmp_path / "run" / "student")["num_hidden_layers"] == 6


# --- what is refused ---

TWO = [{**LAYERS, "projection": "shared"}, {**INTERMEDIATE, "layers": [1, 2]}]
UNSURE = {**WORDS, "weights": {"logits": 0, "mlm": 2, "cosine": 1}, "cache": {}}
NOTHING = {**BLOCKS, "strategy": "auxiliary", "pairs": False, "masking": "none"}
PRUNED = {**ONE, "init": "pruned"}
OWN = {"model": "folder", "layers": 1, "intermediate": 8, "family": "distilbert"}
LARGE = {"size": "large", "layers": None}


@pytest.mark.parametrize(
    ("stages", "teacher", "student", "edit", "words"),
    [
        ([TASK], "encoder", "other", "", "has another vocabulary than the teacher"),
        (TWO, "encoder", NARROW, "", "distill.1.layers: lists 2 layers, the student has 1"),
        (TWO, "encoder", NARROW, "task=token-classification", "TinyBERT's stages go on with one projection"),
        ([PREDICTION], "encoder", ONE, "data.augment=null", "distill.0.augmented: needs data.augment"),
        ([UNSURE], "words", ONE, "", "masked_only|cosine|logits"),
        ([RELATIONS, TASK], "encoder", {**PRUNED, "intermediate": 8}, "", "pruned chooses neurons on training rows"),
        ([TASK], "encoder", {**PRUNED, "intermediate": 64}, "", "64 neurons are to stay, and each|for example 32"),
        ([TASK], "encoder", {**PRUNED, "hidden": 16}, "", "needs intermediate: N|hidden: pruning keeps"),
        ([TASK], "encoder", {**PRUNED, "heads": 2}, "", "heads: attention heads cannot be"),
        ([TASK], "encoder", OWN, "", "layers, intermediate, family: the student in model has its own"),
        ([GUESSED, TASK], "wide", MINI, "", "has no trained head for fill-mask|Set truth: 1 to learn only its layers"),
        ([{**BLOCKS, "weights": {}}, TASK], "wide", MINI, "", "has 4 heads, the teacher 2"),
        ([BLOCKS, TASK], "encoder", MINI, "", "'mini' is 128 wide between its blocks, the teacher only 32"),
        ([NOTHING, TASK], "wide", LARGE, "", "transfer_steps has no meaning|no next sentence|leaves nothing to guess"),
        ([{**BLOCKS, "transfer_steps": 1}, TASK], "ib_bert", MINI, "", "1 steps do not divide into the 2 phases"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    stages: Any,
    teacher: str,
    student: Any,
    edit: str,
    words: str,
    write_recipe: Write,
    teachers: Any,
    refuse: Run,
    tmp_path: Path,
) -> None:
    told = {"model": str(teachers["other"]), "layers": None} if student == "other" else student
    said = refuse("distill", write_recipe(stages, teacher, told), "-o", tmp_path / "run", *filter(None, [edit]))
    assert [w for w in words.split("|") if w not in said] == [], said
    assert not (tmp_path / "run" / "student").exists()
