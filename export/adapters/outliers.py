"""Where the channels of a post-norm encoder may be divided by a factor: what writes them, and all that reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pocketbert.export.adapters.ane import ChannelNorm, ChannelsFirstLayer, PerHeadAttention
from pocketbert.export.adapters.lean import AllRows, FirstRow, PostNormLayer, SharedStack, Shortcut, SpelledNorm

# --- uses ---
# What reads the output of a module: linear layers, or anything else.


_PRODUCTS = ("linear", "conv2d")
_SILENT = ("size", "dim", "__get__")
"""Calls that only ask what a tensor is like."""


@dataclass
class Uses:
    """What reads one tensor.

    Attributes:
        weights: Numbers (`id`) of the weights of the linear layers that read it.
        others: Names of all other functions that read it, and "output" where the module returns it.
    """

    weights: set[int] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def uses_of(module: nn.Module, inner: nn.Module, feed: Sequence[Tensor]) -> Uses:
    """Run a module once and follow what it does with the last output of one of its inner modules.

    A view of the output, such as its first token, counts as the output itself.

    Args:
        module: A prepared module in eval mode, whose path does not depend on its input.
        inner: A module in it that returns one tensor, alone or in a tuple.
        feed: Inputs, [B, L].
    """
    follower = _Follower()
    hook = inner.register_forward_hook(follower.follow)
    try:
        with torch.inference_mode(), follower:
            outputs = module(*feed)
    finally:
        hook.remove()
    if any(follower.is_followed(out) for out in _tensors(outputs)):
        follower.uses.others.add("output")
    return follower.uses


class _Follower(TorchFunctionMode):
    """Sees every call of a function of torch, and keeps those that read the followed tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.uses = Uses()
        self._followed: Tensor | None = None  # kept: memory that is freed could be another tensor's

    def follow(self, _: nn.Module, __: Any, out: Any) -> None:
        """Begin to follow what a module returns, and forget what was followed before."""
        (self._followed,) = _tensors(out)
        self.uses = Uses()

    def is_followed(self, tensor: Tensor) -> bool:
        """Whether a tensor is the followed one, or a view of it."""
        return self._followed is not None and _place(tensor) == _place(self._followed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        read = [t for t in _tensors((args, tuple(kwargs.values()))) if self.is_followed(t)]
        if not read or name in _SILENT or any(self.is_followed(t) for t in _tensors(result)):
            return result
        if name in _PRODUCTS and self.is_followed(args[0]):
            self.uses.weights.add(id(args[1]))
        else:
            self.uses.others.add(name)
        return result


def _place(tensor: Tensor) -> int:
    """Where the memory of a tensor begins, which it shares with its views."""
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    """All tensors in nested tuples and lists."""
    if isinstance(values, Tensor):
        return [values]
    return [t for v in values for t in _tensors(v)] if isinstance(values, tuple | list) else []


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


# --- scaling ---
# Divide the outlier channels of a model, and multiply what reads them: the same answers, and ranges that int8 can hold.
#
# An int8 range ends at the largest number of a tensor, so that one channel fifty times larger than the rest leaves the rest a few
# steps. Source: Xiao et al. 2023, SmoothQuant, equation 4 with alpha = 0.5: a channel c is divided by
# sqrt(max|x_c| / max|w_c|). Here the factor is taken relative to its median, rounded to a power of two, and used for outliers only.
# In post-norm layers a shortcut adds the same tensor, which a multiplication brings back. A power of two changes exponents only:
# in fp32 every answer stays the same bit for bit.


RATIO = 10.0
"""How many times larger than the median channel's a channel's largest number must be."""
MOST = 8
"""The exponent of the largest factor, 256: weights that are multiplied by it must stay in fp16's range."""
Inputs = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Outliers:
    """What was done to one tensor of a model.

    Attributes:
        name: Path of the module that writes it.
        channels: How many of its channels were divided.
        of: How many it has.
        ratio: The largest magnitude of its largest channel over that of its median channel, before.
    """

    name: str
    channels: int
    of: int
    ratio: float


def divide_outliers(module: nn.Module, inputs: Sequence[str], rows: Sequence[Inputs]) -> tuple[Outliers, ...]:
    """Find the outlier channels of a prepared module and divide them.

    Args:
        module: A prepared module in eval mode. **It is changed in place**; in fp32 its answers stay the same.
        inputs: Names of its inputs, in their order.
        rows: Inputs [B, L] by name to measure on; without any, nothing is done.

    Returns:
        What was done; nothing for modules without outliers, and for those whose layers are not known.
    """
    if not rows:
        return ()
    places = places_of(module, _feed(rows[0], inputs))
    largest = largest_channels(module, places, inputs, rows)
    found = []
    for place, sizes in zip(places, largest, strict=True):
        factors = _factors(sizes, place)
        if factors is not None:
            place.divide(factors)
            ratio = float(sizes.max() / sizes.median())
            found.append(
                Outliers(place.name.removeprefix("model."), int((factors != 1).sum()), len(factors), round(ratio, 1))
            )
    return tuple(found)


def largest_channels(
    module: nn.Module, places: Sequence[Place], inputs: Sequence[str], rows: Sequence[Inputs]
) -> list[Tensor]:
    """Measure the largest magnitude of every channel [C] of each place, padding left out.

    Args:
        module: A prepared module in eval mode.
        places: Its places.
        inputs: Names of its inputs, in their order.
        rows: Inputs [B, L] by name.
    """
    out = [place.columns * 0 for place in places]
    mask: list[Tensor] = []

    def take(number: int, states: Tensor) -> None:
        if states.ndim == 4:
            states = states[:, :, 0].transpose(1, 2)
        if states.shape[:-1] == mask[0].shape:
            states = states * mask[0][..., None]
        out[number] = torch.maximum(out[number], states.abs().flatten(0, -2).amax(0))

    hooks: list[Any] = []
    for i, place in enumerate(places):
        if place.shortcuts:
            hooks += [w.register_forward_hook(lambda _, __, x, i=i: take(i, x)) for w in place.writers]
        else:  # what a head reads, and what attention makes of values
            hooks += [r.register_forward_pre_hook(lambda _, args, i=i: take(i, args[0])) for r, _ in place.readers]
    try:
        with torch.inference_mode():
            for row in rows:
                mask[:] = _feed(row, ("attention_mask",))
                module(*_feed(row, inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return out


def _factors(sizes: Tensor, place: Place) -> Tensor | None:
    """Powers of two [C] to divide channels by, 1 except for outliers; None where there is none."""
    middle = sizes.median()
    if not torch.isfinite(sizes).all() or not 0 < middle < RATIO**-1 * sizes.max():
        return None  # NaN and infinity are what parity speaks of
    columns = place.columns.clamp(min=torch.finfo(sizes.dtype).tiny)  # a new head may be all zeros
    wanted = torch.sqrt(sizes / middle / (columns / columns.median()))
    powers = 2.0 ** torch.round(torch.log2(wanted)).clamp(0, MOST)
    factors = torch.where(sizes > RATIO * middle, powers, torch.ones_like(powers))
    return factors if bool((factors != 1).any()) else None


def _feed(row: Inputs, inputs: Sequence[str]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(row[name])) for name in inputs]
