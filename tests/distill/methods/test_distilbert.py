from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import Objective, family_of
from pocketbert.core.recipe.stages import DistilBertStage, TripleWeights
from pocketbert.core.recipe.student import StudentSection
from pocketbert.distill.losses.common import Counting, scale_partial_mean
from pocketbert.distill.methods.distilbert import DistilBertDistillation
from pocketbert.distill.students.build import build_student
from support.tiny import BASIC as FAMILIES


def stage_of(**settings: Any) -> DistilBertStage:
    return DistilBertStage.model_validate({"method": "distilbert", "steps": 1, **settings})


def language_model(make: Callable[..., Any], family: str = "bert", layers: int = 3, **more: Any) -> Any:
    return make(family, layers, ("a", "b"), auto_class="AutoModelForMaskedLM", **more)


def student_of(teacher: Any, layers: int, **more: Any) -> Any:
    """In eval mode: without dropout."""
    wanted = StudentSection(layers=layers).model_copy(update=more)
    return build_student(teacher, family_of(teacher.config.model_type), wanted, 0).eval()


def batch_of(rows: int = 5, length: int = 12, extra: int = 0) -> dict[str, Tensor]:
    """Rows of unequal length; the last has no label."""
    random = np.random.default_rng(0)
    real = random.integers(3, length + 1, rows)
    mask = np.zeros((rows, length + extra), np.int64)
    ids, labels = mask.copy(), np.full_like(mask, -100)
    for i, n in enumerate(real):
        mask[i, :n], ids[i, :n] = 1, random.integers(5, 100, n)
        if i < rows - 1:
            places = random.choice(n, 1 + i % 2, replace=False)
            labels[i, places] = random.integers(5, 100, len(places))
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask), "labels": labels}
    return {k: torch.from_numpy(v) for k, v in made.items()}


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def expected(teacher: Any, student: Any, batch: dict[str, Tensor], masked_only: bool) -> dict[str, float]:
    """The three terms from the models' ordinary outputs, float64."""
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        outs = [m(**inputs, output_hidden_states=True) for m in (student, teacher)]
    (s, a), (t, b) = ((o.logits.double().numpy(), o.hidden_states[-1].double().numpy()) for o in outs)
    mask, labels = batch["attention_mask"].numpy() == 1, batch["labels"].numpy()
    hidden = labels != -100
    log_s, log_t = log_softmax(s / 2), log_softmax(t / 2)
    kl = 4 * (np.exp(log_t) * (log_t - log_s)).sum(-1)
    cosine = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return {
        "logits": kl[hidden if masked_only else mask].mean(),
        "mlm": -log_softmax(s)[hidden, labels[hidden]].mean(),
        "cosine": (1 - cosine)[mask].mean(),
    }


@pytest.mark.parametrize("masked_only", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_terms_are_the_formulas_of_the_paper(
    family: str, masked_only: bool, make_classifier: Callable[..., Any]
) -> None:
    teacher = language_model(make_classifier, family)
    student = student_of(teacher, 2)
    batch = batch_of()
    objective = DistilBertDistillation(teacher, student, family_of(family), stage_of(masked_only=masked_only))
    assert isinstance(objective, Counting)
    terms = objective(student, batch)
    wanted = expected(teacher, student, batch, masked_only)
    for name, value in wanted.items():
        assert float(terms[name].mean.detach()) == pytest.approx(value, rel=1e-5, abs=1e-6), name
    real, labelled = int(batch["attention_mask"].sum()), int((batch["labels"] != -100).sum())
    counts = {name: int(t.count) for name, t in terms.items()}
    assert counts == {"logits": labelled if masked_only else real, "mlm": labelled, "cosine": real}
    assert {name: int(n) for name, n in objective.counts(batch).items()} == counts
    assert objective.weights == {"logits": 5.0, "mlm": 2.0, "cosine": 1.0}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_full_copy_of_the_teacher_costs_nothing(family: str, make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier, family)
    student = student_of(teacher, 3)
    terms = DistilBertDistillation(teacher, student, family_of(family), stage_of())(student, batch_of())
    assert abs(float(terms["logits"].mean)) <= 1e-7
    assert abs(float(terms["cosine"].mean)) <= 1e-7
    assert float(terms["mlm"].mean) > 0


@torch.no_grad()
def test_a_full_copy_of_another_class_costs_nothing_with_folded_segments(
    make_classifier: Callable[..., Any],
) -> None:
    teacher = language_model(make_classifier)
    folded = student_of(teacher, 3, family="distilbert", fold_segments=True)
    dropped = student_of(teacher, 3, family="distilbert")
    for student, free in ((folded, True), (dropped, False)):
        terms = DistilBertDistillation(teacher, student, family_of("bert"), stage_of())(student, batch_of())
        for name in ("logits", "cosine"):
            assert (abs(float(terms[name].mean)) < 1e-6) == free, name


@torch.no_grad()
def test_padding_changes_nothing(make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier)
    student = student_of(teacher, 2, family="distilbert")
    objective = DistilBertDistillation(teacher, student, family_of("bert"), stage_of())
    short, long = objective(student, batch_of()), objective(student, batch_of(extra=9))
    for name, term in short.items():
        assert float(long[name].mean) == pytest.approx(float(term.mean), rel=1e-6, abs=1e-6)
        assert float(long[name].count) == float(term.count)


@pytest.mark.parametrize("masked_only", [False, True])
def test_parts_of_a_batch_add_up_to_its_loss_and_gradient(
    masked_only: bool, make_classifier: Callable[..., Any]
) -> None:
    teacher = language_model(make_classifier)
    student = student_of(teacher, 2, family="distilbert")
    objective = DistilBertDistillation(teacher, student, family_of("bert"), stage_of(masked_only=masked_only))
    batch = batch_of()
    whole = objective(student, batch)
    sum(t.mean * objective.weights[n] for n, t in whole.items()).backward()
    wanted = {n: p.grad.clone() for n, p in student.named_parameters()}
    student.zero_grad()
    total = dict.fromkeys(whole, 0.0)
    for rows in ([0, 1], [2, 3], [4]):  # the last without any label
        part = objective(student, {k: v[rows] for k, v in batch.items()})
        shares = {n: scale_partial_mean(t.mean, float(t.count), float(whole[n].count)) for n, t in part.items()}
        sum(s * objective.weights[n] for n, s in shares.items()).backward()
        total = {n: total[n] + float(s.detach()) for n, s in shares.items()}
    assert total == pytest.approx({n: float(t.mean.detach()) for n, t in whole.items()}, rel=1e-5)
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-4, atol=1e-5, msg=name)


def test_segment_ids_never_reach_the_models(make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier)
    student = student_of(teacher, 2)
    objective = DistilBertDistillation(teacher, student, family_of("bert"), stage_of())
    batch = batch_of()
    ones = {**batch, "token_type_ids": torch.ones_like(batch["input_ids"])}
    for name, term in objective(student, batch).items():
        assert torch.equal(objective(student, ones)[name].mean, term.mean)


def test_the_teacher_neither_drops_nor_learns(make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier).train()
    before = copy.deepcopy(teacher.state_dict())
    student = student_of(teacher, 2)
    objective = DistilBertDistillation(teacher, student, family_of("bert"), stage_of())
    first, second = objective(student, batch_of()), objective(student, batch_of())
    assert all(torch.equal(first[n].mean, second[n].mean) for n in first)
    sum(t.mean for t in first.values()).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in student.parameters())


@pytest.mark.parametrize("name", ["logits", "mlm", "cosine"])
def test_a_term_of_weight_zero_is_left_out(name: str, make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier)
    student = student_of(teacher, 2)
    every = DistilBertDistillation(teacher, student, family_of("bert"), stage_of())(student, batch_of())
    weights = {"logits": 0.0, "mlm": 0.0, "cosine": 0.0}
    stage = stage_of(weights=TripleWeights(**{**weights, name: 3.0}))
    objective = DistilBertDistillation(teacher, student, family_of("bert"), stage)
    alone = objective(student, batch_of())
    assert list(alone) == list(objective.counts(batch_of())) == [name]
    assert objective.weights == {name: 3.0}
    assert float(alone[name].mean.detach()) == pytest.approx(float(every[name].mean.detach()), rel=1e-5)
    without = DistilBertDistillation(
        teacher, student, family_of("bert"), stage_of(weights=TripleWeights(**{name: 0.0}))
    )
    assert set(without(student, batch_of())) == set(weights) - {name}


def test_only_the_needed_tokens_are_projected(make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier)
    student = student_of(teacher, 2, family="distilbert")
    seen: dict[str, int] = {}
    teacher.cls.predictions.decoder.register_forward_hook(lambda m, a, out: seen.update(teacher=out.numel()))
    student.vocab_projector.register_forward_hook(lambda m, a, out: seen.update(student=out.numel()))
    batch = batch_of()
    words = teacher.config.vocab_size
    for masked_only, mask in ((False, batch["attention_mask"] == 1), (True, batch["labels"] != -100)):
        DistilBertDistillation(teacher, student, family_of("bert"), stage_of(masked_only=masked_only))(student, batch)
        assert seen == dict.fromkeys(("teacher", "student"), int(mask.sum()) * words)


def test_models_that_do_not_fit_are_refused_with_all_reasons(make_classifier: Callable[..., Any]) -> None:
    teacher = language_model(make_classifier)
    other = language_model(make_classifier, hidden_size=24, vocab_size=150)
    with pytest.raises(InputError) as caught:
        DistilBertDistillation(teacher, other, family_of("bert"), stage_of(), "distill.2")
    vocabulary, width = (str(p) for p in caught.value.problems)
    assert "distill.2: the student has 150 vocabulary entries, the teacher" in vocabulary
    assert "distill.2.weights.cosine: the student is 24 wide, the teacher 32." in width
    assert "Set cosine: 0" in width
    narrow = language_model(make_classifier, hidden_size=24)
    stage = stage_of(weights=TripleWeights(cosine=0))
    terms = DistilBertDistillation(teacher, narrow, family_of("bert"), stage)(narrow, batch_of())
    assert set(terms) == {"logits", "mlm"}


def test_a_family_that_guesses_no_masked_tokens_gives_no_logits(make_classifier: Callable[..., Any]) -> None:
    import dataclasses

    teacher = language_model(make_classifier)
    family = dataclasses.replace(family_of("bert"), title="ELECTRA", objectives=(Objective.REPLACED_TOKEN,))
    with pytest.raises(InputError, match=r"weights\.logits: ELECTRA checkpoints .* replaced-token"):
        DistilBertDistillation(teacher, student_of(teacher, 2), family, stage_of())


def test_a_teacher_without_its_pretraining_head_is_refused(make_classifier: Callable[..., Any]) -> None:
    teacher, student = make_classifier("bert", 2, ("a", "b")), language_model(make_classifier)
    with pytest.raises(InputError, match="teacher: BertForSequenceClassification has no known"):
        DistilBertDistillation(teacher, student, family_of("bert"), stage_of())


def test_all_weights_zero_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="learn nothing"):
        TripleWeights(logits=0, mlm=0, cosine=0)
