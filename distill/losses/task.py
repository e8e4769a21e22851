"""Losses of a task's outputs: `gold_loss` against gold labels, `soft_loss` against a teacher's outputs.

`order_loss` compares text vectors with the scores of pairs, `margin_loss` with a teacher's margins, `contrastive_loss` with those of other
texts of the batch. All return a `Term`, a mean with its number of items.
Tokens without a label (special ones, later word pieces of a word, padding) are in no mean.

Conventions: B batch, S length, C labels, V vocabulary, d width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL, LABELLED_ROWS, TEACHER_PREFIX
from pocketbert.core.heads.multiple_choice import CHOICES
from pocketbert.core.predict.predictor import split_heads
from pocketbert.core.predict.sentence_settings import (
    CUT,
    LAYER_NORM,
    NORM_EPSILON,
    NORMALIZE,
    Pooling,
    PoolingKind,
    VectorLayer,
)
from pocketbert.core.tasks import SENTENCE_EMBEDDING, Level, NamedTask, ScoreFunction, Task, TaskName
from pocketbert.distill.losses.common import Term, hard_targets, soft_targets

Project = Callable[[Tensor], Tensor]
"""A map of pooled states of a student [B, d] to the width of the teacher's [B, D]."""
_COSENT_SCALE = _CONTRASTIVE_SCALE = 20.0
_BY_HEAD = ("labels", "logits")
"""Terms that each of several heads has."""
TEXT_NUMBERS = "texts"
"""Name of the tensor in a batch that numbers its texts; equal texts have the same number."""
QUERY_ROWS = "query_rows"
"""Name of the tensor in a batch with the number of neighbouring rows that belong to one query."""
_PADDED_SCORE = -1e4
"""Added to the score of a padded token as start or end of an answer, and of a row that is no choice: its probability is 0,
and the score finite."""


def head_weights(task: Task, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of a loss's terms by name, with one term for each of several heads instead of ``labels`` and ``logits``.

    The term of a head has its name behind a dot, such as ``logits.intent``, and the weight times that of the head. A head that learns
    its labels alone has no term ``logits``.
    """
    if not task.heads:
        return {**weights}
    by_head = {
        f"{name}.{head.name}": weight * head.weight
        for name, weight in weights.items()
        if name in _BY_HEAD
        for head in task.heads
        if name == "labels" or head.learns_from != "labels"
    }
    return {name: weight for name, weight in weights.items() if name not in _BY_HEAD} | by_head


def gold_terms(task: Task, outputs: Any, batch: Mapping[str, Tensor]) -> dict[str, Term]:
    """Compute the terms of a task's loss against the gold labels: ``labels``, or one for each head; see `gold_loss`."""
    if not task.heads:
        return {"labels": gold_loss(task, outputs, batch)}
    return {
        f"labels.{head.name}": gold_loss(
            head.task, _outputs_of_head(task, head, outputs.logits), _batch_of_head(head, batch)
        )
        for head in task.heads
    }


def soft_terms(
    task: Task,
    outputs: Any,
    teacher_outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    temperature: float,
    pooling: Pooling,
    projection: Project | None = None,
) -> dict[str, Term]:
    """Compute the terms of a task's loss against the teacher's outputs: ``logits``, or one for each head; see `soft_loss`.

    A head that learns from a column has outputs of its own in `teacher_outputs`, and its mean is over the rows with a label or an answer.
    """
    if not task.heads:
        return {"logits": soft_loss(task, outputs, teacher_outputs, batch, temperature, pooling, projection)}
    terms = {}
    for head in (head for head in task.heads if head.learns_from != "labels"):
        own, rows = _outputs_of_head(task, head, outputs.logits), _batch_of_head(head, batch)
        taught, answered = teacher_outputs.get(head.output), rows.get(LABELLED_ROWS)
        if taught is None:
            taught = _outputs_of_head(task, head, teacher_outputs["logits"]).logits
        elif answered is not None and head.learns_from == "column":
            own, taught = SimpleNamespace(logits=own.logits[answered]), taught[answered]
            rows = {name: value[answered] for name, value in rows.items()}
        if len(taught):
            term = soft_loss(head.task, own, {"logits": taught}, rows, temperature, pooling)
        else:
            term = Term.of(own.logits.float().sum(), 0)  # no row of the batch has a label or an answer
        terms[f"logits.{head.name}"] = term
    return terms


def _outputs_of_head(task: Task, head: NamedTask, logits: Tensor) -> SimpleNamespace:
    """Return the logits of one of several heads as a model with this head alone would return them."""
    return SimpleNamespace(logits=split_heads(logits, task)[head.output])


def _batch_of_head(head: NamedTask, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch with the targets of one of several heads, under the names that a task of its own has."""
    start = f"{head.name}."
    own = {name.removeprefix(start): value for name, value in batch.items() if name.startswith(start)}
    return {"attention_mask": batch["attention_mask"], **own}


def gold_loss(task: Task, outputs: Any, batch: Mapping[str, Tensor]) -> Term:
    """Compute a task's loss of the model's outputs against the gold labels.

    - Single labels, labels of tokens, choices of a question and masked words: cross-entropy.
    - Several labels per text: binary cross-entropy, averaged over the labels.
    - Regression: squared error; binary cross-entropy if the outputs go through a sigmoid.
    - Question answering: the mean of the cross-entropies of start and end (Devlin et al. 2019, arXiv 1810.04805,
      sections 4 and 5).

    Args:
        task: Task of the model, such as classification; decides the loss.
        outputs: The result of the transformers model.
        batch: Targets by name: ``labels`` [B], [B, C] or [B, S], or ``start_positions`` and ``end_positions`` [B]. In
            multiple choice also ``choices`` [B], the number of neighbouring rows that belong to one question. If
            `LABELLED_ROWS` [B] is given, it marks the rows that have a label, and the mean is over these.
    """
    labelled = batch.get(LABELLED_ROWS)
    if labelled is None or bool(labelled.all()):
        return _loss_of_labelled(task, outputs, batch)
    names = ("start_logits", "end_logits") if task.name is TaskName.QUESTION_ANSWERING else ("logits",)
    if not bool(labelled.any()):
        return Term.of(getattr(outputs, names[0]).float().sum() * 0.0, 0)
    chosen = SimpleNamespace(**{name: getattr(outputs, name)[labelled] for name in names})
    return _loss_of_labelled(task, chosen, {name: value[labelled] for name, value in batch.items()})


def _loss_of_labelled(task: Task, outputs: Any, batch: Mapping[str, Tensor]) -> Term:
    """Compute the loss of rows that all have a gold label; see `gold_loss`."""
    if task.name is TaskName.QUESTION_ANSWERING:
        start, end = _answer_scores(outputs, batch["attention_mask"])
        start_loss, end_loss = hard_targets(start, batch["start_positions"]), hard_targets(end, batch["end_positions"])
        return Term.of((start_loss + end_loss) / 2, len(start))
    labels, logits = batch["labels"], outputs.logits
    if task.level is Level.TOKEN:
        labelled = labels != IGNORED_LABEL
        count = int(labelled.sum())
        if not count:
            return Term.of(logits.float().sum() * 0.0, 0)
        return Term.of(hard_targets(logits[labelled], labels[labelled]), count)
    rows = len(logits)
    if task.name is TaskName.MULTIPLE_CHOICE:
        return Term.of(hard_targets(_choice_scores(logits, batch), _by_question(labels, batch).argmax(-1)), rows)
    if task.name is TaskName.MULTI_LABEL:
        return Term.of(F.binary_cross_entropy_with_logits(logits.float(), labels.float()), rows)
    if task.name is TaskName.REGRESSION:
        loss = F.mse_loss if task.score is ScoreFunction.NONE else F.binary_cross_entropy_with_logits
        return Term.of(loss(logits.float()[:, 0], labels.float()), rows)
    return Term.of(hard_targets(logits, labels), rows)


def soft_loss(
    task: Task,
    outputs: Any,
    teacher_outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    temperature: float,
    pooling: Pooling,
    projection: Project | None = None,
) -> Term:
    """Compute a task's loss of the student's outputs against the teacher's. It is 0 if they are equal.

    - Label distributions: the KL divergence at a temperature, times T^2 (Hinton et al. 2015, arXiv 1503.02531). If a
      text may have several labels, it is that of each label's yes/no distribution; in multiple choice, that over the
      choices of a question.
    - Regression: the squared error.
    - Question answering: the mean of the divergences of start and end over the real tokens.
    - Feature extraction: 1 minus the cosine of the text vectors. If vectors may be cut to their first numbers
      (`Pooling.dimensions`), the mean of this over all lengths, the whole one included (Kusupati et al. 2022, arXiv
      2205.13147, eq. 1, with equal weights).

    Args:
        task: Task of the model, such as classification; decides the loss.
        outputs: The result of the student, a transformers model.
        teacher_outputs: The teacher's outputs by name; for feature extraction token states, or `SENTENCE_EMBEDDING` [B,
            W].
        batch: ``attention_mask`` [B, S], and ``labels`` [B, S] if they mark the labelled tokens. In multiple choice
            also ``labels`` and ``choices``, see `gold_loss`. If the teacher reads other tokens, for feature extraction
            also its mask under `TEACHER_PREFIX`.
        temperature: T > 0.
        pooling: How token states become a text vector, for feature extraction.
        projection: Map of the student's pooled states to the width of the teacher's; None without.
    """
    mask = batch["attention_mask"]
    if task.name is TaskName.QUESTION_ANSWERING:
        start, end = _answer_scores(outputs, mask)
        teacher_start, teacher_end = _answer_scores(teacher_outputs, mask)
        start_loss = soft_targets(start, teacher_start, temperature)
        return Term.of((start_loss + soft_targets(end, teacher_end, temperature)) / 2, len(mask))
    if task.name is TaskName.FEATURE_EXTRACTION:
        vectors = make_vectors(outputs.last_hidden_state, mask, pooling, projection)
        teacher_vectors = teacher_outputs.get(SENTENCE_EMBEDDING)
        if teacher_vectors is None:
            teacher_mask = batch.get(f"{TEACHER_PREFIX}attention_mask", mask)
            teacher_vectors = make_vectors(teacher_outputs["last_hidden_state"], teacher_mask, pooling)
        ends = _list_lengths(pooling, vectors)
        errors = [1 - F.cosine_similarity(vectors[:, :n], teacher_vectors[:, :n], dim=-1).mean() for n in ends]
        return Term.of(torch.stack(errors).mean(), len(mask))
    student, teacher = outputs.logits, teacher_outputs["logits"]
    if task.level is Level.TOKEN:
        labelled = batch["labels"] != IGNORED_LABEL
        count = int(labelled.sum())
        if not count:
            return Term.of(student.float().sum() * 0.0, 0)
        return Term.of(soft_targets(student[labelled], teacher[labelled], temperature), count)
    rows = len(student)
    if task.name is TaskName.MULTIPLE_CHOICE:
        scores, teacher_scores = _choice_scores(student, batch), _choice_scores(teacher, batch)
        return Term.of(soft_targets(scores, teacher_scores, temperature), rows)
    if task.name is TaskName.MULTI_LABEL:
        return Term.of(_binary_soft_targets(student, teacher, temperature), rows)
    if task.name is TaskName.REGRESSION:
        return Term.of(F.mse_loss(student.float(), teacher.float()), rows)
    return Term.of(soft_targets(student, teacher, temperature), rows)


def order_loss(outputs: Any, batch: Mapping[str, Tensor], pooling: Pooling, projection: Project | None = None) -> Term:
    """Compute how far the cosines of scored pairs of texts are from the order of their scores (CoSENT).

    ``log(1 + sum exp(20 (cos_j - cos_i)))`` over all pairs of texts i and j of the batch with ``score_i > score_j``
    (Su 2022, kexue.fm/archives/8847; `CoSENTLoss` of sentence-transformers). Only the order of the scores counts, so
    that they may be grades of people, answers of a reranker, or 1 for texts that belong together and 0 for others. If
    vectors may be cut to their first numbers, it is the mean over all lengths. Pairs are compared only with those in
    the same portion of a batch.

    Args:
        outputs: The result of the student, a transformers model.
        batch: ``attention_mask`` [B, S], and ``labels`` [B], the score of a pair in both of its neighbouring rows.
        pooling: How token states become a text vector.
        projection: Map of the student's pooled states to the width of the teacher's; None without.
    """
    vectors = make_vectors(outputs.last_hidden_state, batch["attention_mask"], pooling, projection)
    scores = batch["labels"][::2]
    is_larger = scores[:, None] > scores[None, :]
    losses = []
    for n in _list_lengths(pooling, vectors):
        cosines = _COSENT_SCALE * F.cosine_similarity(vectors[::2, :n], vectors[1::2, :n], dim=-1)
        wrong = (cosines[None, :] - cosines[:, None])[is_larger]
        losses.append(torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), 0))
    return Term.of(torch.stack(losses).mean(), len(vectors))


def margin_loss(outputs: Any, batch: Mapping[str, Tensor], pooling: Pooling, projection: Project | None = None) -> Term:
    """Compute the squared error of the student's margins between a query's better and other text (MarginMSE).

    It is ``(q . p - q . n - margin)^2`` with the teacher's margin, the mean over triples (Hofstaetter et al. 2020,
    arXiv 2010.02666, eq. 1; `MarginMSELoss` of sentence-transformers). Vectors are scaled to length 1 if `pooling`
    normalises them; then the dot product is the cosine. If vectors may be cut to their first numbers, it is the mean
    over all lengths, and cut vectors are always scaled.

    Args:
        outputs: The result of the student, a transformers model.
        batch: ``attention_mask`` [B, S] of neighbouring rows query, better text, other text; ``labels`` [B], the margin of
            a triple in each of its rows.
        pooling: How token states become a text vector.
        projection: Map of the student's pooled states to the width of the teacher's; None without.
    """
    vectors = make_vectors(outputs.last_hidden_state, batch["attention_mask"], pooling, projection)
    margins, losses = batch["labels"][::3].float(), []
    for n in _list_lengths(pooling, vectors):
        whole = n == vectors.shape[-1] and not pooling.normalize
        query, better, other = (
            own if whole else F.normalize(own, dim=-1) for own in vectors[:, :n].view(-1, 3, n).unbind(1)
        )
        losses.append(F.mse_loss((query * better).sum(-1) - (query * other).sum(-1), margins))
    return Term.of(torch.stack(losses).mean(), len(vectors))


def contrastive_loss(
    outputs: Any, batch: Mapping[str, Tensor], pooling: Pooling, projection: Project | None = None
) -> Term:
    """Compute the cross-entropy of finding each query's text among the texts and negatives of all queries (InfoNCE).

    The logits are 20 times the cosines (van den Oord et al. 2018, arXiv 1807.03748, eq. 4;
    `MultipleNegativesRankingLoss` of sentence-transformers). A text that the batch also pairs with the same query is
    not counted as its negative. If vectors may be cut to their first numbers, it is the mean over all lengths. Texts
    are compared only with those in the same portion of a batch.

    Args:
        outputs: The result of the student, a transformers model.
        batch: ``attention_mask`` [B, S] of neighbouring rows: query and text, or query, text and negative; `TEXT_NUMBERS` [B] and
            `QUERY_ROWS` [B], 2 or 3.
        pooling: How token states become a text vector.
        projection: Map of the student's pooled states to the width of the teacher's; None without.
    """
    vectors = make_vectors(outputs.last_hidden_state, batch["attention_mask"], pooling, projection)
    together = max(batch[QUERY_ROWS].tolist(), default=2)
    numbers = batch[TEXT_NUMBERS].view(-1, together)
    targets = torch.arange(len(numbers), device=vectors.device)
    candidates = numbers[:, 1:].T.flatten()  # the texts of all queries, then the negatives of all
    same_query = numbers[:, 0, None] == numbers[None, :, 0]
    is_paired = (same_query.float() @ (numbers[:, 1, None] == candidates).float()) > 0
    is_own = targets[:, None] == torch.arange(len(candidates), device=vectors.device)
    losses = []
    for n in _list_lengths(pooling, vectors):
        unit = F.normalize(vectors[:, :n], dim=-1).view(-1, together, n)
        logits = _CONTRASTIVE_SCALE * unit[:, 0] @ unit[:, 1:].transpose(0, 1).reshape(-1, n).T
        losses.append(F.cross_entropy(logits.masked_fill(is_paired & ~is_own, -torch.inf), targets))
    return Term.of(torch.stack(losses).mean(), len(vectors))


def make_vectors(states: Tensor, mask: Tensor, pooling: Pooling, projection: Project | None = None) -> Tensor:
    """Pool the token states of texts [B, S, d], project each pooled state, and apply the layers behind; return vectors [B, W]."""
    pooled = _pool_states(states, mask, pooling)
    if projection is not None:
        pooled = torch.cat([projection(part) for part in pooled.chunk(len(pooling.kinds), -1)], -1)
    return _apply_layers(pooled, pooling.layers)


def _list_lengths(pooling: Pooling, vectors: Tensor) -> list[int]:
    """Return the numbers below W to which vectors [B, W] may be cut, followed by W."""
    return [n for n in pooling.dimensions if n < vectors.shape[-1]] + [vectors.shape[-1]]


def count_labelled_tokens(task: Task, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the number of labelled tokens in a batch for the loss terms ``labels`` and ``logits``, or those of each head.

    The result is empty if the terms are means over all rows. If only some rows have a label, the term ``labels`` counts
    only those rows, or the tokens in them; so does ``logits`` of a head that learns from a column.
    """
    if task.heads:
        counts = dict[str, Tensor]()
        for head in task.heads:
            of_head = count_labelled_tokens(head.task, _batch_of_head(head, batch))
            if of_head and head.learns_from == "column":
                of_head["logits"] = of_head["labels"]
            counts |= {f"{term}.{head.name}": count for term, count in of_head.items()}
        return counts
    labelled = batch.get(LABELLED_ROWS)
    if task.level is not Level.TOKEN or task.name is TaskName.QUESTION_ANSWERING:
        return {} if labelled is None else {"labels": labelled.sum()}
    marked = batch["labels"] != IGNORED_LABEL
    own = marked if labelled is None else marked & labelled[:, None]
    return {"labels": own.sum(), "logits": marked.sum()}


def _by_question(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Reshape values of single choices, [B] or [B, 1], to [questions, choices].

    All questions of a batch have the same number of choices.
    """
    return values.view(-1, int(batch[CHOICES][0]))


def _choice_scores(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return logits of choices as [questions, choices] float32, with -1e4 added for rows that only pad a question."""
    filled = (batch["labels"] == IGNORED_LABEL).float() * _PADDED_SCORE
    return _by_question(logits.float(), batch) + _by_question(filled, batch)


def _pool_states(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool the token states of each text to one vector, [B, d] float32, which is not normalised.

    With several kinds of pooling, their vectors are concatenated to [B, kinds * d].

    Args:
        states: Token states, [B, S, d].
        mask: 1 at real tokens, [B, S].
        pooling: The kinds of pooling.
    """
    states, weight = states.float(), mask[:, :, None].float()
    # numbers of the tokens of each text from 1 on, whichever side is padded
    places = weight.cumsum(1) * weight
    count = weight.sum(1).clamp(min=1.0)
    pooled = []
    for kind in pooling.kinds:
        match kind:
            case PoolingKind.MAX:
                largest = states.masked_fill(weight == 0, -torch.inf).amax(1)
                pooled.append(largest.masked_fill(weight.sum(1) == 0, 0.0))
            case PoolingKind.CLS:
                pooled.append((states * (places == 1)).sum(1))
            case PoolingKind.LAST_TOKEN:
                pooled.append((states * (places == count[:, None])).sum(1))
            case PoolingKind.WEIGHTED_MEAN:
                pooled.append((states * places).sum(1) / places.sum(1).clamp(min=1.0))
            case _:
                pooled.append((states * weight).sum(1) / (count if kind is PoolingKind.MEAN else count.sqrt()))
    return torch.cat(pooled, -1)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": F.silu,
}


def _apply_layers(vectors: Tensor, layers: Sequence[VectorLayer]) -> Tensor:
    """Apply the layers that follow a teacher's pooling (dense, norm, normalization) to vectors [B, W]; return [B, W'].

    The layers' weights are constants: they are not trained, and the student has the same layers.
    """
    for layer in layers:
        weights = {name: torch.from_numpy(value).to(vectors.device) for name, value in layer.weights.items()}
        if layer.kind == CUT:
            vectors = vectors[..., : layer.width]
        elif layer.kind == NORMALIZE:
            vectors = F.normalize(vectors, dim=-1)
        elif layer.kind == LAYER_NORM:
            weight, bias = weights["norm.weight"], weights.get("norm.bias")
            vectors = F.layer_norm(vectors, weight.shape, weight, bias, NORM_EPSILON)
        else:
            out = F.linear(vectors, weights["linear.weight"], weights.get("linear.bias"))
            out = _ACTIVATIONS[layer.activation](out) if layer.activation in _ACTIVATIONS else out
            if layer.residual:
                own = weights.get("residual.weight")
                out = out + (vectors if own is None else F.linear(vectors, own))
            vectors = out
    return vectors


def _binary_soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the KL divergence of each label's softened yes/no distributions, times T^2, over rows and labels."""
    s, t = student.float() / temperature, teacher.float() / temperature
    yes = torch.sigmoid(t)
    per_label = yes * (F.logsigmoid(t) - F.logsigmoid(s)) + (1 - yes) * (F.logsigmoid(-t) - F.logsigmoid(-s))
    return temperature**2 * per_label.mean()


def _answer_scores(outputs: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the start and the end scores of an answer, [B, S] float32 each, with -1e4 added at padding."""
    take = outputs.__getitem__ if isinstance(outputs, Mapping) else lambda name: getattr(outputs, name)
    padding = (1.0 - mask.float()) * _PADDED_SCORE
    return take("start_logits").float() + padding, take("end_logits").float() + padding
