from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.recipe import StudentSection
from pocketbert.core.recipe.stages import (
    LayerStage,
    LayerWeights,
    Optimisation,
    TinyBertGeneralStage,
    TinyBertIntermediateStage,
    TinyBertPredictionStage,
)
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Projection, Schedule, Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.methods.tinybert import TinyBertDistillation, prediction_stage
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.projection import attach_projection, detach_projection, projection_of
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from pocketbert.distill.training.terms import Counting, Term, share

FAMILIES = ("bert", "roberta", "distilbert", "mobilebert")
TERMS = ("attention", "hidden", "embeddings")
Array = NDArray[np.float64]


def stage_of(*terms: str, general: bool = False, **more: Any) -> LayerStage:
    """A stage with these terms; with all of them by default."""
    weights = LayerWeights(**{name: float(name in (terms or TERMS)) for name in TERMS})
    keys = {"steps": 1, "weights": weights, **more}
    if general:
        return TinyBertGeneralStage(method="tinybert-general", **keys)
    return TinyBertIntermediateStage(method="tinybert-intermediate", **keys)


def stage_for(name: str, **more: Any) -> LayerStage:
    """All terms that the family allows."""
    return stage_of(*(("attention",) if name == "mobilebert" else TERMS), **more)


def batch_of(rows: int = 5, length: int = 12, extra: int = 0) -> dict[str, Tensor]:
    """Rows of unequal length, one of them full; the second half of each is of segment 1."""
    random = np.random.default_rng(0)
    real = [*random.integers(3, length, rows - 1), length]
    mask = np.zeros((rows, length + extra), np.int64)
    ids, types = mask.copy(), mask.copy()
    for i, n in enumerate(real):
        mask[i, :n], ids[i, :n], types[i, n // 2 : n] = 1, random.integers(5, 100, n), 1
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {k: torch.from_numpy(v) for k, v in made.items()}


def encoder(make: Callable[..., Any], family: str = "bert", layers: int = 3, **more: Any) -> Any:
    return make(family, layers, ("a", "b"), auto_class="AutoModel", **more)


def student_of(teacher: Any, layers: int = 2, projection: Projection = Projection.SHARED, **more: Any) -> Any:
    """In eval mode: without dropout. Its projection, if any, is drawn wide enough to matter."""
    wanted = StudentSection(layers=layers, **more)
    made = build_student(teacher, family_of(teacher.config.model_type), wanted, 0).eval()
    attached = attach_projection(made, teacher.config.hidden_size, projection, 0)
    if attached is not None:
        with torch.no_grad():
            for number, parameter in enumerate(attached.parameters()):
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(number))
    return made


def narrow_student(teacher: Any, layers: int = 2, projection: Projection = Projection.SHARED, **more: Any) -> Any:
    return student_of(teacher, layers, projection, init="random", hidden=24, **more)


def objective_of(teacher: Any, student: Any, stage: LayerStage, **more: Any) -> TinyBertDistillation:
    return TinyBertDistillation(teacher, student, family_of(teacher.config.model_type), stage, **more)


def values(terms: Mapping[str, Term]) -> dict[str, float]:
    return {name: float(t.mean.detach()) for name, t in terms.items()}


def total(objective: TinyBertDistillation, terms: Mapping[str, Term]) -> Tensor:
    return torch.stack([t.mean * objective.weights[n] for n, t in terms.items()]).sum()


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
    assert projection_of(student) is None
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
    mask, maps = batch["attention_mask"].numpy().astype(np.float64), projection_of(student)
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
        shares = {n: share(t.mean, float(t.count), float(whole[n].count)) for n, t in part.items()}
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


def test_models_that_do_not_fit_are_refused_with_all_reasons(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier, "mobilebert", 3)
    other = encoder(make_classifier, "mobilebert", 2, vocab_size=150, num_attention_heads=2)
    with pytest.raises(InputError) as caught:
        objective_of(teacher, other, stage_of(layers=[1, 4]), where="distill.2")
    problems = [str(p) for p in caught.value.problems]
    assert [p.where for p in caught.value.problems] == [
        "distill.2.weights.hidden",
        "distill.2.weights.embeddings",
        "distill.2.weights.attention",
        "distill.2",
        "distill.2.layers",
    ]
    assert "not valid for MobileBERT: its hidden states reach 1e5" in problems[0]
    assert "Set hidden: 0; valid signals: logits, attention, relations." in problems[0]
    assert "the student has 2 heads, the teacher 4" in problems[2]
    assert "Set attention: 0, or student.heads: 4, or use method: minilm" in problems[2]
    assert "the student has 150 vocabulary entries" in problems[3]
    assert "[1, 4] does not map 2 student layers to teacher layers 1 to 3." in problems[4]


def test_a_student_deeper_than_its_teacher_needs_a_list(make_classifier: Callable[..., Any]) -> None:
    teacher, student = (encoder(make_classifier, layers=n) for n in (2, 3))
    with pytest.raises(InputError, match=r"distill\.0\.layers: the student has 3 layers, the teacher only 2"):
        objective_of(teacher, student, stage_of())
    assert objective_of(teacher, student, stage_of(layers=[1, 1, 2])).layers == [1, 1, 2]


def test_heads_matter_for_attention_alone(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = narrow_student(teacher, heads=3)
    terms = objective_of(teacher, student, stage_of("hidden", "embeddings"))(student, batch_of())
    assert all(value > 0 for value in values(terms).values())


def test_a_family_without_attention_refuses_it(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    family = dataclasses.replace(family_of("bert"), signals=(Signal.LOGITS, Signal.HIDDEN))
    with pytest.raises(InputError, match=r"weights\.attention: .*does not offer it.*logits, hidden"):
        TinyBertDistillation(teacher, student_of(teacher), family, stage_of())


def test_a_missing_projection_is_noticed(make_classifier: Callable[..., Any]) -> None:
    teacher = encoder(make_classifier)
    student = narrow_student(teacher)
    detach_projection(student)
    with pytest.raises(ValueError, match=r"24 wide, the teacher 32: call attach_projection\(student, 32"):
        objective_of(teacher, student, stage_of())
    attach_projection(student, 40, Projection.SHARED, 0)
    with pytest.raises(ValueError, match="attach_projection"):
        objective_of(teacher, student, stage_of("embeddings"))
    objective_of(teacher, student, stage_of("attention"))  # reads no states


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
    made = prediction_stage(own, TASKS[name])
    for key in Optimisation.model_fields:
        assert getattr(made, key) == getattr(own, key), key
    assert (made.method, made.temperature, made.augmented) == ("task", 1.5, True)
    gold = name is TaskName.REGRESSION
    assert made.signals.model_dump() == {"logits": 1.0 - gold, "hidden": 0.0, "attention": 0.0, "labels": 1.0 * gold}
    assert prediction_stage(TinyBertPredictionStage(method="tinybert-prediction", steps=1), TASKS[name]).lr == 3e-5
