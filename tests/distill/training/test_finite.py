"""A loss, a gradient or a weight that is no number stops training, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.errors import ExitCode
from pocketbert.core.families import family_of
from pocketbert.core.heads.head import Prepared
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.core.tasks import task_of
from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods.task import Finetune
from pocketbert.distill.training import loop
from pocketbert.distill.training.data import TrainSet
from pocketbert.distill.training.finite import ATTEMPTS, NonFiniteErrors, NotFiniteError, StepResult, first_not_finite
from pocketbert.distill.training.loop import TrainingLoop, train
from pocketbert.distill.training.progress import Progress

TASK = task_of("text-classification")
BATCH = 6


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(loop, "training_dtype", lambda _: torch.float32)
    # two threads that wait for each other are slow on a busy machine
    monkeypatch.setattr(loop, "default_threads", lambda: 1)
    monkeypatch.setattr(loop, "_LOG_EVERY", 5)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(open_tiny: Callable[..., Any], labelled_rows: Callable[..., list[dict[str, Any]]]) -> TrainSet:
    tokenizer = open_tiny("bert", 2)[2]
    encoded = tokenizer.encode([r["text"] for r in labelled_rows(40)])
    return TrainSet(Prepared([], encoded, np.arange(40), {"labels": np.arange(40) % 3}), tokenizer)


@pytest.fixture
def model(make_classifier: Callable[..., Any]) -> nn.Module:
    made: nn.Module = make_classifier("bert", 2, ("a", "b", "c"))
    return made


class Poisoned:
    """Cross-entropy and the size of the logits, one of which a value is added to in one forward pass.

    Args:
        at: The pass, from 0; -1 for none.
        term: The term.
        value: Is added; None adds 0 with a gradient of NaN.
        until: The first pass that is good again, where there is one.
    """

    def __init__(self, at: int, term: str = "size", value: float | None = float("nan"), until: int | None = None):
        self.right, self.weights = Finetune(family_of("bert"), TASK), {"labels": 1.0, "size": 0.1}
        self.bad = range(at, at + 1 if until is None else until) if at >= 0 else range(0)
        self.term, self.value, self.passes = term, value, 0

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        terms = dict(self.right(model, batch))
        weight = next(model.parameters())
        terms["size"] = weight.square().mean()
        if self.passes in self.bad:
            added = (0 * weight.sum()).sqrt() if self.value is None else torch.tensor(self.value)
            terms[self.term] = as_mean(terms[self.term]) + added
        self.passes += 1
        return terms


def as_mean(term: Term | Tensor) -> Tensor:
    return term.mean if isinstance(term, Term) else term


def settings(**more: Any) -> Optimisation:
    return Optimisation(**{"steps": 12, "batch": BATCH, "lr": 1e-3, "checkpoint": 3, **more})


def begun(model: nn.Module, objective: Any, data: TrainSet, work: Path, **more: Any) -> TrainingLoop:
    return TrainingLoop(model, objective, data, settings(**more), 3, "distill.0", work)


def snapshot(made: TrainingLoop) -> dict[str, Tensor]:
    """Weights and moments."""
    out = {name: value.clone() for name, value in made._model.state_dict().items()}
    for number, state in enumerate(made._optimizer.state.values()):
        out |= {f"{field}/{number}": value.clone() for field, value in state.items()}
    return out


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize(
    ("poison", "micro_batch", "said"),
    [
        ({"value": float("nan")}, None, r"the loss is nan \(terms: size nan, labels [\d.]+\)"),
        ({"term": "labels", "value": float("inf")}, None, r"the loss is inf \(terms: labels inf, size [\d.e-]+\)"),
        ({"value": float("-inf")}, 4, r"the loss is -inf \(terms: size -inf, labels [\d.]+\)"),  # the 1st of 2 portions
        (
            {"value": None},
            None,
            r"the gradient norm is nan although the loss is [\d.]+ \(terms: labels [\d.]+, size [\d.e-]+\)",
        ),
    ],
    ids=["nan", "inf", "portion", "gradient"],
)
def test_a_step_that_is_not_finite_is_not_made(
    poison: dict[str, Any], micro_batch: int | None, said: str, model: nn.Module, data: TrainSet, tmp_path: Path
) -> None:
    portions = 1 if micro_batch is None else 2
    objective = Poisoned(4 * portions, **poison)
    made = begun(model, objective, data, tmp_path, micro_batch=micro_batch)
    for _ in range(4):
        made.step()
        if made.progress.step == 3:
            made.save()
    before, progress = snapshot(made), made.progress.model_copy(deep=True)
    with pytest.raises(NotFiniteError, match=f"^distill.0: step 5 of 12 was not made: {said}; ") as caught:
        made.step()
    assert caught.value.exit_code == ExitCode.GATE == 3
    assert (caught.value.purpose, caught.value.step) == ("distill.0", 5)
    text = str(caught.value)
    rate = made._optimizer.param_groups[0]["lr"]
    assert f"learning rate {rate:.3g}, float32. The mean loss of steps 1 to 4 was " in text
    assert "Weights and optimiser are as they were before this step. The checkpoint of step 3 in " in text
    assert f"{tmp_path} is kept: the same command resumes from it" in text
    assert (
        "Fix: If the loss grew before this step, lower lr (its peak is 0.001) or raise warmup; if it did not, " in text
    )
    assert equal(snapshot(made), before)
    assert made.progress == progress
    assert all(parameter.grad is None for parameter in model.parameters())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-0000003"]
    made.step()  # whoever catches the error may go on: the second time the objective is good
    assert made.progress.step == 5


def test_the_last_checkpoint_continues_as_if_nothing_had_been(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    def trained(at: int, work: str) -> tuple[nn.Module, Any]:
        model = make_classifier("bert", 2, ("a", "b", "c"))
        metrics = tmp_path / f"{work}.jsonl"
        return model, train(model, Poisoned(at), data, settings(), 3, "distill.0", tmp_path / work, metrics)

    whole, expected = trained(-1, "whole")
    with pytest.raises(NotFiniteError, match=r"The mean loss of steps 6 to 7 was .* checkpoint of step 6 "):
        trained(7, "work")
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == ["latest", "step-0000003", "step-0000006"]
    records = [json.loads(line) for line in (tmp_path / "work.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [5]  # the losses before the step are there to look at
    again, found = trained(-1, "work")
    assert equal(dict(again.state_dict()), dict(whole.state_dict()))
    assert found.history == expected.history
    assert (tmp_path / "work.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_first_step_says_that_nothing_was_saved(model: nn.Module, data: TrainSet, tmp_path: Path) -> None:
    with pytest.raises(NotFiniteError) as caught:
        train(model, Poisoned(0), data, settings(), 3, "finetune", tmp_path)
    assert str(caught.value).startswith("finetune: step 1 of 12 was not made")
    assert "No checkpoint was written before: the same command begins this stage again. Fix: " in caught.value.args[0]
    assert "mean loss" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_the_optimiser_itself_broke_are_not_saved(
    make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    # rows of the word table without a gradient have moments of 0, and 0 / (0 + eps) is NaN where eps is 0 in float32
    for checkpoint, said in (
        (1, r"step 1 of 12, '.*word_embeddings.weight' holds a NaN or an infinity; nothing was saved"),
        (3, r"step 2 of 12 .* The weights were not finite even before this step \('.*weight'\)"),
    ):
        model = make_classifier("bert", 2, ("a", "b", "c"))
        work = tmp_path / str(checkpoint)
        with pytest.raises(NotFiniteError, match=said + r".* Fix: Raise eps \(1e-50\), or lower lr"):
            train(model, Poisoned(-1), data, settings(eps=1e-50, checkpoint=checkpoint), 3, "distill.0", work)
        assert not work.exists()


def test_a_bad_checkpoint_never_replaces_a_good_one(model: nn.Module, data: TrainSet, tmp_path: Path) -> None:
    made = begun(model, Poisoned(-1), data, tmp_path)
    made.step()
    made.save()
    made.step()
    with torch.no_grad():
        next(iter(made._optimizer.state.values()))["exp_avg_sq"].view(-1)[-1] = float("inf")
    with pytest.raises(NotFiniteError, match=r"after step 2 of 12, 'exp_avg_sq/.*The checkpoint of step 1 in"):
        made.save()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-0000001"]


def test_the_first_tensor_with_a_nan_or_an_infinity_is_found() -> None:
    big = torch.full((8,), 3e38)  # finite, but its sum is not
    assert first_not_finite([("big", big), ("none", torch.empty(0))]) is None
    for bad in (float("nan"), float("inf"), float("-inf")):
        assert first_not_finite([("big", big), ("a", torch.tensor([1.0, bad])), ("b", torch.tensor(bad))]) == "a"
    assert first_not_finite([("both", torch.tensor([float("inf"), float("-inf")]))]) == "both"


def test_only_settings_that_exist_are_advised(model: nn.Module, tmp_path: Path) -> None:
    stage = MobileBertStage(method="mobilebert", steps=8, transfer_steps=4)
    assert not hasattr(stage, "warmup")
    errors = NonFiniteErrors("distill.0", stage, torch.bfloat16, tmp_path)
    result = StepResult(float("nan"), {}, 1.0, 1e-3)
    said = str(errors.for_step(result, Progress(step=3, history=[], pending={}), 0, model))
    assert "the loss is nan (terms: none); learning rate 0.001, bfloat16." in said
    assert "warmup" not in said


# A loss scaler. Nothing chooses fp16 today; torch has a scaler for the CPU, with which the loop is driven here.


@pytest.fixture
def in_fp16(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`in_fp16(scale)`: loops made from now on train in fp16 with a real scaler that begins there."""
    import accelerate

    def choose(scale: float) -> None:
        class Scaled(accelerate.Accelerator):
            def __init__(self, **options: Any) -> None:
                super().__init__(**{**options, "mixed_precision": "fp16"})
                self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)
                self.native_amp = True  # else neither autocast nor the scaler's `unscale_` is asked on a CPU

        monkeypatch.setattr(loop, "training_dtype", lambda _: torch.float16)
        monkeypatch.setattr("accelerate.Accelerator", Scaled)

    return choose


def test_a_step_that_the_scaler_skips_does_not_count(
    in_fp16: Callable[[float], None], make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    in_fp16(2.0**40)
    model, objective = make_classifier("bert", 2, ("a", "b", "c")), Poisoned(-1)
    made = begun(model, objective, data, tmp_path / "a")
    first = made.step()
    skipped = objective.passes - 1
    assert skipped > 5
    assert made.progress.step == 1
    assert made.progress.pending["_steps/_loss"] == 1
    assert made.progress.pending["_loss"] == first
    scale = made._accelerator.scaler.get_scale()
    assert scale == 2.0 ** (40 - skipped)
    # what it ends in is what a run gets that begins with the scale that fits: same rows, same dropout, same rate
    in_fp16(scale)
    other = make_classifier("bert", 2, ("a", "b", "c"))
    beside = begun(other, Poisoned(-1), data, tmp_path / "b")
    assert beside.step() == first
    for _ in range(3):
        assert made.step() == beside.step()
    assert equal(snapshot(made), snapshot(beside))
    assert made.progress == beside.progress


def test_a_scaled_run_resumes_with_its_scale(
    in_fp16: Callable[[float], None], make_classifier: Callable[..., Any], data: TrainSet, tmp_path: Path
) -> None:
    in_fp16(2.0**40)
    made = begun(make_classifier("bert", 2, ("a", "b", "c")), Poisoned(-1), data, tmp_path)
    for _ in range(3):
        made.step()
    made.save()
    resumed = begun(make_classifier("bert", 2, ("a", "b", "c")), Poisoned(-1), data, tmp_path)
    for _ in range(5):  # the scale grows after the 4th good step, in both
        assert made.step() == resumed.step()
    assert made._accelerator.scaler.get_scale() == resumed._accelerator.scaler.get_scale()
    assert equal(snapshot(made), snapshot(resumed))


def test_gradients_that_no_scale_fits_stop_training(
    in_fp16: Callable[[float], None], model: nn.Module, data: TrainSet, tmp_path: Path
) -> None:
    in_fp16(65536.0)
    objective = Poisoned(1, value=None, until=1000)
    made = begun(model, objective, data, tmp_path)
    while objective.passes < 1:
        made.step()
    before, done = snapshot(made), made.progress.step
    with pytest.raises(
        NotFiniteError,
        match=rf"step {done + 1} .* gradient norm is nan .*at each of {ATTEMPTS} loss scales down to",
    ):
        made.step()
    assert objective.passes == 1 + ATTEMPTS
    assert made.progress.step == done
    assert equal(snapshot(made), before)


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(
    in_fp16: Callable[[float], None], model: nn.Module, data: TrainSet, tmp_path: Path
) -> None:
    in_fp16(1024.0)
    objective = Poisoned(0)
    made = begun(model, objective, data, tmp_path)
    with pytest.raises(NotFiniteError, match=r"step 1 of 12 .* the loss is nan .* float16\."):
        made.step()
    assert objective.passes == 1
