from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import SignalWeights, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.methods.task import TaskDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.training.loop import frozen
from support.tiny import BASIC as FAMILIES

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


def stage_for(name: str, **more: Any) -> TaskStage:
    """All terms that the family allows."""
    hidden = 0.0 if name == "mobilebert" else 1.0
    signals = more.pop("signals", SignalWeights(logits=1, hidden=hidden, attention=1, labels=1))
    return TaskStage(method="task", steps=1, signals=signals, **more)


TEXTS = [
    "a good film",
    "not bad",
    "the day was far better than I had expected, never again",
    "ok",
    "you and me",
    "no.",
]


def batch_of(tokenizer: Any, length: int | None = None) -> dict[str, Tensor]:
    padded = tokenizer.pad(tokenizer.encode(TEXTS), length)
    out = {k: torch.from_numpy(v) for k, v in padded.items()}
    return {**out, "labels": torch.arange(len(TEXTS)) % 3}


@pytest.fixture(params=FAMILIES)
def teacher(request: pytest.FixtureRequest, open_tiny: Callable[..., Any]) -> tuple[str, Any, Any]:
    """Family name, tiny 3-layer teacher, tokenizer."""
    model, _, tokenizer = open_tiny(request.param, 3)
    return request.param, model, tokenizer


def student_of(name: str, model: Any, layers: int = 3, **more: Any) -> Any:
    return build_student(model, family_of(name), StudentSection(layers=layers, **more), 0).eval()


@torch.no_grad()
def test_a_full_copy_of_the_teacher_costs_nothing(teacher: tuple[str, Any, Any]) -> None:
    name, model, tokenizer = teacher
    student = student_of(name, model)
    terms = TaskDistillation(model, student, family_of(name), TASK, stage_for(name))(student, batch_of(tokenizer))
    assert set(terms) == {"logits", "attention", "labels"} | (set() if name == "mobilebert" else {"hidden"})
    assert float(terms.pop("labels").mean) > 0
    assert all(abs(float(v.mean)) < 1e-6 for v in terms.values()), terms


@torch.no_grad()
def test_every_term_counts_for_a_random_student(teacher: tuple[str, Any, Any]) -> None:
    name, model, tokenizer = teacher
    student = student_of(name, model, 2, init="random")
    terms = TaskDistillation(model, student, family_of(name), TASK, stage_for(name))(student, batch_of(tokenizer))
    assert all(float(v.mean) > 1e-4 for v in terms.values()), terms


@torch.no_grad()
def test_appended_padding_changes_no_term(teacher: tuple[str, Any, Any]) -> None:
    name, model, tokenizer = teacher
    student = student_of(name, model, 2)
    objective = TaskDistillation(model, student, family_of(name), TASK, stage_for(name))
    short, long = objective(student, batch_of(tokenizer)), objective(student, batch_of(tokenizer, length=48))
    assert batch_of(tokenizer)["input_ids"].shape[1] < 48
    for key in short:
        torch.testing.assert_close(long[key].mean, short[key].mean, rtol=1e-4, atol=1e-5)
        assert float(long[key].count) == float(short[key].count)


def test_the_teacher_gets_no_gradient_and_never_changes(teacher: tuple[str, Any, Any]) -> None:
    name, model, tokenizer = teacher
    before = {k: v.clone() for k, v in model.state_dict().items()}
    student = student_of(name, model, 2).train()
    with frozen(model.train()):
        objective = TaskDistillation(model, student, family_of(name), TASK, stage_for(name))
        assert not model.training
        batch = batch_of(tokenizer)
        sum((t.mean for t in objective(student, batch).values()), torch.zeros(())).backward()
        with torch.no_grad():
            first, second = (model(**{k: batch[k] for k in family_of(name).inputs}).logits for _ in range(2))
    assert torch.equal(first, second)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert any(p.grad is not None for p in student.parameters())


def test_terms_without_weight_are_not_computed(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    student = student_of("bert", model, 2)
    stage = stage_for("bert", signals=SignalWeights(logits=0, hidden=2, attention=0))
    objective = TaskDistillation(model, student, folder.family, TASK, stage)
    assert set(objective(student, batch_of(tokenizer))) == {"hidden"}
    assert objective.weights == {"hidden": 2.0}


@torch.no_grad()
def test_listed_layers_are_the_ones_compared(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    student = student_of("bert", model, 1, teacher_layers=[1])
    stage = SignalWeights(logits=0, hidden=1, attention=1)
    same = TaskDistillation(model, student, folder.family, TASK, stage_for("bert", signals=stage, layers=[1]))
    other = TaskDistillation(model, student, folder.family, TASK, stage_for("bert", signals=stage))
    assert (same.layers, other.layers) == ([1], [3])
    batch = batch_of(tokenizer)
    assert all(abs(float(v.mean)) < 1e-6 for v in same(student, batch).values())
    assert all(float(v.mean) > 1e-3 for v in other(student, batch).values())


def test_a_signal_that_the_family_forbids_is_refused_with_the_alternatives(
    open_tiny: Callable[..., Any],
) -> None:
    model, folder, _ = open_tiny("mobilebert", 3)
    student = student_of("mobilebert", model, 2)
    with pytest.raises(
        InputError,
        match=r"distill.1.signals.hidden: not valid for MobileBERT: .*1e5.*valid signals: logits, attention",
    ):
        TaskDistillation(model, student, folder.family, TASK, stage_for("bert"), "distill.1")


def test_sizes_that_do_not_fit_a_signal_are_refused_together(open_tiny: Callable[..., Any]) -> None:
    model, folder, _ = open_tiny("bert", 3)
    student = student_of("bert", model, 2, init="random", hidden=24, heads=3)
    with pytest.raises(InputError) as caught:
        TaskDistillation(model, student, folder.family, TASK, stage_for("bert"))
    assert [p.where for p in caught.value.problems] == [
        "distill.0.signals.hidden",
        "distill.0.signals.attention",
    ]
    assert "the student is 24 wide, the teacher 32" in str(caught.value)
    assert "the student has 3 heads, the teacher 4" in str(caught.value)


def test_another_width_can_learn_logits(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    student = student_of("bert", model, 2, init="random", hidden=24, heads=3)
    stage = stage_for("bert", signals=SignalWeights(logits=1, hidden=0, attention=0))
    terms = TaskDistillation(model, student, folder.family, TASK, stage)(student, batch_of(tokenizer))
    assert float(terms["logits"].mean.detach()) > 0


def test_the_teacher_follows_the_batch_to_its_device(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    student = student_of("bert", model, 2)
    objective = TaskDistillation(model, student, folder.family, TASK, stage_for("bert"))
    # "meta" stands for an accelerator: only the student and the batch are put there by the loop
    batch = {k: v.to("meta") for k, v in batch_of(tokenizer).items()}
    assert {str(v.mean.device) for v in objective(student.to("meta"), batch).values()} == {"meta"}
