"""Sound models of every family answer rows of drawn ids as the untouched model does, with a margin to the bound of parity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.parity import Parity, build_probe, compare_with_probe, count_drawn_rows, draw_rows
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.predictor import Predictor, TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import BASIC, tiny_classifier
from support.tiny_tokenizers import vocabulary

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
LABELS = ("negative", "neutral", "positive")
MARGIN = 2
FAMILIES = ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in BASIC if f != "bert")]


def compared(subject: Predictor, reference: TorchPredictor, tokenizer: TextTokenizer, family: Any) -> Parity:
    length = max(subject.lengths, default=tokenizer.max_length)
    words, pairs = len(vocabulary(family.tiny["pad_token_id"])), family.uses_segments
    drawn = draw_rows(tokenizer, words, length, [pairs and i % 2 == 1 for i in range(count_drawn_rows(length))])
    assert len(drawn) == 8
    texts = SENTENCES[:8]
    probe = build_probe(reference, tokenizer, texts, [16], TASK, ["logits"], subject.lengths, drawn)
    return compare_with_probe(subject, "file", "model", probe, ["logits"], family.parity_atol / MARGIN)


def of_seed(name: str, seed: int, open_tiny: Callable[..., Any]) -> Parity:
    _, folder, tokenizer = open_tiny(name, 2)
    model = tiny_classifier(name, 2, LABELS, seed=seed)
    prepared = PreparedPredictor(prepare(model, folder.family, TASK), folder.family, TASK)
    return compared(prepared, TorchPredictor(model, TASK, folder.family.inputs), tokenizer, folder.family)


@pytest.mark.parametrize("name", BASIC)
def test_the_prepared_module(name: str, open_tiny: Callable[..., Any]) -> None:
    found = of_seed(name, 1, open_tiny)
    assert found.passed, found


@pytest.mark.slow
@pytest.mark.parametrize("name", BASIC)
def test_the_prepared_module_of_many_seeds(name: str, open_tiny: Callable[..., Any]) -> None:
    for seed in range(12):
        found = of_seed(name, seed, open_tiny)
        assert found.passed, (seed, found)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_onnx_file(name: str, open_tiny: Callable[..., Any], exported: Callable[[str], Path]) -> None:
    model, folder, tokenizer = open_tiny(name, 2)
    reference = TorchPredictor(model, TASK, folder.family.inputs)
    found = compared(OnnxPredictor(exported(name)), reference, tokenizer, folder.family)
    assert found.passed, found
