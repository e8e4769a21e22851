"""Scale MobileBERT's large activations down by powers of two, so that fp16 holds them and outputs stay exact.

A trained MobileBERT normalizes nothing inside its encoder (NoNorm is a factor and an offset per channel), and its
states between the blocks reach 1e5 to 1e6; fp16 ends at 65,504. A tensor between two linear layers may be multiplied by
any positive factor if the layer before writes the multiple and the layer after divides by the factor, even with a ReLU
between them, because ReLU(c x) = c ReLU(x). A power of two changes exponents only, so that in fp32 every result stays
the same bit for bit, and the relative error of int8 weights and activations stays what it was.

`rescale_to_fp16` measures how large the tensors become (`measure_scales`), chooses their factors and multiplies the
weights (`apply_scales`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.export.adapters.lean import class_path
from pocketbert.runtime.coreml.types import LARGEST_FP16

ROOM = 16.0
"""How many times larger than measured a number may become, on texts that were not measured."""
_MODEL = "transformers.models.mobilebert.modeling_mobilebert.MobileBert"
LAYER = f"{_MODEL}Layer"
_NO_NORM = "transformers.models.mobilebert.modeling_mobilebert.NoNorm"
_HEADS = {
    "ForSequenceClassification": "classifier",
    "ForTokenClassification": "classifier",
    "ForQuestionAnswering": "qa_outputs",
    "ForMaskedLM": "cls.predictions.transform.dense",
}
"""The linear layer that reads the last states, by the end of the class name behind `MobileBert`."""

Inputs = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class LayerScales:
    """Factors by which the tensors of one MobileBERT layer are multiplied. Tensors that fp16 holds unscaled have 1.

    Attributes:
        narrow: Factor of the residual states inside the bottleneck.
        shared: Factor of the states from which queries and keys are computed, if they have a separate bottleneck.
        value: Factor of attention values and context.
        hidden: Factor of the hidden states of each feed-forward part, in order.
        out: Factor of the layer's output.
    """

    narrow: float
    shared: float
    value: float
    hidden: tuple[float, ...]
    out: float


@dataclass(frozen=True)
class Scales:
    """Factors by which the tensors of a MobileBERT are multiplied: powers of two, at most 1.

    Attributes:
        embedded: Factor of the sum of the embeddings, before its NoNorm.
        first: Factor of the input of the first layer.
        layers: Factors of every layer's tensors.
        transform: Factor inside the masked-language head, before its normalization.
    """

    embedded: float
    first: float
    layers: tuple[LayerScales, ...]
    transform: float = 1.0

    @property
    def smallest(self) -> float:
        """The smallest factor of all. It is 1 if no tensor is scaled."""
        inner = [s for x in self.layers for s in (x.narrow, x.shared, x.value, *x.hidden, x.out)]
        return min(self.embedded, self.first, self.transform, *inner)


def rescale_to_fp16(model: Any, outputs: Sequence[str], samples: Sequence[Inputs] = ()) -> float:
    """Scale a MobileBERT's weights by powers of two so that its activations stay within the range of fp16.

    On the measured rows, no scaled activation then exceeds fp16's maximum / `ROOM`. Not scaled are attention scores,
    logits, hidden states of a feed-forward part without ReLU, a sum of embeddings whose table a decoder may share, and
    the last states if their reader is unknown. Last states that are an output are scaled; the caller divides them by
    the returned factor. Models that are not MobileBERT with NoNorm, or fit into fp16 already, are not changed.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        outputs: Names of the graph's outputs.
        samples: Inputs [B, L] by name on which activations are measured, besides rows made from the vocabulary.

    Returns:
        The factor by which the model's last states are scaled: 1 if no output needs them scaled back, or nothing was
        scaled.
    """
    if not _has_no_norm(model):
        return 1.0
    returns_states = "last_hidden_state" in outputs
    scales = measure_scales(model, [*vocabulary_rows(model.config), *samples], returns_states)
    if scales.smallest < 1:
        apply_scales(model, scales)
    return scales.layers[-1].out if returns_states else 1.0


def _has_no_norm(model: Any) -> bool:
    """Return whether a model is a MobileBERT encoder with NoNorm and no other normalization."""
    base = getattr(model, "base_model", model)
    if class_path(base) != f"{_MODEL}Model" or getattr(base.config, "is_decoder", False):
        return False
    if not all(class_path(layer) == LAYER for layer in base.encoder.layer):
        return False
    kinds = {class_path(m) for m in base.modules()}
    return _NO_NORM in kinds and not any(isinstance(m, nn.LayerNorm) for m in base.modules())


# --- measuring ---


def vocabulary_rows(config: Any, rows: int = 8) -> list[Inputs]:
    """Make input rows without a tokenizer: the first ids (special tokens) and ids spread over the vocabulary.

    Args:
        config: The model's configuration.
        rows: Number of rows of ids spread over the vocabulary.

    Returns:
        One batch [rows + 1, L], L at most 128.
    """
    length = min(128, config.max_position_embeddings)
    spread = np.arange(rows * length, dtype=np.int64) * config.vocab_size // (rows * length)
    # neighbours in the vocabulary are alike: every row gets ids of all parts
    ids = np.concatenate([np.arange(length)[None] % config.vocab_size, spread.reshape(length, rows).T])
    types = np.zeros_like(ids)
    types[1::2, length // 2 :] = config.type_vocab_size - 1
    return [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}]


def measure_scales(model: Any, samples: Sequence[Inputs], pooled_states: bool = False) -> Scales:
    """Run a model on sample rows, and choose scale factors for its tensors from their largest magnitudes.

    Tensors that cannot be scaled get the factor 1; see `rescale_to_fp16`.

    Args:
        model: MobileBERT with NoNorm, in eval mode; it is not changed.
        samples: Inputs [B, L] by name.
        pooled_states: Whether the graph pools the last states: then their sum over the tokens must fit into fp16 too.

    Returns:
        The factors.
    """
    base, reader, ranges = model.base_model, _state_reader(model), _ActivationRange()
    embeddings, layers = base.embeddings, list(base.encoder.layer)
    ranges.watch_norm("embedded", "first", embeddings.LayerNorm)
    for i, layer in enumerate(layers):
        _watch_layer(ranges, f"{i}.", layer)
    last = f"{len(layers) - 1}.out"
    try:
        with torch.inference_mode():
            for inputs in samples:
                feed = {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in inputs.items()}
                states = base(**feed).last_hidden_state
                if pooled_states:
                    ranges.update(last, (states * feed["attention_mask"][:, :, None]).sum(1))
                if _transform(model) is not None:
                    ranges.update("transform", reader(states))
    finally:
        ranges.remove()

    def scale(name: str) -> float:
        return _power_of_two(ranges.largest(name))

    # a word table that is added itself, without a transformation, may be the decoder's too
    can_scale_embeddings = embeddings.trigram_input or embeddings.embedding_size != embeddings.hidden_size
    layer_scales = _layer_scales(scale, layers, keep_last=reader is None and not pooled_states)
    embedded = scale("embedded") if can_scale_embeddings else 1.0
    return Scales(embedded, scale("first"), layer_scales, scale("transform"))


def _watch_layer(ranges: _ActivationRange, prefix: str, layer: Any) -> None:
    """Register hooks that measure the tensors of one layer, under names that start with `prefix`."""
    if layer.use_bottleneck:
        ranges.watch_residual(prefix + "narrow", layer.bottleneck.input)
        if hasattr(layer.bottleneck, "attention"):
            ranges.watch_residual(prefix + "shared", layer.bottleneck.attention)
        ranges.watch_residual(prefix + "out", layer.output.bottleneck)
    ranges.watch_residual(prefix + ("narrow" if layer.use_bottleneck else "out"), layer.output)
    ranges.watch_linear(prefix + "value", layer.attention.self.value)
    ranges.watch_residual(prefix + "narrow", layer.attention.output)
    for j, part in enumerate(_feed_forward_parts(layer)):
        ranges.watch_linear(f"{prefix}hidden{j}", part.intermediate.dense)
        if part is not layer:
            ranges.watch_residual(prefix + "narrow", part.output)


def _layer_scales(scale: Callable[[str], float], layers: Sequence[Any], keep_last: bool) -> tuple[LayerScales, ...]:
    """Choose the scale factors of every layer's tensors. With `keep_last` the last layer's output is not scaled.

    `scale` returns the factor of the tensor with a given name.
    """
    layer_scales = []
    for i, layer in enumerate(layers):
        hidden = tuple(
            scale(f"{i}.hidden{j}") if isinstance(part.intermediate.intermediate_act_fn, nn.ReLU) else 1.0
            for j, part in enumerate(_feed_forward_parts(layer))
        )
        out = 1.0 if keep_last and i == len(layers) - 1 else scale(f"{i}.out")
        layer_scales.append(LayerScales(scale(f"{i}.narrow"), scale(f"{i}.shared"), scale(f"{i}.value"), hidden, out))
    return tuple(layer_scales)


def _power_of_two(largest: float) -> float:
    """Return the largest power of two, at most 1, that brings `largest` down to fp16's maximum divided by `ROOM`.

    It is 1 if `largest` is zero or not finite.
    """
    if not 0 < largest < math.inf:
        return 1.0  # unused, or broken in fp32 as well: parity reports that
    return min(1.0, 2.0 ** -math.ceil(math.log2(largest * ROOM / LARGEST_FP16)))


class _ActivationRange:
    """Largest magnitudes of named tensors, measured by hooks while a model runs.

    A NoNorm with a residual is measured as the exported graph computes it: the product and the residual are measured
    separately, because each must fit into fp16 even if they cancel out.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._hooks: list[Any] = []

    def largest(self, name: str) -> float:
        """Return the largest magnitude measured under a name: 0 if none was, infinite if one was infinite or NaN."""
        return self._largest.get(name, 0.0)

    def update(self, name: str, *values: Tensor) -> None:
        """Raise the largest magnitude stored under a name to that of the given tensors."""
        for value in values:
            largest = float(value.abs().max())
            self._largest[name] = max(self.largest(name), largest if math.isfinite(largest) else math.inf)

    def watch_linear(self, name: str, dense: nn.Module) -> None:
        """Register a hook that measures the output of a module."""
        self._hooks.append(dense.register_forward_hook(lambda _, __, out: self.update(name, out)))

    def watch_norm(self, before: str, after: str, norm: Any) -> None:
        """Register a hook that measures a NoNorm: inputs under the name `before`, outputs under `after`.

        The product of input and factor, before the offset is added, is measured under `after` too.
        """

        def measure(_: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
            self.update(before, args[0])
            self.update(after, out, args[0] * norm.weight)

        self._hooks.append(norm.register_forward_hook(measure))

    def watch_residual(self, name: str, part: Any) -> None:
        """Add hooks that measure `part.dense` and the NoNorm `part.LayerNorm` after it, with and without residual."""
        products: list[Tensor] = []

        def measure(_: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
            product = products.pop()
            folded = product * part.LayerNorm.weight + part.LayerNorm.bias
            self.update(name, out, folded, (args[0] - product) * part.LayerNorm.weight)

        self._hooks.append(part.dense.register_forward_hook(lambda _, __, out: products.append(out)))
        self._hooks.append(part.LayerNorm.register_forward_hook(measure))

    def remove(self) -> None:
        """Remove all hooks from the model."""
        for hook in self._hooks:
            hook.remove()


# --- changing weights ---


def apply_scales(model: Any, scales: Scales) -> None:
    """Multiply a model's weights so that its activations shrink by the given factors while its outputs stay the same.

    Args:
        model: MobileBERT with NoNorm. **It is changed in place.**
        scales: Powers of two.
    """
    base, reader = model.base_model, _state_reader(model)
    embeddings = base.embeddings
    with torch.no_grad():
        if scales.embedded != 1:
            for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
                table.weight.mul_(scales.embedded)
            _rescale(embeddings.embedding_transformation, 1.0, scales.embedded)
        embeddings.LayerNorm.weight.mul_(scales.first / scales.embedded)
        embeddings.LayerNorm.bias.mul_(scales.first)
        entering = scales.first
        for layer, own in zip(base.encoder.layer, scales.layers, strict=True):
            _apply_to_layer(layer, own, entering)
            entering = own.out
        if reader is not None:
            _rescale(reader, entering, scales.transform)
        transform = _transform(model)
        if transform is not None:
            transform.LayerNorm.eps *= scales.transform**2


def _apply_to_layer(layer: Any, own: LayerScales, entering: float) -> None:
    """Multiply the weights of one layer so that its activations are scaled by the factors `own`.

    `entering` is the factor by which the layer's input is scaled already.
    """
    attention, outer = layer.attention, entering
    keys = values = entering
    if layer.use_bottleneck:
        outer = own.narrow
        _rescale_residual(layer.bottleneck.input, entering, own.narrow, own.narrow)
        if hasattr(layer.bottleneck, "attention"):
            _rescale_residual(layer.bottleneck.attention, entering, own.shared, own.shared)
            keys = own.shared
        if layer.bottleneck.use_bottleneck_attention:
            keys = values = own.narrow
    _rescale(attention.self.query, keys, 1.0)
    _rescale(attention.self.key, keys, 1.0)
    _rescale(attention.self.value, values, own.value)
    _rescale_residual(attention.output, own.value, outer, own.narrow)
    for part, hidden in zip(_feed_forward_parts(layer), own.hidden, strict=True):
        _rescale(part.intermediate.dense, own.narrow, hidden)
        if part is layer and not layer.use_bottleneck:
            _rescale_residual(part.output, hidden, own.narrow, own.out)
        else:
            _rescale_residual(part.output, hidden, own.narrow, own.narrow)
    if layer.use_bottleneck:
        _rescale_residual(layer.output.bottleneck, own.narrow, entering, own.out)


def _rescale(dense: nn.Linear, entering: float, leaving: float) -> None:
    """Change a linear layer's weights for an input multiplied by `entering` and an output multiplied by `leaving`."""
    dense.weight.mul_(leaving / entering)
    if dense.bias is not None:
        dense.bias.mul_(leaving)


def _rescale_residual(part: Any, entering: float, residual: float, leaving: float) -> None:
    """Change the weights of a linear layer and the NoNorm after it for scaled inputs and outputs.

    The layer's input is scaled by `entering`, the residual by `residual`, and the NoNorm's output is to be scaled by
    `leaving`.
    """
    _rescale(part.dense, entering, residual)
    part.LayerNorm.weight.mul_(leaving / residual)
    part.LayerNorm.bias.mul_(leaving)


# --- parts of MobileBERT ---


def _feed_forward_parts(layer: Any) -> list[Any]:
    """Return the modules with `intermediate` and `output` of a layer: its extra feed-forward networks, then itself."""
    return [*(layer.ffn if layer.num_feedforward_networks > 1 else ()), layer]


def _state_reader(model: Any) -> Any:
    """Return the only linear layer that reads the last hidden states.

    None if the states are themselves an output, or the model's class is not known here.
    """
    kind = class_path(model).removeprefix(_MODEL)
    if kind not in _HEADS:
        return None
    pooler = model.base_model.pooler
    return pooler.dense if pooler is not None and pooler.do_activate else model.get_submodule(_HEADS[kind])


def _transform(model: Any) -> Any:
    """Return the dense block of the masked-language head if its activation is ReLU, else None."""
    if class_path(model) != f"{_MODEL}ForMaskedLM":
        return None
    transform = model.cls.predictions.transform
    return transform if isinstance(transform.transform_act_fn, nn.ReLU) else None
