"""What the objectives of all methods have in common."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.distill.losses.common import Counting, count_items, scale_partial_mean
from pocketbert.distill.training.loop import frozen, train
from support.objectives import OTHER_CLASS, SIZES, TRIALS, WEIGHTS, Trial, means, total

every_trial = pytest.mark.parametrize("name", TRIALS)
COPY = {"layers": 3}


@every_trial
def test_every_term_is_above_0_for_another_student_and_has_the_announced_count(name):
    trial = TRIALS[name]()
    terms = trial.terms()
    assert isinstance(trial.objective, Counting)
    assert terms.keys() == trial.objective.weights.keys()
    assert all(value > 1e-5 for value in means(terms).values()), means(terms)
    announced = count_items(trial.objective, terms, trial.batch())
    assert announced == {name: float(term.count) for name, term in terms.items()}


@every_trial
@torch.no_grad()
def test_more_padding_changes_the_reference_alone(name):
    """From the first pad on: the token before it may look at it."""
    trial = TRIALS[name]()
    short, long = (trial.terms(extra=extra) for extra in (1, 6))
    unchanged = [means(long)[n] == pytest.approx(value, rel=1e-4, abs=1e-6) for n, value in means(short).items()]
    if name.endswith("reference"):
        assert not any(unchanged[:3])
    else:
        assert all(unchanged)
        assert all(long[n].count == term.count for n, term in short.items())


@every_trial
def test_parts_of_a_batch_add_up_to_its_loss_and_gradient(name):
    trial = TRIALS[name]()
    whole, batch = trial.terms(), trial.batch()
    total(trial.objective, whole).backward()
    wanted = {n: p.grad.clone() for n, p in trial.student.named_parameters() if p.grad is not None}
    trial.student.zero_grad()
    sums = dict.fromkeys(whole, 0.0)
    for rows in ([0, 1], [2, 3], [4]):  # the last without any label
        part = trial.objective(trial.student, {n: v[rows] for n, v in batch.items()})
        shares = {n: scale_partial_mean(t.mean, float(t.count), float(whole[n].count)) for n, t in part.items()}
        torch.stack([share * trial.objective.weights[n] for n, share in shares.items()]).sum().backward()
        sums = {n: value + float(shares[n].detach()) for n, value in sums.items()}
    assert sums == pytest.approx(means(whole), rel=1e-4)
    for key, gradient in wanted.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            trial.student.get_parameter(key).grad, gradient, rtol=1e-3, atol=1e-5 * max(1, scale), msg=key
        )


@pytest.mark.parametrize("name", [name for name in TRIALS if name != "pretraining"])
def test_the_teacher_neither_drops_nor_learns_and_the_student_does(name):
    trial = TRIALS[name]()
    before = copy.deepcopy(trial.teacher.state_dict())
    assert means(trial.terms()) == means(trial.terms())
    assert not trial.teacher.training
    total(trial.objective, trial.terms()).backward()
    assert all(p.grad is None for p in trial.teacher.parameters())
    assert all(torch.equal(v, before[k]) for k, v in trial.teacher.state_dict().items())
    gradients = [p.grad for p in trial.student.parameters() if p.grad is not None]
    assert gradients and all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("task", {"section": COPY}),
        ("task, mobilebert", {"section": COPY}),
        ("task, mobilebert", {"section": COPY, "family": "roberta"}),
        ("distilbert", {"section": COPY}),
        ("minilm", {"section": COPY}),
        ("tinybert", {"section": COPY}),
        ("tinybert, reference", {"section": COPY}),
        *((name, {"section": OTHER_CLASS}) for name in ("task", "distilbert", "minilm", "tinybert")),
    ],
)
@torch.no_grad()
def test_a_full_copy_of_the_teacher_costs_nothing(name, settings):
    trial = TRIALS[name](**settings)
    batch = trial.batch()
    batch["token_type_ids"].zero_()  # a DistilBERT knows no segments
    from_text = {"labels", "mlm"}
    if (name, settings["section"]) == ("task", OTHER_CLASS):
        from_text.add("logits")  # the function of its head is another one
    for term, value in means(trial.objective(trial.student, batch)).items():
        assert (value > 1e-3) if term in from_text else (value == pytest.approx(0, abs=2e-6)), term


@pytest.mark.parametrize(("name", "term"), [(n, t) for n, (_, kind) in WEIGHTS.items() for t in kind.model_fields])
def test_terms_without_weight_are_not_computed(name, term):
    key, kind = WEIGHTS[name]
    if name == "replaced tokens" and term == "generator":
        pytest.skip("the generator alone teaches the student nothing")
    if name == "task" and term in ("margins", "negatives"):
        pytest.skip(
            "of vectors, and the model is a classifier: tests/distill/losses and tests/pipeline/learn have them"
        )
    every, alone = TRIALS[name](), TRIALS[name](**{key: kind(**{n: 3.0 * (n == term) for n in kind.model_fields})})
    assert alone.objective.weights == {term: 3.0}
    terms = alone.terms()
    assert terms.keys() == {term} and alone.objective.counts(alone.batch()).keys() <= {term}
    more_heads = name == "minilm" and term != "attention"  # without attention there are more relation heads
    assert more_heads or means(terms)[term] == pytest.approx(means(every.terms())[term], rel=1e-5)


@pytest.mark.parametrize("name", ["task", "minilm", "tinybert"])
def test_the_teacher_follows_the_batch_to_its_device(name):
    trial = TRIALS[name]()
    # "meta" stands for an accelerator: only the student and the batch are put there by the loop
    batch = {k: v.to("meta") for k, v in trial.batch().items()}
    assert {str(t.mean.device) for t in trial.objective(trial.student.to("meta"), batch).values()} == {"meta"}


class Killed(Exception):
    """The process dies here."""


class Rows:
    """Ten rows; satisfies TrainData. The process dies where the batch of a step is asked for."""

    def __init__(self, trial: Trial, dies_at: int) -> None:
        self.lengths: Sequence[int] = [*SIZES, *SIZES]
        self._trial, self._dies_at = trial, dies_at

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        if step == self._dies_at:
            raise Killed
        return self._trial.batch(rows, step=step)


def learn(name: str, work: Path, dies_at: int = -1) -> tuple[Trial, Any]:
    trial = TRIALS[name](steps=8, batch=5, lr=5e-3, checkpoint=3)
    with frozen(trial.teacher or torch.nn.Linear(1, 1)):
        outcome = train(trial.student, trial.objective, Rows(trial, dies_at), trial.stage, 3, "distill.1", work)
    return trial, outcome


@pytest.mark.parametrize("name", [n for n in TRIALS if n not in ("task, mobilebert", "mobilebert, reference")])
def test_training_lowers_the_loss_and_a_killed_run_ends_bit_for_bit_the_same(name, tmp_path):
    whole, wanted = learn(name, tmp_path / "whole")
    with pytest.raises(Killed):
        learn(name, tmp_path / "work", dies_at=5)
    again, found = learn(name, tmp_path / "work")
    assert found.history == wanted.history
    weights = whole.student.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in again.student.state_dict().items())
    whole.student.eval()
    before, after = (float(total(trial.objective, trial.terms()).detach()) for trial in (TRIALS[name](), whole))
    assert after < before
