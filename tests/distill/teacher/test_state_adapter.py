"""The map from a teacher's states to a narrower student: principal components, fixed before training."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from pocketbert.core.families import family_of
from pocketbert.core.types import MobileBertSize
from pocketbert.distill.students.mobilebert import transfer_student
from pocketbert.distill.teacher.state_adapter import StateAdapter, fit_adapter, reduce_embeddings

WORDS, WIDTH = 90, 160
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def make_teacher(family: str = "bert") -> Any:
    """With 32 positions, whatever the family's table has besides."""
    torch.manual_seed(0)
    kinds = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(max_position_embeddings=32, **SIZES)),
        "roberta": lambda: transformers.RobertaModel(
            transformers.RobertaConfig(max_position_embeddings=34, type_vocab_size=1, **SIZES)
        ),
        "distilbert": lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(
                vocab_size=WORDS, max_position_embeddings=32, dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=64
            )
        ),
    }
    return kinds[family]().eval().requires_grad_(False)


class Rows:
    """Random text of two lengths; satisfies TrainData."""

    lengths = [12, 7] * 40

    def __init__(self, pad: int = 0) -> None:
        self.width = 12 + pad

    def batch(self, chosen: Any, step: int) -> dict[str, Tensor]:
        ids = torch.zeros(len(chosen), self.width, dtype=torch.long)
        for i, row in enumerate(chosen):
            length = self.lengths[row]
            ids[i, :length] = torch.randint(1, WORDS, (length,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": torch.zeros_like(ids)}


def test_nothing_of_this_width_keeps_more_of_the_states():
    model, batch = make_teacher(), Rows().batch(range(80), 0)
    made = model(**batch, output_hidden_states=True).hidden_states
    states = torch.cat([state[batch["attention_mask"].bool()] for state in made]).double()
    adapter = fit_adapter(model, family_of("bert"), Rows(), 24)
    centred = states - states.mean(0)
    values = torch.linalg.svdvals(centred).square()
    assert adapter.kept == pytest.approx(float(values[:24].sum() / values.sum()), rel=1e-4)
    short = adapter(states)
    assert short.shape == (len(states), adapter.width) == (len(states), 24)
    back = short @ adapter.basis.double().T
    assert float((centred - back).square().sum()) == pytest.approx(float(values[24:].sum()), rel=1e-3)
    torch.testing.assert_close(adapter.basis.T @ adapter.basis, torch.eye(24), atol=1e-5, rtol=0)


def test_padding_changes_nothing_and_twice_gives_the_same():
    one, padded, again = (fit_adapter(make_teacher(), family_of("bert"), Rows(pad), 8) for pad in (0, 9, 0))
    torch.testing.assert_close(one.basis, padded.basis, atol=1e-4, rtol=1e-3)
    assert torch.equal(one.basis, again.basis)


def test_embeddings_start_where_the_teachers_are():
    model, batch = make_teacher(), Rows().batch(range(40), 0)
    student = transfer_student(model, MobileBertSize.MINI, 0)
    adapter = fit_adapter(model, family_of("bert"), Rows(), student.config.hidden_size)
    real = batch.pop("attention_mask").bool()

    def likeness() -> float:
        with torch.no_grad():
            states = adapter(model.embeddings(**batch))[real], student.embeddings(**batch)[real]
        theirs, ours = (x - x.mean(0) for x in states)
        return float((theirs * ours).sum() / theirs.norm() / ours.norm())

    assert abs(likeness()) < 0.1
    reduce_embeddings(model, student, adapter)
    assert likeness() > 0.4, "32 of 160 random directions of the words are left"


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_teachers_with_other_tables_have_a_student_too(family):
    model = make_teacher(family)
    student = transfer_student(model, MobileBertSize.MINI, 0)
    assert student.config.max_position_embeddings == 32
    adapter = fit_adapter(model, family_of(family), Rows(), 128)
    reduce_embeddings(model, student, adapter)
    table = model.embeddings.position_embeddings.weight[-32:].double()
    expected = (table - table.mean(0)) @ adapter.basis.double()
    found = student.embeddings.position_embeddings.weight.detach().double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_map_is_linear_around_the_centre_and_half_precision_around_it_does_not_round():
    adapter = StateAdapter(torch.ones(3), torch.eye(3)[:, :2], 0.5)
    states = torch.tensor([[1.0, 1.0, 1.0], [2.0, 4.0, 9.001]])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(adapter(states), torch.tensor([[0.0, 0.0], [1.0, 3.0]]))
        wide = StateAdapter(torch.zeros(8), torch.linalg.qr(torch.randn(8, 8))[0], 1.0)
        rounded = wide(torch.randn(5, 8, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(rounded, wide(torch.randn(5, 8, generator=torch.Generator().manual_seed(1))))
