from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.predictor import TorchPredictor, pool_embeddings
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny import EXPORTED

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


@pytest.mark.parametrize("family", EXPORTED)
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


@pytest.mark.parametrize("pooling", [Pooling(k, n) for k in PoolingKind for n in (True, False)], ids=str)
def test_embeddings_follow_their_definition(
    pooling: Pooling, make_classifier: Callable[..., Any], open_tiny: Callable[..., Any]
) -> None:
    _, folder, tokenizer = open_tiny("bert", 2)
    task = TASKS[TaskName.FEATURE_EXTRACTION]
    model = make_classifier("bert", 2, ("a", "b"), auto_class=task.auto_class)
    predictor = TorchPredictor(model, task, folder.family.inputs, pooling)
    rows = tokenizer.encode(list(SENTENCES[:4]))
    together = predictor.run(tokenizer.pad(rows))
    assert list(together) == list(task.outputs) == list(predictor.outputs)
    for i, row in enumerate(rows):
        alone = predictor.run(tokenizer.pad([row]))
        states = alone["last_hidden_state"][0]
        vector = states[0] if pooling.kind is PoolingKind.CLS else states.mean(0)
        vector = vector / np.linalg.norm(vector) if pooling.normalize else vector
        np.testing.assert_allclose(alone["sentence_embedding"][0], vector, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(together["sentence_embedding"][i], vector, rtol=1e-4, atol=1e-5)
    assert together["sentence_embedding"].dtype == np.float32


def test_a_vector_of_zeros_stays_one() -> None:
    states, mask = np.zeros((1, 3, 4), np.float32), np.ones((1, 3), np.int64)
    assert not pool_embeddings(states, mask, Pooling()).any()


@pytest.mark.parametrize("name", TASKS)
def test_every_head_gives_the_outputs_of_the_table(
    name: TaskName, make_classifier: Callable[..., Any], open_tiny: Callable[..., Any]
) -> None:
    _, folder, tokenizer = open_tiny("bert", 2)
    task = TASKS[name]
    labels = {TaskName.REGRESSION: 1, TaskName.QUESTION_ANSWERING: 2}.get(name, 3)
    model = make_classifier("bert", 1, ("a", "b", "c")[:labels], auto_class=task.auto_class)
    out = TorchPredictor(model, task, folder.family.inputs).run(tokenizer.pad(tokenizer.encode(["a good film"])))
    assert list(out) == list(task.outputs)
    assert all(v.dtype == np.float32 and np.isfinite(v).all() for v in out.values())
