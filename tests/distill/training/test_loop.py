from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pocketbert.core.families import family_of
from pocketbert.core.heads.head import Prepared
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import SignalWeights, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Schedule
from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods.task import Finetune, TaskDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.training import loop
from pocketbert.distill.training.data import TrainSet
from pocketbert.distill.training.loop import Outcome, frozen, train
from pocketbert.distill.training.optimizer import AdamWCourse

STEPS = 12
TASK = task_of("text-classification")


class Killed(Exception):
    """The process dies here."""


class Dying:
    """An objective that raises instead of computing its n-th loss."""

    def __init__(self, right: Any, at: int) -> None:
        self.right, self.weights, self.left = right, right.weights, at
        self.counts = right.counts

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return self.right(model, batch)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_LOG_EVERY", 5)


@pytest.fixture(scope="module")
def data(open_tiny: Callable[..., Any], labelled_rows: Callable[..., list[dict[str, Any]]]) -> TrainSet:
    rows = labelled_rows(40)
    tokenizer = open_tiny("bert", 2)[2]
    encoded = tokenizer.encode([r["text"] for r in rows])
    return TrainSet(Prepared([], encoded, np.arange(40), {"labels": np.arange(40) % 3}), tokenizer)


def settings(**more: Any) -> Optimisation:
    return Optimisation(**{"steps": STEPS, "batch": 6, "lr": 1e-3, "checkpoint": 3, **more})


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def learning_rates(plan: Optimisation, steps: range) -> list[float]:
    course, optimizer = AdamWCourse(plan), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
    return [course.prepare(optimizer, step) for step in steps]


def test_a_constant_rate_stays_after_its_warm_up() -> None:
    plan = Optimisation(steps=10, lr=1e-3, warmup=0.2, schedule=Schedule.CONSTANT)
    rates = learning_rates(plan, range(10))
    assert rates[:2] == pytest.approx([5e-4, 1e-3])
    assert rates[2:] == [1e-3] * 8


@given(st.integers(1, 500), st.floats(0, 1), st.floats(1e-6, 1))
def test_the_learning_rate_rises_and_falls_to_zero(steps: int, warmup: float, peak: float) -> None:
    plan = Optimisation(steps=steps, warmup=warmup, lr=peak)
    *rates, behind_the_last = learning_rates(plan, range(steps + 1))
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(peak)
    assert min(rates) > 0
    assert behind_the_last == pytest.approx(0.0) or round(warmup * steps) >= steps


def finetune(model: nn.Module, data: TrainSet, work: Path, at: int = -1, **more: Any) -> Outcome:
    metrics = more.pop("metrics", None)
    objective = Dying(Finetune(family_of("bert"), TASK), at)
    return train(model, objective, data, settings(**more), 3, "finetune", work, metrics)


def test_training_lowers_the_loss_and_ends_in_eval_mode(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    model = make_classifier("bert", 2, ("a", "b", "c"))
    outcome = finetune(model, data, tmp_path / "work", steps=60, lr=3e-3, checkpoint=60)
    assert outcome.history[-1].loss < 0.7 * outcome.history[0].loss
    assert [r.step for r in outcome.history] == list(range(5, 61, 5))
    assert not model.training
    assert outcome.dtype in ("float32", "bfloat16")


def test_a_model_trained_in_bf16_computes_in_fp32_afterwards(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "training_dtype", lambda _: torch.bfloat16)
    model, plain = (make_classifier("bert", 2, ("a", "b", "c")) for _ in range(2))
    assert finetune(model, data, tmp_path / "work", steps=2).dtype == "bfloat16"
    plain.load_state_dict(model.state_dict())
    inputs = {k: v for k, v in data.batch([0, 1], 0).items() if k in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        assert torch.equal(model(**inputs).logits, plain(**inputs).logits)


@pytest.mark.parametrize("at", [1, 5, 6, 11])
def test_a_killed_run_resumes_bit_for_bit(
    at: int, make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    whole = make_classifier("bert", 2, ("a", "b", "c"))
    assert any(m.p > 0 for m in whole.modules() if isinstance(m, nn.Dropout))
    wanted = finetune(whole, data, tmp_path / "whole", metrics=tmp_path / "whole.jsonl")

    model = make_classifier("bert", 2, ("a", "b", "c"))
    with pytest.raises(Killed):
        finetune(model, data, tmp_path / "work", at, metrics=tmp_path / "metrics.jsonl")
    torch.manual_seed(123)
    again = make_classifier("bert", 2, ("a", "b", "c"))
    found = finetune(again, data, tmp_path / "work", metrics=tmp_path / "metrics.jsonl")
    assert equal(weights(again), weights(whole))
    assert found.history == wanted.history
    assert (tmp_path / "metrics.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_run_killed_again_and_again_ends_the_same(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    whole = make_classifier("bert", 2, ("a", "b", "c"))
    wanted = finetune(whole, data, tmp_path / "whole", checkpoint=1)
    for _ in range(5):
        with pytest.raises(Killed):
            finetune(make_classifier("bert", 2, ("a", "b", "c")), data, tmp_path / "work", 2, checkpoint=1)
    again = make_classifier("bert", 2, ("a", "b", "c"))
    found = finetune(again, data, tmp_path / "work", 2, checkpoint=1)
    assert equal(weights(again), weights(whole))
    assert found.history == wanted.history


def distill(
    teacher: Any, student: Any, data: TrainSet, work: Path, at: int, signals: SignalWeights, **more: Any
) -> Outcome:
    stage = TaskStage(
        method="task", signals=signals, **{"steps": STEPS, "batch": 6, "lr": 1e-3, "checkpoint": 3, **more}
    )
    with frozen(teacher):
        objective = TaskDistillation(teacher, student, family_of("bert"), TASK, stage)
        return train(student, Dying(objective, at), data, stage, 3, "distill.0", work)


@pytest.mark.parametrize(
    "signals",
    [SignalWeights(labels=0.5), SignalWeights(logits=0, attention=0), SignalWeights(logits=0, hidden=0)],
    ids=["all", "hidden alone", "attention alone"],
)
def test_killed_distillation_resumes_bit_for_bit(
    signals: SignalWeights, make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    teacher = make_classifier("bert", 3, ("a", "b", "c"))
    before = weights(teacher)
    wanted = StudentSection(layers=2)
    whole, first, again = (build_student(teacher, family_of("bert"), wanted, 0) for _ in range(3))
    expected = distill(teacher, whole, data, tmp_path / "whole", -1, signals)
    with pytest.raises(Killed):
        distill(teacher, first, data, tmp_path / "work", 8, signals)
    found = distill(teacher, again, data, tmp_path / "work", -1, signals)
    assert equal(weights(again), weights(whole))
    assert not equal(weights(whole), weights(build_student(teacher, family_of("bert"), wanted, 0)))
    assert found.history == expected.history
    assert equal(weights(teacher), before)
    assert not teacher.training


def test_a_finished_run_is_not_trained_again(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    model = make_classifier("bert", 2, ("a", "b", "c"))
    wanted = finetune(model, data, tmp_path / "work")
    again = make_classifier("bert", 2, ("a", "b", "c"))
    found = finetune(again, data, tmp_path / "work", 0)
    assert found.history == wanted.history
    assert equal(weights(again), weights(model))


@pytest.mark.parametrize("change", [{"seed": 4}, {"purpose": "other"}])
def test_seed_and_purpose_change_the_run(
    change: dict[str, Any], make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    results = []
    for i, keys in enumerate(({}, change)):
        model = make_classifier("bert", 2, ("a", "b", "c"))
        arguments = {"seed": 3, "purpose": "finetune", **keys}
        train(model, Finetune(family_of("bert"), TASK), data, settings(), work=tmp_path / str(i), **arguments)
        results.append(weights(model))
    assert not equal(*results)


def test_frozen_embeddings_stay_bit_for_bit(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    model = make_classifier("bert", 2, ("a", "b", "c"))
    before = weights(model)
    finetune(model, data, tmp_path / "work", freeze_embeddings=True, weight_decay=0.5)
    after = weights(model)
    same = {k for k in after if torch.equal(after[k], before[k])}
    assert same == {f"bert.embeddings.{n}_embeddings.weight" for n in ("word", "position", "token_type")}


def test_freezing_holds_for_one_stage_only(make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path) -> None:
    model = make_classifier("bert", 2, ("a", "b", "c"))
    finetune(model, data, tmp_path / "first", freeze_embeddings=True)
    before = weights(model)
    finetune(model, data, tmp_path / "second")
    assert not torch.equal(
        weights(model)["bert.embeddings.word_embeddings.weight"],
        before["bert.embeddings.word_embeddings.weight"],
    )


class Watching:
    """Notes the dropout rates of the model while it is trained."""

    def __init__(self) -> None:
        self.right, self.weights = Finetune(family_of("bert"), TASK), {"labels": 1.0}
        self.rates: set[float] = set()

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        assert model.training
        self.rates |= {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
        return self.right(model, batch)


def test_dropout_is_overridden_for_one_stage_only(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    model = make_classifier("bert", 2, ("a", "b", "c"))
    for number, (dropout, wanted) in enumerate(((0.25, {0.25}), (None, {0.1}), (0.0, {0.0}))):
        watching = Watching()
        train(model, watching, data, settings(steps=2, dropout=dropout), 3, "finetune", tmp_path / str(number))
        assert watching.rates == wanted


def test_records_are_means_of_their_steps(make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path) -> None:
    losses: list[float] = []

    class Noting(Watching):
        def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
            terms = super().__call__(model, batch)
            losses.append(float(terms["labels"].mean.detach()))
            return terms

    noting = Noting()
    noting.weights = {"labels": 2.0}
    model = make_classifier("bert", 2, ("a", "b", "c"))
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"stage": "other", "step": 1}) + "\n")
    outcome = train(model, noting, data, settings(steps=12), 3, "finetune", tmp_path / "work", path)
    assert [r.step for r in outcome.history] == [5, 10, 12]
    for record, part in zip(outcome.history, (losses[:5], losses[5:10], losses[10:]), strict=True):
        assert record.terms["labels"] == pytest.approx(np.mean(part))
        assert record.loss == pytest.approx(2 * np.mean(part), rel=1e-6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(x["stage"], x["step"]) for x in lines] == [
        ("other", 1),
        ("finetune", 5),
        ("finetune", 10),
        ("finetune", 12),
    ]


def test_frozen_restores_what_it_found() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    with frozen(model.train()) as inside:
        assert inside is model
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]


def test_distillation_in_portions_is_that_of_the_whole_batch(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "training_dtype", lambda _: torch.float32)
    teacher, found = make_classifier("bert", 3, ("a", "b", "c")).double(), []
    for most in (None, 4):
        student = build_student(teacher, family_of("bert"), StudentSection(layers=2), 0).double()
        made = distill(
            teacher,
            student,
            data,
            tmp_path / str(most),
            -1,
            SignalWeights(labels=0.5),
            micro_batch=most,
            dropout=0.0,
            batch=7,
        )
        found.append((made.history, weights(student)))
    (whole, ours), (portions, theirs) = found
    for a, b in zip(whole, portions, strict=True):
        assert a.terms == pytest.approx(b.terms, rel=1e-6)
    for key, value in ours.items():
        if "key.bias" not in key:  # softmax is blind to it: its gradient is rounding, which Adam scales up
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-5)
