from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import TinyBertGeneralStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Projection
from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.projection import attach_projection, detach_projection
from pocketbert.distill.training import loop
from pocketbert.distill.training.loop import Outcome, frozen, train

FAMILY = family_of("bert")
TERMS = ("attention", "hidden", "embeddings")


@pytest.fixture
def teacher(make_classifier: Callable[..., Any]) -> Any:
    """3 layers, 32 wide."""
    return make_classifier("bert", 3, ("a", "b"), auto_class="AutoModel")


def encoder_of(teacher: Any, seed: int = 0) -> Any:
    """2 layers, 24 wide."""
    return build_student(teacher, FAMILY, StudentSection(layers=2, init="random", hidden=24), seed)


def student_of(teacher: Any, kind: Projection = Projection.SHARED) -> Any:
    made = encoder_of(teacher)
    attach_projection(made, 32, kind, 0)
    return made


class Killed(Exception):
    """The process dies here."""


class Dying:
    """An objective that raises instead of computing its n-th loss."""

    def __init__(self, right: TinyBertDistillation, at: int) -> None:
        self.right, self.weights, self.counts, self.left = right, right.weights, right.counts, at

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term]:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return self.right(model, batch)


class Rows:
    """Thirty random rows of 3 to 14 tokens."""

    lengths: Sequence[int] = [3 + 5 * i % 12 for i in range(30)]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        wide = max(self.lengths[i] for i in rows)
        out = {
            k: torch.zeros(len(rows), wide, dtype=torch.long) for k in ("input_ids", "attention_mask", "token_type_ids")
        }
        for place, row in enumerate(rows):
            size, random = self.lengths[row], torch.Generator().manual_seed(row)
            out["input_ids"][place, :size] = torch.randint(5, 100, (size,), generator=random)
            out["attention_mask"][place, :size] = 1
        return out


def learn(teacher: Any, student: Any, work: Path, at: int = -1, **more: Any) -> Outcome:
    keys = {"steps": 12, "batch": 6, "lr": 1e-3, "checkpoint": 3, **more}
    stage = TinyBertGeneralStage(method="tinybert-general", **keys)
    with frozen(teacher):
        objective = TinyBertDistillation(teacher, student, FAMILY, stage)
        return train(student, Dying(objective, at), Rows(), stage, 3, "distill.0", work)


@pytest.mark.parametrize("at", [1, 8])
@pytest.mark.parametrize("reference", [False, True])
def test_a_killed_run_resumes_bit_for_bit(
    reference: bool, at: int, teacher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_LOG_EVERY", 1)
    whole, first, again = (student_of(teacher, Projection.PER_LAYER) for _ in range(3))
    more = {"projection": Projection.PER_LAYER, "reference": reference}
    wanted = learn(teacher, whole, tmp_path / "whole", **more)
    with pytest.raises(Killed):
        learn(teacher, first, tmp_path / "work", at, **more)
    found = learn(teacher, again, tmp_path / "work", **more)
    assert found.history == wanted.history
    assert len(found.history) == 12
    for key, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_checkpoints_hold_the_projection_and_saved_students_do_not(teacher: Any, tmp_path: Path) -> None:
    student = student_of(teacher)
    start = {k: v.clone() for k, v in student.state_dict().items()}
    learn(teacher, student, tmp_path / "work")
    newest = tmp_path / "work" / (tmp_path / "work" / "latest").read_text()
    added = {f"layer_projection.maps.0.{leaf}" for leaf in ("weight", "bias")}
    held, moments = (load_file(newest / f"{kind}.safetensors") for kind in ("model", "optimizer"))
    assert added <= set(held)
    assert {f"exp_avg/{name}" for name in added} <= set(moments)
    assert not any(torch.equal(held[name], start[name]) for name in added)
    trained = detach_projection(student)
    student.save_pretrained(tmp_path / "student")
    assert set(load_file(tmp_path / "student" / "model.safetensors")) == set(start) - added
    assert "projection" not in json.dumps(student.config.to_dict())
    other = encoder_of(teacher, seed=1)
    assert attach_projection(other, 32, Projection.SHARED, 3, carried=trained) is trained
    learn(teacher, other, tmp_path / "next", steps=2)


def test_learning_lowers_every_term(teacher: Any, tmp_path: Path) -> None:
    outcome = learn(teacher, student_of(teacher), tmp_path, steps=80, lr=5e-3, checkpoint=80)
    first, last = outcome.history[0].terms, outcome.history[-1].terms
    assert all(last[name] < 0.8 * first[name] for name in TERMS), (first, last)
