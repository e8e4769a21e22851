"""The loss of every task against an independent computation in float64, and the laws that all of them keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL, LABELLED_ROWS
from pocketbert.core.predict.predictor import pool_embeddings
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind, VectorLayer
from pocketbert.core.tasks import TASKS, Level, ScoreFunction, Task, TaskName, several_task, task_of
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.task import (
    QUERY_ROWS,
    TEXT_NUMBERS,
    contrastive_loss,
    count_labelled_tokens,
    gold_loss,
    gold_terms,
    head_weights,
    margin_loss,
    order_loss,
    soft_loss,
    soft_terms,
)

Array = NDArray[np.float64]
SEEDS = st.integers(0, 9999)
ROWS, LENGTH, LABELS = 5, 7, 4
RERANKING = replace(TASKS[TaskName.REGRESSION], score=ScoreFunction.SIGMOID)
CHOOSE = TASKS[TaskName.MULTIPLE_CHOICE]
EVERY = {name.value: task for name, task in TASKS.items() if task is not CHOOSE} | {"reranking": RERANKING}
"""Multiple choice, whose rows belong together, has tests of its own below."""
PER_TOKEN = ["token-classification", "fill-mask"]
every_task = pytest.mark.parametrize("name", EVERY)
laws = settings(max_examples=6)


@dataclass
class Case:
    """A batch with the outputs of student and teacher by name."""

    task: Task
    batch: dict[str, Tensor]
    made: dict[str, Tensor]
    taught: dict[str, Tensor]

    def losses(self, temperature: float = 2.0, pooling: Pooling = DEFAULT_POOLING) -> dict[str, Term]:
        """The soft loss, and the gold one where the task has any."""
        outputs = SimpleNamespace(**self.made)
        found = {"logits": soft_loss(self.task, outputs, self.taught, self.batch, temperature, pooling)}
        if self.task.name is not TaskName.FEATURE_EXTRACTION:
            found["labels"] = gold_loss(self.task, outputs, self.batch)
        return found

    def rows(self, part: slice) -> Case:
        taken = ({n: v[part] for n, v in tensors.items()} for tensors in (self.batch, self.made, self.taught))
        return Case(self.task, *taken)


def draw_case(name: str, seed: int) -> Case:
    task, draw = EVERY[name], torch.Generator().manual_seed(seed)
    mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (ROWS, 1), generator=draw)).long()
    width = {TaskName.REGRESSION: 1, TaskName.FEATURE_EXTRACTION: 6}.get(task.name, LABELS)
    of_tokens = task.level is Level.TOKEN or task.name is TaskName.FEATURE_EXTRACTION
    shape: tuple[int, ...] = (ROWS, LENGTH, width) if of_tokens else (ROWS, width)
    names = task.outputs
    if task.name is TaskName.QUESTION_ANSWERING:
        shape = (ROWS, LENGTH)
    if task.name is TaskName.FEATURE_EXTRACTION:
        names = ("last_hidden_state",)
    made, taught = ({n: torch.randn(shape, generator=draw) * 3 for n in names} for _ in range(2))
    return Case(task, {"attention_mask": mask, **draw_targets(task, mask, draw)}, made, taught)


def draw_targets(task: Task, mask: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    if task.name is TaskName.MULTI_LABEL:
        return {"labels": (torch.rand(ROWS, LABELS, generator=draw) < 0.4).float()}
    if task.name is TaskName.REGRESSION:
        return {"labels": torch.rand(ROWS, generator=draw)}
    if task.name is TaskName.QUESTION_ANSWERING:
        last = mask.sum(-1) - 1
        return {"start_positions": (torch.rand(ROWS, generator=draw) * last).long(), "end_positions": last}
    if task.level is Level.TOKEN:
        ids = torch.randint(0, LABELS, mask.shape, generator=draw)
        named = (torch.rand(mask.shape, generator=draw) < 0.6) & (mask == 1)
        named[:, 0] = True
        return {"labels": torch.where(named, ids, IGNORED_LABEL)}
    return {"labels": torch.randint(0, LABELS, (ROWS,), generator=draw)}


def wide(tensors: dict[str, Tensor]) -> dict[str, Array]:
    return {name: value.double().numpy() for name, value in tensors.items()}


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def distributions(case: Case) -> Iterator[tuple[Array, Array, Array]]:
    """Scores of student and teacher and the gold shares, wherever the task has a distribution."""
    ours, theirs, batch = wide(case.made), wide(case.taught), wide(case.batch)
    if case.task.name is TaskName.QUESTION_ANSWERING:
        for row, size in enumerate(case.batch["attention_mask"].sum(-1).tolist()):
            for kind in ("start", "end"):
                gold = np.eye(size)[int(batch[f"{kind}_positions"][row])]
                yield ours[f"{kind}_logits"][row, :size], theirs[f"{kind}_logits"][row, :size], gold
        return
    s, t, labels = ours["logits"], theirs["logits"], batch["labels"]
    if case.task.name in (TaskName.MULTI_LABEL, TaskName.REGRESSION):
        for place, share in np.ndenumerate(labels.reshape(s.shape)):
            yield np.array([0, s[place]]), np.array([0, t[place]]), np.array([1 - share, share])
        return
    for place, label in np.ndenumerate(labels):
        if label != IGNORED_LABEL:
            yield s[place], t[place], np.eye(LABELS)[int(label)]


def gold_formula(case: Case) -> float:
    if case.task.score is ScoreFunction.NONE:
        return float(((wide(case.made)["logits"][:, 0] - wide(case.batch)["labels"]) ** 2).mean())
    return float(np.mean([-(gold * log_softmax(s)).sum() for s, _, gold in distributions(case)]))


def soft_formula(case: Case, temperature: float, pooling: Pooling) -> float:
    ours, theirs = wide(case.made), wide(case.taught)
    if case.task.name is TaskName.REGRESSION:
        return float(((ours["logits"] - theirs["logits"]) ** 2).mean())
    found = []
    if case.task.name is TaskName.FEATURE_EXTRACTION:
        for row, size in enumerate(case.batch["attention_mask"].sum(-1).tolist()):
            real = np.ones((1, size), np.int64)
            rows = (states["last_hidden_state"][row : row + 1, :size] for states in (ours, theirs))
            a, b = (
                pool_embeddings(states, real, replace(pooling, normalize=False))[0].astype(float) for states in rows
            )
            cuts = [(a[:n], b[:n]) for n in (*pooling.dimensions, len(a))]
            found.append(np.mean([1 - s @ t / (np.linalg.norm(s) * np.linalg.norm(t)) for s, t in cuts]))
    else:
        for s, t, _ in distributions(case):
            log_s, log_t = log_softmax(s / temperature), log_softmax(t / temperature)
            found.append(temperature**2 * (np.exp(log_t) * (log_t - log_s)).sum())
    return float(np.mean(found))


@every_task
@pytest.mark.parametrize("kind", PoolingKind)
@laws
@given(
    seed=SEEDS,
    temperature=st.floats(0.5, 8),
    cut=st.sampled_from([(), (2,), (1, 4)]),
    layers=st.sampled_from([(), (VectorLayer("Normalize"), VectorLayer("Cut", 5))]),
)
def test_losses_and_counts_are_those_of_the_books(name, kind, seed, temperature, cut, layers):
    case, pooling = draw_case(name, seed), Pooling(kind, True, layers=layers, dimensions=cut)
    terms = case.losses(temperature, pooling)
    wanted = soft_formula(case, temperature, pooling)
    assert float(terms["logits"].mean) == pytest.approx(wanted, rel=1e-5, abs=2e-6)
    if "labels" in terms:
        assert float(terms["labels"].mean) == pytest.approx(gold_formula(case), rel=1e-6, abs=1e-6)
    items = len(list(distributions(case))) if name in PER_TOKEN else ROWS
    announced = count_labelled_tokens(case.task, case.batch)
    assert announced.keys() == (terms.keys() if name in PER_TOKEN else set())
    for term in (*announced.values(), *(t.count for t in terms.values())):
        assert float(term) == items and not term.requires_grad


@every_task
@laws
@given(seed=SEEDS, noise=st.floats(-1e3, 1e3))
def test_padding_appended_changes_nothing(name, seed, noise):
    short, long = draw_case(name, seed), draw_case(name, seed)
    for tensors, fill in ((long.batch, 0), (long.made, noise), (long.taught, -noise)):
        for key, value in tensors.items():
            if value.ndim > 1 and value.shape[1] == LENGTH:
                more = value.new_full((ROWS, 3, *value.shape[2:]), IGNORED_LABEL if key == "labels" else fill)
                tensors[key] = torch.cat([value, more], 1)
    for key, term in short.losses().items():
        after = long.losses()[key]
        assert float(after.mean) == pytest.approx(float(term.mean), rel=1e-5, abs=1e-6)
        assert float(after.count) == float(term.count)


@every_task
@laws
@given(seed=SEEDS, cut=st.integers(1, ROWS - 1))
def test_parts_with_their_counts_add_up_to_the_batch(name, seed, cut):
    case = draw_case(name, seed)
    parts = [case.rows(part).losses() for part in (slice(cut), slice(cut, ROWS))]
    for key, whole in case.losses().items():
        total = sum(float(p[key].mean) * float(p[key].count) for p in parts)
        assert sum(float(p[key].count) for p in parts) == float(whole.count)
        assert total / float(whole.count) == pytest.approx(float(whole.mean), rel=1e-5)


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_batch_without_labelled_tokens_teaches_nothing_and_breaks_nothing(name):
    case = draw_case(name, 1)
    case.batch["labels"] = torch.full((ROWS, LENGTH), IGNORED_LABEL)
    case.made["logits"].requires_grad_()
    for term in case.losses().values():
        assert (float(term.mean.detach()), float(term.count)) == (0.0, 0.0)
        [gradient] = torch.autograd.grad(term.mean, case.made["logits"], retain_graph=True)
        assert not gradient.any()


@every_task
def test_gradients_of_large_outputs_in_half_precision_are_finite_and_losses_are_float32(name):
    case = draw_case(name, 3)
    case.made = {n: (v + 50).bfloat16().requires_grad_() for n, v in case.made.items()}
    case.taught = {n: (v + 50).bfloat16() for n, v in case.taught.items()}
    for term in case.losses().values():
        gradients = torch.autograd.grad(term.mean, list(case.made.values()), retain_graph=True)
        assert term.mean.dtype is torch.float32
        assert all(g.isfinite().all() for g in gradients) and any(g.any() for g in gradients)


def choice_case(right: list[int], count: int, seed: int) -> Case:
    """Questions of `count` choices each, the right ones by number."""
    draw, rows = torch.Generator().manual_seed(seed), len(right) * count
    labels = torch.zeros(len(right), count, dtype=torch.long)
    labels[range(len(right)), right] = 1
    batch = {"labels": labels.flatten(), "choices": torch.full((rows,), count), "attention_mask": torch.ones(rows, 3)}
    made, taught = ({"logits": torch.randn(rows, 1, generator=draw) * 3} for _ in range(2))
    return Case(CHOOSE, batch, made, taught)


def test_the_losses_of_multiple_choice_are_over_the_choices_of_each_question():
    case = choice_case([2, 0, 1], 3, seed=1)
    ours, theirs = (log_softmax(wide(t)["logits"].reshape(3, 3) / 2.0) for t in (case.made, case.taught))
    terms = case.losses(temperature=2.0)
    assert float(terms["logits"].mean) == pytest.approx(4 * (np.exp(theirs) * (theirs - ours)).sum(-1).mean(), rel=1e-5)
    gold = -log_softmax(wide(case.made)["logits"].reshape(3, 3))[range(3), [2, 0, 1]].mean()
    assert float(terms["labels"].mean) == pytest.approx(gold, rel=1e-5)
    assert {float(term.count) for term in terms.values()} == {9.0}
    parts = [case.rows(slice(3)).losses(), case.rows(slice(3, 9)).losses()]
    for key, whole in case.losses().items():
        total = sum(float(p[key].mean) * float(p[key].count) for p in parts)
        assert total / 9 == pytest.approx(float(whole.mean), rel=1e-5)


def test_rows_that_fill_up_a_question_change_no_loss_and_get_no_gradient():
    short = choice_case([1, 0], 2, seed=2)
    keep = torch.tensor([0, 1, 3, 4])
    long = choice_case([1, 0], 3, seed=3)
    long.batch["labels"] = torch.tensor([0, 1, IGNORED_LABEL, 1, 0, IGNORED_LABEL])
    for wider, own in ((long.made, short.made), (long.taught, short.taught)):
        wider["logits"][keep] = own["logits"]
    long.made["logits"].requires_grad_()
    for key, term in long.losses().items():
        assert float(term.mean.detach()) == pytest.approx(float(short.losses()[key].mean), rel=1e-5)
        [gradient] = torch.autograd.grad(term.mean, long.made["logits"], retain_graph=True)
        assert gradient[keep].abs().min() > 0 and not gradient[[2, 5]].any()


@pytest.mark.parametrize("kind", PoolingKind)
def test_a_row_without_tokens_gives_a_finite_loss(kind):
    case = draw_case(TaskName.FEATURE_EXTRACTION, 3)
    case.batch["attention_mask"][0] = 0
    loss = case.losses(1.0, Pooling(kind, True, (PoolingKind.MAX,)))["logits"]
    assert torch.isfinite(loss.mean)


@every_task
def test_the_gold_loss_is_that_of_the_labelled_rows_alone(name):
    case = draw_case(name, 3)
    if case.task.name is TaskName.FEATURE_EXTRACTION:
        return
    marks = torch.tensor([True, False, True, True, False])
    mixed = Case(case.task, {**case.batch, LABELLED_ROWS: marks}, case.made, case.taught)
    alone = Case(case.task, *({n: v[marks] for n, v in t.items()} for t in (case.batch, case.made, case.taught)))
    found, wanted = mixed.losses(), alone.losses()
    torch.testing.assert_close(found["labels"].mean, wanted["labels"].mean)
    assert float(found["labels"].count) == float(wanted["labels"].count)
    counts = count_labelled_tokens(case.task, mixed.batch)
    assert float(counts["labels"]) == float(found["labels"].count)
    assert float(found["logits"].count) == float(case.losses()["logits"].count), "the teacher speaks of all rows"
    none = {**case.batch, LABELLED_ROWS: torch.zeros(ROWS, dtype=torch.bool)}
    empty = Case(case.task, none, case.made, case.taught).losses()["labels"]
    assert (float(empty.mean), float(empty.count)) == (0.0, 0.0)


# losses of vectors


def draw_texts(seed: int, rows: int) -> tuple[torch.Generator, SimpleNamespace, dict[str, torch.Tensor], np.ndarray]:
    """Random states of texts, and the mean of each in float64."""
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn((rows, LENGTH, 6), generator=draw)
    batch = {"attention_mask": torch.ones(rows, LENGTH, dtype=torch.long)}
    return draw, SimpleNamespace(last_hidden_state=states), batch, wide({"v": states})["v"].mean(1)


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


@laws
@given(seed=SEEDS, cut=st.sampled_from([(), (2, 4)]))
def test_the_order_of_scored_pairs_is_that_of_cosent(seed, cut):
    draw, outputs, batch, means = draw_texts(seed, 8)
    scores = torch.randint(0, 3, (4,), generator=draw).float()
    found = order_loss(outputs, {**batch, "labels": scores.repeat_interleave(2)}, Pooling(dimensions=cut))
    wanted = []
    for n in (*cut, 6):
        vectors = unit(means[:, :n])
        cosines = (vectors[::2] * vectors[1::2]).sum(1)
        terms = [np.exp(20 * (cosines[j] - cosines[i])) for i in range(4) for j in range(4) if scores[i] > scores[j]]
        wanted.append(np.log1p(sum(terms)))
    assert float(found.mean) == pytest.approx(float(np.mean(wanted)), rel=1e-5, abs=1e-6)
    assert float(found.count) == 8, "rows, as the other terms count them"


@laws
@given(seed=SEEDS, cut=st.sampled_from([(), (2, 4)]), normalize=st.booleans())
def test_margins_are_those_of_the_paper(seed, cut, normalize):
    draw, outputs, batch, means = draw_texts(seed, 12)
    margins = torch.randn(4, generator=draw) * 3
    pooling = Pooling(dimensions=cut, normalize=normalize)
    found = margin_loss(outputs, {**batch, "labels": margins.repeat_interleave(3)}, pooling)
    wanted = []
    for n in (*cut, 6):
        vectors = unit(means[:, :n]) if normalize or n < 6 else means
        query, better, other = vectors[::3], vectors[1::3], vectors[2::3]
        errors = (query * better).sum(1) - (query * other).sum(1) - margins.numpy().astype(float)
        wanted.append((errors**2).mean())
    assert float(found.mean) == pytest.approx(float(np.mean(wanted)), rel=1e-6, abs=1e-6)
    assert float(found.count) == 12


@laws
@given(seed=SEEDS, cut=st.sampled_from([(), (2, 4)]), together=st.sampled_from([2, 3]))
def test_other_texts_of_a_batch_are_negatives_unless_they_are_paired_with_the_query(seed, cut, together):
    draw, outputs, batch, means = draw_texts(seed, 5 * together)
    numbers = torch.randint(0, 4, (5, together), generator=draw)
    numbers[:, 0] += 2  # some queries are texts of others
    sizes = torch.full((5 * together,), together)
    given_batch = {**batch, TEXT_NUMBERS: numbers.flatten(), QUERY_ROWS: sizes}
    found = contrastive_loss(outputs, given_batch, Pooling(dimensions=cut))
    paired = {(int(own[0]), int(own[1])) for own in numbers}
    wanted = []
    for n in (*cut, 6):
        vectors = unit(means[:, :n]).reshape(5, together, n)
        for i in range(5):
            logits = {(j, k): 20 * vectors[i, 0] @ vectors[j, k] for j in range(5) for k in range(1, together)}
            kept = [
                value
                for (j, k), value in logits.items()
                if (j, k) == (i, 1) or (int(numbers[i, 0]), int(numbers[j, k])) not in paired
            ]
            wanted.append(np.log(np.exp(kept).sum()) - logits[i, 1])
    assert float(found.mean) == pytest.approx(float(np.mean(wanted)), rel=1e-5, abs=1e-5)
    assert float(found.count) == 5 * together


# several heads: each term is that of the head by itself, and rows without its label are in none of them

HEAD_LABELS = ("intent: a", "intent: b", "mood: number", "slots: O", "slots: B-x", "slots: I-x")
SEVERAL = several_task(
    {"intent": "text-classification", "mood": "regression", "slots": "token-classification"},
    HEAD_LABELS,
    {"intent": 1, "mood": 1, "slots": 0.5},
)
HEAD_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
HEAD_TAGS = torch.tensor([[-100, 1, 2, -100], [-100, 0, -100, -100], [-100, 0, -100, -100]])
HEADS_BATCH = {
    "attention_mask": HEAD_MASK,
    "intent.labels": torch.tensor([1, 0, 0]),
    "intent.labelled": torch.tensor([True, False, True]),
    "mood.labels": torch.tensor([0.5, 0.2, 0.0]),
    "slots.labels": HEAD_TAGS,
    "slots.labelled": torch.tensor([True, True, False]),
}


def draw_logits(seed: int) -> Any:
    return torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


def alone(name: str, logits: torch.Tensor) -> Any:
    head = next(h for h in SEVERAL.heads if h.name == name)
    own = logits[:, :, head.columns] if name == "slots" else logits[:, 0, head.columns]
    return SimpleNamespace(logits=own)


def own_batch(name: str) -> dict[str, torch.Tensor]:
    return {
        "attention_mask": HEAD_MASK,
        **{k.partition(".")[2]: v for k, v in HEADS_BATCH.items() if k.startswith(f"{name}.")},
    }


@pytest.mark.parametrize(
    ("name", "task"),
    [("intent", "text-classification"), ("mood", "regression"), ("slots", "token-classification")],
)
def test_each_term_is_that_of_the_head_by_itself(name, task):
    logits, taught = draw_logits(1), draw_logits(2)
    outputs = SimpleNamespace(logits=logits)
    gold = gold_terms(SEVERAL, outputs, HEADS_BATCH)[f"labels.{name}"]
    wanted = gold_loss(task_of(task), alone(name, logits), own_batch(name))
    assert gold.mean.item() == pytest.approx(wanted.mean.item(), abs=1e-6)
    soft = soft_terms(SEVERAL, outputs, {"logits": taught}, HEADS_BATCH, 2.0, DEFAULT_POOLING)[f"logits.{name}"]
    other = {"logits": alone(name, taught).logits}
    wanted = soft_loss(task_of(task), alone(name, logits), other, own_batch(name), 2.0, DEFAULT_POOLING)
    assert soft.mean.item() == pytest.approx(wanted.mean.item(), abs=1e-6)
    assert soft.mean.item() > 0


def test_a_row_without_a_label_of_a_head_gives_it_no_gold_loss():
    logits = draw_logits(1).requires_grad_()
    terms = gold_terms(SEVERAL, SimpleNamespace(logits=logits), HEADS_BATCH)
    [gradient] = torch.autograd.grad(terms["labels.intent"].mean, logits)
    assert (gradient[1] == 0).all()
    assert (gradient[0, 0, :2] != 0).all()
    assert (gradient[0, 1:] == 0).all(), "a head on whole texts is read at the first token only"
    logits = draw_logits(1).requires_grad_()
    terms = gold_terms(SEVERAL, SimpleNamespace(logits=logits), HEADS_BATCH)
    [gradient] = torch.autograd.grad(terms["labels.slots"].mean, logits)
    assert (gradient[2] == 0).all()
    assert (gradient[..., :3] == 0).all()
    counts = count_labelled_tokens(SEVERAL, HEADS_BATCH)
    assert {name: int(value) for name, value in counts.items()} == {
        "labels.intent": 2,
        "labels.slots": 3,
        "logits.slots": 4,
    }
    of_columns = replace(SEVERAL, heads=tuple(replace(head, learns_from="column") for head in SEVERAL.heads))
    assert int(count_labelled_tokens(of_columns, HEADS_BATCH)["logits.slots"]) == 3, "a column has labelled rows only"


def test_weights_are_those_of_the_term_times_those_of_the_head():
    found = head_weights(SEVERAL, {"logits": 2.0, "labels": 1.0, "hidden": 3.0})
    assert found["hidden"] == 3.0
    assert found["logits.intent"] == 2.0
    assert found["logits.slots"] == 1.0
    assert found["labels.slots"] == 0.5
    assert "logits" not in found
    assert head_weights(task_of("regression"), {"logits": 2.0}) == {"logits": 2.0}
