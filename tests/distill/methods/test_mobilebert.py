import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.distill.methods.mobilebert import MobileBertDistillation
from pocketbert.distill.methods.pretrain import Pretraining
from pocketbert.distill.training.loop import TrainingLoop, train
from support.objectives import SIZES, Trial, make_batch, means, try_mobilebert, try_pretraining
from support.tiny import PRETRAINED, tiny_classifier

LAYERS = ("layer_1", "layer_2", "layer_3")
HEADS = ("guesses", "next_sentence")


# --- knowledge transfer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "step", "on"),
    [
        ("progressive", 0, LAYERS[:1]),
        ("progressive", 20, LAYERS[1:2]),
        ("progressive", 59, LAYERS[2:]),
        ("progressive", 60, HEADS),
        ("joint", 0, LAYERS),
        ("joint", 60, HEADS),
        ("auxiliary", 0, LAYERS + HEADS),
    ],
)
def test_each_phase_has_its_terms_and_a_pass_that_ends_early_gives_the_same_losses_and_gradients(strategy, step, on):
    early, whole = try_mobilebert(strategy), try_mobilebert("auxiliary")
    terms, expected = early.terms(step=step), whole.terms()
    assert tuple(terms) == tuple(on)
    assert early.objective.phases.steps == 100
    torch.stack([t.mean for t in terms.values()]).sum().backward()
    torch.stack([expected[name].mean for name in on]).sum().backward()
    for name, term in terms.items():
        torch.testing.assert_close(term.mean, expected[name].mean)
        assert float(term.count) == float(early.objective.counts(early.batch())[name])
    for (name, ours), theirs in zip(early.student.named_parameters(), whole.student.parameters(), strict=True):
        if ours.grad is None:
            assert theirs.grad is None or not theirs.grad.any(), name
        else:
            torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


def formulas(trial: Trial) -> dict[str, float]:
    """All terms from whole passes of stock models, token by token, in float64."""
    batch, made = trial.batch(), []
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
    for model in (trial.teacher, trial.student):
        stock = copy.deepcopy(model).double().eval()
        stock.set_attn_implementation("eager")
        with torch.no_grad():
            made.append(stock(**inputs, output_hidden_states=True, output_attentions=True))
    theirs, ours = made
    real = [tuple(place) for place in batch["attention_mask"].nonzero().tolist()]
    out = {}
    for layer in (1, 2, 3):
        loss = 0.0
        for b, s in real:
            t, h = theirs.hidden_states[layer][b, s], ours.hidden_states[layer][b, s]
            norm = [(x - x.mean()) / (x.var(correction=0) + 1e-12).sqrt() for x in (t, h)]
            loss += 100 * float((norm[0] - norm[1]).square().mean())
            loss += 5000 * float((t.mean() - h.mean()) ** 2)
            loss += 5 * float((t.var(correction=0) - h.var(correction=0)).abs())
            keys = batch["attention_mask"][b].bool()
            for head in range(4):
                p, q = (x.attentions[layer - 1][b, head, s][keys] for x in (theirs, ours))
                loss += float((p * (p.log() - q.log())).sum()) / 4
        out[f"layer_{layer}"] = loss / len(real) / 3
    hidden, loss = batch["labels"] != -100, 0.0
    for b, s in hidden.nonzero().tolist():
        log_p = ours.prediction_logits[b, s].log_softmax(-1)
        loss -= 0.5 * float(log_p[batch["labels"][b, s]])
        loss -= 0.5 * float((theirs.prediction_logits[b, s].softmax(-1) * log_p).sum())
    out["guesses"] = loss / int(hidden.sum())
    pairs = batch["next_sentence_label"]
    out["next_sentence"] = float(F.cross_entropy(ours.seq_relationship_logits[pairs >= 0], pairs[pairs >= 0]))
    return out


def test_every_term_equals_whole_passes_of_the_stock_models_in_double():
    trial = try_mobilebert()
    expected = formulas(trial)
    for model in (trial.teacher, trial.student):
        model.double()  # what is compared is the way, not the rounding
    assert means(trial.terms()) == pytest.approx(expected, rel=1e-6)


def test_models_that_do_not_fit_are_refused_with_everything_at_once():
    trial = try_mobilebert()
    trial.student.config.num_attention_heads, trial.student.config.hidden_size = 2, 8
    stage = MobileBertStage(method="mobilebert", strategy="auxiliary", steps=100, layers=[1, 2])
    with pytest.raises(InputError) as caught:
        MobileBertDistillation(trial.teacher, trial.student, family_of("ib_bert"), stage)
    said = str(caught.value)
    width = trial.teacher.config.hidden_size
    for part in (
        "the student has 2 heads, the teacher 4",
        f"8 wide outside, the teacher's {width}",
        "distill.0.layers",
    ):
        assert part in said


# --- pre-training -----------------------------------------------------------------------------------------------------


class Rows:
    """Satisfies TrainData."""

    lengths: Sequence[int] = 4 * SIZES

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        return make_batch(rows, step=step)


def learn(work: Path, stop: int | None = None) -> Any:
    """The student of nine steps of transfer, three for each layer, and three of guesses."""
    trial = try_mobilebert("progressive", steps=12, transfer_steps=9, batch=5, lr=3e-3, checkpoint=5)
    arguments = (trial.student, trial.objective, Rows(), trial.stage, 5, "distill.0", work)
    if stop is None:
        train(*arguments)
        return trial.student
    loop = TrainingLoop(*arguments)
    for _ in range(stop):
        loop.step()
    loop.save()
    return trial.student


def test_training_moves_only_what_the_phase_says_and_resumes_bit_for_bit(tmp_path):
    start = {k: v.clone() for k, v in try_mobilebert("progressive").student.state_dict().items()}
    moved = {k for k, v in learn(tmp_path / "2", stop=2).state_dict().items() if not torch.equal(v, start[k])}
    assert moved and all(k.startswith("mobilebert.encoder.layer.0.") for k in moved)
    whole = learn(tmp_path / "whole").state_dict()
    for name, value in whole.items():
        assert "position_ids" in name or not torch.equal(value, start[name]) or name.endswith("pooler"), name
    # within a phase, where phases meet, and when what was frozen has begun to learn
    for stop in (2, 3, 10):
        learn(tmp_path / str(stop), stop=stop)
        again = learn(tmp_path / str(stop))
        assert all(torch.equal(v, whole[k]) for k, v in again.state_dict().items()), stop
        assert all(p.requires_grad for p in again.parameters())


def log_share(row: Tensor, chosen: int) -> float:
    """Log of one entry's share after a softmax, term by term."""
    values = [float(v) for v in row]
    most = max(values)
    return values[chosen] - most - math.log(sum(math.exp(v - most) for v in values))


@pytest.mark.parametrize("family", PRETRAINED)
def test_pretraining_terms_are_those_of_loops_and_only_hidden_tokens_reach_the_vocabulary(family):
    trial, shapes = try_pretraining(family), list[tuple[int, ...]]()
    model, batch = trial.student.double(), trial.batch()
    with torch.no_grad():
        made = model(**{name: batch[name] for name in family_of(model.config.model_type).inputs})
    labels, pairs = batch["labels"], batch["next_sentence_label"].tolist()
    losses = {
        "mlm": [-log_share(made.prediction_logits[i, t], int(labels[i, t])) for i, t in (labels != -100).nonzero()],
        "next_sentence": [-log_share(made.seq_relationship_logits[i], n) for i, n in enumerate(pairs) if n != -100],
    }
    model.cls.predictions.register_forward_hook(lambda m, a, out: shapes.append(tuple(out.shape)))
    terms = trial.terms()
    assert means(terms) == pytest.approx({name: sum(each) / len(each) for name, each in losses.items()}, rel=1e-6)
    assert {name: float(t.count) for name, t in terms.items()} == {name: len(each) for name, each in losses.items()}
    assert shapes == [(len(losses["mlm"]), model.config.vocab_size)]
    torch.stack([t.mean for t in terms.values()]).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_pairs_need_a_head_for_them():
    model, family = tiny_classifier("ib-bert", 1, (), auto_class="AutoModelForMaskedLM"), family_of("ib_bert")
    with pytest.raises(InputError, match=r"IbBertForMaskedLM has no next-sentence head.*IbBertForPreTraining"):
        Pretraining(model, family)
    batch = make_batch()
    del batch["next_sentence_label"]
    assert list(Pretraining(model, family, next_sentence=False)(model, batch)) == ["mlm"]
