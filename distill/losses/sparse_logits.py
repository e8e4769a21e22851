"""A teacher's distribution over a large vocabulary in a few numbers, without bias.

Keeping the k most probable tokens alone teaches the student that nothing else ever happens: the gradient
does not vanish where the student equals the teacher. Here the rest is sampled, weighted so that every sum
over the vocabulary is right in expectation: random-sampling distillation (Anshumann et al. 2025,
arXiv 2503.16870), with the k most probable tokens exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbert.core.seeds import generator

_AT_ONCE = 256
"""Positions whose whole distributions are held at a time; 30 MB each for BERT's vocabulary."""


@dataclass(frozen=True)
class SparseLogits:
    """Estimates of a teacher's distributions at N positions: ``E sum_j weights_j f(ids_j) = sum_v p_T(v) f(v)``.

    Attributes:
        ids: Token ids, [N, K] int32; first the k most probable, then the sampled ones.
        weights: Weight of each, [N, K] fp32; a row sums to 1. Slots that merged samples left empty hold id
            0 and weight 0.
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
        """Number of positions."""
        return len(self.ids)

    def to(self, device: torch.device) -> SparseLogits:
        """The same on another device."""
        return SparseLogits(
            self.ids.to(device),
            self.weights.to(device),
            self.negative_entropy.to(device),
            self.vocabulary,
            self.temperature,
        )


def uniform_draws(positions: int, samples: int, seed: int, row: int, epoch: int) -> Tensor:
    """Random numbers for one row in one epoch, the same in whatever batch the row is.

    Args:
        positions: How many positions of the row are distilled.
        samples: Draws at each.
        seed: The run's seed.
        row: Row number.
        epoch: Epoch.

    Returns:
        [positions, samples] fp32 in [0, 1].
    """
    random = generator(seed, "sparse-logits", row, epoch)
    return torch.from_numpy(random.random((positions, samples), dtype="float32"))


@torch.no_grad()
def sparsify(logits: Tensor, k: int, draws: Tensor, temperature: float = 1.0) -> SparseLogits:
    """The k most probable tokens exactly, and a weighted sample of the others.

    m ids are drawn with replacement in proportion to p_T among the others, each weighing (mass of the
    others) / m; an id drawn twice weighs twice. The draws are stratified, one from each m-th of the mass:
    as unbiased as independent ones, and never of larger variance.

    Args:
        logits: The teacher's, [N, V].
        k: Tokens kept exactly, 0 to V.
        draws: Uniform numbers in [0, 1], [N, m]; see `uniform_draws`. With m = 0 the tail is cut off, and
            the estimate is biased unless k = V.
        temperature: T > 0; distributions are softened before they are sampled.

    Returns:
        k + m ids a position, on the device of the logits.

    Raises:
        ValueError: If k or the draws do not fit the logits.
    """
    size = logits.shape[-1]
    if not 0 <= k <= size or k + draws.shape[-1] == 0 or len(draws) != len(logits) or temperature <= 0:
        raise ValueError(
            f"k={k} (0 to {size}), draws {tuple(draws.shape)} for logits {tuple(logits.shape)} and "
            f"temperature {temperature} do not fit together"
        )
    slices = [slice(start, start + _AT_ONCE) for start in range(0, max(1, len(logits)), _AT_ONCE)]
    parts = [_sparsify(logits[s].float() / temperature, k, draws[s].to(logits.device)) for s in slices]
    ids, weights, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
    return SparseLogits(ids, weights, entropies, size, temperature)


def _sparsify(scaled: Tensor, k: int, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rest = scaled.softmax(-1)
    negative_entropy = -torch.special.entr(rest).sum(-1)
    weights, ids = rest.topk(k, -1)
    rest = rest.scatter(-1, ids, 0.0)
    sampled, sampled_weights = _sample(rest, draws)
    return torch.cat([ids, sampled], -1).int(), torch.cat([weights, sampled_weights], -1), negative_entropy


def _sample(rest: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Draws from unnormalised probabilities [N, V] by inverting their sums; equal ids merged, [N, m] each."""
    count = draws.shape[-1]
    if count == 0:
        return draws.long(), draws
    sums = rest.cumsum(-1)
    mass = sums[:, -1:].contiguous()
    points = (torch.arange(count, device=draws.device) + draws) / count * mass
    # below the total, where rounding reaches it: a search from the right finds only ids of probability > 0
    points = points.minimum(torch.nextafter(mass, torch.zeros_like(mass)))
    drawn = torch.searchsorted(sums, points, right=True).clamp(max=rest.shape[-1] - 1)
    # strata ascend, so equal ids stand side by side
    slot = torch.zeros_like(drawn)
    slot[:, 1:] = (drawn[:, 1:] != drawn[:, :-1]).cumsum(-1)
    ids = torch.zeros_like(drawn).scatter(-1, slot, drawn)
    weights = torch.zeros_like(points).scatter_add(-1, slot, (mass / count).expand_as(points))
    return ids, weights


def sparse_cross_entropy(student: Tensor, teacher: SparseLogits) -> Tensor:
    """Cross-entropy with a teacher's softened distributions, estimated; times T^2.

    ``-T^2 * mean_N sum_j weights_j log p_S(ids_j)`` with ``p_S = softmax(z_S / T)``. In expectation over
    the sample, value and gradient are those of the sum over the whole vocabulary.

    Args:
        student: Logits, [N, V].
        teacher: At the same N positions, over the same vocabulary; T is its temperature.

    Returns:
        Scalar, in nats.

    Raises:
        ValueError: If positions or vocabularies differ: ids would mean other tokens.
    """
    _check(student, teacher)
    scaled = student.float() / teacher.temperature
    log_p = scaled.gather(-1, teacher.ids.long()) - scaled.logsumexp(-1, keepdim=True)
    return -(teacher.temperature**2) * (teacher.weights * log_p).sum(-1).mean()


def sparse_kl(student: Tensor, teacher: SparseLogits) -> Tensor:
    """`pocketbert.distill.losses.common.soft_targets`, estimated: its expectation and that of its gradient are the same.

    The teacher's entropy is exact, the cross-entropy an estimate: near a perfect student the number may
    fall below 0.

    Args:
        student: Logits, [N, V].
        teacher: At the same N positions, over the same vocabulary; T is its temperature.

    Returns:
        Scalar, in nats.

    Raises:
        ValueError: If positions or vocabularies differ.
    """
    return sparse_cross_entropy(student, teacher) + teacher.temperature**2 * teacher.negative_entropy.mean()


def _check(student: Tensor, teacher: SparseLogits) -> None:
    if tuple(student.shape) != (len(teacher), teacher.vocabulary):
        raise ValueError(
            f"student logits {tuple(student.shape)} do not match a teacher of {len(teacher)} positions and "
            f"{teacher.vocabulary} tokens"
        )
