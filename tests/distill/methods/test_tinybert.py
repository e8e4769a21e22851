from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.families import family_of
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import LayerWeights, TinyBertPredictionStage
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Projection, Schedule
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import Counting, scale_partial_mean
from pocketbert.distill.methods.tinybert import TinyBertDistillation, _to_task_stage
from pocketbert.distill.students.projection import attached_projection
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from support.tiny import BASIC as FAMILIES
from support.tinybert import (
    TERMS,
    batch_of,
    encoder,
    narrow_student,
    objective_of,
    stage_for,
    stage_of,
    student_of,
    total,
    values,
)

Array = NDArray[np.float64]


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_full_copy_of_the_teacher_costs_nothing(
    name: str, reference: bool, make_classifier: Callable[..., Any]
) -> None:
    teacher = make_classifier(name, 3, ("a", "b"))
    student = student_of(teacher, 3)
    terms = objective_of(teacher, student, stage_for(name, reference=reference))(student, batch_of())
    assert set(terms) == ({"attention"} if name == "mobilebert" else set(TERMS))
    assert values(terms) == dict.fromkeys(terms, 0.0)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_term_counts_for_a_random_student(
    name: str, reference: bool, make_classifier: Callable[..., Any]
) -> None:
    teacher = encoder(make_classifier, name, 5)
    student = student_of(teacher, 2, init="random")
    assert attached_projection(student) is None
    terms = objective_of(teacher, student, stage_for(name, reference=reference))(student, batch_of())
    assert all(value > 1e-3 for value in values(terms).values()), values(terms)


def bert_scores(model: Any, states: Sequence[Tensor], layer: int, mask: Array) -> Array:
    """Scores of a BERT layer from the states it reads, float64: H heads by hand."""
    heads, state, parts = model.config.num_attention_heads, states[layer].double().numpy(), []
    weights = {k: v.double().numpy() for k, v in model.encoder.layer[layer].attention.self.state_dict().items()}
    for name in ("query", "key"):
        made = state @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        parts.append(made.reshape(*made.shape[:2], heads, -1))
    scores = np.einsum("bqhd,bkhd->bhqk", *parts) / np.sqrt(parts[0].shape[-1])
    return np.asarray(scores + (1 - mask[:, None, None, :]) * -1e4)


def expected(
    teacher: Any, student: Any, layers: Sequence[int], batch: dict[str, Tensor], reference: bool
) -> dict[str, float]:
    """All terms from the models' ordinary outputs, in loops, float64."""
    with torch.no_grad():
        ours, theirs = (m(**batch, output_hidden_states=True).hidden_states for m in (student, teacher))
    mask, maps = batch["attention_mask"].numpy().astype(np.float64), attached_projection(student)
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
@pytest.mark.parametrize("projection", list(Projection))
@pytest.mark.parametrize("general", [False, True])
def test_terms_are_the_formulas_of_the_paper(
    general: bool, projection: Projection, reference: bool, make_classifier: Callable[..., Any]
) -> None:
    teacher = encoder(make_classifier, layers=5)
    student, batch = narrow_student(teacher, 2, projection), batch_of()
    stage = stage_of(general=general, projection=projection, reference=reference)
    objective = objective_of(teacher, student, stage)
    assert objective.layers == [3, 5]
    labelled = {**batch, "labels": batch["input_ids"], "rows": torch.arange(5)}
    wanted = expected(teacher, student, objective.layers, batch, reference)
    assert values(objective(student, labelled)) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_counts_are_those_of_the_means(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student, batch = student_of(teacher), batch_of()
    lengths = batch["attention_mask"].sum(1).tolist()
    tokens, pairs = sum(lengths), sum(n * n for n in lengths)
    for reference, wanted in ((False, (pairs, tokens, tokens)), (True, (5, 5, 5))):
        objective = objective_of(teacher, student, stage_of(reference=reference))
        assert isinstance(objective, Counting)
        for made in (objective.counts(batch), {n: t.count for n, t in objective(student, batch).items()}):
            assert {n: float(c) for n, c in made.items()} == dict(zip(TERMS, wanted, strict=True))


@given(st.integers(1, 9))
@torch.no_grad()
def test_appended_padding_changes_the_reference_alone(make_classifier: Callable[..., Any], extra: int) -> None:
    teacher = encoder(make_classifier)
    student = narrow_student(teacher)
    for reference in (False, True):
        objective = objective_of(teacher, student, stage_of(reference=reference))
        short, long = (values(objective(student, batch_of(extra=n))) for n in (0, extra))
        if reference:
            assert all(abs(long[name] / short[name] - 1) > 1e-4 for name in TERMS)
        else:
            assert long == pytest.approx(short, rel=1e-5)


@pytest.mark.parametrize("reference", [False, True])
def test_parts_of_a_batch_add_up_to_its_loss_and_gradient(reference: bool, make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student, batch = narrow_student(teacher), batch_of()
    objective = objective_of(teacher, student, stage_of(reference=reference))
    whole = objective(student, batch)
    total(objective, whole).backward()
    wanted = {n: p.grad.clone() for n, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    sums = dict.fromkeys(whole, 0.0)
    for rows in ([0, 1, 2], [3], [4]):
        part = objective(student, {k: v[rows] for k, v in batch.items()})
        shares = {n: scale_partial_mean(t.mean, float(t.count), float(whole[n].count)) for n, t in part.items()}
        torch.stack(list(shares.values())).sum().backward()
        sums = {n: sums[n] + float(s.detach()) for n, s in shares.items()}
    assert sums == pytest.approx(values(whole), rel=1e-5)
    for name, gradient in wanted.items():
        torch.testing.assert_close(student.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("projection", list(Projection))
def test_student_and_projection_learn_and_the_teacher_does_not(
    projection: Projection, make_classifier: Callable[..., Any]
) -> None:
    teacher = make_classifier("bert", 3, ("a", "b"))
    before = copy.deepcopy(teacher.state_dict())
    student = narrow_student(teacher, 2, projection).train()
    objective = objective_of(teacher.train(), student, stage_of(projection=projection))
    assert not torch.equal(*(objective(student, batch_of())["hidden"].mean for _ in range(2)))  # dropout
    total(objective, objective(student, batch_of())).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())
    unused = ("bert.pooler", "classifier")
    for name, parameter in student.named_parameters():
        learns = not name.startswith(unused)
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == learns, name


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_weight_zero_is_left_out(name: str, make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = student_of(teacher)
    every = values(objective_of(teacher, student, stage_of())(student, batch_of()))
    stage = stage_of(weights=LayerWeights(**{**dict.fromkeys(TERMS, 0.0), name: 3.0}))
    objective = objective_of(teacher, student, stage)
    assert objective.weights == {name: 3.0}
    assert list(objective.counts(batch_of())) == [name]
    assert values(objective(student, batch_of())) == pytest.approx({name: every[name]})


def test_nothing_is_asked_of_layers_that_are_not_mapped(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier, layers=5)
    student = student_of(teacher, 2)
    for terms, wanted in (
        (TERMS, Wanted(outputs=False, hidden=(0, 2, 4), attention=(1, 3))),
        (("attention",), Wanted(outputs=False, attention=(1, 3))),
        (("hidden",), Wanted(outputs=False, hidden=(2, 4))),
        (("embeddings",), Wanted(outputs=False, hidden=(0,))),
    ):
        objective = objective_of(teacher, student, stage_of(*terms, layers=[2, 4]))
        assert objective.signals.wanted == wanted


@pytest.mark.parametrize(("terms", "wanted"), [(("attention",), False), (("hidden",), True)])
def test_hidden_states_are_kept_only_where_compared(
    terms: tuple[str, ...], wanted: bool, make_classifier: Callable[..., Any]
) -> None:
    teacher = encoder(make_classifier)
    student, asked = student_of(teacher), []
    objective = objective_of(teacher, student, stage_of(*terms))
    for model in (teacher, student):
        model.register_forward_pre_hook(lambda m, a, k: asked.append(k["output_hidden_states"]), with_kwargs=True)
    objective(student, batch_of())
    assert asked == [wanted, wanted]


@torch.no_grad()
def test_listed_layers_are_the_ones_compared(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = student_of(teacher, 1, teacher_layers=[1])
    same, other = (objective_of(teacher, student, stage_of(layers=layers)) for layers in ([1], None))
    assert (same.layers, other.layers) == ([1], [3])
    assert values(same(student, batch_of())) == dict.fromkeys(TERMS, 0.0)
    apart = values(other(student, batch_of()))
    assert apart.pop("embeddings") == 0.0
    assert all(value > 1e-3 for value in apart.values())


@pytest.mark.parametrize(("layers", "chosen"), [(2, [3, 5]), (3, [2, 3, 5]), (4, [1, 3, 4, 5]), (5, [1, 2, 3, 4, 5])])
@torch.no_grad()
def test_any_depth_learns(layers: int, chosen: list[int], make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier, layers=5)
    student = narrow_student(teacher, layers, Projection.PER_LAYER)
    objective = objective_of(teacher, student, stage_of(projection=Projection.PER_LAYER))
    assert objective.layers == chosen
    assert all(value > 0 for value in values(objective(student, batch_of())).values())


@torch.no_grad()
def test_a_student_of_another_class(make_classifier: Callable[..., Any]) -> None:
    teacher = make_classifier("bert", 3, ("a", "b"))
    batch = {**batch_of(), "token_type_ids": torch.zeros_like(batch_of()["input_ids"])}
    student = student_of(teacher, 3, family="distilbert", fold_segments=True)
    terms = objective_of(teacher, student, stage_of(), student_family=family_of("distilbert"))(student, batch)
    assert values(terms) == pytest.approx(dict.fromkeys(TERMS, 0.0), abs=1e-6)


def test_the_recorder_keeps_no_scores_behind_a_step(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = student_of(teacher)
    kept: list[Any] = []

    def noting(*arguments: Any) -> Any:
        kept.append(record_attention(*arguments))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pocketbert.distill.methods.tinybert.record_attention", noting)
        objective = objective_of(teacher, student, stage_of("attention"))
    objective(student, batch_of())
    assert [len(r.scores) for r in kept] == [0]


def test_heads_matter_for_attention_alone(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = narrow_student(teacher, heads=3)
    terms = objective_of(teacher, student, stage_of("hidden", "embeddings"))(student, batch_of())
    assert all(value > 0 for value in values(terms).values())


class Elsewhere:
    """Signals that come from no model."""

    def __init__(self, right: OnlineTeacher) -> None:
        self.right, self.wanted = right, right.wanted

    def __call__(self, batch: Mapping[str, Tensor]) -> Any:
        return self.right(batch)


def test_signals_from_elsewhere(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = student_of(teacher)
    wanted = TinyBertDistillation.wanted(stage_of(), [2, 3])
    given_signals = Elsewhere(OnlineTeacher(teacher, family_of("bert"), wanted))
    found = objective_of(teacher, student, stage_of(), signals=given_signals)(student, batch_of())
    assert values(found) == values(objective_of(teacher, student, stage_of())(student, batch_of()))
    with pytest.raises(ValueError, match="only the teacher itself has values"):
        objective_of(teacher, student, stage_of(reference=True), signals=given_signals)
    less = OnlineTeacher(teacher, family_of("bert"), Wanted(outputs=False, hidden=(0,)))
    with pytest.raises(ValueError, match="the stage wants"):
        objective_of(teacher, student, stage_of(), signals=less)


@pytest.mark.parametrize("name", list(TaskName))
def test_the_prediction_stage_is_a_task_stage(name: TaskName) -> None:
    own = TinyBertPredictionStage(
        method="tinybert-prediction",
        steps=70,
        batch=16,
        micro_batch=4,
        lr=2e-5,
        warmup=0.2,
        schedule=Schedule.CONSTANT,
        weight_decay=0.02,
        beta2=0.9,
        eps=1e-5,
        clip=2.0,
        dropout=0.3,
        freeze_embeddings=True,
        checkpoint=7,
        temperature=1.5,
        augmented=True,
    )
    made = _to_task_stage(own, TASKS[name])
    for key in Optimisation.model_fields:
        assert getattr(made, key) == getattr(own, key), key
    assert (made.method, made.temperature, made.augmented) == ("task", 1.5, True)
    gold = name is TaskName.REGRESSION
    assert made.signals.model_dump() == {"logits": 1.0 - gold, "hidden": 0.0, "attention": 0.0, "labels": 1.0 * gold}
    assert _to_task_stage(TinyBertPredictionStage(method="tinybert-prediction", steps=1), TASKS[name]).lr == 3e-5
