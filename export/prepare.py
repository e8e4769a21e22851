"""Prepare a model for export: a rewritten copy with explicit inputs and arithmetic masks, for all formats.

`prepare` calls the adapter of the model's family; importing this module registers the adapters. `PreparedPredictor`
runs a prepared module like any engine, and `sample_inputs` builds the inputs that converters trace it with.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.families import ADAPTERS, Family, GraphInput, check_exportable
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters import (  # noqa: F401 - they register themselves
    deberta,
    ernie_thu,
    longformer,
    mask_4d,
    mobilebert,
    modernbert,
    mpnet,
    post_norm,
    pre_norm,
    squeezebert,
    static,
    xlm,
    xlnet,
)
from pocketbert.export.adapters.lean import find_layer_parts
from pocketbert.export.adapters.mask_4d import ExportPlan
from pocketbert.export.adapters.outliers import Outliers

_CHANNELS: WeakKeyDictionary[nn.Module, dict[tuple[Format, Layout], dict[str, Tensor]]] = WeakKeyDictionary()
"""Largest magnitudes of channels by the name of the tensor, of models that `prepare_with_shared_weights` prepared."""


def prepare(
    model: Any,
    family: Family,
    task: Task,
    format: Format = Format.ONNX,
    layout: Layout = Layout.PLAIN,
    pooling: Pooling = DEFAULT_POOLING,
    samples: Sequence[Mapping[str, NDArray[np.int64]]] = (),
    sentences: Sequence[Mapping[str, NDArray[np.int64]]] = (),
) -> nn.Module:
    """Copy a model and rewrite the copy for export, with named inputs and plain tensor outputs.

    Args:
        model: A transformers model with the task's head.
        family: The model's family; it names the adapter that rewrites the model.
        task: The model's task; it names the outputs.
        format: Format of the file; the cheapest graph for one engine is not the cheapest for another.
        layout: How activations lie in memory.
        pooling: How `sentence_embedding` is computed, if the task has that output.
        samples: Inputs [B, L] of real text by name, on which the largest numbers inside a MobileBERT are measured; see
            `half_range`.
        sentences: Inputs [B, L] of texts that are the same in every run for a model, on which outlier channels are
            found, see `pocketbert.export.adapters.outliers`; if empty, none are looked for. Adapters that write an
            encoder of their own do not use them.

    Returns:
        A wrapped copy in eval mode. Inputs are those of the family, mostly [B, L] int64; outputs are tensors in the
        task's order.

    Raises:
        InputError: If no exporter writes the family, the family names code that is not registered, or its adapter
            refuses the model's layers or configuration, or the layout.
    """
    plan = ExportPlan(family, task, format, layout, pooling, tuple(samples), tuple(sentences))
    return _rewrite_copy(model, plan)[0]


def prepare_with_shared_weights(
    model: Any,
    family: Family,
    task: Task,
    format: Format,
    layout: Layout,
    pooling: Pooling = DEFAULT_POOLING,
    samples: Sequence[Mapping[str, NDArray[np.int64]]] = (),
    sentences: Sequence[Mapping[str, NDArray[np.int64]]] = (),
) -> nn.Module:
    """Prepare a model for export as `prepare` does, but without copying weights that stay unchanged, to save memory.

    The module and the model share these weights, so neither may be trained afterwards. Since they stay as they are,
    activations on `sentences` are measured once for a model, format and layout. Weights in a mapped file are copied all
    the same.
    """
    channels = _CHANNELS.setdefault(model, {}).setdefault((format, layout), {})
    plan = ExportPlan(family, task, format, layout, pooling, tuple(samples), tuple(sentences), channels)
    module, weights = _rewrite_copy(model, plan)
    for copied, own in weights:
        if torch._C._is_cow_tensor(copied):  # type: ignore[attr-defined]  # nothing was written to it
            copied.data = own.data
    return module


def _rewrite_copy(model: Any, plan: ExportPlan) -> tuple[nn.Module, list[tuple[nn.Parameter, nn.Parameter]]]:
    """Copy a model and let the adapter of its family rewrite the copy.

    Returns the rewritten copy, and pairs of each copied weight with its original.
    """
    check_exportable(plan.family)
    adapter = ADAPTERS.find(plan.family.adapter, f"family {plan.family.name}")
    copied, weights = _copy_lazily(model)
    return adapter(copied.eval(), plan), weights


def _copy_lazily(model: Any) -> tuple[Any, list[tuple[nn.Parameter, nn.Parameter]]]:
    """Copy a model in such a way that a weight is only copied when the model or the copy writes to it.

    Returns the copy, and pairs of each weight of the copy with its original. Reading a weight through numpy counts as
    writing. Buffers, and weights in a mapped file, are copied at once.
    """

    def copy_weight(weight: Tensor) -> Tensor:
        """Return a copy of a weight that shares its memory until one of both is written to; a full copy if mapped."""
        try:
            return torch._lazy_clone(weight)
        except RuntimeError:  # torch cannot clone the memory of a mapped file lazily
            return weight.clone()

    weights = [(nn.Parameter(copy_weight(p.detach()), p.requires_grad), p) for p in model.parameters()]
    return copy.deepcopy(model, {id(own): copied for copied, own in weights}), weights


def list_divided_outliers(module: nn.Module) -> tuple[Outliers, ...]:
    """Return the tensors of a module prepared for export in which outlier channels were divided; empty if none were."""
    outliers: tuple[Outliers, ...] = getattr(module, "outliers", ())
    return outliers


def is_rescaled_to_fp16(
    model: Any, family: Family, task: Task, samples: Sequence[Mapping[str, NDArray[np.int64]]] = ()
) -> bool:
    """Return whether an export would scale a model's activations by powers of two so that they fit into fp16.

    Args:
        model: A transformers model with the task's head; it is not changed.
        family: The model's family.
        task: The model's task; it names the outputs.
        samples: Inputs [B, L] of real text by name, on which activations are measured.
    """
    parts = find_layer_parts(family)
    if parts is None or parts.half_range is None:
        return False
    changed = _copy_lazily(model)[0].eval()
    parts.half_range(changed, task.outputs, tuple(samples))
    before = model.state_dict()
    return any(not torch.equal(value, before[name]) for name, value in changed.state_dict().items())


def sample_inputs(inputs: Sequence[str], length: int, extra: Sequence[GraphInput] = ()) -> dict[str, Tensor]:
    """Build example inputs of one row, with which a converter traces a module, and return them by name.

    Args:
        inputs: Names of the inputs.
        length: Number of tokens L.
        extra: Additional inputs of the model's export form.

    Returns:
        Tensors [1, L] int32 by name; additional inputs have their own shapes and types.
    """
    # as in real text: converters fold what they can prove constant, and an all-zero mask is a constant row
    values = {"input_ids": 5, "attention_mask": 1, "token_type_ids": 0}
    samples = {name: torch.full((1, length), value, dtype=torch.int32) for name, value in values.items()}
    for one in extra:
        dtype = torch.float32 if one.is_float else torch.int32
        samples[one.name] = torch.full(one.shape(1, length), one.sample, dtype=dtype)
    return {name: samples[name] for name in inputs}


class PreparedPredictor:
    """A prepared torch module with the interface of an engine, so that its outputs can be compared with a file's."""

    engine = "torch-prepared"
    lengths: tuple[int, ...] = ()

    def __init__(self, module: nn.Module, family: Family, task: Task) -> None:
        self.module, self.inputs, self.outputs = module, family.inputs, task.outputs
        self.engine_version = version_of("torch") or "unknown"

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch of inputs [B, L], and return its outputs as numpy arrays by name."""
        feed = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in self.inputs]
        with torch.inference_mode():
            out = self.module(*feed)
        return {name: value.numpy() for name, value in zip(self.outputs, out, strict=True)}
