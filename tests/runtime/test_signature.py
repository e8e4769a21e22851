from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.runtime import tflite as engine
from pocketbert.runtime.tflite import Padding, _SignatureCall

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
    own, call = runner_of(path, length), _SignatureCall(runner_of(path, length), INPUTS, OUTPUTS)
    for seed in range(4):
        inputs = row(length, seed)
        expected = own(**{name: value.astype(np.int32) for name, value in inputs.items()})["logits"]
        np.testing.assert_array_equal(call(inputs)["logits"], expected)


def test_only_the_first_run_goes_through_the_runner(exported_tflite: Callable[[str], Path]) -> None:
    runner = runner_of(exported_tflite("bert"), 16)
    counted = Counted(runner)
    counted._interpreter_wrapper = runner._interpreter_wrapper  # type: ignore[attr-defined]
    counted._subgraph_index = runner._subgraph_index  # type: ignore[attr-defined]
    call = _SignatureCall(counted, INPUTS, OUTPUTS)
    answers = [call(row(16, 1))["logits"] for _ in range(3)]
    assert counted.calls == 1
    np.testing.assert_array_equal(answers[0], answers[2])


def test_an_engine_without_these_functions_is_called_through_its_runner(
    exported_tflite: Callable[[str], Path],
) -> None:
    path = exported_tflite("bert")
    hidden, direct = Counted(runner_of(path, 16)), _SignatureCall(runner_of(path, 16), INPUTS, OUTPUTS)
    call = _SignatureCall(hidden, INPUTS, OUTPUTS)
    for seed in range(3):
        np.testing.assert_array_equal(call(row(16, seed))["logits"], direct(row(16, seed))["logits"])
    assert hidden.calls == 3


def test_a_refused_value_leaves_the_signature_usable(exported_tflite: Callable[[str], Path]) -> None:
    call = _SignatureCall(runner_of(exported_tflite("bert"), 16), INPUTS, OUTPUTS)
    right = call(row(16, 0))["logits"]
    with pytest.raises(ValueError):
        call(row(17, 0))
    with pytest.raises((ValueError, RuntimeError)):
        call({**row(16, 0), "input_ids": np.full((1, 16), 10_000)})
    np.testing.assert_array_equal(call(row(16, 0))["logits"], right)


LENGTHS = st.lists(st.integers(1, 16), min_size=1, max_size=6)


def test_rows_of_any_lengths_in_any_order_give_the_bits_of_the_engines_own_runner(
    exported_tflite: Callable[[str], Path],
) -> None:
    """The law behind memory that is used again: what ran before, longer or shorter, changes no answer."""
    path = exported_tflite("bert")
    own, call = runner_of(path, 16), _SignatureCall(runner_of(path, 16), INPUTS, OUTPUTS)

    @settings(max_examples=40, deadline=None)
    @given(lengths=LENGTHS, side=st.sampled_from(["right", "left"]), pad_id=st.integers(0, 9), seed=st.integers(0, 99))
    def law(lengths: list[int], side: str, pad_id: int, seed: int) -> None:
        padding = Padding(pad_id, side)
        runs = {n: call.prepare_run(n, padding) for n in lengths}
        for length in [*lengths, *reversed(lengths)]:
            inputs = row(length, seed + length)
            widened = {name: v.astype(np.int32) for name, v in padding.widened(inputs, 16).items()}
            np.testing.assert_array_equal(runs[length](inputs)["logits"], own(**widened)["logits"])

    law()


def test_a_shorter_row_finds_the_padding_untouched(exported_tflite: Callable[[str], Path]) -> None:
    given_to_engine = []

    def recorded(**inputs: np.ndarray) -> Any:
        given_to_engine.append({name: value.copy() for name, value in inputs.items()})
        return runner(**inputs)

    runner = runner_of(exported_tflite("bert"), 16)
    hidden = Counted(runner)
    call = _SignatureCall(hidden, INPUTS, OUTPUTS)
    hidden._inner = recorded
    long, short = call.prepare_run(15, Padding(3, "left")), call.prepare_run(4, Padding(3, "left"))
    for run, length in ((short, 4), (long, 15), (short, 4)):
        run(row(length, 0))
    first, _, last = given_to_engine
    for name, padded in (("input_ids", 3), ("attention_mask", 0), ("token_type_ids", 0)):
        np.testing.assert_array_equal(first[name], last[name])
        assert (last[name][:, :12] == padded).all()
        assert last[name].dtype == np.int32


def test_answers_and_inputs_stay_the_callers(exported_tflite: Callable[[str], Path]) -> None:
    run = _SignatureCall(runner_of(exported_tflite("bert"), 16), INPUTS, OUTPUTS).prepare_run(9, Padding(0, "right"))
    inputs = row(9, 1)
    before = {name: value.copy() for name, value in inputs.items()}
    run(inputs)  # the first one goes through the engine's runner
    first = run(inputs)["logits"]
    kept = first.copy()
    other = run(row(9, 2))["logits"]
    assert not np.array_equal(other, kept)
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, other)
    assert all(np.array_equal(before[name], value) for name, value in inputs.items())


@pytest.mark.parametrize("shape", [(1, 1), (1, 15), (16,), (0, 16)])
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_of_another_shape_is_refused_not_repeated(
    exported_tflite: Callable[[str], Path], name: str, shape: tuple[int, ...]
) -> None:
    call = _SignatureCall(runner_of(exported_tflite("bert"), 16), INPUTS, OUTPUTS)
    right = call(row(16, 0))["logits"]
    with pytest.raises(ValueError, match=rf"{name} has the shape .*, \(1, 16\) is wanted"):
        call({**row(16, 0), name: np.ones(shape, np.int64)})
    np.testing.assert_array_equal(call(row(16, 0))["logits"], right)
