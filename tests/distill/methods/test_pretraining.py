from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.losses.common import Counting, Term, scale_partial_mean
from pocketbert.distill.methods.mobilebert import Pretraining
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training.loop import train
from support.tiny import PRETRAINED

BATCH = {
    "input_ids": [[2, 11, 4, 3, 14, 15, 3], [2, 21, 4, 4, 3, 0, 0], [2, 31, 3, 4, 3, 0, 0]],
    "attention_mask": [[1] * 7, [1] * 5 + [0] * 2, [1] * 5 + [0] * 2],
    "token_type_ids": [[0, 0, 0, 0, 1, 1, 1], [0] * 7, [0, 0, 0, 1, 1, 0, 0]],
    "labels": [[-100, 41, 42, -100, -100, 43, -100], [-100, -100, 44, -100, -100, -100, -100], [-100] * 7],
    "next_sentence_label": [0, -100, 1],
}


def batch_of(rows: Sequence[int] = (0, 1, 2), more: int = 0) -> dict[str, Tensor]:
    made = {name: torch.tensor(values)[list(rows)] for name, values in BATCH.items()}
    fill = {"labels": -100}
    return {
        name: torch.nn.functional.pad(v, (0, more), value=fill.get(name, 0)) if v.ndim > 1 else v
        for name, v in made.items()
    }


@pytest.fixture(params=PRETRAINED)
def model(request: pytest.FixtureRequest, make_classifier: Callable[..., Any]) -> Any:
    return make_classifier(request.param, 2, ("a", "b"), auto_class="AutoModelForPreTraining")


def objective(model: Any, **more: Any) -> Pretraining:
    return Pretraining(model, family_of(model.config.model_type), **more)


def log_share(row: Tensor, chosen: int) -> float:
    """Log of one entry's share after a softmax, term by term."""
    values = [float(v) for v in row]
    most = max(values)
    return values[chosen] - most - math.log(sum(math.exp(v - most) for v in values))


@torch.no_grad()
def test_terms_are_those_of_loops_over_tokens_and_rows(model: Any) -> None:
    batch, model = batch_of(), model.double()
    made = model(**{name: batch[name] for name in family_of(model.config.model_type).inputs})
    guesses = [
        -log_share(made.prediction_logits[i, t], int(batch["labels"][i, t]))
        for i in range(3)
        for t in range(7)
        if batch["labels"][i, t] != -100
    ]
    pairs = [
        -log_share(made.seq_relationship_logits[i], int(label))
        for i, label in enumerate(batch["next_sentence_label"])
        if label != -100
    ]
    terms = objective(model)(model, batch)
    assert list(terms) == ["mlm", "next_sentence"]
    for name, wanted in (("mlm", guesses), ("next_sentence", pairs)):
        assert float(terms[name].mean) == pytest.approx(sum(wanted) / len(wanted), rel=1e-6)
        assert float(terms[name].count) == len(wanted)


@torch.no_grad()
def test_more_padding_changes_nothing(model: Any) -> None:
    """A pad's row of the table is zero here; what it is otherwise only the token before the first pad sees."""
    made = objective(model)
    short, long = (made(model, batch_of(more=more)) for more in (0, 4))
    for name, term in short.items():
        torch.testing.assert_close(term.mean, long[name].mean, rtol=1e-5, atol=1e-6)
        assert term.count == long[name].count


@torch.no_grad()
def test_counts_are_announced_and_parts_add_up(model: Any) -> None:
    made = objective(model)
    assert isinstance(made, Counting)
    whole, parts = batch_of(), [batch_of((0, 1)), batch_of((2,))]

    def counted(batch: dict[str, Tensor], terms: Mapping[str, Term]) -> dict[str, float]:
        said = {name: float(value) for name, value in made.counts(batch).items()}
        assert said == {name: float(term.count) for name, term in terms.items()}
        return said

    terms = made(model, whole)
    total, sums = counted(whole, terms), dict.fromkeys(terms, 0.0)
    for part in parts:
        found = made(model, part)
        for name, count in counted(part, found).items():
            sums[name] += float(scale_partial_mean(found[name].mean, count, total[name]))
    assert sums == pytest.approx({name: float(term.mean) for name, term in terms.items()}, rel=1e-5)


def test_only_hidden_tokens_reach_the_vocabulary(model: Any) -> None:
    shapes: list[tuple[int, ...]] = []
    model.cls.predictions.register_forward_hook(lambda m, a, out: shapes.append(tuple(out.shape)))
    terms = objective(model)(model, batch_of())
    assert shapes == [(4, model.config.vocab_size)]
    sum((t.mean for t in terms.values()), torch.zeros(())).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_pairs_need_a_head_for_them(make_classifier: Callable[..., Any]) -> None:
    model = make_classifier("ib-bert", 1, ("a", "b"), auto_class="AutoModelForMaskedLM")
    with pytest.raises(InputError, match=r"IbBertForMaskedLM has no next-sentence head.*IbBertForPreTraining"):
        objective(model)
    batch = batch_of()
    del batch["next_sentence_label"]
    assert list(objective(model, next_sentence=False)(model, batch)) == ["mlm"]


def test_both_losses_fall(open_tiny: Callable[..., Any], make_classifier: Callable[..., Any], tmp_path: Path) -> None:
    from pocketbert.core.types import MaskingKind
    from pocketbert.distill.text.masking import masking_of
    from pocketbert.distill.text.pairs import pairs_of

    *_, tokenizer = open_tiny("ib-bert", 1)
    rows = Corpus(tokenizer.vocabulary_size)
    torch.manual_seed(derive_seed(0, "test"))
    model = make_classifier("ib-bert", 2, ("a", "b"), auto_class="AutoModelForPreTraining", vocab_size=rows.size)
    masking = masking_of(MaskingKind.DYNAMIC, rows.counts, tokenizer, 0, "test")
    data = GeneralSet(rows, tokenizer, masking, pairs=pairs_of(tokenizer, rows.size, 0, "test"))
    settings = Optimisation(steps=120, batch=32, lr=5e-3, dropout=0.0)
    history = train(model, objective(model), data, settings, 0, "test", tmp_path).history
    for name in ("mlm", "next_sentence"):
        assert history[-1].terms[name] < 0.8 * history[0].terms[name], [r.terms for r in history]


class Corpus:
    """Rows of one word each, so that what follows is told from what does not by comparing words."""

    def __init__(self, size: int) -> None:
        self.size = size
        words = np.arange(64, 80)
        self._rows = [np.array([2, *[w] * 12, 3]) for w in words]
        self.lengths = np.array([len(r) for r in self._rows])
        self.counts = np.bincount(np.concatenate(self._rows), minlength=size)

    def ids(self, rows: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        return [self._rows[r] for r in rows]
