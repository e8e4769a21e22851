from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import MiniLmStage, RelationWeights
from pocketbert.core.types import Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import attention_kl
from pocketbert.distill.losses.relations import relation_kl
from pocketbert.distill.methods.minilm import MiniLmDistillation
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from support.objectives import NARROW, language_model, make_student, means, total, try_minilm

BERT = family_of("bert")
RELATIONS = {"weights": RelationWeights(attention=0, query=1, key=1, value=1)}
FIRST = {"weights": RelationWeights(attention=1, query=0, key=0, value=1)}


def test_terms_and_gradients_are_what_whole_passes_give() -> None:
    trial = try_minilm({"init": "random"})
    total(trial.objective, terms := trial.terms()).backward()
    found = {n: p.grad for n, p in trial.student.named_parameters()}
    trial.student.zero_grad()
    batch = trial.batch()
    inputs, mask = {k: batch[k] for k in BERT.inputs}, batch["attention_mask"]
    theirs, ours = (record_attention(m, BERT, [n], [n]) for m, n in ((trial.teacher, 2), (trial.student, 1)))
    with theirs, torch.no_grad():
        trial.teacher(**inputs)
    with ours:
        trial.student(**inputs)
    wanted = {"attention": attention_kl(ours.scores[1], theirs.scores[2], mask)}
    for key in ("query", "key", "value"):
        pair = getattr(ours.relations[1], key), getattr(theirs.relations[2], key)
        wanted[key] = relation_kl(*pair, mask, 4)
    torch.stack(list(wanted.values())).sum().backward()
    for key, value in wanted.items():
        torch.testing.assert_close(terms[key].mean, value, rtol=1e-5, atol=1e-7)
    for key, parameter in trial.student.named_parameters():
        if parameter.grad is None:
            assert found[key] is None, key
        else:
            torch.testing.assert_close(found[key], parameter.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("section", "stage", "heads"),
    [
        ({"init": "random"}, RELATIONS, 32),
        ({"init": "random"}, {**RELATIONS, "relation_heads": 4}, 4),
        ({"init": "random"}, {}, 4),  # version 1 compares head by head
        ({"layers": 4, **NARROW, "heads": 3}, RELATIONS, 8),
    ],
)
def test_relation_heads_are_the_most_or_the_chosen_ones_for_any_width_and_depth(
    section: dict[str, Any], stage: dict[str, Any], heads: int
) -> None:
    trial = try_minilm(section, **stage)
    assert trial.objective.heads == heads
    assert all(value > 1e-5 for value in means(trial.terms()).values())


@pytest.mark.parametrize(
    ("stage", "wanted"),
    [
        ({}, Wanted(outputs=False, attention=(2,), relations=(2,))),
        (FIRST, Wanted(outputs=False, attention=(2,), relations=(2,))),
        (RELATIONS, Wanted(outputs=False, relations=(2,))),
        ({**RELATIONS, "teacher_layer": 1}, Wanted(outputs=False, relations=(0,))),
    ],
)
def test_the_teacher_is_asked_for_what_has_a_weight_alone(stage: dict[str, Any], wanted: Wanted) -> None:
    assert try_minilm(**stage).objective.signals.wanted == wanted


@pytest.mark.parametrize(("depth", "wanted", "layer"), [(12, None, 12), (24, None, 21), (24, 24, 24), (6, 4, 4)])
def test_of_24_layers_the_21st_teaches_by_default_else_the_last(depth: int, wanted: int | None, layer: int) -> None:
    teacher, student = language_model(layers=depth), language_model(layers=1)
    stage = MiniLmStage(method="minilm", steps=1, teacher_layer=wanted)
    assert MiniLmDistillation(teacher, student, BERT, stage).layer == layer - 1


def test_models_that_do_not_fit_are_refused_with_all_reasons() -> None:
    other = language_model(hidden_size=24, num_attention_heads=3, vocab_size=150)
    closed = dataclasses.replace(
        BERT,
        name="deberta",
        title="DeBERTa",
        signals=(Signal.HIDDEN, Signal.ATTENTION),
        invalid_signals={Signal.RELATIONS: "its positions are no part of the queries"},
    )
    stage = MiniLmStage(
        method="minilm",
        steps=1,
        weights=RelationWeights(attention=1, query=1, key=1, value=1),
        relation_heads=16,
        teacher_layer=4,
    )
    with pytest.raises(InputError) as caught:
        MiniLmDistillation(language_model(), other, BERT, stage, "distill.1", student_family=closed)
    problems = {p.where.removeprefix("distill.1"): str(p) for p in caught.value.problems}
    wanted = {
        **dict.fromkeys(
            [".weights.query", ".weights.key", ".weights.value"], "not valid for DeBERTa: its positions are no"
        ),
        "": "the student has 150 vocabulary entries",
        ".weights.attention": "the student has 3 heads, the teacher 4.",
        ".relation_heads": "possible: 1, 2, 4, 8.",
        ".teacher_layer": "4, the teacher has layers 1 to 3.",
    }
    assert list(problems) == list(wanted)
    assert all(text in problems[where] for where, text in wanted.items())
    assert "Set key: 0; valid signals: hidden, attention." in problems[".weights.key"]


def test_a_family_without_attention_maps_is_refused_where_they_are_weighted() -> None:
    family, teacher = dataclasses.replace(BERT, signals=(Signal.RELATIONS,)), language_model()
    stage = MiniLmStage(method="minilm", steps=1, **FIRST)
    with pytest.raises(InputError, match=r"weights\.attention: not valid for BERT.*valid signals: relations"):
        MiniLmDistillation(teacher, make_student(teacher), family, stage)


def test_signals_from_elsewhere_must_have_what_the_stage_wants() -> None:
    trial = try_minilm()
    signals = OnlineTeacher(trial.teacher, BERT, Wanted(outputs=False, attention=(2,), relations=(1, 2)))
    made = MiniLmDistillation(trial.teacher, trial.student, BERT, trial.stage, signals=signals)
    assert means(made(trial.student, trial.batch())) == means(trial.terms())
    other = trial.stage.model_copy(update={"teacher_layer": 1})
    with pytest.raises(ValueError, match="the stage wants"):
        MiniLmDistillation(trial.teacher, trial.student, BERT, other, signals=signals)
