"""Losses over the tokens of plain text, for general distillation; each returns a `Term`, a mean over tokens.

* `masked_lm` and `next_sentence` are BERT's pre-training losses.
* `token_soft_targets` and `cosine_distance` are DistilBERT's. `sparse_token_soft_targets` is the former with a sample
  of the teacher's distribution (`SparseLogits`), which `sparsify` draws, so that it can be stored.
* `replaced_tokens` and `replaced_soft_targets` are losses of replaced-token detection (ELECTRA).

Conventions: n selected tokens, V vocabulary, B batch, S length, d width. A mean over no tokens is 0 with count 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.seeds import generator
from pocketbert.distill.capture.outputs import flat_indices
from pocketbert.distill.losses.common import Term, divergence_sum

# --- masked language models -------------------------------------------------------------------------------------------


def masked_lm(student: Tensor, labels: Tensor) -> Term:
    """Compute the cross-entropy of masked-token predictions (Devlin et al. 2019, arXiv 1810.04805, section 3.1).

    Args:
        student: Logits at the selected tokens, [n, V].
        labels: Original ids, -100 at tokens that are not predicted, [n].

    Returns:
        Mean over the tokens with a label, in nats.
    """
    labelled = flat_indices(labels != IGNORED_LABEL)
    # selected first: of all real tokens' logits, six sevenths have no label
    if len(labelled) != len(labels):
        student, labels = student.index_select(0, labelled), labels[labelled]
    total = F.cross_entropy(student.float(), labels, reduction="sum")
    return Term.of(total / max(1, len(labelled)), len(labelled))


def next_sentence(logits: Tensor, labels: Tensor) -> Term:
    """Compute the cross-entropy of next-sentence predictions (Devlin et al. 2019, arXiv 1810.04805, section 3.1).

    Args:
        logits: Logits of "follows" and "does not follow" (ALBERT: "in order" and "swapped"), [B, 2].
        labels: 0 for the first of these, 1 for the second, -100 for a row with one segment, [B]; see
            `pocketbert.distill.text.pairs.PairedRows`.

    Returns:
        Mean over the rows with two segments, in nats.
    """
    return masked_lm(logits, labels)


def token_soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Term:
    """Compute the KL divergence of teacher and student predictions over the vocabulary, softened by T, times T^2.

    ``T^2 * (1/n) * sum_n sum_V p_T (log p_T - log p_S)`` with ``p = softmax(z / T)``: L_ce of DistilBERT (Sanh et al.
    2019, arXiv 1910.01108, section 3) as the released code computes it. The paper writes a cross-entropy; the gradient
    is the same, and the divergence is 0 if the student's predictions equal the teacher's.

    Args:
        student: The student's logits at the selected tokens, [n, V].
        teacher: The teacher's logits at the same tokens, [n, V].
        temperature: T > 0.

    Returns:
        Mean over the n tokens, in nats.
    """
    total = temperature**2 * divergence_sum(student, teacher, temperature=temperature)
    return Term.of(total / max(1, len(student)), len(student))


def cosine_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Term:
    """Compute 1 minus the cosine of student and teacher hidden states, averaged over real tokens.

    It is L_cos of Sanh et al. 2019, arXiv 1910.01108, section 3. It is computed as ``|a/|a| - b/|b||^2 / 2``, the same
    number, which is exactly 0 for equal states and does not lose its digits close to 0 as a difference from 1 does.

    Args:
        student: The student's hidden states, [B, S, d].
        teacher: The teacher's hidden states, [B, S, d].
        mask: 1 at real tokens, [B, S].

    Returns:
        Mean over the real tokens, between 0 and 2.
    """
    difference = F.normalize(student.float(), dim=-1) - F.normalize(teacher.float(), dim=-1)
    weight = mask.to(difference.dtype)
    count = weight.sum()
    return Term.of((difference.square().sum(-1) / 2 * weight).sum() / count.clamp(min=1), count)


# --- a teacher's distributions as samples -----------------------------------------------------------------------------
#
# Keeping only the k most probable tokens teaches the student that nothing else ever happens: the gradient does not
# vanish where the student equals the teacher. Here the other tokens are sampled, weighted so that every sum over the
# vocabulary is right in expectation: random-sampling distillation (Anshumann et al. 2025, arXiv 2503.16870), with the k
# most probable tokens exact.

_POSITIONS_AT_ONCE = 256
"""Positions whose whole distributions are in memory at a time; 30 MB each for BERT's vocabulary."""


@dataclass(frozen=True)
class SparseLogits:
    """A sample of the teacher's vocabulary distribution at each of N positions, as token ids with weights.

    In expectation ``sum_j weights_j f(ids_j) = sum_v p_T(v) f(v)``.

    Attributes:
        ids: Token ids, [N, K] int32; first the k most probable, then the sampled ones.
        weights: Weight of each token id, [N, K] fp32; a row sums to 1, or to the probability of the k tokens if none
            are sampled. An id that was sampled repeatedly stands once; entries left over hold id 0 and weight 0.
        negative_entropy: ``sum_v p_T log p_T`` over the whole vocabulary, [N] fp32, in nats.
        vocabulary: Number of tokens, V.
        temperature: T of ``p_T = softmax(z / T)``.
    """

    ids: Tensor
    weights: Tensor
    negative_entropy: Tensor
    vocabulary: int
    temperature: float

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self.ids)

    def to(self, device: torch.device) -> SparseLogits:
        """Return a copy on another device."""
        ids, weights, entropy = (x.to(device) for x in (self.ids, self.weights, self.negative_entropy))
        return SparseLogits(ids, weights, entropy, self.vocabulary, self.temperature)


def draw_uniform_numbers(positions: int, samples: int, seed: int, row: int, epoch: int) -> Tensor:
    """Draw the random numbers with which `sparsify` samples a row in an epoch. They do not depend on the batch.

    Args:
        positions: Number of the row's masked tokens.
        samples: Draws at each position.
        seed: The run's seed.
        row: Row number.
        epoch: Number of the epoch, from 0.

    Returns:
        [positions, samples] fp32 in [0, 1].
    """
    random = generator(seed, "sparse-logits", row, epoch)
    return torch.from_numpy(random.random((positions, samples), dtype="float32"))


@torch.no_grad()
def sparsify(logits: Tensor, k: int, draws: Tensor, temperature: float = 1.0) -> SparseLogits:
    """Reduce logits to the k most probable tokens of each position, exactly, and a weighted sample of the other tokens.

    m ids are drawn with replacement from the other tokens in proportion to p_T, each with the weight (their probability
    mass) / m; an id drawn twice has twice the weight. The draws are stratified, one from each m-th of the mass: as
    unbiased as independent ones, and never of larger variance.

    Args:
        logits: The teacher's logits at N positions, [N, V].
        k: Number of tokens kept exactly, 0 to V.
        draws: Uniform numbers in [0, 1], [N, m]; see `draw_uniform_numbers`. With m = 0 the other tokens are dropped,
            and the estimate is biased unless k = V.
        temperature: T > 0; distributions are softened before they are sampled.

    Returns:
        A sample of k + m token ids per position, on the device of the logits.

    Raises:
        ValueError: If `k`, `temperature` or the shape of `draws` does not fit the logits.
    """
    size = logits.shape[-1]
    if not 0 <= k <= size or k + draws.shape[-1] == 0 or len(draws) != len(logits) or temperature <= 0:
        raise ValueError(
            f"k={k} (0 to {size}), draws {tuple(draws.shape)} for logits {tuple(logits.shape)} and "
            f"temperature {temperature} do not fit together"
        )
    chunks = []
    for start in range(0, max(1, len(logits)), _POSITIONS_AT_ONCE):
        part = slice(start, start + _POSITIONS_AT_ONCE)
        rest = (logits[part].float() / temperature).softmax(-1)
        negative_entropy = -torch.special.entr(rest).sum(-1)
        weights, ids = rest.topk(k, -1)
        rest = rest.scatter(-1, ids, 0.0)
        sampled, sampled_weights = _sample(rest, draws[part].to(logits.device))
        chunk = torch.cat([ids, sampled], -1).int(), torch.cat([weights, sampled_weights], -1), negative_entropy
        chunks.append(chunk)
    ids, weights, entropies = (torch.cat(column) for column in zip(*chunks, strict=True))
    return SparseLogits(ids, weights, entropies, size, temperature)


def _sample(rest: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Draw token ids at random in proportion to probabilities, and return the ids with their weights.

    Args:
        rest: Probabilities, not normalised, [N, V].
        draws: Uniform numbers in [0, 1], which decide the ids, [N, m].

    Returns:
        Token ids and their weights, [N, m] each. An id that was drawn several times stands once with the sum of its
        weights, and the entries left over hold id 0 and weight 0.
    """
    count = draws.shape[-1]
    if count == 0:
        return draws.long(), draws
    sums = rest.cumsum(-1)
    mass = sums[:, -1:].contiguous()
    points = (torch.arange(count, device=draws.device) + draws) / count * mass
    # below the total, where rounding reaches it: a search from the right finds only ids of probability > 0
    points = points.minimum(torch.nextafter(mass, torch.zeros_like(mass)))
    drawn = torch.searchsorted(sums, points, right=True).clamp(max=rest.shape[-1] - 1)
    # strata ascend, so that equal ids are next to each other
    slot = torch.zeros_like(drawn)
    slot[:, 1:] = (drawn[:, 1:] != drawn[:, :-1]).cumsum(-1)
    ids = torch.zeros_like(drawn).scatter(-1, slot, drawn)
    weights = torch.zeros_like(points).scatter_add(-1, slot, (mass / count).expand_as(points))
    return ids, weights


def sparse_token_soft_targets(student: Tensor, teacher: SparseLogits) -> Term:
    """Compute `token_soft_targets` approximately, from a sample of the teacher's distributions.

    ``-T^2 * mean_n sum_j weights_j log p_S(ids_j)``, with ``p_S = softmax(z_S / T)``, estimates the cross-entropy. The
    teacher's entropy is exact, so the result may be below 0 for a student that nearly equals the teacher.

    Args:
        student: Logits at the selected tokens, [n, V].
        teacher: Sample of the teacher's distributions at the same tokens, over the same vocabulary.

    Returns:
        Mean over the n tokens, in nats; right in expectation, and so is its gradient.

    Raises:
        ValueError: If student and teacher differ in the number of tokens or the size of the vocabulary.
    """
    if not len(student):
        return Term.of(student.float().sum(), 0)
    if tuple(student.shape) != (len(teacher), teacher.vocabulary):
        raise ValueError(
            f"student logits {tuple(student.shape)} do not match a teacher of {len(teacher)} positions and "
            f"{teacher.vocabulary} tokens"
        )
    scaled = student.float() / teacher.temperature
    log_p = scaled.gather(-1, teacher.ids.long()) - scaled.logsumexp(-1, keepdim=True)
    cross_entropy = -(teacher.temperature**2) * (teacher.weights * log_p).sum(-1).mean()
    return Term.of(cross_entropy + teacher.temperature**2 * teacher.negative_entropy.mean(), len(student))


# --- replaced-token detection -----------------------------------------------------------------------------------------


def replaced_tokens(logits: Tensor, replaced: Tensor, mask: Tensor) -> Term:
    """Compute the cross-entropy of predicting which tokens were replaced (ELECTRA's discriminator loss).

    L_Disc of ELECTRA (Clark et al. 2020, arXiv 2003.10555, section 2): with ``1 - D = sigmoid(logit)`` it is ``-log D``
    at original tokens, also if a generator has drawn the original one, and ``-log(1 - D)`` at replaced tokens.

    Args:
        logits: Above 0 where a token is predicted to be replaced, [B, S].
        replaced: 1 where a token was replaced, [B, S].
        mask: 1 at real tokens, [B, S].

    Returns:
        Mean over real tokens, in nats.
    """
    real = mask.to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
    return Term.of((losses * real).sum() / real.sum().clamp(min=1.0), real.sum())


def replaced_soft_targets(student: Tensor, teacher: Tensor, mask: Tensor, temperature: float) -> Term:
    """Compute the KL divergence of teacher and student predictions of which tokens were replaced, times T^2.

    Per token it is ``T^2 KL(sigmoid(t / T) || sigmoid(s / T))``.

    Args:
        student: Logits, [B, S].
        teacher: Logits, [B, S]; gets no gradient.
        mask: 1 at real tokens, [B, S].
        temperature: T > 0.

    Returns:
        Mean over real tokens, in nats.
    """
    s, t = student / temperature, teacher.detach() / temperature
    yes = torch.sigmoid(t)
    losses = yes * (F.logsigmoid(t) - F.logsigmoid(s)) + (1 - yes) * (F.logsigmoid(-t) - F.logsigmoid(-s))
    real = mask.to(losses.dtype)
    return Term.of((losses * real).sum() / real.sum().clamp(min=1.0) * temperature**2, real.sum())
