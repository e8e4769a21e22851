from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import MiniLmStage, RelationWeights
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import Counting, attention_kl, scale_partial_mean
from pocketbert.distill.losses.relations import relation_kl
from pocketbert.distill.methods.minilm import MiniLmDistillation, _teacher_layer
from pocketbert.distill.students.build import build_student
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from pocketbert.distill.training.loop import frozen
from support.tiny import GUESSING

EVERY = {"attention": 1.0, "query": 1.0, "key": 1.0, "value": 1.0}
FIRST = {"attention": 1.0, "query": 0.0, "key": 0.0, "value": 1.0}


def stage_for(weights: dict[str, float] | None = None, **more: Any) -> MiniLmStage:
    return MiniLmStage(method="minilm", steps=1, weights=RelationWeights(**(weights or EVERY)), **more)


def batch_of(rows: int = 5, length: int = 12, extra: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """Rows of unequal length, the second half of each of segment 1."""
    random = torch.Generator().manual_seed(seed)
    real = torch.randint(3, length + 1, (rows,), generator=random)
    mask = (torch.arange(length + extra) < real[:, None]).long()
    ids = torch.randint(5, 100, (rows, length), generator=random)
    ids = torch.nn.functional.pad(ids, (0, extra)) * mask
    types = (torch.arange(length + extra) >= real[:, None] // 2).long() * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def language_model(make: Callable[..., Any], family: str = "bert", layers: int = 3, **more: Any) -> Any:
    return make(family, layers, ("a", "b"), auto_class="AutoModelForMaskedLM", **more)


def student_of(teacher: Any, layers: int = 2, **more: Any) -> Any:
    """In eval mode: without dropout."""
    wanted = StudentSection(layers=layers, **more)
    return build_student(teacher, family_of(teacher.config.model_type), wanted, 0).eval()


@pytest.fixture(params=GUESSING)
def teacher(request: pytest.FixtureRequest, make_classifier: Callable[..., Any]) -> tuple[str, Any]:
    """Family name, tiny 3-layer masked-language model."""
    return request.param, language_model(make_classifier, request.param)


@torch.no_grad()
def test_a_full_copy_of_the_teacher_costs_nothing(teacher: tuple[str, Any]) -> None:
    _, model = teacher
    student = student_of(model, 3)
    terms = MiniLmDistillation(model, student, family_of(model.config.model_type), stage_for())(student, batch_of())
    assert set(terms) == set(EVERY)
    assert all(abs(float(t.mean)) < 1e-6 for t in terms.values()), terms


def test_every_term_counts_for_a_random_student_and_is_what_whole_passes_give(
    teacher: tuple[str, Any],
) -> None:
    _, model = teacher
    family, batch = family_of(model.config.model_type), batch_of()
    student = student_of(model, 2, init="random").train()
    for module in student.modules():
        for name in ("p", "dropout", "attention_dropout"):  # a module, or what a class passes to the function
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    objective = MiniLmDistillation(model, student, family, stage_for())
    terms = objective(student, batch)
    sum((t.mean for t in terms.values()), torch.zeros(())).backward()
    found = {n: p.grad for n, p in student.named_parameters()}
    student.zero_grad()
    inputs, mask = {k: batch[k] for k in family.inputs}, batch["attention_mask"]
    theirs, ours = (record_attention(m, family, [n], [n]) for m, n in ((model, 2), (student, 1)))
    with theirs, torch.no_grad():
        model(**inputs)
    with ours:
        student(**inputs)
    wanted = {"attention": attention_kl(ours.scores[1], theirs.scores[2], mask)}
    for key in ("query", "key", "value"):
        pair = getattr(ours.relations[1], key), getattr(theirs.relations[2], key)
        wanted[key] = relation_kl(*pair, mask, objective.heads)
    sum(wanted.values(), torch.zeros(())).backward()
    for key, value in wanted.items():
        assert float(value.detach()) > 1e-5, key
        torch.testing.assert_close(terms[key].mean, value, rtol=1e-5, atol=1e-7)
    for key, parameter in student.named_parameters():
        if parameter.grad is None:
            assert found[key] is None, key
        else:
            torch.testing.assert_close(found[key], parameter.grad, rtol=1e-4, atol=1e-7)


def test_queries_keys_and_values_of_the_last_layer_learn_and_nothing_behind_them(
    make_classifier: Callable[..., Any],
) -> None:
    model = language_model(make_classifier)
    student = student_of(model)
    terms = MiniLmDistillation(model, student, family_of("bert"), stage_for())(student, batch_of())
    sum((t.mean for t in terms.values()), torch.zeros(())).backward()
    learns = {n for n, p in student.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    last = {n for n in learns if ".layer.1." in n}
    assert {n.split("self.")[-1].split(".")[0] for n in last} == {"query", "key", "value"}
    assert any(".layer.0.output" in n for n in learns) and any("word_embeddings" in n for n in learns)


@torch.no_grad()
def test_appended_padding_changes_no_term(teacher: tuple[str, Any]) -> None:
    name, model = teacher
    student = student_of(model)
    objective = MiniLmDistillation(model, student, family_of(model.config.model_type), stage_for())
    short, right = batch_of(), batch_of(extra=9)
    for batch in (short, right):
        batch["input_ids"] += model.config.pad_token_id * (1 - batch["attention_mask"])
    left = {k: v.roll(9, 1) for k, v in right.items()}
    wanted = objective(student, short)
    # only RoBERTa counts positions from the first real token
    for long in (right, left) if name == "roberta" else (right,):
        found = objective(student, long)
        for key, term in wanted.items():
            torch.testing.assert_close(found[key].mean, term.mean, rtol=1e-4, atol=1e-6)
            assert float(found[key].count) == float(term.count)


@torch.no_grad()
@settings(max_examples=25)
@given(rows=st.integers(1, 4), length=st.integers(3, 14), extra=st.integers(0, 12), seed=st.integers(0, 99))
def test_padding_changes_nothing_whatever_the_batch(
    rows: int, length: int, extra: int, seed: int, tiny: MiniLmDistillation, small: Any
) -> None:
    short, long = (tiny(small, batch_of(rows, length, more, seed)) for more in (0, extra))
    for key, term in short.items():
        torch.testing.assert_close(long[key].mean, term.mean, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def small(make_classifier: Callable[..., Any]) -> Any:
    """A student of another width than `tiny`'s teacher, with as many heads."""
    return language_model(make_classifier, layers=1, hidden_size=24, seed=2)


@pytest.fixture(scope="module")
def tiny(small: Any, make_classifier: Callable[..., Any]) -> MiniLmDistillation:
    """Version 1 and 2 at once, for `small`."""
    return MiniLmDistillation(language_model(make_classifier), small, family_of("bert"), stage_for())


def test_mixed_precision_gives_nearly_the_same(tiny: MiniLmDistillation, small: Any) -> None:
    wanted = {n: float(t.mean.detach()) for n, t in tiny(small, batch_of()).items()}
    small.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        terms = tiny(small, batch_of())
        loss = sum((t.mean for t in terms.values()), torch.zeros(()))
    loss.backward()
    assert {t.mean.dtype for t in terms.values()} == {torch.float32}
    assert {n: float(t.mean.detach()) for n, t in terms.items()} == pytest.approx(wanted, rel=0.05)
    gradients = [p.grad for p in small.parameters() if p.grad is not None]
    assert gradients and all(g.isfinite().all() for g in gradients)


def test_counts_are_those_of_the_terms(tiny: MiniLmDistillation, small: Any) -> None:
    assert isinstance(tiny, Counting)
    batch = batch_of()
    counts = {name: float(t.count) for name, t in tiny(small, batch).items()}
    assert counts == {name: float(n) for name, n in tiny.counts(batch).items()}
    assert counts == dict.fromkeys(EVERY, float(batch["attention_mask"].sum()))


def test_parts_of_a_batch_add_up_to_its_loss_and_gradient(tiny: MiniLmDistillation, small: Any) -> None:
    batch = batch_of()
    whole = tiny(small, batch)
    small.zero_grad()
    sum((t.mean for t in whole.values()), torch.zeros(())).backward()
    wanted = {n: p.grad.clone() for n, p in small.named_parameters() if p.grad is not None}
    small.zero_grad()
    total = dict.fromkeys(whole, 0.0)
    for rows in ([0, 1], [2, 3], [4]):
        part = tiny(small, {k: v[rows] for k, v in batch.items()})
        shares = {n: scale_partial_mean(t.mean, float(t.count), float(whole[n].count)) for n, t in part.items()}
        sum(shares.values(), torch.zeros(())).backward()
        total = {n: total[n] + float(s.detach()) for n, s in shares.items()}
    assert total == pytest.approx({n: float(t.mean.detach()) for n, t in whole.items()}, rel=1e-5)
    found = {n: p.grad for n, p in small.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "weights", [EVERY, FIRST, {**EVERY, "attention": 0.0}, {**dict.fromkeys(EVERY, 0.0), "key": 2.0}]
)
def test_terms_without_weight_are_not_computed(weights: dict[str, float], make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student = student_of(model)
    objective = MiniLmDistillation(model, student, family_of("bert"), stage_for(weights))
    assert objective.weights == {k: v for k, v in weights.items() if v > 0}
    assert set(objective(student, batch_of())) == set(objective.counts(batch_of())) == set(objective.weights)
    assert objective.signals.wanted == Wanted(
        outputs=False,
        attention=(2,) if weights["attention"] else (),
        relations=(2,) if weights["query"] + weights["key"] + weights["value"] else (),
    )


def test_the_teacher_gets_no_gradient_never_changes_and_drops_nothing(teacher: tuple[str, Any]) -> None:
    _, model = teacher
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    student = student_of(model)
    with frozen(model):
        objective = MiniLmDistillation(model, student, family_of(model.config.model_type), stage_for())
        model.train()
        first, second = objective(student, batch_of()), objective(student, batch_of())
        assert not model.training
        sum((t.mean for t in first.values()), torch.zeros(())).backward()
    assert all(torch.equal(first[n].mean, second[n].mean) for n in first)
    assert all(p.grad is None for p in model.parameters())
    assert {n for n, p in model.named_parameters() if p.requires_grad} == trained
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None or p.grad.isfinite().all() for p in student.parameters())


def test_another_width_depth_and_number_of_heads_learn_relations(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student = student_of(model, 4, init="random", hidden=24, heads=3)
    weights = {**EVERY, "attention": 0.0}
    objective = MiniLmDistillation(model, student, family_of("bert"), stage_for(weights))
    assert objective.heads == 8
    terms = objective(student, batch_of())
    assert all(float(t.mean.detach()) > 1e-5 for t in terms.values())


def test_a_student_of_another_family_reads_what_it_knows(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student = student_of(model, 3, family="distilbert", fold_segments=True, teacher_layers=[1, 2, 3])
    objective = MiniLmDistillation(
        model, student, family_of("bert"), stage_for(), student_family=family_of("distilbert")
    )
    batch = batch_of()
    pairs = objective(student, batch)
    single = objective(student, {**batch, "token_type_ids": torch.zeros_like(batch["input_ids"])})
    assert all(abs(float(t.mean.detach())) < 1e-6 for t in single.values())
    assert all(float(t.mean.detach()) > 1e-5 for t in pairs.values())  # the teacher saw the segments
    back = MiniLmDistillation(student, model, family_of("distilbert"), stage_for(), student_family=family_of("bert"))
    assert set(back(model, batch)) == set(EVERY)


@torch.no_grad()
def test_the_wanted_teacher_layer_is_the_one_compared(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student = student_of(model, 2, teacher_layers=[1, 2])
    second, last = (
        MiniLmDistillation(model, student, family_of("bert"), stage_for(teacher_layer=n))(student, batch_of())
        for n in (2, None)
    )
    assert all(abs(float(t.mean)) < 1e-6 for t in second.values())
    assert all(float(t.mean) > 1e-5 for t in last.values())


@pytest.mark.parametrize(("depth", "wanted", "layer"), [(12, None, 12), (24, None, 21), (24, 24, 24), (6, 4, 4)])
def test_default_teacher_layer(depth: int, wanted: int | None, layer: int) -> None:
    assert _teacher_layer(depth, wanted) == layer


def test_explicit_heads_are_used(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student = student_of(model, init="random")
    made = [
        MiniLmDistillation(
            model, student, family_of("bert"), stage_for({**EVERY, "attention": 0}, relation_heads=heads)
        )
        for heads in (None, 4)
    ]
    assert [m.heads for m in made] == [32, 4]
    with_attention = MiniLmDistillation(model, student, family_of("bert"), stage_for())
    assert with_attention.heads == 4, "version 1: head by head"
    one, two = (float(m(student, batch_of())["value"].mean.detach()) for m in made)
    assert abs(one - two) > 1e-6


def test_models_that_do_not_fit_are_refused_with_all_reasons(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    other = language_model(make_classifier, hidden_size=24, num_attention_heads=3, vocab_size=150)
    bert = family_of("bert")
    closed = dataclasses.replace(
        bert,
        name="deberta",
        title="DeBERTa",
        signals=(Signal.HIDDEN, Signal.ATTENTION),
        invalid_signals={Signal.RELATIONS: "its positions are no part of the queries"},
    )
    with pytest.raises(InputError) as caught:
        MiniLmDistillation(
            model,
            other,
            bert,
            stage_for(relation_heads=16, teacher_layer=4),
            "distill.1",
            student_family=closed,
        )
    problems = {p.where: str(p) for p in caught.value.problems}
    assert list(problems) == [
        "distill.1.weights.query",
        "distill.1.weights.key",
        "distill.1.weights.value",
        "distill.1",
        "distill.1.weights.attention",
        "distill.1.relation_heads",
        "distill.1.teacher_layer",
    ]
    assert "not valid for DeBERTa: its positions are no part of the queries." in problems["distill.1.weights.key"]
    assert "Set key: 0; valid signals: hidden, attention." in problems["distill.1.weights.key"]
    assert "the student has 150 vocabulary entries" in problems["distill.1"]
    assert "the student has 3 heads, the teacher 4." in problems["distill.1.weights.attention"]
    assert "16 relation heads do not divide" in problems["distill.1.relation_heads"]
    assert "possible: 1, 2, 4, 8." in problems["distill.1.relation_heads"]
    assert "4, the teacher has layers 1 to 3." in problems["distill.1.teacher_layer"]


def test_a_family_without_attention_maps_is_refused_where_they_are_weighted(
    make_classifier: Callable[..., Any],
) -> None:
    model = language_model(make_classifier)
    family = dataclasses.replace(family_of("bert"), signals=(Signal.RELATIONS,))
    with pytest.raises(InputError, match=r"weights\.attention: not valid for BERT.*valid signals: relations"):
        MiniLmDistillation(model, student_of(model), family, stage_for(FIRST))


def test_signals_that_lack_what_is_wanted_are_an_error(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student, family = student_of(model), family_of("bert")
    given = OnlineTeacher(model, family, Wanted(outputs=False, attention=(2,), relations=(1, 2)))
    terms = MiniLmDistillation(model, student, family, stage_for(), signals=given)(student, batch_of())
    assert set(terms) == set(EVERY)
    with pytest.raises(ValueError, match="the stage wants"):
        MiniLmDistillation(model, student, family, stage_for(teacher_layer=1), signals=given)


def test_the_teacher_follows_the_batch_to_its_device(make_classifier: Callable[..., Any]) -> None:
    model = language_model(make_classifier)
    student = student_of(model)
    objective = MiniLmDistillation(model, student, family_of("bert"), stage_for())
    # "meta" stands for an accelerator: only the student and the batch are put there by the loop
    batch = {k: v.to("meta") for k, v in batch_of().items()}
    assert {str(t.mean.device) for t in objective(student.to("meta"), batch).values()} == {"meta"}
