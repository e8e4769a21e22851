import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import LayerWeights, TinyBertIntermediateStage, TinyBertPredictionStage
from pocketbert.core.tasks import TASKS, TaskName, several_task
from pocketbert.core.types import Projection, Schedule, Signal
from pocketbert.distill.losses.common import Counting
from pocketbert.distill.methods import task as task_method
from pocketbert.distill.methods.method import StageJob, TeacherStudent
from pocketbert.distill.methods.tinybert import TinyBertDistillation, train_layers, train_prediction
from pocketbert.distill.students.projection import attached_projection
from support.objectives import SIZES, Trial, make_batch, make_student, means, try_tinybert

Array = NDArray[np.float64]
BERT = family_of("bert")
TERMS = ("attention", "hidden", "embeddings")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def weighted(*terms: str) -> LayerWeights:
    return LayerWeights(**{name: float(name in terms) for name in TERMS})


@pytest.fixture
def encoder(make_classifier) -> Callable[..., Any]:
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


def formulas(trial: Trial, layers: Sequence[int], reference: bool, inputs: Any = None) -> dict[str, float]:
    """All terms from the models' ordinary outputs, in loops, float64."""
    inputs = inputs or {name: trial.batch()[name] for name in INPUTS}
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
def test_terms_and_counts_are_the_formulas_of_the_paper(general, projection, listed, layers, reference):
    trial = try_tinybert(general=general, projection=projection, layers=listed, reference=reference)
    assert trial.objective.layers == layers
    assert means(trial.terms()) == pytest.approx(formulas(trial, layers, reference), rel=1e-6, abs=1e-6)
    assert isinstance(trial.objective, Counting)
    tokens, pairs = sum(SIZES), sum(n * n for n in SIZES)
    wanted = (5, 5, 5) if reference else (pairs, tokens, tokens)
    assert [float(n) for n in trial.objective.counts(trial.batch()).values()] == [*map(float, wanted)]


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


def test_a_stage_with_reference_pads_all_rows_to_one_length_as_the_released_code(tiny_model, tmp_path):
    trial, length = try_tinybert(reference=True), 16
    trial.teacher.eval()
    tokenizer = TextTokenizer(tiny_model("bert"), length)
    batch = {n: nn.functional.pad(v, (0, length - v.shape[1])) for n, v in make_batch(range(10)).items() if n in INPUTS}
    expected = formulas(trial, [2, 3], reference=True, inputs=batch)
    rows = SimpleNamespace(lengths=Rows.lengths, batch=Rows().batch, tokenizer=tokenizer)
    plan = {"steps": 1, "batch": 10, "micro_batch": 5, "lr": 1e-9, "dropout": 0.0, "reference": True}
    stage = TinyBertIntermediateStage(method="tinybert-intermediate", **plan)
    carried = task_method.detach_carried_projection(trial.student)
    job = job_of(trial.teacher, trial.student, tmp_path, stage, carried=carried)
    (record,) = train_layers(dataclasses.replace(job, rows=lambda: rows)).outcome.history
    assert record.terms == pytest.approx(expected, rel=2e-3), "to the rounding of bf16, where the machine has it"


@pytest.mark.parametrize("name", list(TASKS))
def test_the_prediction_stage_is_a_task_stage(name, tmp_path, monkeypatch):
    monkeypatch.setattr(task_method, "train", lambda job, weights: job.pair.stage)
    settings = {"steps": 70, "batch": 16, "micro_batch": 4, "lr": 2e-5, "warmup": 0.2, "schedule": Schedule.CONSTANT}
    more = {"weight_decay": 0.02, "beta2": 0.9, "eps": 1e-5, "clip": 2.0, "dropout": 0.3, "freeze_embeddings": True}
    own = TinyBertPredictionStage(
        method="tinybert-prediction", checkpoint=7, temperature=1.5, augmented=True, **settings, **more
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
def test_each_head_learns_in_the_prediction_stage_as_by_itself(tasks, make_classifier, tmp_path, monkeypatch):
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


def test_models_that_do_not_fit_are_refused_with_all_reasons(encoder):
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


def test_a_student_deeper_than_its_teacher_needs_a_list(encoder):
    teacher, student = encoder(2), encoder(3)
    with pytest.raises(InputError, match=r"distill\.0\.layers: the student has 3 layers, the teacher only 2"):
        make_objective(teacher, student)
    assert make_objective(teacher, student, layers=[1, 1, 2]).layers == [1, 1, 2]


def test_a_family_without_attention_refuses_it(encoder):
    teacher, family = encoder(), dataclasses.replace(BERT, signals=(Signal.LOGITS, Signal.HIDDEN))
    with pytest.raises(InputError, match=r"weights\.attention: .*does not offer it.*logits, hidden"):
        make_objective(teacher, make_student(teacher), family=family)
