from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import LayerWeights, TinyBertIntermediateStage, TinyBertPredictionStage
from pocketbert.core.tasks import TASKS, TaskName, several_task
from pocketbert.core.types import Projection, Schedule, Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import Counting
from pocketbert.distill.methods import task as task_method
from pocketbert.distill.methods import tinybert
from pocketbert.distill.methods.method import StageJob, TeacherStudent
from pocketbert.distill.methods.tinybert import TinyBertDistillation, train_layers, train_prediction
from pocketbert.distill.students.projection import attach_projection, attached_projection, detach_projection
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from support.objectives import NARROW, SIZES, Trial, make_batch, make_student, means, try_tinybert

Array = NDArray[np.float64]
BERT = family_of("bert")
TERMS = ("attention", "hidden", "embeddings")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def weighted(*terms: str) -> LayerWeights:
    return LayerWeights(**{name: float(name in terms) for name in TERMS})


@pytest.fixture
def encoder(make_classifier: Callable[..., Any]) -> Callable[..., Any]:
    """`encoder(layers=3, family="bert", **sizes)`."""
    return lambda layers=3, family="bert", **more: make_classifier(family, layers, (), auto_class="AutoModel", **more)


def make_objective(teacher: Any, student: Any, terms: Sequence[str] = TERMS, **more: Any) -> TinyBertDistillation:
    own = {name: more.pop(name) for name in ("signals", "where", "family") if name in more}
    stage = TinyBertIntermediateStage(method="tinybert-intermediate", steps=1, weights=weighted(*terms), **more)
    family = own.pop("family", family_of(teacher.config.model_type))
    return TinyBertDistillation(teacher, student, family, stage, **own)


# --- terms ------------------------------------------------------------------------------------------------------------


def bert_scores(model: Any, states: Sequence[Tensor], layer: int, mask: Array) -> Array:
    """Scores of a BERT layer from the states it reads, float64: H heads by hand."""
    heads, state, parts = model.config.num_attention_heads, states[layer].double().numpy(), []
    weights = {k: v.double().numpy() for k, v in model.encoder.layer[layer].attention.self.state_dict().items()}
    for name in ("query", "key"):
        made = state @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        parts.append(made.reshape(*made.shape[:2], heads, -1))
    scores = np.einsum("bqhd,bkhd->bhqk", *parts) / np.sqrt(parts[0].shape[-1])
    return np.asarray(scores + (1 - mask[:, None, None, :]) * -1e4)


def formulas(trial: Trial, layers: Sequence[int], reference: bool) -> dict[str, float]:
    """All terms from the models' ordinary outputs, in loops, float64."""
    inputs = {name: trial.batch()[name] for name in INPUTS}
    teacher, student = trial.teacher, trial.student
    with torch.no_grad():
        ours, theirs = (m(**inputs, output_hidden_states=True).hidden_states for m in (student, teacher))
    mask, maps = inputs["attention_mask"].numpy().astype(np.float64), attached_projection(student)
    assert maps is not None
    tensors = {k: v.double().detach().numpy() for k, v in maps.state_dict().items()}
    tokens = list(zip(*np.nonzero(mask), strict=True))

    def state_error(m: int, n: int) -> float:
        which = m if maps.kind is Projection.PER_LAYER else 0
        made = ours[m].double().numpy() @ tensors[f"maps.{which}.weight"].T + tensors[f"maps.{which}.bias"]
        apart = (made - theirs[n].double().numpy()) ** 2
        return float(apart.mean() if reference else np.mean([apart[i] for i in tokens]))

    def score_error(m: int, n: int) -> float:
        s, t = bert_scores(student, ours, m - 1, mask), bert_scores(teacher, theirs, n - 1, mask)
        if reference:
            return float(((np.where(s <= -100, 0, s) - np.where(t <= -100, 0, t)) ** 2).mean())
        return float(np.mean([(s[b, :, q, k] - t[b, :, q, k]) ** 2 for b, q in tokens for c, k in tokens if b == c]))

    pairs = list(enumerate(layers, 1))
    return {
        "attention": sum(score_error(m, n) for m, n in pairs),
        "hidden": sum(state_error(m, n) for m, n in pairs),
        "embeddings": state_error(0, 0),
    }


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(
    ("general", "projection", "listed", "layers"),
    [
        (True, Projection.SHARED, None, [2, 3]),
        (False, Projection.PER_LAYER, None, [2, 3]),
        (False, Projection.SHARED, [1, 3], [1, 3]),
    ],
)
def test_terms_and_counts_are_the_formulas_of_the_paper(
    general: bool, projection: Projection, listed: list[int] | None, layers: list[int], reference: bool
) -> None:
    trial = try_tinybert(general=general, projection=projection, layers=listed, reference=reference)
    assert trial.objective.layers == layers
    assert means(trial.terms()) == pytest.approx(formulas(trial, layers, reference), rel=1e-6, abs=1e-6)
    assert isinstance(trial.objective, Counting)
    tokens, pairs = sum(SIZES), sum(n * n for n in SIZES)
    wanted = (5, 5, 5) if reference else (pairs, tokens, tokens)
    assert [float(n) for n in trial.objective.counts(trial.batch()).values()] == [*map(float, wanted)]


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        (TERMS, Wanted(outputs=False, hidden=(0, 2, 4), attention=(1, 3))),
        (("attention",), Wanted(outputs=False, attention=(1, 3))),
        (("hidden",), Wanted(outputs=False, hidden=(2, 4))),
        (("embeddings",), Wanted(outputs=False, hidden=(0,))),
    ],
)
def test_nothing_is_asked_of_layers_that_are_not_compared(
    terms: Sequence[str], wanted: Wanted, encoder: Callable[..., Any]
) -> None:
    teacher, asked = encoder(5), list[bool]()
    student = make_student(teacher)
    objective = make_objective(teacher, student, terms, layers=[2, 4])
    assert objective.signals.wanted == wanted
    for model in (teacher, student):
        model.register_forward_pre_hook(lambda m, a, k: asked.append(k["output_hidden_states"]), with_kwargs=True)
    objective(student, make_batch())
    assert asked == 2 * [bool(wanted.hidden)]


def test_the_recorder_keeps_no_scores_behind_a_step(
    encoder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, kept = encoder(), list[Any]()
    student = make_student(teacher)
    monkeypatch.setattr(tinybert, "record_attention", lambda *a: kept.append(record_attention(*a)) or kept[-1])
    make_objective(teacher, student, ("attention",))(student, make_batch())
    assert [len(r.scores) for r in kept] == [0]


def test_signals_may_come_from_elsewhere_but_not_for_the_reference(encoder: Callable[..., Any]) -> None:
    teacher = encoder()
    student = make_student(teacher)
    plain = make_objective(teacher, student)
    right = OnlineTeacher(teacher, BERT, plain.signals.wanted)

    class Elsewhere:
        """Signals that come from no model."""

        wanted = right.wanted

        def __call__(self, batch: Mapping[str, Tensor]) -> Any:
            return right(batch)

    found = make_objective(teacher, student, signals=Elsewhere())(student, make_batch())
    assert means(found) == means(plain(student, make_batch()))
    with pytest.raises(ValueError, match="only the teacher itself has values"):
        make_objective(teacher, student, reference=True, signals=Elsewhere())
    less = OnlineTeacher(teacher, BERT, Wanted(outputs=False, hidden=(0,)))
    with pytest.raises(ValueError, match="the stage wants"):
        make_objective(teacher, student, signals=less)


# --- stages -----------------------------------------------------------------------------------------------------------


class Rows:
    """Ten rows; satisfies TrainData."""

    lengths: Sequence[int] = [*SIZES, *SIZES]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        return make_batch(rows, step=step)


def job_of(teacher: Any, student: Any, work: Path, stage: Any = None, **more: Any) -> StageJob[Any]:
    plan = {"method": "tinybert-intermediate", "steps": 6, "batch": 5, "checkpoint": 3, "lr": 1e-3}
    settings = stage or TinyBertIntermediateStage(**plan)
    task = more.pop("task", TASKS[TaskName.TEXT_CLASSIFICATION])
    return StageJob(TeacherStudent(teacher, student, BERT, settings), Rows, 3, work, task, **more)


def test_checkpoints_hold_the_projection_saved_students_do_not_and_the_next_stage_goes_on_with_it(
    encoder: Callable[..., Any], tmp_path: Path
) -> None:
    teacher = encoder()
    student = make_student(teacher, **NARROW)
    start = {k: v.clone() for k, v in student.state_dict().items()}
    result = train_layers(job_of(teacher, student, tmp_path / "work"))
    newest = tmp_path / "work" / (tmp_path / "work" / "latest").read_text()
    added = {f"layer_projection.maps.0.{leaf}" for leaf in ("weight", "bias")}
    held, moments = (load_file(newest / f"{kind}.safetensors") for kind in ("model", "optimizer"))
    assert added <= set(held) and {f"exp_avg/{name}" for name in added} <= set(moments)
    assert set(student.state_dict()) == set(start)
    assert "projection" not in json.dumps(student.config.to_dict())
    part = result.carried["projection"]
    assert all(torch.equal(held[f"layer_projection.{name}"], value) for name, value in part.tensors.items())
    following = train_layers(job_of(teacher, student, tmp_path / "next", carried=result.carried))
    first = load_file(tmp_path / "next" / "step-0000003" / "model.safetensors")["layer_projection.maps.0.weight"]
    assert float((first - part.tensors["maps.0.weight"]).abs().max()) < 0.01, "three steps of 1e-3 from where it was"
    assert following.carried["projection"].facts == part.facts
    wide = make_student(teacher)
    assert train_layers(job_of(teacher, wide, tmp_path / "wide")).carried == {}


LENGTH = 16
"""Longest input of the rows below, ``max_seq_length`` of the released code."""


class TextRows:
    """Twelve tokenized rows of 3 to 12 tokens; satisfies TrainData, and pads to the longest row of a batch."""

    lengths: Sequence[int] = [*SIZES, *SIZES, 5, 3]

    def __init__(self, folder: Path) -> None:
        self.tokenizer = TextTokenizer(folder, LENGTH)

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        return make_batch(rows, step=step)


def released_loss(teacher: Any, student: Any, maps: nn.Linear, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """The terms of `general_distill.py` (lines 418 to 440) and `task_distill.py` on a batch of any padding.

    Written with plain torch and transformers' own outputs; the student has 2 layers, the teacher 4.
    """
    inputs = {name: batch[name] for name in INPUTS}
    far = (1.0 - batch["attention_mask"][:, None, None, :].float()) * -10000.0

    def scores(model: Any, states: Sequence[Tensor], layer: int) -> Tensor:
        own = model.encoder.layer[layer].attention.self
        query, key = (
            made.view(*made.shape[:2], own.num_attention_heads, -1).transpose(1, 2)
            for made in (own.query(states[layer]), own.key(states[layer]))
        )
        return query @ key.transpose(-1, -2) / own.attention_head_size**0.5 + far

    with torch.no_grad():
        reps_s, reps_t = (model(**inputs, output_hidden_states=True).hidden_states for model in (student, teacher))
        atts_s, atts_t = (
            [scores(m, r, n) for n in range(len(r) - 1)] for m, r in ((student, reps_s), (teacher, reps_t))
        )
        att_loss = rep_loss = 0.0
        for student_att, teacher_att in zip(atts_s, [atts_t[2 * i + 1] for i in range(2)], strict=True):
            student_att = torch.where(student_att <= -1e2, torch.zeros_like(student_att), student_att)
            teacher_att = torch.where(teacher_att <= -1e2, torch.zeros_like(teacher_att), teacher_att)
            att_loss += float(nn.functional.mse_loss(student_att, teacher_att))
        errors = [
            float(nn.functional.mse_loss(maps(s), t))
            for s, t in zip(reps_s, [reps_t[2 * i] for i in range(3)], strict=True)
        ]
        rep_loss = sum(errors[1:])
    return {"attention": att_loss, "hidden": rep_loss, "embeddings": errors[0]}


@pytest.mark.parametrize("reference", [True, False])
def test_a_stage_with_reference_has_the_loss_of_the_released_code_on_rows_padded_to_one_length(
    reference: bool, encoder: Callable[..., Any], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    teacher, rows = encoder(4).eval(), TextRows(tiny_model("bert"))
    student = make_student(teacher, projection=Projection.SHARED, **NARROW)
    maps = attached_projection(student)
    assert maps is not None
    plan = {"steps": 1, "batch": 12, "micro_batch": 5, "lr": 1e-9, "dropout": 0.0, "reference": reference}
    stage = TinyBertIntermediateStage(method="tinybert-intermediate", **plan)
    padded = {
        name: nn.functional.pad(value, (0, LENGTH - value.shape[1]))
        for name, value in rows.batch(range(12), 0).items()
        if name in INPUTS
    }
    expected = released_loss(teacher, student, maps.maps[0], padded)
    carried = task_method.detach_carried_projection(student)
    job = dataclasses.replace(job_of(teacher, student, tmp_path, stage, carried=carried), rows=lambda: rows)
    (record,) = train_layers(job).outcome.history
    if reference:
        assert record.terms == pytest.approx(expected, rel=2e-3), "to the rounding of bf16, where the machine has it"
    else:
        assert record.terms["attention"] / record.terms["hidden"] > 1.5 * expected["attention"] / expected["hidden"]


@pytest.mark.parametrize("name", list(TASKS))
def test_the_prediction_stage_is_a_task_stage(name: TaskName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_method, "train", lambda job, weights: job.pair.stage)
    settings = {"steps": 70, "batch": 16, "micro_batch": 4, "lr": 2e-5, "warmup": 0.2, "schedule": Schedule.CONSTANT}
    settings |= {
        "weight_decay": 0.02,
        "beta2": 0.9,
        "eps": 1e-5,
        "clip": 2.0,
        "dropout": 0.3,
        "freeze_embeddings": True,
    }
    own = TinyBertPredictionStage(
        method="tinybert-prediction", checkpoint=7, temperature=1.5, augmented=True, **settings
    )
    made: Any = train_prediction(job_of(None, None, tmp_path, own, task=TASKS[name]))
    for key in Optimisation.model_fields:
        assert getattr(made, key) == getattr(own, key), key
    assert (made.method, made.temperature, made.augmented) == ("task", 1.5, True)
    gold = name is TaskName.REGRESSION
    assert made.signals.weighted() == {"labels" if gold else "logits": 1.0}


HEADS = ("intent: a", "intent: b", "mood: number")


class RowsOfHeads:
    """Ten rows with a label of two heads; satisfies TrainData. Each number is 2."""

    lengths: Sequence[int] = [*SIZES, *SIZES]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        batch = {name: value for name, value in make_batch(rows, step=step).items() if name in (*INPUTS, "rows")}
        labels = torch.tensor([row % 2 for row in rows])
        return {**batch, "intent.labels": labels, "mood.labels": torch.full((len(rows),), 2.0)}


@pytest.mark.parametrize("tasks", [("text-classification", "regression"), ("regression", "regression")])
def test_each_head_learns_in_the_prediction_stage_as_by_itself(
    tasks: Sequence[str], make_classifier: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The teacher's number is wrong by far; a student that learnt it would follow."""
    labels = HEADS if "text-classification" in tasks else ("intent: number", HEADS[2])
    task = several_task(dict(zip(("intent", "mood"), tasks, strict=True)), labels, {"mood": 0.5})
    teacher = make_classifier("bert", 3, labels)
    student = make_student(teacher)
    with torch.no_grad():
        teacher.classifier.bias[-1] = -100.0
    objectives, fit = list[Any](), StageJob.fit
    monkeypatch.setattr(StageJob, "fit", lambda job, own: objectives.append(own) or fit(job, own))
    stage = TinyBertPredictionStage(method="tinybert-prediction", steps=60, batch=5, lr=1e-2, warmup=0.0)
    job = StageJob(TeacherStudent(teacher, student, BERT, stage), RowsOfHeads, 3, tmp_path, task)
    train_prediction(job)
    first = "logits.intent" if "text-classification" in tasks else "labels.intent"
    assert objectives[0].weights == {first: 1.0, "labels.mood": 0.5}
    batch = RowsOfHeads().batch(range(5), 0)
    assert set(objectives[0](student, batch)) == {first, "labels.mood"}
    with torch.no_grad():
        numbers = student.eval()(**{name: batch[name] for name in INPUTS}).logits[:, -1]
    assert float((numbers - 2).abs().max()) < 1.0, "the gold number, not the teacher's"


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_models_that_do_not_fit_are_refused_with_all_reasons(encoder: Callable[..., Any]) -> None:
    teacher = encoder(3, "mobilebert")
    other = encoder(2, "mobilebert", vocab_size=150, num_attention_heads=2)
    with pytest.raises(InputError) as caught:
        make_objective(teacher, other, layers=[1, 4], where="distill.2")
    problems = {p.where.removeprefix("distill.2"): str(p) for p in caught.value.problems}
    wanted = {
        ".weights.hidden": "not valid for MobileBERT: its hidden states reach 1e5",
        ".weights.embeddings": "Set embeddings: 0; valid signals: logits, attention, relations.",
        ".weights.attention": "2 heads, the teacher 4: scores are compared head by head. Fix: Set attention: 0, or "
        "student.heads: 4, or use method: minilm",
        "": "the student has 150 vocabulary entries",
        ".layers": "[1, 4] does not map 2 student layers to teacher layers 1 to 3.",
    }
    assert list(problems) == list(wanted)
    assert all(text in problems[where] for where, text in wanted.items()), problems


def test_a_student_deeper_than_its_teacher_needs_a_list(encoder: Callable[..., Any]) -> None:
    teacher, student = encoder(2), encoder(3)
    with pytest.raises(InputError, match=r"distill\.0\.layers: the student has 3 layers, the teacher only 2"):
        make_objective(teacher, student)
    assert make_objective(teacher, student, layers=[1, 1, 2]).layers == [1, 1, 2]


def test_a_family_without_attention_refuses_it(encoder: Callable[..., Any]) -> None:
    teacher = encoder()
    family = dataclasses.replace(BERT, signals=(Signal.LOGITS, Signal.HIDDEN))
    with pytest.raises(InputError, match=r"weights\.attention: .*does not offer it.*logits, hidden"):
        make_objective(teacher, make_student(teacher), family=family)


def test_a_missing_projection_is_noticed(encoder: Callable[..., Any]) -> None:
    teacher = encoder()
    student = make_student(teacher, projection=Projection.SHARED, **NARROW)
    detach_projection(student)
    with pytest.raises(ValueError, match=r"24 wide, the teacher 32: call attach_projection\(student, 32"):
        make_objective(teacher, student)
    attach_projection(student, 40, Projection.SHARED, 0)
    with pytest.raises(ValueError, match="attach_projection"):
        make_objective(teacher, student, ("embeddings",))
    make_objective(teacher, student, ("attention",))  # reads no states
    other_heads = make_student(teacher, init="random", heads=2)
    make_objective(teacher, other_heads, ("hidden", "embeddings"))  # reads no scores
