from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pocketbert.core.sample_texts import SENTENCES
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.torch_predictor import TorchPredictor

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mobilebert"])
def test_it_runs_the_model_in_eval_mode_without_gradients(family: str, open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny(family, 2)
    predictor = TorchPredictor(model.train(), TASK, folder.family.inputs)
    batch = tokenizer.pad(tokenizer.encode(list(SENTENCES[:4])))
    first, second = predictor.run(batch), predictor.run(batch)
    np.testing.assert_array_equal(first["logits"], second["logits"])
    assert (first["logits"].shape, first["logits"].dtype) == ((4, 3), np.float32)
    assert not model.training


def test_inputs_the_family_does_not_take_are_left_out(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("distilbert", 2)
    predictor = TorchPredictor(model, TASK, folder.family.inputs)
    batch = tokenizer.pad(tokenizer.encode([("good", "bad")]))
    assert "token_type_ids" in batch
    assert set(predictor.run(batch)) == {"logits"}
