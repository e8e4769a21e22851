"""Pruning feed-forward neurons: the same number stays in every layer, so that the student is an ordinary model of its class.

A neuron is as important as what it adds to the residual stream on real text: the mean of its absolute activation over the
tokens of a few hundred rows, times the norm of the weights that carry it on.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import Family, check_pruned, check_taught
from pocketbert.core.models.checkpoints import complete

_MASK = "attention_mask"


@dataclass(frozen=True)
class FeedForward:
    """The two matrices of a feed-forward part.

    Attributes:
        up: Path in the model of the matrix into the neurons; where these are gated, its second half makes the gates.
        into: That matrix, [neurons or twice as many, d].
        down: Path in the model of the matrix out of them.
        out_of: That matrix, [d, neurons].
    """

    up: str
    into: nn.Linear
    down: str
    out_of: nn.Linear


@dataclass(frozen=True)
class Pruned:
    """A model with fewer feed-forward neurons.

    Attributes:
        model: Of the class of the model that it was made from, with weights of its own; in evaluation mode.
        kept: Neurons that stay, in their old order, by the path of the matrix into them.
        shares: Share of the summed importance that stays, from 0 to 1, by the same path.
        width: Neurons that each feed-forward part had.
    """

    model: Any
    kept: Mapping[str, Tensor]
    shares: Mapping[str, float]
    width: int

    @property
    def sentence(self) -> str:
        """What was done, for the log of a run."""
        count = len(next(iter(self.kept.values())))
        least, most = min(self.shares.values()), max(self.shares.values())
        return (
            f"pruned: {count} of {self.width} feed-forward neurons stay in each layer, "
            f"with {least:.0%} to {most:.0%} of their importance"
        )


def pruned(model: Any, family: Family, intermediate: int, rows: Iterable[Mapping[str, Tensor]]) -> Pruned:
    """Copy a model, leaving in each layer its most important feed-forward neurons.

    Attention heads stay as they are: transformers computes the size of a head as the width divided by the number of heads.

    Args:
        model: A transformers model with any head; it is not changed.
        family: Its row of the family table.
        intermediate: Neurons that stay in each layer.
        rows: Inputs to choose them on, see `importance`.

    Returns:
        The smaller model and what was chosen.

    Raises:
        InputError: If the model cannot be taught from or its neurons cannot be pruned, or there are not more than should stay.
    """
    key = family.config_names.get("intermediate_size", "intermediate_size")
    check_taught(family, model.config.to_dict())
    check_pruned(family, model.config.to_dict(), intermediate)
    scores, parts = importance(model, family, rows), feed_forward_parts(model, family)
    # equal scores: the earlier neuron stays, on every machine
    kept = {p: s.argsort(descending=True, stable=True)[:intermediate].sort().values for p, s in scores.items()}
    config, state = copy.deepcopy(model.config), model.state_dict()
    width = getattr(config, key)
    setattr(config, key, intermediate)
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    for part in parts:
        keep = kept[part.up]
        rows_kept = torch.cat([keep + start for start in range(0, part.into.out_features, width)])
        for name in (n for n in (f"{part.up}.weight", f"{part.up}.bias") if n in state):
            state[name] = state[name][rows_kept]
        state[f"{part.down}.weight"] = state[f"{part.down}.weight"][:, keep]
    with torch.random.fork_rng(devices=[]):
        smaller = type(model)(config)
    smaller.load_state_dict(state)
    shares = {p: float(s[kept[p]].sum() / s.sum()) if s.any() else 1.0 for p, s in scores.items()}
    return Pruned(complete(smaller, family).eval(), kept, shares, width)


def importance(model: Any, family: Family, rows: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Score the feed-forward neurons of a model.

    Args:
        model: A transformers model with any head.
        family: Its row of the family table.
        rows: Batches with ``attention_mask`` and the inputs of the family's row, each [B, L]. Every row is run by itself
            without its padding, so that padding decides nothing.

    Returns:
        For each feed-forward part, by the path of the matrix into it: mean |activation| over all tokens, times the Euclidean
        norm of the outgoing weights; [neurons], fp64. A shared layer has the mean over all its runs.

    Raises:
        ValueError: If there is no row.
    """
    parts, tally = feed_forward_parts(model, family), _Tally()
    training, device = model.training, next(model.parameters()).device
    handles = [part.out_of.register_forward_pre_hook(tally.hook(part.up)) for part in parts]
    try:
        model.eval()
        with torch.no_grad():
            for inputs in _single_rows(rows, family.inputs):
                tally.tokens = inputs[_MASK].shape[1]
                model(**{name: value.to(device) for name, value in inputs.items()})
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    if set(tally.counts) != {part.up for part in parts}:
        raise ValueError("importance is measured on at least one row of text")
    norms = {part.up: part.out_of.weight.detach().double().norm(dim=0).cpu() for part in parts}
    return {path: tally.sums[path] / tally.counts[path] * norms[path] for path in norms}


def feed_forward_parts(model: Any, family: Family) -> list[FeedForward]:
    """Find the feed-forward parts of a model, in the order of its layers; those of a shared layer once.

    Args:
        model: A transformers model with any head.
        family: Its row of the family table.

    Raises:
        ValueError: If a layer has none where the row says that they are.
    """
    path = family.layer_path
    if not hasattr(model, path.partition(".")[0]):
        path = path.partition(".")[2]  # an encoder without a head lacks the name it has within one
    out = list[FeedForward]()
    for number, layer in enumerate(model.get_submodule(path)):
        modules, start = dict(layer.named_modules()), f"{path}.{number}."
        found = [pair for up, down in family.feed_forward.items() for pair in _pairs(modules, up, down)]
        if not found:
            raise ValueError(f"layer {number} of {type(model).__name__} has nothing at {list(family.feed_forward)}")
        out += [FeedForward(start + up, modules[up], start + down, modules[down]) for up, down in found]
    return out


def _pairs(modules: Mapping[str, Any], up: str, down: str) -> Iterator[tuple[str, str]]:
    """Names of both matrices of each part that a row's entry means; "*" is any number, the same in both."""
    pattern = re.compile(re.escape(up).replace(r"\*", r"(\d+)"))
    for name in modules:
        match = pattern.fullmatch(name)
        if match:
            yield name, down.replace("*", match[1]) if match.groups() else down


class _Tally:
    """Sums of absolute activations, by the path of the matrix into the neurons.

    Attributes:
        tokens: Real tokens of the row that runs.
        sums: [neurons], fp64.
        counts: Tokens that were summed.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def hook(self, path: str) -> Any:
        """A hook that reads what a matrix out of neurons is given, [1, L, neurons] or [L, 1, neurons]."""

        def add(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            states = arguments[0]
            # some encoders pad a row themselves, on the right, to a multiple of their window
            real = states.reshape(-1, states.shape[-1])[: self.tokens].double().abs()
            self.sums[path] = self.sums.get(path, 0) + real.sum(0).cpu()
            self.counts[path] = self.counts.get(path, 0) + len(real)

        return add


def _single_rows(rows: Iterable[Mapping[str, Tensor]], names: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Each row of each batch by itself, without its padding: [1, L] each."""
    for batch in rows:
        for number, mask in enumerate(batch[_MASK]):
            real = mask.bool()
            yield {name: batch[name][number : number + 1, real] for name in (*names, _MASK) if name in batch}
