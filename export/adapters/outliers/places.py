"""Where the channels of a post-norm encoder may be divided by a factor: what writes them, and all that reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.export.adapters.ane.layers import ChannelNorm, ChannelsFirstLayer, PerHeadAttention
from pocketbert.export.adapters.lean.attention import AllRows, FirstRow
from pocketbert.export.adapters.lean.layers import PostNormLayer
from pocketbert.export.adapters.lean.shared import SharedStack
from pocketbert.export.adapters.lean.shortcut import Shortcut
from pocketbert.export.adapters.lean.slim import SpelledNorm
from pocketbert.export.adapters.outliers.uses import uses_of

_WRITERS = (nn.Linear, nn.Conv2d, nn.LayerNorm, SpelledNorm, ChannelNorm)
_ATTENTION = (AllRows, FirstRow, PerHeadAttention)
Reader = tuple[nn.Module, int]
"""A linear layer, and the axis of its weights that stands for the channels it reads."""


@dataclass(frozen=True)
class Place:
    """A tensor, or several that must have the same factors.

    Attributes:
        writers: Layer normalizations and linear layers whose output it is.
        readers: All linear layers that read it.
        shortcuts: What brings its channels back where it is added to another tensor.
        name: Path of the last writer.
    """

    writers: tuple[nn.Module, ...]
    readers: tuple[Reader, ...]
    shortcuts: tuple[Shortcut, ...] = ()
    name: str = ""

    @property
    def columns(self) -> Tensor:
        """The largest magnitude of the weights that read each channel, [C]."""
        sizes = []
        for reader, axis in self.readers:
            weight: Any = reader.weight
            sizes.append(weight.detach().abs().transpose(0, axis).flatten(1).amax(1))
        return torch.stack(sizes).amax(0)

    def divide(self, factors: Tensor) -> None:
        """Divide the channels, and multiply all that reads them; with powers of two, every answer stays the same bit for bit.

        Args:
            factors: What each channel is divided by, [C].
        """
        with torch.no_grad():
            for writer in self.writers:
                weight: Any = writer.weight
                weight.div_(_along(factors, weight, 0))
                bias: Any = getattr(writer, "bias", None)  # what `ChannelNorm` adds is multiplied by its weight
                if bias is not None:
                    bias.div_(factors)
            for reader, axis in self.readers:
                columns: Any = reader.weight
                columns.mul_(_along(factors, columns, axis))
        for shortcut in self.shortcuts:
            shortcut.multiply(factors)


def places_of(module: nn.Module, feed: Sequence[Tensor]) -> list[Place]:
    """List the places of a prepared module, in the order in which they are computed.

    Inside the layers it is known what reads what. What reads the last states is seen in a run: where that is anything but
    linear layers, such as the model's answer, they are left out.

    Args:
        module: A prepared module in eval mode.
        feed: Its inputs, [B, L].

    Returns:
        Nothing for modules with other layers than those of `pocketbert.export.adapters.lean` and
        `pocketbert.export.adapters.ane`.
    """
    layers, stack = _layers(module)
    if not layers:
        return []
    head = _head(module, layers[-1] if stack is None else stack, feed)
    if stack is None:
        writers = [_writer(module, layers[0], feed), *(layer.output_norm for layer in layers)]
        found = [
            Place((w,), _readers(layer.attention), (layer.rows_shortcut,))
            for w, layer in zip(writers, layers, strict=False)
            if w is not None
        ]
        found.append(Place((layers[-1].output_norm,), head or ()))
    else:
        inner = tuple(reader for layer in layers for reader in _readers(layer.attention))
        norms, shortcuts = (tuple(getattr(x, n) for x in layers) for n in ("output_norm", "rows_shortcut"))
        found = [Place((stack.entry, *norms), (*inner, *head), shortcuts)] if head else []
    for layer in layers:
        found.append(
            Place((layer.attention.value,), ((layer.attention_out, 1),))
        )  # means of values, channel by channel
        found.append(Place((layer.attention_norm,), ((layer.up, 1),), (layer.attended_shortcut,)))
    names = {id(m): name for name, m in module.named_modules()}
    order = {name: i for i, name in enumerate(names.values())}
    held = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    named = [replace(p, name=names[id(p.writers[-1])]) for p in found if p.readers and _is_free(p, held)]
    return sorted(named, key=lambda p: order[p.name])


def _layers(module: nn.Module) -> tuple[list[Any], SharedStack | None]:
    """The layers of a module in their order, if all are known, and what runs them where they run several times."""
    for inner in module.modules():
        stack = inner if isinstance(inner, SharedStack) else None
        layers: Any = inner.layers if stack is not None else inner
        if stack is None and not isinstance(inner, nn.ModuleList):
            continue
        if len(layers) and all(
            type(x) in (PostNormLayer, ChannelsFirstLayer) and type(x.attention) in _ATTENTION for x in layers
        ):
            return [*layers], stack
    return [], None


def _readers(attention: Any) -> tuple[Reader, ...]:
    """What reads the states of all tokens or of the first one; of a transposed product, the rows."""
    return (attention.query, 1), (attention.key, 0 if isinstance(attention, FirstRow) else 1), (attention.value, 1)


def _head(module: nn.Module, encoder: nn.Module, feed: Sequence[Tensor]) -> tuple[Reader, ...]:
    """The linear layers of the head that read the last states; none where anything else does."""
    uses = uses_of(module, encoder, feed)
    linear = {id(m.weight): m for m in module.modules() if isinstance(m, nn.Linear)}
    if uses.others or not uses.weights <= set(linear):
        return ()
    return tuple((linear[weight], 1) for weight in linear if weight in uses.weights)


def _writer(module: nn.Module, layer: nn.Module, feed: Sequence[Tensor]) -> nn.Module | None:
    """The module that returned what the first layer is given; None where another function did."""
    given: list[Tensor] = []
    made: list[tuple[nn.Module, Tensor]] = []
    hooks = [m.register_forward_hook(lambda m, _, out: made.append((m, out))) for m in module.modules() if _writes(m)]
    hooks.append(layer.register_forward_pre_hook(lambda _, args: given.append(args[0])))
    try:
        with torch.inference_mode():
            module(*feed)
    finally:
        for hook in hooks:
            hook.remove()
    if not given:  # handed over by name
        return None
    return next((m for m, out in made if out.is_set_to(given[0]) or out is given[0]), None)


def _writes(module: nn.Module) -> bool:
    return type(module) in _WRITERS and getattr(module, "weight", None) is not None


def _is_free(place: Place, held: Mapping[int, int]) -> bool:
    """Whether the parameters of a place are no other module's: a table of words may be a linear layer, too."""
    modules = (*place.writers, *(m for m, _ in place.readers))
    return all(_writes(m) for m in place.writers) and all(held[id(p)] == 1 for m in modules for p in m.parameters())


def _along(factors: Tensor, weight: Tensor, axis: int) -> Tensor:
    """Factors [C] in the shape that multiplies one axis of a weight."""
    return factors.view([-1 if i == axis else 1 for i in range(weight.ndim)])
