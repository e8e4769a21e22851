from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.core.types import MobileBertSize
from pocketbert.distill.methods.mobilebert import MobileBertDistillation
from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining
from pocketbert.distill.students.mobilebert import transfer_student
from pocketbert.distill.training.loop import train

DEPTH, WORDS = 3, 40
PATH = "mobilebert.encoder.layer"


def teacher() -> Any:
    torch.manual_seed(1)
    config = IbBertConfig(
        vocab_size=WORDS,
        num_hidden_layers=DEPTH,
        hidden_size=16,
        embedding_size=8,
        intra_bottleneck_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        max_position_embeddings=24,
    )
    made = IbBertForPreTraining(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval().requires_grad_(False)


def stage(strategy: str = "progressive", **more: Any) -> MobileBertStage:
    given = {"method": "mobilebert", "strategy": strategy, "steps": 100, "batch": 4, **more}
    if strategy != "auxiliary":
        given.setdefault("transfer_steps", 60)
    return MobileBertStage.model_validate(given)


def rows(step: int, *, batch: int = 4, length: int = 10, pad: int = 0) -> dict[str, Tensor]:
    random = np.random.default_rng(step)
    ids = random.integers(5, WORDS, (batch, length))
    mask = np.ones((batch, length), np.int64)
    mask[1, length - 3 :] = 0
    ids = ids * mask
    labels = np.where((random.random(ids.shape) < 0.3) & (mask == 1), ids, -100)
    labels[0, 1] = 7
    kinds = (
        np.concatenate([np.zeros((batch, length // 2), np.int64), np.ones((batch, length - length // 2), np.int64)], 1)
        * mask
    )
    wide = {
        "input_ids": (ids, 0),
        "attention_mask": (mask, 0),
        "token_type_ids": (kinds, 0),
        "labels": (labels, -100),
    }
    out = {k: torch.from_numpy(np.pad(v, ((0, 0), (0, pad)), constant_values=c)) for k, (v, c) in wide.items()}
    out["next_sentence_label"] = torch.tensor([0, 1, -100, 1])[:batch]
    out["steps"] = torch.full((batch,), step)
    return out


def pair(**more: Any) -> tuple[MobileBertDistillation, Any]:
    strong = teacher()
    student = transfer_student(strong, MobileBertSize.MINI, seed=3).eval()
    return MobileBertDistillation(
        strong, student, family_of("ib_bert"), stage(**more), student_family=family_of("mobilebert")
    ), student


@pytest.mark.parametrize(
    ("strategy", "step", "on"),
    [
        ("progressive", 0, {"layer_1"}),
        ("progressive", 20, {"layer_2"}),
        ("progressive", 59, {"layer_3"}),
        ("progressive", 60, {"guesses", "next_sentence"}),
        ("joint", 0, {"layer_1", "layer_2", "layer_3"}),
        ("joint", 60, {"guesses", "next_sentence"}),
        ("auxiliary", 0, {"layer_1", "layer_2", "layer_3", "guesses", "next_sentence"}),
    ],
)
def test_each_phase_has_its_terms_and_they_are_counted(strategy: str, step: int, on: set[str]) -> None:
    objective, student = pair(strategy=strategy)
    batch = rows(step)
    terms = objective(student, batch)
    assert set(terms) == on
    counts = objective.counts(batch)
    assert {name: float(term.count) for name, term in terms.items()} == {name: float(counts[name]) for name in on}
    assert all(float(term.mean.detach()) > 0 for term in terms.values())


def by_hand(objective: MobileBertDistillation, student: Any, batch: dict[str, Tensor]) -> dict[str, float]:
    """All terms from whole passes of stock models, token by token, in float64."""
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
    made = []
    for model in (objective.teacher, student):
        model.double()
        model.set_attn_implementation("eager")
        with torch.no_grad():
            made.append(model(**inputs, output_hidden_states=True, output_attentions=True))
        model.float()
    theirs, ours = made
    real = [(b, s) for b in range(4) for s in range(batch["input_ids"].shape[1]) if batch["attention_mask"][b, s]]
    out = {}
    for layer in range(1, DEPTH + 1):
        total = 0.0
        for b, s in real:
            t, h = theirs.hidden_states[layer][b, s], ours.hidden_states[layer][b, s]
            norm = [(x - x.mean()) / (x.var(correction=0) + 1e-12).sqrt() for x in (t, h)]
            total += 100 * float((norm[0] - norm[1]).square().mean())
            total += 5000 * float((t.mean() - h.mean()) ** 2)
            total += 5 * float((t.var(correction=0) - h.var(correction=0)).abs())
            for head in range(4):
                p, q = (x.attentions[layer - 1][b, head, s] for x in (theirs, ours))
                keys = batch["attention_mask"][b].bool()
                total += float((p[keys] * (p[keys].log() - q[keys].log())).sum()) / 4
        out[f"layer_{layer}"] = total / len(real) / DEPTH
    hidden = [(b, s) for b, s in real if batch["labels"][b, s] != -100]
    total = 0.0
    for b, s in hidden:
        log_p = ours.prediction_logits[b, s].log_softmax(-1)
        total -= 0.5 * float(log_p[batch["labels"][b, s]])
        total -= 0.5 * float((theirs.prediction_logits[b, s].softmax(-1) * log_p).sum())
    out["guesses"] = total / len(hidden)
    judged = [b for b in range(4) if batch["next_sentence_label"][b] != -100]
    out["next_sentence"] = float(
        F.cross_entropy(ours.seq_relationship_logits[judged], batch["next_sentence_label"][judged])
    )
    return out


def test_every_term_equals_whole_passes_of_the_stock_models_in_double() -> None:
    # float32 states of a random teacher: what is compared is the way, not the rounding
    objective, student = pair(strategy="auxiliary")
    expected = by_hand(objective, student, rows(0))
    objective.teacher.double()
    student.double()
    objective, student = (
        MobileBertDistillation(
            objective.teacher,
            student,
            family_of("ib_bert"),
            stage("auxiliary"),
            student_family=family_of("mobilebert"),
        ),
        student,
    )
    terms = objective(student, rows(0))
    assert set(terms) == set(expected)
    for name, term in terms.items():
        assert float(term.mean.detach()) == pytest.approx(expected[name], rel=1e-6), name


@pytest.mark.parametrize("strategy", ["progressive", "joint"])
def test_a_pass_that_ends_early_gives_the_same_losses_and_gradients(strategy: str) -> None:
    whole, student = pair(strategy="auxiliary")
    early, twin = pair(strategy=strategy)
    for step in (0, 20, 40):
        terms, expected = (
            early(twin, rows(step)),
            whole(student, rows(step) | {"steps": torch.zeros(4, dtype=torch.long)}),
        )
        for name, term in terms.items():
            torch.testing.assert_close(term.mean, expected[name].mean)
        sum(t.mean for t in terms.values()).backward()  # type: ignore[union-attr]
        sum(expected[name].mean for name in terms).backward()  # type: ignore[union-attr]
        for (name, ours), theirs in zip(twin.named_parameters(), student.parameters(), strict=True):
            if ours.grad is None:
                assert theirs.grad is None or not theirs.grad.any(), name
            else:
                torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
        twin.zero_grad()
        student.zero_grad()


@pytest.mark.parametrize("step", [0, 45, 70])
def test_more_padding_changes_nothing(step: int) -> None:
    objective, student = pair()
    narrow, wide = (objective(student, rows(step, pad=pad)) for pad in (1, 6))
    for name, term in narrow.items():
        torch.testing.assert_close(term.mean, wide[name].mean, rtol=1e-5, atol=1e-6)
        assert term.count == wide[name].count


def test_reference_counts_padding() -> None:
    objective, student = pair(reference=True)
    batch = rows(0)
    term = objective(student, batch)["layer_1"]
    assert float(term.count) == 40
    over_real = pair()[0](student, batch)["layer_1"]
    # three padded tokens of 40 count
    assert float(term.mean.detach()) != pytest.approx(float(over_real.mean.detach()), rel=1e-4)
    assert float(objective.counts(batch)["layer_1"]) == 40


def test_without_the_teacher_s_share_its_head_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, student = pair(truth=1.0)
    monkeypatch.setattr(objective.teacher, "forward", None)
    terms = objective(student, rows(70))
    batch = rows(70)
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
    logits = student(**inputs).prediction_logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
    torch.testing.assert_close(terms["guesses"].mean, expected)


def test_models_that_do_not_fit_are_refused_with_everything_at_once() -> None:
    strong, student = teacher(), transfer_student(teacher(), MobileBertSize.MINI, seed=3)
    student.config.num_attention_heads, student.config.hidden_size = 2, 8
    with pytest.raises(InputError) as caught:
        MobileBertDistillation(strong, student, family_of("ib_bert"), stage(layers=[1, 2]))
    said = str(caught.value)
    assert "the student has 2 heads, the teacher 4" in said
    assert "8 wide outside, the teacher's 16" in said
    assert "distill.0.layers" in said


class Rows:
    """Random text; satisfies TrainData."""

    lengths = [10] * 32

    def batch(self, chosen: Any, step: int) -> dict[str, Tensor]:
        return rows(step, batch=len(chosen))


def trained(work: Path, strategy: str, steps: int = 30, stop: int | None = None) -> tuple[Any, Any]:
    settings = stage(
        strategy,
        steps=steps,
        lr=3e-3,
        checkpoint=5,
        **({} if strategy == "auxiliary" else {"transfer_steps": 18}),
    )
    strong = teacher()
    student = transfer_student(strong, MobileBertSize.MINI, seed=3)
    objective = MobileBertDistillation(
        strong, student, family_of("ib_bert"), settings, student_family=family_of("mobilebert")
    )
    if stop is not None:
        from pocketbert.distill.training.loop import TrainingLoop

        loop = TrainingLoop(student, objective, Rows(), settings, 5, "distill.0", work)
        for _ in range(stop):
            loop.step()
        loop.save()
        return student, None
    return student, train(student, objective, Rows(), settings, 5, "distill.0", work)


def test_training_moves_only_what_the_phase_says_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    start = {k: v.clone() for k, v in transfer_student(teacher(), MobileBertSize.MINI, seed=3).state_dict().items()}
    first, _ = trained(tmp_path / "killed", "progressive", stop=4)
    moved = {k for k, v in first.state_dict().items() if not torch.equal(v, start[k])}
    assert moved
    assert all(k.startswith(f"{PATH}.0.") for k in moved)
    whole, outcome = trained(tmp_path / "whole", "progressive")
    again, _ = trained(tmp_path / "killed", "progressive")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        assert "position_ids" in name or not torch.equal(value, start[name]) or name.endswith("pooler"), name
    terms = {k for record in outcome.history for k in record.terms}
    assert terms == {"layer_1", "layer_2", "layer_3", "guesses", "next_sentence"}
    assert all(p.requires_grad for p in whole.parameters())
    # within a later phase, where phases meet, and when what was frozen has begun to learn
    for stop in (6, 9, 18, 22):
        trained(tmp_path / str(stop), "progressive", stop=stop)
        again, _ = trained(tmp_path / str(stop), "progressive")
        assert all(torch.equal(v, again.state_dict()[k]) for k, v in whole.state_dict().items()), stop


@pytest.mark.parametrize("strategy", ["progressive", "joint", "auxiliary"])
def test_transfer_brings_the_blocks_closer(strategy: str, tmp_path: Path) -> None:
    learnt, _ = trained(tmp_path, strategy, stop=None if strategy == "auxiliary" else 18)
    losses = []
    for student in (transfer_student(teacher(), MobileBertSize.MINI, seed=3), learnt):
        objective = MobileBertDistillation(
            teacher(),
            student.eval(),
            family_of("ib_bert"),
            stage("auxiliary"),
            student_family=family_of("mobilebert"),
        )
        terms = objective(student, rows(1000) | {"steps": torch.zeros(4, dtype=torch.long)})
        losses.append([float(terms[f"layer_{m}"].mean.detach()) for m in (1, 2, 3)])
    before, after = losses
    assert all(late < early for early, late in zip(before, after, strict=True)), losses


def test_phases_are_those_of_the_strategy_in_as_many_steps() -> None:
    objective, _ = pair(strategy="joint")
    assert objective.phases.name == "joint, reduced to 100 of 530,000 steps"
    assert objective.phases.steps == 100
    assert replace(objective.phases, lr=1.0).rates(0).rest == 0
