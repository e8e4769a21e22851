"""What TinyBERT cannot compare is refused, with all reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.types import Projection, Signal
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.projection import attach_projection, detach_projection
from support.tinybert import encoder, narrow_student, objective_of, stage_of, student_of


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
