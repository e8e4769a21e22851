"""MobileBERT with activations beyond fp16: planted, cured, and the same numbers in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.tasks import Task, TaskName
from pocketbert.export.adapters import half_range
from pocketbert.export.adapters.half_range import LayerScales, Scales
from pocketbert.runtime.coreml.types import LARGEST_FP16
from support.half_range import (
    BATCHES,
    CLASSIFY,
    EMBED,
    EVERYWHERE,
    FP16,
    HEADS,
    SHAPES,
    SMALL,
    answer,
    ordinary,
    planted,
)
from support.tiny import BASIC


@pytest.mark.parametrize("task", HEADS, ids=[t.name.value for t in HEADS])
def test_a_planted_model_is_cured_bit_for_bit_and_is_in_range_then(task: Task) -> None:
    model, raw = ordinary(task), task is EMBED
    large = planted(model)
    assert max(float(p.detach().abs().max()) for p in large.parameters()) < LARGEST_FP16
    for layer in half_range.measure_scales(large, BATCHES, raw).layers:
        assert max(layer.narrow, layer.shared, layer.value, *layer.hidden, layer.out) <= 2**-3
    cured = copy.deepcopy(large)
    carried = half_range.rescale_to_fp16(cured, task.outputs, BATCHES)
    assert (carried < 1) == raw
    for inputs in BATCHES:
        for name in (n for n in task.outputs if n != "sentence_embedding"):
            right = answer(large, inputs, name)
            assert torch.equal(answer(cured, inputs, name) / carried, right)
            assert raw or torch.equal(right, answer(model, inputs, name))  # raw states are an output, and larger
    again = half_range.measure_scales(cured, [*half_range.vocabulary_rows(cured.config), *BATCHES], raw)
    assert again.smallest == 1


CASES = [*((CLASSIFY, changes) for changes in SHAPES), *((task, {}) for task in HEADS[1:])]


def widen(changes: dict[str, Any]) -> dict[str, Any]:
    """Without bottlenecks the hidden size is that of the layers."""
    return {**changes, **({} if changes.get("use_bottleneck", True) else {"hidden_size": 16})}


@pytest.mark.parametrize(("task", "changes"), CASES, ids=str)
@settings(max_examples=3)
@given(powers=st.lists(st.integers(0, 12), min_size=64, max_size=64))
def test_any_powers_of_two_are_exact_in_fp32(task: Task, changes: dict[str, Any], powers: list[int]) -> None:
    model = ordinary(task, **{**SMALL, **widen(changes)})
    some: Iterator[float] = (2.0**-p for p in powers)
    config, relu = model.config, changes.get("hidden_act", "relu") == "relu"
    sums = config.trigram_input or config.embedding_size != config.hidden_size
    networks = range(config.num_feedforward_networks)
    embeddings, head = next(some) if sums else 1.0, next(some)
    layers = tuple(
        LayerScales(
            next(some), next(some), next(some), tuple(next(some) if relu else 1.0 for _ in networks), next(some)
        )
        for _ in range(config.num_hidden_layers)
    )
    inside = next(some) if task.name is TaskName.FILL_MASK and relu else 1.0
    scaled = copy.deepcopy(model)
    half_range.apply_scales(scaled, Scales(embeddings, head, layers, inside))
    carried = layers[-1].out if task is EMBED else 1.0
    for name in (n for n in task.outputs if n != "sentence_embedding"):
        assert torch.equal(answer(scaled, BATCHES[0], name) / carried, answer(model, BATCHES[0], name))


def test_in_half_precision_the_stock_model_breaks_and_the_cured_one_does_not() -> None:
    model = ordinary()
    large = planted(model)
    cured = copy.deepcopy(large)
    half_range.rescale_to_fp16(cured, CLASSIFY.outputs, BATCHES)
    right = [answer(model, b, "logits") for b in BATCHES]
    largest = max(float(r.abs().max()) for r in right)
    for name, subject in (("stock", large), ("cured", cured), ("ordinary", model)):
        made = [answer(copy.deepcopy(subject).half(), b, "logits").float() for b in BATCHES]
        if name == "stock":
            assert not all(m.isfinite().all() for m in made)
        else:
            worst = max(float((m - r).abs().max()) for m, r in zip(made, right, strict=True)) / largest
            assert worst < FP16, (name, worst)


def test_one_large_bias_is_enough_to_break_it_and_is_cured() -> None:
    large = ordinary()
    with torch.no_grad():  # a channel that is large for every token, and of little weight where it is read
        for layer in large.base_model.encoder.layer:
            layer.output.bottleneck.LayerNorm.bias[4] += 6e4
        for layer in large.base_model.encoder.layer[1:]:
            for dense in (layer.bottleneck.input.dense, layer.bottleneck.attention.dense, layer.attention.self.value):
                dense.weight[:, 4] *= 1e-5
        large.base_model.pooler.dense.weight[:, 4] *= 1e-5
    cured = copy.deepcopy(large)
    half_range.rescale_to_fp16(cured, CLASSIFY.outputs, BATCHES)
    for inputs in BATCHES:
        right = answer(large, inputs, "logits")
        assert torch.equal(answer(cured, inputs, "logits"), right)
        assert not answer(copy.deepcopy(large).half(), inputs, "logits").isfinite().all()
        made = answer(copy.deepcopy(cured).half(), inputs, "logits").float()
        assert float((made - right).abs().max()) < FP16 * float(right.abs().max())


def stays_the_same(model: Any, outputs: tuple[str, ...] = CLASSIFY.outputs) -> bool:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    carried = half_range.rescale_to_fp16(model, outputs, BATCHES)
    return carried == 1 and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_an_ordinary_model_is_not_touched(changes: dict[str, Any]) -> None:
    assert stays_the_same(ordinary(**widen(changes)))
    assert stays_the_same(ordinary(EMBED, **widen(changes)), EMBED.outputs)


def test_models_with_layer_normalization_are_not_touched(make_classifier: Callable[..., Any]) -> None:
    normed = ordinary(normalization_type="layer_norm")
    with torch.no_grad():
        normed.base_model.encoder.layer[0].output.bottleneck.dense.weight.mul_(EVERYWHERE)
    assert stays_the_same(normed)
    for name in (f for f in BASIC if f != "mobilebert"):
        model = make_classifier(name, 1, ("no", "yes"))
        model.get_input_embeddings().weight.data.mul_(EVERYWHERE)
        assert stays_the_same(model)


def test_a_subclass_and_a_model_without_a_known_head_keep_their_outputs() -> None:
    import transformers

    class Changed(transformers.MobileBertModel):  # type: ignore[misc]
        """May do anything with its states."""

    config = ordinary().config
    assert stays_the_same(Changed(config).eval())
    large = planted(ordinary(EMBED))
    stranger = transformers.MobileBertForNextSentencePrediction(config).eval()
    stranger.mobilebert.load_state_dict(large.state_dict())
    cured = copy.deepcopy(stranger)
    assert half_range.rescale_to_fp16(cured, ("logits",), BATCHES) == 1
    assert torch.equal(answer(cured, BATCHES[0], "logits"), answer(stranger, BATCHES[0], "logits"))
    first, scaled = (m.mobilebert.embeddings.LayerNorm.weight for m in (stranger, cured))
    assert scaled[0] < first[0]


def test_texts_are_measured_beside_the_vocabulary() -> None:
    large = ordinary(vocab_size=30000)
    seen = {int(i) for b in half_range.vocabulary_rows(large.config) for i in b["input_ids"].ravel()}
    rare = next(i for i in range(29999, 0, -1) if i not in seen)
    with torch.no_grad():
        large.get_input_embeddings().weight[rare] *= 1e6
    text = {**BATCHES[0], "input_ids": np.where(BATCHES[0]["input_ids"] > 150, rare, 7)}
    rows = half_range.vocabulary_rows(large.config)
    assert half_range.measure_scales(large, rows).smallest == 1
    assert half_range.measure_scales(large, [*rows, text]).smallest < 1
