from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.runtime import tflite as engine
from pocketbert.runtime.signature import SignatureCall

pytestmark = pytest.mark.skipif(engine.version_of("ai-edge-litert") is None, reason="needs pocketbert[tflite-runtime]")
INPUTS, OUTPUTS = ("input_ids", "attention_mask", "token_type_ids"), ("logits",)


def runner_of(path: Path, length: int) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(path), num_threads=1).get_signature_runner(f"seq_{length}")


def row(length: int, seed: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(5, 90, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


class Counted:
    """A runner that counts its calls and hides what is behind it."""

    def __init__(self, runner: Any) -> None:
        self.get_input_details, self.get_output_details = runner.get_input_details, runner.get_output_details
        self.calls, self._inner = 0, runner

    def __call__(self, **inputs: np.ndarray) -> Any:
        self.calls += 1
        return self._inner(**inputs)


@pytest.mark.parametrize("length", [16, 40])  # the first signature of the file, and another one
def test_every_run_gives_the_bits_of_the_engines_own_runner(
    exported_tflite: Callable[[str], Path], length: int
) -> None:
    path = exported_tflite("bert")
    own, call = runner_of(path, length), SignatureCall(runner_of(path, length), INPUTS, OUTPUTS)
    for seed in range(4):
        inputs = row(length, seed)
        expected = own(**{name: value.astype(np.int32) for name, value in inputs.items()})["logits"]
        np.testing.assert_array_equal(call(inputs)["logits"], expected)


def test_only_the_first_run_goes_through_the_runner(exported_tflite: Callable[[str], Path]) -> None:
    runner = runner_of(exported_tflite("bert"), 16)
    counted = Counted(runner)
    counted._interpreter_wrapper = runner._interpreter_wrapper  # type: ignore[attr-defined]
    counted._subgraph_index = runner._subgraph_index  # type: ignore[attr-defined]
    call = SignatureCall(counted, INPUTS, OUTPUTS)
    answers = [call(row(16, 1))["logits"] for _ in range(3)]
    assert counted.calls == 1
    np.testing.assert_array_equal(answers[0], answers[2])


def test_an_engine_without_these_functions_is_called_through_its_runner(
    exported_tflite: Callable[[str], Path],
) -> None:
    path = exported_tflite("bert")
    hidden, direct = Counted(runner_of(path, 16)), SignatureCall(runner_of(path, 16), INPUTS, OUTPUTS)
    call = SignatureCall(hidden, INPUTS, OUTPUTS)
    for seed in range(3):
        np.testing.assert_array_equal(call(row(16, seed))["logits"], direct(row(16, seed))["logits"])
    assert hidden.calls == 3


def test_a_refused_value_leaves_the_signature_usable(exported_tflite: Callable[[str], Path]) -> None:
    call = SignatureCall(runner_of(exported_tflite("bert"), 16), INPUTS, OUTPUTS)
    right = call(row(16, 0))["logits"]
    with pytest.raises(ValueError):
        call(row(17, 0))
    with pytest.raises((ValueError, RuntimeError)):
        call({**row(16, 0), "input_ids": np.full((1, 16), 10_000)})
    np.testing.assert_array_equal(call(row(16, 0))["logits"], right)
