"""Numbers beyond fp16's range in MobileBERT, cured exactly: large tensors are carried as a power of two times themselves.

A trained MobileBERT normalizes nothing inside its encoder (NoNorm is a factor and an offset per channel), and its states
between the blocks reach 1e5 to 1e6; fp16 ends at 65,504. What lies between two linear layers may be any multiple of
itself if the layer before writes the multiple and the layer behind expects it, ReLU included, which is positively
homogeneous. A power of two changes exponents only, so that in fp32 every result stays the same bit for bit, and the
relative error of int8 weights and activations stays what it was.
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

from pocketbert.export.adapters.lean import full_name
from pocketbert.runtime.coreml.types import LARGEST

# --- activation_range ---
# How large the numbers inside a torch model become.


class ActivationRange:
    """Largest magnitudes by name, read by hooks while the model runs; `remove` takes the hooks off again.

    What NoNorm makes is looked at as `lean_mobilebert` writes it, the folded product and the residual each: two numbers
    that cancel must fit into a type too.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._hooks: list[Any] = []

    def largest(self, name: str) -> float:
        """The largest magnitude seen; infinite if anything was infinite or NaN, 0 if nothing was seen."""
        return self._largest.get(name, 0.0)

    def take(self, name: str, *values: Tensor) -> None:
        """Look at tensors."""
        for value in values:
            found = float(value.abs().max())
            self._largest[name] = max(self.largest(name), found if math.isfinite(found) else math.inf)

    def linear(self, name: str, dense: nn.Module) -> None:
        """Watch what a module returns."""
        self._hooks.append(dense.register_forward_hook(lambda _, __, out: self.take(name, out)))

    def scaled_sum(self, before: str, after: str, norm: Any) -> None:
        """Watch a NoNorm that is not folded: what it is given as `before`, what it makes as `after`."""

        def look(_: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
            self.take(before, args[0])
            self.take(after, out, args[0] * norm.weight)

        self._hooks.append(norm.register_forward_hook(look))

    def residual(self, name: str, part: Any) -> None:
        """Watch a linear layer `dense` and NoNorm `LayerNorm` over its result, a residual between them or not."""
        made: list[Tensor] = []

        def look(_: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
            product = made.pop()
            folded = product * part.LayerNorm.weight + part.LayerNorm.bias
            self.take(name, out, folded, (args[0] - product) * part.LayerNorm.weight)

        self._hooks.append(part.dense.register_forward_hook(lambda _, __, out: made.append(out)))
        self._hooks.append(part.LayerNorm.register_forward_hook(look))

    def remove(self) -> None:
        """Take all hooks off."""
        for hook in self._hooks:
            hook.remove()


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
"""The linear layer that reads the last states, by what its class is called behind `MobileBert`."""

Inputs = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class LayerScales:
    """What one layer's tensors are multiplied with; 1 where fp16 holds them anyway.

    Attributes:
        narrow: The residual stream inside the block.
        shared: What queries and keys are made of, where that is a bottleneck of its own.
        value: Values and context.
        hidden: Inside of each feed-forward part, the last one's at the end.
        out: The states that the layer leaves.
    """

    narrow: float
    shared: float
    value: float
    hidden: tuple[float, ...]
    out: float


@dataclass(frozen=True)
class Scales:
    """What a model's tensors are multiplied with, powers of two up to 1.

    Attributes:
        embedded: The sum of the embeddings, before its NoNorm.
        first: The states that enter the first layer.
        layers: Every layer's.
        transform: Inside of the masked-language head, before its normalization.
    """

    embedded: float
    first: float
    layers: tuple[LayerScales, ...]
    transform: float = 1.0

    @property
    def smallest(self) -> float:
        """1 where nothing needs a scale."""
        inner = [s for x in self.layers for s in (x.narrow, x.shared, x.value, *x.hidden, x.out)]
        return min(self.embedded, self.first, self.transform, *inner)


def fit(model: Any, outputs: Sequence[str], samples: Sequence[Inputs] = ()) -> float:
    """Bring a model's tensors into fp16's range, with as much room as `ROOM` says.

    Models that are not MobileBERT with NoNorm, and those whose tensors are small enough, are left as they are. Attention
    scores, logits and states that are themselves an output cannot be carried as a multiple.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        outputs: Names of the graph's outputs.
        samples: Inputs [B, L] by name to measure, beside some made from the vocabulary.

    Returns:
        What the model's last states are now multiplied with: 1 unless they are an output.
    """
    if not _known(model):
        return 1.0
    raw = "last_hidden_state" in outputs
    scales = measure(model, [*vocabulary_rows(model.config), *samples], raw)
    if scales.smallest < 1:
        apply(model, scales)
    return scales.layers[-1].out if raw else 1.0


def vocabulary_rows(config: Any, rows: int = 8) -> list[Inputs]:
    """Inputs without a tokenizer: the first ids, where special tokens are, and ids spread over the vocabulary.

    Args:
        config: The model's configuration.
        rows: How many rows are spread.

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


def measure(model: Any, samples: Sequence[Inputs], raw: bool = False) -> Scales:
    """Choose a scale for every tensor.

    Args:
        model: MobileBERT with NoNorm, in eval mode; left as it is.
        samples: Inputs [B, L] by name.
        raw: Whether the last states are pooled in the graph: then their sum over tokens must fit too.
    """
    base, reader, watch = model.base_model, _reader(model), ActivationRange()
    embeddings, layers = base.embeddings, _layers(base)
    watch.scaled_sum("embedded", "first", embeddings.LayerNorm)
    for i, layer in enumerate(layers):
        _watch_layer(watch, f"{i}.", layer)
    last = f"{len(layers) - 1}.out"
    try:
        with torch.inference_mode():
            for inputs in samples:
                feed = {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in inputs.items()}
                states = base(**feed).last_hidden_state
                if raw:
                    watch.take(last, (states * feed["attention_mask"][:, :, None]).sum(1))
                if _transform(model) is not None:
                    watch.take("transform", reader(states))
    finally:
        watch.remove()
    return _chosen(
        lambda n: _scale(watch.largest(n)),
        layers,
        keep_last=reader is None and not raw,
        embedded=_sums(embeddings),
    )


def _watch_layer(watch: ActivationRange, name: str, layer: Any) -> None:
    if layer.use_bottleneck:
        watch.residual(name + "narrow", layer.bottleneck.input)
        if hasattr(layer.bottleneck, "attention"):
            watch.residual(name + "shared", layer.bottleneck.attention)
        watch.residual(name + "out", layer.output.bottleneck)
    watch.residual(name + ("narrow" if layer.use_bottleneck else "out"), layer.output)
    watch.linear(name + "value", layer.attention.self.value)
    watch.residual(name + "narrow", layer.attention.output)
    for j, part in enumerate(_feed_forward(layer)):
        watch.linear(f"{name}hidden{j}", part.intermediate.dense)
        if part is not layer:
            watch.residual(name + "narrow", part.output)


def _chosen(scale: Callable[[str], float], layers: Sequence[Any], keep_last: bool, embedded: bool) -> Scales:
    made = []
    for i, layer in enumerate(layers):
        hidden = tuple(
            scale(f"{i}.hidden{j}") if isinstance(part.intermediate.intermediate_act_fn, nn.ReLU) else 1.0
            for j, part in enumerate(_feed_forward(layer))
        )
        out = 1.0 if keep_last and i == len(layers) - 1 else scale(f"{i}.out")
        made.append(LayerScales(scale(f"{i}.narrow"), scale(f"{i}.shared"), scale(f"{i}.value"), hidden, out))
    return Scales(scale("embedded") if embedded else 1.0, scale("first"), tuple(made), scale("transform"))


def apply(model: Any, scales: Scales) -> None:
    """Multiply weights so that every tensor is what it was, times its scale, and every output what it was.

    Args:
        model: MobileBERT with NoNorm. **It is changed in place.**
        scales: Powers of two.
    """
    base, reader = model.base_model, _reader(model)
    embeddings = base.embeddings
    with torch.no_grad():
        if scales.embedded != 1:
            for part in (embeddings.position_embeddings, embeddings.token_type_embeddings):
                part.weight.mul_(scales.embedded)
            _rescale(embeddings.embedding_transformation, 1.0, scales.embedded)
        embeddings.LayerNorm.weight.mul_(scales.first / scales.embedded)
        embeddings.LayerNorm.bias.mul_(scales.first)
        entering = scales.first
        for layer, own in zip(_layers(base), scales.layers, strict=True):
            _apply_layer(layer, own, entering)
            entering = own.out
        if reader is not None:
            _rescale(reader, entering, scales.transform)
        transform = _transform(model)
        if transform is not None:
            transform.LayerNorm.eps *= scales.transform**2


def _apply_layer(layer: Any, own: LayerScales, entering: float) -> None:
    attention, outer = layer.attention, entering
    keys = values = entering
    if layer.use_bottleneck:
        outer = own.narrow
        _close(layer.bottleneck.input, entering, own.narrow, own.narrow)
        if hasattr(layer.bottleneck, "attention"):
            _close(layer.bottleneck.attention, entering, own.shared, own.shared)
            keys = own.shared
        if layer.bottleneck.use_bottleneck_attention:
            keys = values = own.narrow
    _rescale(attention.self.query, keys, 1.0)
    _rescale(attention.self.key, keys, 1.0)
    _rescale(attention.self.value, values, own.value)
    _close(attention.output, own.value, outer, own.narrow)
    for part, hidden in zip(_feed_forward(layer), own.hidden, strict=True):
        _rescale(part.intermediate.dense, own.narrow, hidden)
        if part is layer and not layer.use_bottleneck:
            _close(part.output, hidden, own.narrow, own.out)
        else:
            _close(part.output, hidden, own.narrow, own.narrow)
    if layer.use_bottleneck:
        _close(layer.output.bottleneck, own.narrow, entering, own.out)


def _rescale(dense: nn.Linear, entering: float, leaving: float) -> None:
    """Let a linear layer read states that are `entering` times, and write what is `leaving` times, the original."""
    dense.weight.mul_(leaving / entering)
    if dense.bias is not None:
        dense.bias.mul_(leaving)


def _close(part: Any, entering: float, residual: float, leaving: float) -> None:
    """The same for a linear layer, a residual (carried as `residual` times itself) and NoNorm over their sum."""
    _rescale(part.dense, entering, residual)
    part.LayerNorm.weight.mul_(leaving / residual)
    part.LayerNorm.bias.mul_(leaving)


def _scale(largest: float) -> float:
    """1, or the largest power of two that brings a number below fp16's end divided by `ROOM`."""
    if not 0 < largest < math.inf:
        return 1.0  # unused, or broken in fp32 as well: parity says so
    return min(1.0, 2.0 ** -math.ceil(math.log2(largest * ROOM / LARGEST)))


def _known(model: Any) -> bool:
    base = getattr(model, "base_model", model)
    if full_name(base) != f"{_MODEL}Model" or getattr(base.config, "is_decoder", False):
        return False
    if not all(full_name(layer) == LAYER for layer in base.encoder.layer):
        return False
    kinds = {full_name(m) for m in base.modules()}
    return _NO_NORM in kinds and not any(isinstance(m, nn.LayerNorm) for m in base.modules())


def _layers(base: Any) -> list[Any]:
    return [*base.encoder.layer]


def _feed_forward(layer: Any) -> list[Any]:
    """Feed-forward parts, each with `intermediate` and `output`; the last one is the layer's own."""
    return [*(layer.ffn if layer.num_feedforward_networks > 1 else ()), layer]


def _sums(embeddings: Any) -> bool:
    """Whether the embeddings' summands may be scaled: a word table that is added itself may be the decoder's too."""
    return bool(embeddings.trigram_input or embeddings.embedding_size != embeddings.hidden_size)


def _reader(model: Any) -> Any:
    """The one linear layer that reads the last states; None where they are an output, or a head is not known."""
    kind = full_name(model).removeprefix(_MODEL)
    if kind not in _HEADS:
        return None
    pooler = model.base_model.pooler
    return pooler.dense if pooler is not None and pooler.do_activate else model.get_submodule(_HEADS[kind])


def _transform(model: Any) -> Any:
    """The masked-language head's first half, where its activation lets a scale through; else None."""
    if full_name(model) != f"{_MODEL}ForMaskedLM":
        return None
    transform = model.cls.predictions.transform
    return transform if isinstance(transform.transform_act_fn, nn.ReLU) else None
