"""MobileBERT models with activations beyond fp16, planted into ordinary ones, and the batches they are tried on.

A planted model is an ordinary one whose tensors, and a few of their channels more than the others, were made larger where
they are written and smaller where they are read, by powers of two: in fp32 it computes the same bits, so what the right
answer is needs no trust in the cure.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.families import LAYER_PARTS, family_of
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.export.adapters import half_range
from pocketbert.export.adapters import mobilebert as _mobilebert_parts  # noqa: F401 - it registers itself
from pocketbert.export.adapters.half_range import LayerScales, Scales

FAMILY = family_of("mobilebert")
CLASSIFY, EMBED = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FEATURE_EXTRACTION]
TOKENS, QUESTIONS, WORDS = (
    TASKS[n] for n in (TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING, TaskName.FILL_MASK)
)
HEADS = [CLASSIFY, TOKENS, QUESTIONS, WORDS, EMBED]
SHAPES: list[dict[str, Any]] = [
    {},
    {"use_bottleneck": False},
    {"use_bottleneck_attention": True},
    {"num_feedforward_networks": 1},
    {"classifier_activation": False},
    {"hidden_act": "gelu"},
    {"trigram_input": False, "embedding_size": 32},
]
EVERYWHERE, CHANNEL = 2.0**14, 2.0**3
"""Factors of planted tensors and, on top, of some channels: activations pass 1e5, weights stay in fp16's range."""
FP16 = 5e-3
"""Largest difference of an fp16 file's logits relative to the largest: of the ordinary model as of the cured one."""

Inputs = dict[str, NDArray[np.int64]]


def ordinary(task: Task = CLASSIFY, seed: int = 0, **changes: Any) -> Any:
    """A random MobileBERT whose factors and biases are random too."""
    import transformers

    sizes = {
        **{"vocab_size": 300, "hidden_size": 32, "embedding_size": 16, "intra_bottleneck_size": 16},
        **{"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "num_feedforward_networks": 3},
        **{"max_position_embeddings": 64, "num_labels": 2 if task.name is TaskName.QUESTION_ANSWERING else 3},
    }
    config = transformers.MobileBertConfig(**{**sizes, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"MobileBert{task.head}")(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.7 * parameter.shape[-1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def planted(model: Any) -> Any:
    """A copy whose tensors are large in a few channels, and whose every output is the same; with bottlenecks and ReLU."""
    model = copy.deepcopy(model)
    base, gain = model.base_model, CHANNEL
    large = tuple(EVERYWHERE for _ in range(model.config.num_feedforward_networks))
    layers = [LayerScales(EVERYWHERE, EVERYWHERE, EVERYWHERE, large, EVERYWHERE) for _ in base.encoder.layer]
    head_inside = EVERYWHERE if type(model).__name__ == "MobileBertForMaskedLM" else 1.0
    half_range.apply_scales(model, Scales(2.0**7, EVERYWHERE, tuple(layers), head_inside))
    head: list[nn.Linear] = {
        "MaskedLM": lambda: [model.cls.predictions.transform.dense],
        "QuestionAnswering": lambda: [model.qa_outputs],
        "TokenClassification": lambda: [model.classifier],
        "SequenceClassification": lambda: [base.pooler.dense if base.pooler.do_activate else model.classifier],
    }.get(type(model).__name__.removeprefix("MobileBertFor"), list)()
    stream_writers: list[Any] = [base.embeddings]
    stream_readers: list[nn.Linear] = [*head]
    for layer in base.encoder.layer:
        own, neck = layer.attention.self, layer.bottleneck
        stream_writers.append(layer.output.bottleneck)
        necks = [m for m in (neck.input, getattr(neck, "attention", None)) if m is not None]
        by_narrow = neck.use_bottleneck_attention
        stream_readers += [*(m.dense for m in necks), *([] if by_narrow else [own.value])]
        parts = [*getattr(layer, "ffn", []), layer]
        writers = [neck.input, layer.attention.output, *(p.output for p in parts)]
        readers = [*(p.intermediate.dense for p in parts), layer.output.bottleneck.dense]
        move(writers, [*readers, *([own.query, own.key, own.value] if by_narrow else [])], 3, gain)
        move([own.value], [layer.attention.output.dense], 5, gain)
        if not by_narrow:
            move([neck.attention], [own.query, own.key], 6, gain)
        for part in parts:
            move([part.intermediate.dense], [part.output.dense], 7, gain)
    for channel in (2, 11):
        move(stream_writers, stream_readers, channel, gain)
    return model


def move(writers: list[Any], readers: list[nn.Linear], channel: int, gain: float) -> None:
    """Make one channel larger in the modules that write it, NoNorm included, and smaller in those that read it."""
    with torch.no_grad():
        for part in writers:
            dense = getattr(part, "dense", part if isinstance(part, nn.Linear) else None)
            if dense is None:  # the embeddings: their NoNorm is all of the writer
                part.LayerNorm.weight[channel] *= gain
            else:
                dense.weight[channel] *= gain
                dense.bias[channel] *= gain
            if hasattr(part, "LayerNorm"):
                part.LayerNorm.bias[channel] *= gain
        for dense in readers:
            dense.weight[:, channel] /= gain


def batch(length: int, padding: tuple[int, ...], seed: int = 0) -> Inputs:
    """Rows of random tokens, so many of each padded."""
    draw = np.random.default_rng(length + seed)
    ids = draw.integers(5, 290, (len(padding), length))
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    types[:, length // 2 :] = 1
    for row, padded in enumerate(padding):
        if padded:
            ids[row, -padded:] = mask[row, -padded:] = types[row, -padded:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


SMALL = {"num_hidden_layers": 2, "num_feedforward_networks": 2}
BATCHES = [batch(16, (0, 5, 13)), batch(32, (0, 20))]


def answer(model: Any, inputs: Inputs, name: str) -> Tensor:
    with torch.inference_mode():
        return model(**{k: torch.from_numpy(v) for k, v in inputs.items()})[name]  # type: ignore[no-any-return]


def rows(length: int | None = None) -> list[Inputs]:
    """The rows of the batches one by one; all, or those of a length."""
    some = [b for b in BATCHES if length in (None, b["input_ids"].shape[1])]
    return [{k: v[i : i + 1] for k, v in b.items()} for b in some for i in range(len(b["input_ids"]))]


def answers(predictor: Any, name: str = "logits", length: int | None = None) -> list[NDArray[np.float32]]:
    return [np.asarray(predictor.run(r)[name], np.float32) for r in rows(length)]


def expected(model: Any, name: str = "logits", length: int | None = None) -> list[NDArray[np.float32]]:
    return [answer(model, r, name).numpy() for r in rows(length)]


def off(found: list[NDArray[np.float32]], right: list[NDArray[np.float32]]) -> float:
    """Largest difference relative to the largest number; NaN if any number is."""
    largest = max(float(np.abs(r).max()) for r in right)
    return float(np.max([worst_difference(f, r) for f, r in zip(found, right, strict=True)])) / largest


def uncured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export MobileBERT from now on without bringing its numbers into the range of fp16."""
    known = LAYER_PARTS.find("mobilebert", "tests")
    monkeypatch.setitem(LAYER_PARTS._values, "mobilebert", replace(known, half_range=lambda *_: 1.0))
