"""The loss of every task against an independent computation in float64, and the laws that all of them keep."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind
from pocketbert.core.tasks import TASKS, Level, Task, TaskName
from pocketbert.distill.losses.task import _pool_states, count_labelled_tokens, gold_loss, soft_loss

Array = NDArray[np.float64]
SEEDS = st.integers(0, 9999)
ROWS, LENGTH, LABELS = 5, 7, 4
GOLD = [t for t in TASKS.values() if t.name is not TaskName.FEATURE_EXTRACTION]
POOLINGS = [Pooling(kind, True) for kind in PoolingKind]
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=lambda t: t.name.value)
every_gold = pytest.mark.parametrize("task", GOLD, ids=lambda t: t.name.value)


class Case:
    """A batch with the outputs of student and teacher.

    Attributes:
        batch: attention_mask and targets.
        made: Outputs of the student.
        taught: Outputs of the teacher, by name.
    """

    def __init__(self, task: Task, seed: int, offset: float = 0.0) -> None:
        draw = torch.Generator().manual_seed(seed)
        real = torch.randint(2, LENGTH + 1, (ROWS,), generator=draw)
        mask = (torch.arange(LENGTH)[None] < real[:, None]).long()
        self.batch: dict[str, Tensor] = {"attention_mask": mask, **_targets(task, mask, draw)}
        columns = 1 if task.name is TaskName.REGRESSION else LABELS
        shape = (ROWS, LENGTH, columns) if task.level is Level.TOKEN else (ROWS, columns)
        if task.name is TaskName.QUESTION_ANSWERING:
            shape = (ROWS, LENGTH)
        if task.name is TaskName.FEATURE_EXTRACTION:
            shape = (ROWS, LENGTH, 6)
        names = ("last_hidden_state",) if task.name is TaskName.FEATURE_EXTRACTION else task.outputs
        student = {n: torch.randn(shape, generator=draw) * 3 + offset for n in names}
        self.taught = {n: torch.randn(shape, generator=draw) * 3 + offset for n in names}
        self.made = SimpleNamespace(**student)


def _targets(task: Task, mask: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    if task.name is TaskName.MULTI_LABEL:
        return {"labels": (torch.rand(ROWS, LABELS, generator=draw) < 0.4).float()}
    if task.name is TaskName.REGRESSION:
        return {"labels": torch.randn(ROWS, generator=draw)}
    if task.name is TaskName.QUESTION_ANSWERING:
        last = mask.sum(-1) - 1
        start = (torch.rand(ROWS, generator=draw) * last).long()
        return {"start_positions": start, "end_positions": last}
    if task.level is Level.TOKEN:
        ids = torch.randint(0, LABELS, mask.shape, generator=draw)
        named = (torch.rand(mask.shape, generator=draw) < 0.6) & (mask == 1)
        named[0, 0] = True
        return {"labels": torch.where(named, ids, IGNORED_LABEL)}
    return {"labels": torch.randint(0, LABELS, (ROWS,), generator=draw)}


def wide(x: Tensor) -> Array:
    return x.double().numpy()


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def token_rows(batch: Mapping[str, Tensor]) -> list[tuple[int, int]]:
    labels = batch["labels"].numpy()
    return [(i, j) for i in range(labels.shape[0]) for j in range(labels.shape[1]) if labels[i, j] != IGNORED_LABEL]


def gold_by_hand(task: Task, case: Case) -> float:
    """Row by row, token by token."""
    batch = case.batch
    if task.name is TaskName.QUESTION_ANSWERING:
        out = []
        for i, size in enumerate(batch["attention_mask"].sum(-1).tolist()):
            for name, key in (("start_logits", "start_positions"), ("end_logits", "end_positions")):
                out.append(-log_softmax(wide(getattr(case.made, name))[i, :size])[int(batch[key][i])])
        return float(np.mean(out))
    logits, labels = wide(case.made.logits), batch["labels"].double().numpy()
    if task.name is TaskName.MULTI_LABEL:
        p = 1 / (1 + np.exp(-logits))
        return float(-(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean())
    if task.name is TaskName.REGRESSION:
        return float(((logits[:, 0] - labels) ** 2).mean())
    if task.level is Level.TOKEN:
        return float(np.mean([-log_softmax(logits[i, j])[int(labels[i, j])] for i, j in token_rows(batch)]))
    return float(np.mean([-log_softmax(logits[i])[int(labels[i])] for i in range(ROWS)]))


def kl(student: Array, teacher: Array, temperature: float) -> float:
    """T^2 KL of one distribution."""
    log_s, log_t = log_softmax(student / temperature), log_softmax(teacher / temperature)
    return float(temperature**2 * (np.exp(log_t) * (log_t - log_s)).sum())


def vector(states: Array, size: int, pooling: Pooling) -> Array:
    return np.asarray(states[0] if pooling.kind is PoolingKind.CLS else states[:size].mean(0))


def soft_by_hand(task: Task, case: Case, temperature: float, pooling: Pooling) -> float:
    batch, sizes = case.batch, case.batch["attention_mask"].sum(-1).tolist()
    ours, theirs = (
        {n: wide(t) for n, t in vars(case.made).items()},
        {n: wide(t) for n, t in case.taught.items()},
    )
    if task.name is TaskName.QUESTION_ANSWERING:
        return float(
            np.mean([kl(ours[n][i, :s], theirs[n][i, :s], temperature) for i, s in enumerate(sizes) for n in ours])
        )
    if task.name is TaskName.FEATURE_EXTRACTION:
        out = []
        for i, size in enumerate(sizes):
            a, b = (vector(v["last_hidden_state"][i], size, pooling) for v in (ours, theirs))
            out.append(1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
        return float(np.mean(out))
    s, t = ours["logits"], theirs["logits"]
    if task.name is TaskName.REGRESSION:
        return float(((s - t) ** 2).mean())
    if task.name is TaskName.MULTI_LABEL:
        zero = np.zeros_like(s)
        pairs = [np.stack([zero, x], -1) for x in (s, t)]
        return float(
            np.mean([kl(pairs[0][i, j], pairs[1][i, j], temperature) for i in range(ROWS) for j in range(LABELS)])
        )
    if task.level is Level.TOKEN:
        return float(np.mean([kl(s[i, j], t[i, j], temperature) for i, j in token_rows(batch)]))
    return float(np.mean([kl(s[i], t[i], temperature) for i in range(ROWS)]))


def longer(tensor: Tensor, value: float, rows: int) -> Tensor:
    """Padding behind dimension 1."""
    more = torch.full((tensor.shape[0], rows, *tensor.shape[2:]), value, dtype=tensor.dtype)
    return torch.cat([tensor, more], 1)


def padded(task: Task, case: Case, noise: float) -> Case:
    """The same batch with three tokens of padding more, whose outputs are whatever they are."""
    out = Case(task, 0)
    out.batch = dict(case.batch)
    out.batch["attention_mask"] = longer(case.batch["attention_mask"], 0, 3)
    per_token = task.level is Level.TOKEN or task.name is TaskName.FEATURE_EXTRACTION
    if task.level is Level.TOKEN and "labels" in case.batch:
        out.batch["labels"] = longer(case.batch["labels"], IGNORED_LABEL, 3)
    change = (lambda v, by: longer(v, by, 3)) if per_token else (lambda v, by: v)
    out.made = SimpleNamespace(**{n: change(v, noise) for n, v in vars(case.made).items()})
    out.taught = {n: change(v, -noise) for n, v in case.taught.items()}
    return out


def soft(task: Task, case: Case, temperature: float = 2.0, pooling: Pooling = DEFAULT_POOLING) -> Any:
    return soft_loss(task, case.made, case.taught, case.batch, temperature, pooling)


@every_gold
@settings(max_examples=20)
@given(seed=SEEDS)
def test_the_gold_loss_is_the_one_of_the_books(task: Task, seed: int) -> None:
    case = Case(task, seed)
    assert float(gold_loss(task, case.made, case.batch).mean) == pytest.approx(
        gold_by_hand(task, case), rel=1e-6, abs=1e-6
    )


@every_task
@pytest.mark.parametrize("pooling", POOLINGS, ids=lambda p: p.kind.value)
@settings(max_examples=20)
@given(seed=SEEDS, temperature=st.floats(0.5, 8))
def test_the_soft_loss_is_the_one_of_the_books(task: Task, pooling: Pooling, seed: int, temperature: float) -> None:
    case = Case(task, seed)
    wanted = soft_by_hand(task, case, temperature, pooling)
    assert float(soft(task, case, temperature, pooling).mean) == pytest.approx(wanted, rel=1e-5, abs=2e-6)


@every_task
@settings(max_examples=20)
@given(seed=SEEDS, temperature=st.floats(0.5, 8))
def test_a_student_that_answers_as_its_teacher_costs_nothing(task: Task, seed: int, temperature: float) -> None:
    case = Case(task, seed)
    case.made = SimpleNamespace(**case.taught)
    assert float(soft(task, case, temperature).mean) == pytest.approx(0, abs=1e-5)
    other = Case(task, seed)
    assert float(soft(task, other, temperature).mean) > 1e-4


@every_task
@settings(max_examples=20)
@given(seed=SEEDS, noise=st.floats(-1e3, 1e3))
def test_padding_appended_changes_nothing(task: Task, seed: int, noise: float) -> None:
    short = Case(task, seed)
    long = padded(task, short, noise)
    terms = [(soft(task, short), soft(task, long))]
    if task in GOLD:
        terms.append((gold_loss(task, short.made, short.batch), gold_loss(task, long.made, long.batch)))
    for before, after in terms:
        assert float(after.mean) == pytest.approx(float(before.mean), rel=1e-5, abs=1e-6)
        assert float(after.count) == float(before.count)


@every_task
@settings(max_examples=20)
@given(seed=SEEDS)
def test_items_are_counted_from_the_batch_as_in_the_terms(task: Task, seed: int) -> None:
    case = Case(task, seed)
    before = {"logits": soft(task, case)} | ({"labels": gold_loss(task, case.made, case.batch)} if task in GOLD else {})
    found = count_labelled_tokens(task, case.batch)
    for name, term in before.items():
        assert float(term.count) == float(found.get(name, torch.tensor(ROWS))), name
        assert not term.count.requires_grad
    if task.name in (TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK):
        assert float(found["labels"]) == len(token_rows(case.batch))


@every_task
@settings(max_examples=20)
@given(seed=SEEDS, cut=st.integers(1, ROWS - 1))
def test_parts_with_their_counts_add_up_to_the_batch(task: Task, seed: int, cut: int) -> None:
    case = Case(task, seed)

    def part(rows: slice) -> Case:
        out = Case(task, 0)
        out.batch = {n: v[rows] for n, v in case.batch.items()}
        out.made = SimpleNamespace(**{n: v[rows] for n, v in vars(case.made).items()})
        out.taught = {n: v[rows] for n, v in case.taught.items()}
        return out

    losses = [soft] if task not in GOLD else [soft, lambda t, c: gold_loss(t, c.made, c.batch)]
    for loss in losses:
        whole, parts = loss(task, case), [loss(task, part(s)) for s in (slice(0, cut), slice(cut, ROWS))]
        count = sum(float(p.count) for p in parts)
        assert count == float(whole.count)
        assert sum(float(p.mean) * float(p.count) for p in parts) / count == pytest.approx(float(whole.mean), rel=1e-5)


@pytest.mark.parametrize("name", [TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK])
def test_a_batch_without_labelled_tokens_teaches_nothing_and_breaks_nothing(name: TaskName) -> None:
    task, case = TASKS[name], Case(TASKS[name], 1)
    case.batch["labels"] = torch.full((ROWS, LENGTH), IGNORED_LABEL)
    case.made.logits.requires_grad_()
    for term in (soft(task, case), gold_loss(task, case.made, case.batch)):
        assert (float(term.mean.detach()), float(term.count)) == (0.0, 0.0)
        [gradient] = torch.autograd.grad(term.mean, case.made.logits, retain_graph=True)
        assert not gradient.any()


@every_task
def test_gradients_of_the_student_are_finite(task: Task) -> None:
    case = Case(task, 3, offset=50.0)
    for tensor in [*vars(case.made).values(), *case.taught.values()]:
        tensor.requires_grad_()
    means = [soft(task, case).mean] + ([gold_loss(task, case.made, case.batch).mean] if task in GOLD else [])
    for mean in means:
        grads = torch.autograd.grad(mean, list(vars(case.made).values()), retain_graph=True)
        assert all(torch.isfinite(g).all() for g in grads)
        assert any(g.any() for g in grads)


@pytest.mark.parametrize("pooling", POOLINGS, ids=lambda p: p.kind.value)
def test_pooled_states_are_the_definition(pooling: Pooling) -> None:
    case = Case(TASKS[TaskName.FEATURE_EXTRACTION], 2)
    found = _pool_states(case.made.last_hidden_state, case.batch["attention_mask"], pooling)
    for i, size in enumerate(case.batch["attention_mask"].sum(-1).tolist()):
        np.testing.assert_allclose(
            found[i], vector(wide(case.made.last_hidden_state)[i], size, pooling), rtol=1e-5, atol=1e-6
        )
