import dataclasses

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
from support.objectives import NARROW, language_model, means, total, try_minilm

BERT = family_of("bert")
RELATIONS = {"weights": RelationWeights(attention=0, query=1, key=1, value=1)}


def test_terms_and_gradients_are_what_whole_passes_give():
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
def test_relation_heads_are_the_most_or_the_chosen_ones_for_any_width_and_depth(section, stage, heads):
    trial = try_minilm(section, **stage)
    assert trial.objective.heads == heads
    assert all(value > 1e-5 for value in means(trial.terms()).values())


@pytest.mark.parametrize(("depth", "wanted", "layer"), [(12, None, 12), (24, None, 21), (24, 24, 24), (6, 4, 4)])
def test_of_24_layers_the_21st_teaches_by_default_else_the_last(depth, wanted, layer):
    teacher, student = language_model(layers=depth), language_model(layers=1)
    stage = MiniLmStage(method="minilm", steps=1, teacher_layer=wanted)
    assert MiniLmDistillation(teacher, student, BERT, stage).layer == layer - 1


def test_models_that_do_not_fit_are_refused_with_all_reasons():
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
