"""Divide the outlier channels of a model by factors, and multiply the weights that read them by the same factors.

The model's outputs stay the same, and an int8 range loses less. It ends at the largest number of a tensor, so that one
channel fifty times larger than the rest leaves only a few steps for the rest. Source: Xiao et al. 2023, SmoothQuant,
equation 4 with alpha = 0.5: a channel c is divided by sqrt(max|x_c| / max|w_c|). Here the factor is taken relative to
its median, rounded to a power of two, and used for outliers only. In post-norm layers the residual connection adds the
same tensor, where a multiplication restores it. A power of two changes exponents only: in fp32 every output stays the
same bit for bit.

`divide_outliers` finds the tensors whose channels may be divided (`find_places`: the modules that compute a tensor, and
all that read it), measures their channels on texts (`measure_channels`), and divides the outliers (`Place.divide`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pocketbert.export.adapters.ane import ChannelNorm, ChannelsFirstLayer, PerHeadAttention
from pocketbert.export.adapters.lean import AllRows, FirstRow, PostNormLayer, SharedStack, Shortcut, SpelledNorm

RATIO = 10.0
"""How many times larger than the median channel's a channel's largest number must be."""
_MAX_EXPONENT = 8
"""The exponent of the largest factor, 256: weights that are multiplied by it must stay in fp16's range."""
_WRITERS = (nn.Linear, nn.Conv2d, nn.LayerNorm, SpelledNorm, ChannelNorm)
_LAYERS = (PostNormLayer, ChannelsFirstLayer)
_ATTENTION = (AllRows, FirstRow, PerHeadAttention)
_PRODUCTS = ("linear", "conv2d")
_QUERIES = ("size", "dim", "__get__")
"""Functions that only return properties of a tensor."""
_Inputs = Mapping[str, NDArray[np.int64]]
_Reader = tuple[nn.Module, int]
"""A linear layer, and the axis of its weights that stands for the channels it reads."""


@dataclass(frozen=True)
class Outliers:
    """The outlier channels of one tensor that were divided, for the report.

    Attributes:
        name: Path of the module that computes the tensor.
        channels: Number of channels that were divided.
        of: Number of all channels of the tensor.
        ratio: The largest magnitude of the largest channel over that of the median channel, before the division.
    """

    name: str
    channels: int
    of: int
    ratio: float


def divide_outliers(
    module: nn.Module, inputs: Sequence[str], rows: Sequence[_Inputs], known: dict[str, Tensor] | None = None
) -> tuple[Outliers, ...]:
    """Divide channels with outlier activations by powers of two, and multiply the weights that read them, in place.

    Channels are outliers if their activations on `rows` are far larger than those of the other channels. In fp32 the
    outputs stay the same; quantization loses less.

    Args:
        module: A module prepared for export, in eval mode. **It is changed in place.**
        inputs: Names of the module's inputs, in their order.
        rows: Inputs [B, L] by name on which activations are measured; if there are none, nothing is changed.
        known: Largest magnitudes [C] by the name of the tensor, from an earlier call with a module that was prepared in
            the same way from the same weights. If one is missing, this call measures all and stores them here.

    Returns:
        The tensors with divided channels; empty if there are no outliers, or if a layer is of an unknown class.
    """
    if not rows:
        return ()
    places = find_places(module, [tensor[:1] for tensor in _tensors_of_row(rows[0], inputs)])
    known = {} if known is None else known
    if not all(place.name in known for place in places):
        known |= zip((p.name for p in places), measure_channels(module, places, inputs, rows), strict=True)
    divided = []
    for place in places:
        sizes = known[place.name]
        factors = _choose_factors(sizes, place)
        if factors is not None:
            place.divide(factors)
            ratio = round(float(sizes.max() / sizes.median()), 1)
            name = place.name.removeprefix("model.")
            divided.append(Outliers(name, int((factors != 1).sum()), len(factors), ratio))
    return tuple(divided)


@dataclass(frozen=True)
class Place:
    """A tensor of which single channels can be divided, or several tensors that must get the same factors.

    Attributes:
        writers: Layer normalizations and linear layers that compute the tensor.
        readers: All linear layers that read the tensor.
        shortcuts: The residual connections that read the tensor, and multiply the channels back.
        name: Path of the last writer.
    """

    writers: tuple[nn.Module, ...]
    readers: tuple[_Reader, ...]
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
        """Divide the tensor's channels in the weights that compute it, and multiply the weights that read it.

        The residual connections that read it multiply too. If the factors are powers of two, every output of the model
        stays the same bit for bit.

        Args:
            factors: Divisor of each channel, [C].
        """
        with torch.no_grad():
            for writer in self.writers:
                weight: Any = writer.weight
                weight.div_(_along_axis(factors, weight, 0))
                bias: Any = getattr(writer, "bias", None)  # the shift of `ChannelNorm` is multiplied by its weight
                if bias is not None:
                    bias.div_(factors)
            for reader, axis in self.readers:
                columns: Any = reader.weight
                columns.mul_(_along_axis(factors, columns, axis))
        for shortcut in self.shortcuts:
            shortcut.multiply(factors)


def _along_axis(factors: Tensor, weight: Tensor, axis: int) -> Tensor:
    """Reshape factors [C] so that they multiply one axis of a weight, by broadcasting."""
    return factors.view([-1 if i == axis else 1 for i in range(weight.ndim)])


# --- finding places ---


def find_places(module: nn.Module, feed: Sequence[Tensor]) -> list[Place]:
    """Return the tensors of a module prepared for export whose channels can be divided, in the order of computation.

    The weights that read the tensors inside the layers are known. Those that read the last states are found by running
    the module: if anything but linear layers reads them, or they are an output, they are left out. Left out are also
    tensors whose weights another module shares, and those that no linear layer or norm computes.

    Args:
        module: A prepared module in eval mode.
        feed: Example inputs of the module, [B, L].

    Returns:
        The tensors; empty for modules with other layers than those of `pocketbert.export.adapters.lean` and
        `pocketbert.export.adapters.ane`.
    """
    layers, stack = _find_layers(module)
    if not layers:
        return []
    head = _head_readers(module, layers[-1] if stack is None else stack, feed)
    if stack is None:
        writers = [_find_writer(module, layers[0], feed), *(layer.output_norm for layer in layers)]
        places = [
            Place((writer,), _attention_readers(layer.attention), (layer.rows_shortcut,))
            for writer, layer in zip(writers, layers, strict=False)
            if writer is not None
        ]
        places.append(Place((layers[-1].output_norm,), head))
    else:
        readers = tuple(reader for layer in layers for reader in _attention_readers(layer.attention))
        norms, shortcuts = (tuple(getattr(x, n) for x in layers) for n in ("output_norm", "rows_shortcut"))
        places = [Place((stack.entry, *norms), (*readers, *head), shortcuts)] if head else []
    for layer in layers:
        # means of values, channel by channel
        places.append(Place((layer.attention.value,), ((layer.attention_out, 1),)))
        places.append(Place((layer.attention_norm,), ((layer.up, 1),), (layer.attended_shortcut,)))
    names = {id(m): name for name, m in module.named_modules()}
    order = {name: i for i, name in enumerate(names.values())}
    uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    named = [replace(p, name=names[id(p.writers[-1])]) for p in places if p.readers and _is_changeable(p, uses)]
    return sorted(named, key=lambda p: order[p.name])


def _find_layers(module: nn.Module) -> tuple[list[Any], SharedStack | None]:
    """Return a module's encoder layers in order, and the `SharedStack` that runs them, or None without such a stack.

    The list is empty if a layer is of an unknown class.
    """
    for inner in module.modules():
        stack = inner if isinstance(inner, SharedStack) else None
        layers: Any = inner.layers if stack is not None else inner
        if stack is None and not isinstance(inner, nn.ModuleList):
            continue
        if len(layers) and all(type(x) in _LAYERS and isinstance(x.attention, _ATTENTION) for x in layers):
            return [*layers], stack
    return [], None


def _attention_readers(attention: Any) -> tuple[_Reader, ...]:
    """Return attention's linear layers that read a layer's input, each with the weight axis of the input channels."""
    return (attention.query, 1), (attention.key, 0 if isinstance(attention, FirstRow) else 1), (attention.value, 1)


def _head_readers(module: nn.Module, encoder: nn.Module, feed: Sequence[Tensor]) -> tuple[_Reader, ...]:
    """Return the linear layers of the head that read the last hidden states.

    There are none if anything else reads these states too, or if they are an output of the module.

    The module is run on `feed` to find them; `encoder` is the module that computes the last hidden states.
    """
    follower = _Follower()
    hook = encoder.register_forward_hook(follower.follow)
    try:
        with torch.inference_mode(), follower:
            outputs = module(*feed)
    finally:
        hook.remove()
    linear = {id(m.weight): m for m in module.modules() if isinstance(m, nn.Linear)}
    is_output = any(follower.is_followed(out) for out in _flatten(outputs))
    if is_output or follower.has_other_readers or not follower.weights <= set(linear):
        return ()
    return tuple((linear[weight], 1) for weight in linear if weight in follower.weights)


class _Follower(TorchFunctionMode):
    """Records which torch functions read the output of one module, or a view of it such as the first token.

    Attributes:
        weights: Ids of the weights of the linear layers that read the output.
        has_other_readers: Whether any other function reads the output.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.has_other_readers = set[int](), False
        self._followed: Tensor | None = None  # kept: memory that is freed could be another tensor's

    def follow(self, _: nn.Module, __: Any, out: Any) -> None:
        """Start to watch the output of a module (a forward hook), and delete what was recorded before."""
        (self._followed,) = _flatten(out)
        self.weights, self.has_other_readers = set(), False

    def is_followed(self, tensor: Tensor) -> bool:
        """Return whether a tensor is the watched output, or a view of it."""
        followed = self._followed
        return followed is not None and (tensor.untyped_storage().data_ptr() == followed.untyped_storage().data_ptr())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run a torch function, and record whether it read the watched output."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        read = [t for t in _flatten((args, tuple(kwargs.values()))) if self.is_followed(t)]
        if not read or name in _QUERIES or any(self.is_followed(t) for t in _flatten(result)):
            return result
        if name in _PRODUCTS and self.is_followed(args[0]):
            self.weights.add(id(args[1]))
        else:
            self.has_other_readers = True
        return result


def _flatten(values: Any) -> list[Tensor]:
    """Return all tensors in nested tuples and lists as one flat list."""
    if isinstance(values, Tensor):
        return [values]
    return [t for v in values for t in _flatten(v)] if isinstance(values, tuple | list) else []


def _find_writer(module: nn.Module, layer: nn.Module, feed: Sequence[Tensor]) -> nn.Module | None:
    """Return the linear layer or norm whose output is the first layer's input.

    None if another module computes that input, or it is passed as a keyword argument.
    """
    inputs: list[Tensor] = []
    outputs: list[tuple[nn.Module, Tensor]] = []
    writers = [m for m in module.modules() if _is_writer(m)]
    hooks = [m.register_forward_hook(lambda m, _, out: outputs.append((m, out))) for m in writers]
    hooks.append(layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])))
    try:
        with torch.inference_mode():
            module(*feed)
    finally:
        for hook in hooks:
            hook.remove()
    if not inputs:  # passed as a keyword argument
        return None
    return next((m for m, out in outputs if out.is_set_to(inputs[0]) or out is inputs[0]), None)


def _is_writer(module: nn.Module) -> bool:
    return type(module) in _WRITERS and getattr(module, "weight", None) is not None


def _is_changeable(place: Place, uses: Mapping[int, int]) -> bool:
    """Return whether a place's modules are linear layers or norms, and share no parameter with another module.

    A fill-mask head, for instance, shares the word table; a linear layer of groups is another kind of module.
    """
    modules = (*place.writers, *(m for m, _ in place.readers))
    return all(_is_writer(m) for m in modules) and all(uses[id(p)] == 1 for m in modules for p in m.parameters())


# --- measuring ---


def measure_channels(
    module: nn.Module, places: Sequence[Place], inputs: Sequence[str], rows: Sequence[_Inputs]
) -> list[Tensor]:
    """Run a module on rows, and return the largest magnitude of each channel of each tensor, [C], padding excluded.

    Args:
        module: A prepared module in eval mode.
        places: The tensors to measure, from `find_places`.
        inputs: Names of the module's inputs, in their order.
        rows: Inputs [B, L] by name.
    """
    largest = [place.columns * 0 for place in places]
    mask: list[Tensor] = []

    def measure(number: int, states: Tensor) -> None:
        """Raise the stored maxima of tensor `number` to those of these states. Padded tokens count as zero."""
        if states.ndim == 4:
            states = states[:, :, 0].transpose(1, 2)
        if states.shape[:-1] == mask[0].shape:
            states = states * mask[0][..., None]
        largest[number] = torch.maximum(largest[number], states.abs().flatten(0, -2).amax(0))

    hooks: list[Any] = []
    for i, place in enumerate(places):
        if place.shortcuts:
            hooks += [w.register_forward_hook(lambda _, __, x, i=i: measure(i, x)) for w in place.writers]
        else:  # the inputs of a head, and the context of attention
            hooks += [r.register_forward_pre_hook(lambda _, args, i=i: measure(i, args[0])) for r, _ in place.readers]
    try:
        with torch.inference_mode():
            for row in rows:
                mask[:] = _tensors_of_row(row, ("attention_mask",))
                module(*_tensors_of_row(row, inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return largest


def _choose_factors(sizes: Tensor, place: Place) -> Tensor | None:
    """Choose a power of two by which to divide each channel of a tensor: 1 except for outliers.

    Args:
        sizes: Largest magnitude of each channel, [C].
        place: The tensor, whose weights are used too.

    Returns:
        The factors, [C]; None if all would be 1, the median is 0, or a magnitude is not finite.
    """
    median = sizes.median()
    if not torch.isfinite(sizes).all() or not 0 < median < RATIO**-1 * sizes.max():
        return None  # NaN and infinity are reported by parity
    columns = place.columns.clamp(min=torch.finfo(sizes.dtype).tiny)  # a new head may be all zeros
    exact = torch.sqrt(sizes / median / (columns / columns.median()))
    powers = 2.0 ** torch.round(torch.log2(exact)).clamp(0, _MAX_EXPONENT)
    factors = torch.where(sizes > RATIO * median, powers, torch.ones_like(powers))
    return factors if bool((factors != 1).any()) else None


def _tensors_of_row(row: _Inputs, inputs: Sequence[str]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(row[name])) for name in inputs]
