from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from pocketbert.core.families import family_of
from pocketbert.core.types import MobileBertSize
from pocketbert.distill.students.mobilebert import transfer_student
from pocketbert.distill.teacher.state_adapter import StateAdapter, fit_adapter, reduce_embeddings

WORDS, WIDTH = 90, 160


def teacher() -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return BertModel(config).eval().requires_grad_(False)


class Rows:
    """Random text of two lengths; satisfies TrainData."""

    lengths = [12, 7] * 40

    def __init__(self, pad: int = 0) -> None:
        self.pad = pad

    def batch(self, chosen: Any, step: int) -> dict[str, Tensor]:
        wide = 12 + self.pad
        ids, mask = (
            torch.zeros(len(chosen), wide, dtype=torch.long),
            torch.zeros(len(chosen), wide, dtype=torch.long),
        )
        for i, row in enumerate(chosen):
            length = self.lengths[row]
            ids[i, :length] = torch.randint(1, WORDS, (length,), generator=torch.Generator().manual_seed(row))
            mask[i, :length] = 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def real_states(model: Any) -> Tensor:
    batch = Rows().batch(range(80), 0)
    made = model(**batch, output_hidden_states=True).hidden_states
    return torch.cat([state[batch["attention_mask"].bool()] for state in made]).double()


def test_nothing_of_this_width_keeps_more_of_the_states() -> None:
    model = teacher()
    adapter = fit_adapter(model, family_of("bert"), Rows(), 24)
    states = real_states(model)
    centred = states - states.mean(0)
    values = torch.linalg.svdvals(centred).square()
    assert adapter.kept == pytest.approx(float(values[:24].sum() / values.sum()), rel=1e-4)
    short = adapter(states)
    assert short.shape == (len(states), 24)
    back = short @ adapter.basis.double().T
    assert float((centred - back).square().sum()) == pytest.approx(float(values[24:].sum()), rel=1e-3)
    torch.testing.assert_close(adapter.basis.T @ adapter.basis, torch.eye(24), atol=1e-5, rtol=0)


def test_padding_changes_nothing_and_twice_gives_the_same() -> None:
    model = teacher()
    one, padded = (fit_adapter(model, family_of("bert"), Rows(pad), 8) for pad in (0, 9))
    torch.testing.assert_close(one.basis, padded.basis, atol=1e-4, rtol=1e-3)
    assert torch.equal(one.basis, fit_adapter(model, family_of("bert"), Rows(), 8).basis)


def test_embeddings_start_where_the_teacher_s_are() -> None:
    model = teacher()
    student = transfer_student(model, MobileBertSize.MINI, 0)
    adapter = fit_adapter(model, family_of("bert"), Rows(), student.config.hidden_size)
    batch = Rows().batch(range(40), 0)
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids")}
    real = batch["attention_mask"].bool()

    def likeness() -> float:
        with torch.no_grad():
            theirs = adapter(model.embeddings(**inputs))[real]
            ours = student.embeddings(**inputs)[real]
        theirs, ours = (x - x.mean(0) for x in (theirs, ours))
        return float((theirs * ours).sum() / theirs.norm() / ours.norm())

    before = likeness()
    reduce_embeddings(model, student, adapter)
    assert abs(before) < 0.1
    # 32 of 160 random directions of the words are left
    assert likeness() > 0.4


@pytest.mark.parametrize("name", ["RobertaModel", "DistilBertModel"])
def test_teachers_with_other_tables_have_a_student_too(name: str) -> None:
    import transformers

    kind = getattr(transformers, name)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": 34, "type_vocab_size": 1}
    if name == "DistilBertModel":
        sizes = {
            "vocab_size": WORDS,
            "max_position_embeddings": 32,
            "dim": WIDTH,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
        }
    else:
        sizes |= {
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        }
    torch.manual_seed(0)
    model = kind(kind.config_class(**sizes)).eval()
    student = transfer_student(model, MobileBertSize.MINI, 0)
    assert student.config.max_position_embeddings == 32
    adapter = fit_adapter(model, family_of(model.config.model_type), Rows(), 128)
    reduce_embeddings(model, student, adapter)
    table = model.embeddings.position_embeddings.weight.detach()[-32:].double()
    expected = (table - table.mean(0)) @ adapter.basis.double()
    torch.testing.assert_close(
        student.embeddings.position_embeddings.weight.detach().double(), expected, atol=1e-5, rtol=1e-4
    )


def test_half_precision_around_it_does_not_round_the_target() -> None:
    adapter = StateAdapter(torch.zeros(8), torch.linalg.qr(torch.randn(8, 8))[0], 1.0)
    states = torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = adapter(states)
    assert torch.equal(found, adapter(states))


def test_the_map_is_linear_around_the_centre() -> None:
    adapter = StateAdapter(torch.ones(3), torch.eye(3)[:, :2], 0.5)
    assert adapter.width == 2
    assert torch.equal(
        adapter(torch.tensor([[1.0, 1.0, 1.0], [2.0, 4.0, 9.0]])), torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    )
