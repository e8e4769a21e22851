"""A loss, a gradient or a weight that is no number stops training, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.errors import ExitCode
from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.distill.losses.common import Term
from pocketbert.distill.training import loop
from pocketbert.distill.training.checkpoints import saved_tensors
from pocketbert.distill.training.finite import NonFiniteErrors, NotFiniteError, StepResult, first_not_finite
from pocketbert.distill.training.loop import TrainingLoop, train
from pocketbert.distill.training.monitor import Monitor
from pocketbert.distill.training.optimizer import AdamWCourse
from pocketbert.distill.training.progress import Progress, StepRecord
from support import training_cases as cases

NAN = float("nan")


@pytest.fixture(autouse=True)
def in_float32(monkeypatch) -> None:
    monkeypatch.setattr(loop, "training_dtype", lambda *_: torch.float32)


class Course(AdamWCourse):
    """Remembers its optimizer."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.made = super().optimizer(model)
        return self.made


class Poisoned(cases.Tagging):
    """Tagging, to a term of which a value is added in one forward pass.

    Args:
        at: The pass, from 0; -1 for none.
        term: The term.
        value: Is added; None adds 0 with a gradient of NaN.
    """

    def __init__(self, at: int, term: str = "states", value: float | None = NAN) -> None:
        super().__init__()
        self.at, self.term, self.value, self.passes = at, term, value, 0

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term | Tensor]:
        terms = super().__call__(model, batch)
        if self.passes == self.at:
            zero = 0 * next(model.parameters()).sum()
            added = zero.sqrt() if self.value is None else zero + self.value
            term = terms[self.term]
            terms[self.term] = Term(term.mean + added, term.count) if isinstance(term, Term) else term + added
        self.passes += 1
        return terms


def settings(**more: Any) -> Any:
    return cases.settings(**{"steps": 12, "dropout": None, **more})


class Run:
    """A training loop, with what a test wants to look at."""

    def __init__(self, objective: Poisoned, work: Path, **more: Any) -> None:
        self.model, plan = cases.tagger().float(), settings(**more)
        objective.course = self.course = Course(plan)  # type: ignore[attr-defined]
        self.loop = TrainingLoop(self.model, objective, cases.Rows(), plan, 3, "distill.0", work)

    def snapshot(self) -> dict[str, Tensor]:
        """Weights and moments."""
        return {name: value.clone() for name, value in saved_tensors(self.model, self.course.made).items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize(
    ("poison", "micro_batch", "said"),
    [
        ({}, None, r"the loss is nan \(terms: states nan, tags [\d.]+\)"),
        ({"term": "tags", "value": float("inf")}, None, r"the loss is inf \(terms: tags inf, states [\d.e-]+\)"),
        ({"value": float("-inf")}, 4, r"the loss is -inf \(terms: states -inf, tags [\d.]+\)"),  # the 1st of 2 portions
        (
            {"value": None},
            None,
            r"the gradient norm is nan although the loss is [\d.]+ \(terms: tags [\d.]+, states [\d.e-]+\)",
        ),
    ],
    ids=["nan", "inf", "portion", "gradient"],
)
def test_a_step_that_is_not_finite_is_not_made(poison, micro_batch, said, tmp_path):
    run = Run(Poisoned(4 if micro_batch is None else 8, **poison), tmp_path, micro_batch=micro_batch)
    for _ in range(4):
        run.loop.step()
        if run.loop.progress.step == 3:
            run.loop.save()
    before, progress = run.snapshot(), run.loop.progress.model_copy(deep=True)
    with pytest.raises(NotFiniteError, match=f"^distill.0: step 5 of 12 was not made: {said}; ") as caught:
        run.loop.step()
    assert caught.value.exit_code == ExitCode.GATE == 3
    assert (caught.value.purpose, caught.value.step) == ("distill.0", 5)
    text, rate = str(caught.value), run.course.made.param_groups[0]["lr"]
    for part in (
        f"learning rate {rate:.3g}, float32. The mean loss of steps 1 to 4 was ",
        "Weights and optimiser are as they were before this step. The checkpoint of step 3 in ",
        f"{tmp_path} is kept: the same command resumes from it",
        "Fix: If the loss grew before this step, lower lr (its peak is 0.001) or raise warmup; if it did not, ",
    ):
        assert part in text
    assert equal(run.snapshot(), before)
    assert run.loop.progress == progress
    assert all(parameter.grad is None for parameter in run.model.parameters())
    assert names(tmp_path) == ["latest", "step-0000003"]
    run.loop.step()  # whoever catches the error may go on: the second time the objective is good
    assert run.loop.progress.step == 5


def learn(at: int, work: Path, **more: Any) -> tuple[nn.Module, Any]:
    model = cases.tagger().float()
    metrics = work.with_suffix(".jsonl")
    return model, train(model, Poisoned(at), cases.Rows(), settings(**more), 3, "distill.0", work, Monitor(metrics))


def test_the_last_checkpoint_continues_as_if_nothing_had_been(tmp_path):
    whole, expected = learn(-1, tmp_path / "whole", steps=24, batch=2)
    with pytest.raises(NotFiniteError, match=r"The mean loss of steps 21 to 22 was .* checkpoint of step 21 "):
        learn(22, tmp_path / "work", steps=24, batch=2)
    assert names(tmp_path / "work") == ["latest", "step-0000018", "step-0000021"]
    records = [json.loads(line) for line in (tmp_path / "work.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [20], "the losses before the step are there to look at"
    again, found = learn(-1, tmp_path / "work", steps=24, batch=2)
    assert equal(dict(again.state_dict()), dict(whole.state_dict()))
    assert found.history == expected.history
    assert (tmp_path / "work.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_first_step_says_that_nothing_was_saved(tmp_path):
    with pytest.raises(NotFiniteError) as caught:
        learn(0, tmp_path / "work")
    assert str(caught.value).startswith("distill.0: step 1 of 12 was not made")
    assert "No checkpoint was written before: the same command begins this stage again. Fix: " in str(caught.value)
    assert "mean loss" not in str(caught.value)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        (1, r"step 1 of 12, '.*word_embeddings.weight' holds a NaN or an infinity; nothing was saved"),
        (3, r"step 2 of 12 .* The weights were not finite even before this step \('.*weight'\)"),
    ],
)
def test_weights_that_the_optimiser_itself_broke_are_not_saved(checkpoint, said, tmp_path):
    # rows of the word table without a gradient have moments of 0, and 0 / (0 + eps) is NaN where eps is 0 in float32
    with pytest.raises(NotFiniteError, match=said + r".* Fix: Raise eps \(1e-50\), or lower lr"):
        learn(-1, tmp_path / "work", eps=1e-50, checkpoint=checkpoint)
    assert not (tmp_path / "work").exists()


def test_a_bad_checkpoint_never_replaces_a_good_one(tmp_path):
    run = Run(Poisoned(-1), tmp_path)
    run.loop.step()
    run.loop.save()
    run.loop.step()
    with torch.no_grad():
        next(iter(run.course.made.state.values()))["exp_avg_sq"].view(-1)[-1] = float("inf")
    with pytest.raises(NotFiniteError, match=r"after step 2 of 12, 'exp_avg_sq/.*The checkpoint of step 1 in"):
        run.loop.save()
    assert names(tmp_path) == ["latest", "step-0000001"]


def test_the_first_tensor_with_a_nan_or_an_infinity_is_found():
    big = torch.full((8,), 3e38)  # finite, but its sum is not
    assert first_not_finite([("big", big), ("none", torch.empty(0))]) is None
    for bad in (NAN, float("inf"), float("-inf")):
        assert first_not_finite([("big", big), ("a", torch.tensor([1.0, bad])), ("b", torch.tensor(bad))]) == "a"
    assert first_not_finite([("both", torch.tensor([float("inf"), float("-inf")]))]) == "both"


def test_only_settings_that_exist_are_advised(tmp_path):
    stage = MobileBertStage(method="mobilebert", steps=8, transfer_steps=4)
    errors = NonFiniteErrors("distill.0", stage, torch.bfloat16, tmp_path)
    result = StepResult(NAN, {}, 1.0, 1e-3)
    history = [StepRecord(step=n, loss=float(n), terms={}, lr=1e-3) for n in (20, 40)]
    said = str(errors.for_step(result, Progress(step=40, history=history, pending={}), 0, nn.Linear(1, 1)))
    assert (
        "the loss is nan (terms: none); learning rate 0.001, bfloat16. The mean loss of steps 21 to 40 was 40." in said
    )
    assert "warmup" not in said
