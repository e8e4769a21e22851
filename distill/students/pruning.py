"""Prune feed-forward neurons: `pruned` leaves the same number in every layer, for an ordinary model of the class.

The importance of a neuron is the size of its contribution to the residual stream on real text: the mean of its absolute
activation over the tokens of a few hundred rows, times the norm of its outgoing weights.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import Family, check_distillable, check_prunable
from pocketbert.core.models.checkpoints import finish_loading

_MASK = "attention_mask"


@dataclass(frozen=True)
class Pruned:
    """A model copy with fewer feed-forward neurons, and which neurons were kept.

    Attributes:
        model: The smaller model, of the original model's class, with weights of its own; in evaluation mode.
        kept: For each feed-forward part, by the path of the matrix into its neurons, the indices of the neurons that
            stay, ascending.
        shares: Share of the summed importance that stays, from 0 to 1, by the same path.
        width: Number of neurons that each feed-forward part had.
    """

    model: Any
    kept: Mapping[str, Tensor]
    shares: Mapping[str, float]
    width: int

    @property
    def sentence(self) -> str:
        """Sentence about how much was pruned, for the log of a run."""
        count = len(next(iter(self.kept.values())))
        least, most = min(self.shares.values()), max(self.shares.values())
        return (
            f"pruned: {count} of {self.width} feed-forward neurons stay in each layer, "
            f"with {least:.0%} to {most:.0%} of their importance"
        )


def pruned(model: Any, family: Family, intermediate: int, rows: Iterable[Mapping[str, Tensor]]) -> Pruned:
    """Return a copy of a model that has only the most important feed-forward neurons of each layer.

    Attention heads stay as they are: transformers computes the size of a head as the width divided by the number of
    heads.

    Args:
        model: A transformers model with any head; it is not changed.
        family: Names, layer paths and inputs of the model's family.
        intermediate: Number of neurons that stay in each layer.
        rows: Batches to measure importance on, with ``attention_mask`` and the inputs of the family, each [B, L].

    Returns:
        The smaller model and the neurons that were kept.

    Raises:
        InputError: If the model's family cannot be distilled or pruned, or its layers have no more neurons than are to
            remain.
        ValueError: If `rows` is empty.
    """
    key = family.config_names.get("intermediate_size", "intermediate_size")
    check_distillable(family, model.config.to_dict())
    check_prunable(family, model.config.to_dict(), intermediate)
    importance = _measure_importance(model, family, rows)
    # of equal neurons the earlier one stays, on every machine
    kept = {
        path: scores.argsort(descending=True, stable=True)[:intermediate].sort().values
        for path, scores in importance.items()
    }
    config, state = copy.deepcopy(model.config), model.state_dict()
    width = getattr(config, key)
    setattr(config, key, intermediate)
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    for part in _find_feed_forward_parts(model, family):
        neurons = kept[part.up_path]
        up_rows = torch.cat([neurons + start for start in range(0, part.up.out_features, width)])
        for name in (f"{part.up_path}.weight", f"{part.up_path}.bias"):
            if name in state:
                state[name] = state[name][up_rows]
        state[f"{part.down_path}.weight"] = state[f"{part.down_path}.weight"][:, neurons]
    with torch.random.fork_rng(devices=[]):
        smaller = type(model)(config)
    smaller.load_state_dict(state)
    shares = {p: float(s[kept[p]].sum() / s.sum()) if s.any() else 1.0 for p, s in importance.items()}
    return Pruned(finish_loading(smaller, family).eval(), kept, shares, width)


# --- the feed-forward parts of a model --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FeedForward:
    """The two linear layers of a feed-forward part: into the neurons and out of them.

    Attributes:
        up_path: Path in the model of the matrix into the neurons.
        up: That matrix, [neurons, d]; if the neurons are gated, [2 * neurons, d], and its second half computes the
            gates.
        down_path: Path in the model of the matrix out of them.
        down: That matrix, [d, neurons].
    """

    up_path: str
    up: nn.Linear
    down_path: str
    down: nn.Linear


def _find_feed_forward_parts(model: Any, family: Family) -> list[_FeedForward]:
    """Return the feed-forward parts of a model's layers, in order. A part that layers share is returned once.

    The family gives the paths of their two matrices within a layer, in which "*" stands for any number. Raises
    ValueError if a layer has no matrices at these paths.
    """
    layer_path = family.layer_path
    if not hasattr(model, layer_path.partition(".")[0]):
        layer_path = layer_path.partition(".")[2]  # an encoder without a head lacks the first part of the path
    parts = list[_FeedForward]()
    for number, layer in enumerate(model.get_submodule(layer_path)):
        modules, prefix, count = dict(layer.named_modules()), f"{layer_path}.{number}.", len(parts)
        for up_entry, down_entry in family.feed_forward.items():
            pattern = re.compile(re.escape(up_entry).replace(r"\*", r"(\d+)"))
            for up in modules:
                if match := pattern.fullmatch(up):
                    down = down_entry.replace("*", match[1]) if match.groups() else down_entry
                    parts.append(_FeedForward(prefix + up, modules[up], prefix + down, modules[down]))
        if len(parts) == count:
            raise ValueError(f"layer {number} of {type(model).__name__} has nothing at {list(family.feed_forward)}")
    return parts


# --- importance -------------------------------------------------------------------------------------------------------


def _measure_importance(model: Any, family: Family, rows: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Measure the importance of every feed-forward neuron of a model on real text.

    The importance is the mean absolute activation over all tokens, times the Euclidean norm of the outgoing weights; in
    a layer that runs several times, the mean is over all its runs. Every row is run by itself without its padding, so
    that padding has no influence.

    Returns a vector [neurons] in fp64 for each feed-forward part, by the path of its first linear layer. Raises
    ValueError if there is no row.
    """
    parts, activations = _find_feed_forward_parts(model, family), _ActivationSums()
    training, device = model.training, next(model.parameters()).device
    handles = [part.down.register_forward_pre_hook(activations.hook(part.up_path)) for part in parts]
    try:
        model.eval()
        with torch.no_grad():
            for inputs in _single_rows(rows, family.inputs):
                activations.tokens = inputs[_MASK].shape[1]
                model(**{name: value.to(device) for name, value in inputs.items()})
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    if set(activations.counts) != {part.up_path for part in parts}:
        raise ValueError("importance is measured on at least one row of text")
    norms = {part.up_path: part.down.weight.detach().double().norm(dim=0).cpu() for part in parts}
    return {path: activations.sums[path] / activations.counts[path] * norm for path, norm in norms.items()}


class _ActivationSums:
    """Sums of the neurons' absolute activations, by the path of the linear layer into the neurons.

    Attributes:
        tokens: Real tokens of the running row; set before each forward pass.
        sums: Sum of absolute activations of each neuron, [neurons] fp64, by path.
        counts: Number of summed tokens, by path.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def hook(self, path: str) -> Any:
        """Return a forward pre-hook that adds a layer's absolute inputs to the sums of `path`.

        The inputs are [1, L, neurons] or [L, 1, neurons], and only the first `tokens` tokens are counted.
        """

        def add(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            """Add the absolute activations of one forward pass."""
            states = arguments[0]
            # some encoders pad a row themselves, on the right, to a multiple of their window
            real = states.reshape(-1, states.shape[-1])[: self.tokens].double().abs()
            self.sums[path] = self.sums.get(path, 0) + real.sum(0).cpu()
            self.counts[path] = self.counts.get(path, 0) + len(real)

        return add


def _single_rows(rows: Iterable[Mapping[str, Tensor]], names: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Yield the model inputs of each row of each batch by itself, without padding, [1, L] each."""
    for batch in rows:
        for number, mask in enumerate(batch[_MASK]):
            real = mask.bool()
            yield {name: batch[name][number : number + 1, real] for name in (*names, _MASK) if name in batch}
