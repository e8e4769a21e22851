from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.errors import InputError
from pocketbert.runtime import tflite as engine
from pocketbert.runtime.tflite import Padding, TflitePredictor

pytestmark = pytest.mark.skipif(engine.version_of("ai-edge-litert") is None, reason="needs pocketbert[tflite-runtime]")


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 100 + 5
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_what_is_prepared_for_a_length_answers_as_the_padded_rows_do(
    exported_tflite: Callable[[str], Path], length: int, rows: int
) -> None:
    predictor, inputs, padding = TflitePredictor(exported_tflite("bert"), 1), batch(rows, 48), Padding(0, "right")
    inputs = {name: value[:, :length] for name, value in inputs.items()}
    run, wide = predictor.prepare_run(length, padding), next(n for n in predictor.lengths if n >= length)
    for _ in range(2):
        expected = predictor.run(padding.widened(inputs, wide))["logits"]
        np.testing.assert_array_equal(run(inputs)["logits"], expected)


def test_what_is_prepared_for_a_length_refuses_what_run_refuses(exported_tflite: Callable[[str], Path]) -> None:
    predictor, inputs = TflitePredictor(exported_tflite("bert"), 1), batch(2, 9)
    with pytest.raises(InputError, match="41 tokens; the file takes 16, 32, 40"):
        predictor.prepare_run(41, Padding(0, "right"))
    run = predictor.prepare_run(9, Padding(0, "right"))
    right = run(inputs)["logits"]
    for wrong in (np.full((2, 9), 10_000), np.full((2, 9), -1), np.ones((2, 8), np.int64), np.ones((0, 9), np.int64)):
        with pytest.raises(InputError, match=r"model.tflite: litert .* cannot run the file on this input: .+"):
            run({**inputs, "input_ids": wrong})
    np.testing.assert_array_equal(run(inputs)["logits"], right)


def test_predictors_of_one_file_work_in_threads_of_their_own(exported_tflite: Callable[[str], Path]) -> None:
    def answers(seed: int) -> list[np.ndarray]:
        predictor = TflitePredictor(exported_tflite("bert"), 1)
        runs = {n: predictor.prepare_run(n, Padding(0, "right")) for n in (5, 16)}
        feeds = {n: {name: np.roll(v[:, :n], seed, 1) for name, v in batch(1, 20).items()} for n in runs}
        return [runs[n](feeds[n])["logits"] for _ in range(20) for n in runs]

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(answers, range(4)))
    for seed, found in enumerate(together):
        np.testing.assert_array_equal(found, answers(seed))
