"""Losses of a plain loop and of the original scripts, written straight with torch and transformers.

Nothing here uses the toolkit's losses or capture: that both give the same number is checked before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loops.cases import LENGTH, TURN, Case, plain_step

Loss = Callable[[dict[str, Tensor]], Tensor]
SCORES = "scores_kept"


def plain(made: Case) -> Callable[[], float]:
    """(b): length buckets, real tokens gathered before the vocabulary, the CPU's better number type, SDPA without maps."""
    from pocketbert.distill.training.machine import training_dtype

    losses = {"distilbert": _triple, "tinybert": _layers, "minilm": _relations, "mobilebert": _blocks}
    return plain_step(made, losses.get(made.name, _task)(made, False), training_dtype(), None)


def original(made: Case) -> Callable[[], float]:
    """(a): fp32, every row padded to 128, every position through the vocabulary, attention maps everywhere.

    Kinder than the originals in that the teacher drops nothing out and makes no autograd graph.
    """
    losses = {"distilbert": _triple, "tinybert": _layers, "minilm": _relations, "mobilebert": _blocks}
    return plain_step(made, losses.get(made.name, _task)(made, True), torch.float32, LENGTH, foreach=False)


def _inputs(batch: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask", *names)}


def _task(made: Case, old: bool) -> Loss:
    """Logits, hidden states, attention maps; MiniLM-L6's layers 2, 4, 6 for 1, 2, 3."""
    teacher, student = made.teacher, made.student
    for model in (teacher, student):
        model.set_attn_implementation("eager")
    wanted = {"output_hidden_states": True, "output_attentions": True}

    def loss(batch: dict[str, Tensor]) -> Tensor:
        inputs = _inputs(batch, "token_type_ids")
        with torch.no_grad():
            t = teacher(**inputs, **wanted)
        s = student(**inputs, **wanted)
        mask = batch["attention_mask"].float()
        total = 4 * F.kl_div(
            F.log_softmax(s.logits / 2, -1), F.log_softmax(t.logits / 2, -1), reduction="batchmean", log_target=True
        )
        for m, n in ((1, 2), (2, 4), (3, 6)):
            error = (s.hidden_states[m] - t.hidden_states[n]).square().mean(-1)
            total = total + (error * mask).sum() / mask.sum() / 3
            a, b = s.attentions[m - 1].clamp_min(1e-9), t.attentions[n - 1].clamp_min(1e-9)
            divergence = (b * (b.log() - a.log())).sum(-1) * mask[:, None]
            total = total + divergence.sum() / mask.sum() / a.shape[1] / 3
        return total

    return loss


def _triple(made: Case, old: bool) -> Loss:
    """DistilBERT's 5 KL + 2 MLM + 1 cosine, temperature 2, all real tokens."""
    teacher, student = made.teacher, made.student
    if old:
        for model in (teacher, student):
            model.set_attn_implementation("eager")

    def heads(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Logits at real tokens of student and teacher, labels there, hidden states there."""
        inputs, real = _inputs(batch), batch["attention_mask"].bool()
        labels = batch["labels"][real]
        if old:
            kept = {"output_hidden_states": True, "output_attentions": True}
            with torch.no_grad():
                t = teacher(**inputs, **kept)
            s = student(**inputs, **kept)
            return (
                s.logits[real],
                t.logits[real],
                labels,
                s.hidden_states[-1][real],
                t.hidden_states[-1][real],
            )
        with torch.no_grad():
            told = teacher.bert(**inputs)[0][real]
            answers = teacher.cls(told)
        said = student.distilbert(**inputs)[0][real]
        guesses = student.vocab_projector(student.vocab_layer_norm(student.activation(student.vocab_transform(said))))
        return guesses, answers, labels, said, told

    def loss(batch: dict[str, Tensor]) -> Tensor:
        s, t, labels, said, told = heads(batch)
        soft = 4 * F.kl_div(F.log_softmax(s.float() / 2, -1), F.softmax(t.float() / 2, -1), reduction="batchmean")
        hidden = labels != -100
        guess = F.cross_entropy(s[hidden].float(), labels[hidden]) if not old else F.cross_entropy(s, labels)
        apart = 1 - F.cosine_similarity(said.float(), told.float(), dim=-1).mean()
        return 5 * soft + 2 * guess + apart

    return loss


def _layers(made: Case, old: bool) -> Loss:
    """TinyBERT's general stage: scores and states of layers 3, 6, 9, 12 and the embeddings, one projection."""
    from pocketbert.distill.students.projection import attached_projection

    teacher, student, to_wide = made.teacher, made.student, attached_projection(made.student)
    kept: list[Tensor] = []
    _keep_scores((teacher, student), kept, masked=old)

    def run(model: Any, batch: dict[str, Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        kept.clear()
        states = model(**_inputs(batch, "token_type_ids"), output_hidden_states=True).hidden_states
        return list(kept), states

    def loss(batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            their_scores, theirs = run(teacher, batch)
        scores, ours = run(student, batch)
        mask, total = batch["attention_mask"].float(), torch.zeros(())
        pairs = (mask[:, :, None] * mask[:, None, :])[:, None]
        for m, s in enumerate(scores):
            t = their_scores[3 * m + 2]
            if old:
                s, t = (torch.where(x <= -1e2, torch.zeros_like(x), x) for x in (s, t))
                total = total + F.mse_loss(s, t)
            else:
                total = total + ((s.float() - t.float()).square() * pairs).sum() / pairs.sum() / s.shape[1]
        for m, s in enumerate(ours):
            s, t = to_wide(m, s).float(), theirs[3 * m].float()
            if old:  # noqa: SIM108
                total = total + F.mse_loss(s, t)
            else:
                total = total + ((s - t).square().mean(-1) * mask).sum() / mask.sum()
        return total

    return loss


def _keep_scores(models: tuple[Any, Any], kept: list[Tensor], masked: bool) -> None:
    """Eager attention whose scores before the softmax are kept, of every layer: what the original patched into its model."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **_: Any,
    ) -> tuple[Tensor, None]:
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
        with_mask = scores if mask is None else scores + mask
        kept.append(with_mask if masked else scores)
        shares = F.dropout(F.softmax(with_mask, -1), dropout, module.training)
        return torch.matmul(shares, value).transpose(1, 2).contiguous(), None

    AttentionInterface.register(SCORES, attention)
    AttentionMaskInterface.register(SCORES, eager_mask)
    for model in models:
        model.set_attn_implementation(SCORES)


def _relations(made: Case, old: bool) -> Loss:
    """MiniLMv2: relations of queries, keys and values of both last layers, 48 heads."""
    teacher, student = made.teacher, made.student
    kept: dict[tuple[int, str], Tensor] = {}
    for number, model in enumerate((student, teacher)):
        if old:
            model.set_attn_implementation("eager")
        last = model.encoder.layer[-1].attention.self
        for name in ("query", "key", "value"):
            last.get_submodule(name).register_forward_hook(
                lambda _m, _i, out, place=(number, name): kept.__setitem__(place, out)
            )
    wanted = {"output_hidden_states": True, "output_attentions": True} if old else {}

    def relation(x: Tensor, hidden: Tensor) -> Tensor:
        x = x.float().unflatten(-1, (48, -1)).transpose(1, 2)
        scores = torch.matmul(x, x.transpose(2, 3)) * x.shape[-1] ** -0.5
        return F.log_softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min), -1)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        inputs = _inputs(batch, "token_type_ids")
        with torch.no_grad():
            teacher(**inputs, **wanted)
        student(**inputs, **wanted)
        mask, total = batch["attention_mask"].float(), torch.zeros(())
        hidden = (mask == 0)[:, None, None, :]
        for name in ("query", "key", "value"):
            with torch.no_grad():
                t = relation(kept[1, name], hidden)
            s = relation(kept[0, name], hidden)
            rows = F.kl_div(s, t, reduction="none", log_target=True).sum(-1) * mask[:, None]
            total = total + rows.sum() / (48 * mask.sum())
        return total

    return loss


def _blocks(made: Case, old: bool) -> Loss:
    """Transfer of one block, with whole passes and all maps, as transformers gives them: only its weights are trained fast, those below slowly, nothing above and around it."""
    teacher, student = made.teacher, made.student
    layers = student.mobilebert.encoder.layer
    student.requires_grad_(False)
    layers[: TURN + 1].requires_grad_(True)
    for model in (teacher, student):
        model.set_attn_implementation("eager")
    wanted = {"output_hidden_states": True, "output_attentions": True}

    def run(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        inputs = _inputs(batch, "token_type_ids")
        # the heads would be idle; the original's graph has them all the same
        made = (model if old else model.mobilebert)(**inputs, **wanted)
        return made.hidden_states[TURN + 1].float(), made.attentions[TURN].float()

    def loss(batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            t, their_map = run(teacher, batch)
        s, our_map = run(student, batch)
        mask, width = batch["attention_mask"].float(), s.shape[-1:]
        apart = (F.layer_norm(t, width, eps=1e-12) - F.layer_norm(s, width, eps=1e-12)).square().mean(-1)
        means = (t.mean(-1) - s.mean(-1)).square()
        variances = (t.var(-1, correction=0) - s.var(-1, correction=0)).abs()
        total = ((100 * apart + 5000 * means + 5 * variances) * mask).sum() / mask.sum()
        b, a = their_map.clamp_min(1e-9), our_map.clamp_min(1e-9)
        divergence = (b * (b.log() - a.log())).sum(-1) * mask[:, None]
        return (total + divergence.sum() / mask.sum() / a.shape[1]) / len(layers)

    return loss
