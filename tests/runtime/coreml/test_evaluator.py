"""What an evaluator says about a model, what it takes and hands out, and whole encoders against torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.runtime.coreml import evaluator as module
from pocketbert.runtime.coreml.evaluator import Evaluator, EvaluatorPrecision, Step
from pocketbert.runtime.coreml.package import FeatureKind
from pocketbert.runtime.coreml.types import Dtype

LABELS = ["negative", "neutral", "positive"]
Batch = Callable[..., dict[str, np.ndarray]]


# What a model says of itself.


def test_a_classifier_gives_label_probabilities_and_logits(build_program: Callable[..., Path]) -> None:
    import coremltools as ct

    def body(mb: Any, x: Any) -> Any:
        weight = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
        logits = mb.linear(x=x, weight=weight, bias=np.zeros(3, np.float32), name="logits")
        return mb.softmax(x=logits, axis=-1, name="probabilities"), logits

    config = ct.ClassifierConfig(LABELS, predicted_probabilities_output="probabilities")
    evaluator = Evaluator(build_program([(1, 2)], body, classifier_config=config))
    assert evaluator.labels == tuple(LABELS)
    assert {f.kind for f in evaluator.outputs} == {FeatureKind.TEXT, FeatureKind.DICTIONARY, FeatureKind.ARRAY}
    result = evaluator.run({"x0": np.array([[0.5, 2.0]], np.float32)})
    logits = np.array([0.5, 2.0, 2.5])
    np.testing.assert_allclose(np.asarray(result["logits"]), [logits], rtol=1e-6)
    assert result["classLabel"] == "positive"
    probabilities = next(v for v in result.values() if isinstance(v, dict))
    assert list(probabilities) == LABELS
    np.testing.assert_allclose(list(probabilities.values()), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6)


def test_a_model_says_its_inputs_outputs_lengths_and_metadata(
    bert16: Path, build_program: Callable[..., Path], edit: Callable[..., None]
) -> None:
    evaluator = Evaluator(bert16)
    assert [f.name for f in evaluator.inputs] == ["input_ids", "attention_mask"]
    first = evaluator.inputs[0]
    assert (first.dtype, first.shape, first.shapes) == (Dtype.INT32, (1, 16), ((1, 8), (1, 16), (1, 24)))
    assert [f.name for f in evaluator.outputs] == ["logits"]
    assert (evaluator.lengths, evaluator.length_range) == ((8, 16, 24), None)
    assert (evaluator.labels, evaluator.specification) == ((), 9)

    def change(model: Any, block: Any) -> None:
        model.description.metadata.author = "me"
        model.description.metadata.userDefined["max_length"] = "48"

    path = build_program([((1, 5), "int32")], lambda mb, x: mb.add(x=x, y=1))
    edit(path, change)
    fixed = Evaluator(path)
    assert fixed.lengths == (5,)
    assert (fixed.metadata["author"], fixed.metadata["max_length"]) == ("me", "48")
    assert "license" not in fixed.metadata


# What goes in and comes out.


def test_ranged_lengths(convert: Callable[..., Path], batch: Batch) -> None:
    class Sum(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return (input_ids * attention_mask).to(torch.float32).sum(1)

    evaluator = Evaluator(convert(Sum().eval(), "ranged"))
    assert (evaluator.lengths, evaluator.length_range) == ((), (8, 32))
    for length in (8, 21, 32):
        inputs = batch(length)
        want = (inputs["input_ids"] * inputs["attention_mask"]).sum()
        assert float(np.asarray(evaluator.run(inputs)["logits"])[0]) == want
    for length in (7, 33):
        with pytest.raises(InputError, match=r"allowed: .*8\.\.32"):
            evaluator.run(batch(length))
    mixed = {"input_ids": batch(8)["input_ids"], "attention_mask": batch(9)["attention_mask"]}
    with pytest.raises(InputError, match="different lengths"):
        evaluator.run(mixed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.pop("attention_mask"), "was given the inputs input_ids; it wants attention_mask, input_ids"),
        (lambda i: i.update(extra=i["input_ids"]), "extra"),
        (lambda i: i.update(input_ids=i["input_ids"][0]), r"of shape \[16\]; allowed: \[1, 8\] or \[1, 16\] or"),
        (lambda i: i.update(input_ids=np.ones((1, 12), int)), r"of shape \[1, 12\]"),
        (lambda i: i.update(input_ids=np.ones((2, 16), int)), r"of shape \[2, 16\]"),
        (lambda i: i.update(input_ids=i["input_ids"] + 0.5), "of float64; int32 is expected"),
        (lambda i: i.update(input_ids=i["input_ids"].astype(str)), "int32 is expected"),
        (lambda i: i.update(input_ids=i["input_ids"] + 2**40), "does not fit int32"),
        (lambda i: i.update(input_ids=i["input_ids"] + 10_000), "gather .*outside a table"),
        (lambda i: i.update(input_ids=-i["input_ids"]), "gather .*outside a table"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    change: Callable[[dict[str, np.ndarray]], Any], message: str, bert16: Path, batch: Batch
) -> None:
    inputs = batch(16)
    change(inputs)
    with pytest.raises(InputError, match=message):
        Evaluator(bert16).run(inputs)


def test_a_run_leaves_nothing_behind(bert16: Path, batch: Batch) -> None:
    evaluator, inputs = Evaluator(bert16), batch(16)
    before = {n: v.copy() for n, v in inputs.items()}
    first = np.asarray(evaluator.run(inputs)["logits"])
    evaluator.run(batch(8, seed=1))
    np.testing.assert_array_equal(np.asarray(evaluator.run(inputs)["logits"]), first)
    for name, value in before.items():
        np.testing.assert_array_equal(inputs[name], value)


def test_results_that_pile_up_are_refused(bert16: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_BYTES", 10_000)
    evaluator = Evaluator(bert16)
    evaluator.run(batch(8))
    with pytest.raises(InputError, match="more memory than there is, or may be taken"):
        evaluator.run(batch(24))


def test_an_input_that_is_an_output_and_fp16_inputs(build_program: Callable[..., Path]) -> None:
    path = build_program([(1, 3)], lambda mb, x: (mb.identity(x=x, name="same"), mb.add(x=x, y=1.0, name="more")))
    result = Evaluator(path).run({"x0": np.array([[1, 2, 3]])})
    np.testing.assert_array_equal(np.asarray(result["same"]), [[1, 2, 3]])
    np.testing.assert_array_equal(np.asarray(result["more"]), [[2, 3, 4]])
    path = build_program([((1, 3), "fp16")], lambda mb, x: mb.add(x=x, y=np.float16(0)), precision="FLOAT16")
    value = np.array([[0.1, 2049, 1e-9]])
    (rounded,) = Evaluator(path).run({"x0": value}).values()
    np.testing.assert_array_equal(np.asarray(rounded), value.astype(np.float16))


@pytest.mark.parametrize("precision", EvaluatorPrecision)
def test_a_trace_shows_every_result_as_declared_and_its_errors_are_the_callers(
    precision: EvaluatorPrecision, bert16: Path, batch: Batch
) -> None:
    steps: list[Step] = []
    Evaluator(bert16, precision).run(batch(8), steps.append)
    assert len(steps) > 20 and {"linear", "softmax", "layer_norm", "gelu", "gather"} <= {s.op_type for s in steps}
    halves = [s for s in steps if s.type.dtype is Dtype.FP16]  # type: ignore[union-attr]
    want = np.float16 if precision is EvaluatorPrecision.DECLARED else np.float32
    assert len(halves) > 15 and all(np.asarray(s.value).dtype == want for s in halves)
    made = {s.output for s in steps} | {"input_ids", "attention_mask"}
    assert all(set(s.reads) <= made for s in steps)
    with pytest.raises(ZeroDivisionError):
        Evaluator(bert16).run(batch(8), lambda step: 1 // 0)


# Whole encoders. Those of all families go through the matrix in tests/families, the layout of the Neural Engine through test_ane.py.


def gap(path: Path, torch_module: Any, inputs: dict[str, np.ndarray], **more: Any) -> float:
    """Largest difference to torch, relative to the largest logit."""
    with torch.no_grad():
        want = torch_module(*(torch.from_numpy(inputs[n]) for n in ("input_ids", "attention_mask"))).numpy()
    have = np.asarray(Evaluator(path, **more).run(inputs)["logits"])
    assert have.shape == want.shape
    return float(np.abs(have.astype(np.float64) - want).max() / np.abs(want).max())


def test_an_encoder_of_transformers_equals_torch(encoder: Any, convert: Callable[..., Path], batch: Batch) -> None:
    path = convert(encoder, "ranged")
    for length in (8, 17, 32):
        assert gap(path, encoder, batch(length)) <= 1e-5


def test_precision_decides_on_rounding(bert16: Path, encoder: Any, batch: Batch) -> None:
    inputs = batch(16)
    declared, wide = (np.asarray(Evaluator(bert16, p).run(inputs)["logits"]) for p in EvaluatorPrecision)
    assert declared.dtype == np.float16 and wide.dtype == np.float32
    assert gap(bert16, encoder, inputs) <= 5e-3
    assert gap(bert16, encoder, inputs, precision=EvaluatorPrecision.FP32) <= 2e-3
    assert not np.array_equal(declared.astype(np.float32), wide)


class StockMask(torch.nn.Module):
    """The mask as transformers 5 makes it: a select between two numbers, whose rank coremltools takes for the result's."""

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        allowed = attention_mask[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1) > 0
        zero, low = torch.tensor(0.0), torch.tensor(-1e4)
        x = input_ids.to(torch.float32) / 100
        scores = x[:, None, :, None] * x[:, None, None, :] + torch.where(allowed, zero, low)
        return (scores.softmax(-1) * x[:, None, None, :]).sum((2, 3))


def test_the_trap_of_ranged_lengths_is_caught_and_fixed_ones_are_none(
    convert: Callable[..., Path], batch: Batch
) -> None:
    """coremltools declares a rank-0 result for a rank-4 tensor; the arithmetic alone would not tell."""
    stock = StockMask().eval()
    evaluator = Evaluator(convert(stock, "ranged"))
    with pytest.raises(InputError, match=r"select .*declares the result fp32\[\], which has shape \[1, 1, 16, 16\]"):
        evaluator.run(batch(16))
    assert gap(convert(stock, "fixed"), stock, batch(16)) <= 1e-5


def test_it_needs_neither_torch_nor_coremltools(bert16: Path) -> None:
    code = f"""
import sys, numpy as np
from pathlib import Path
from pocketbert.runtime.coreml.predictor import CoremlPredictor
assert not any(m.startswith("google.protobuf") for m in sys.modules)
ids = np.ones((2, 8), np.int64)
print(CoremlPredictor(Path({str(bert16)!r})).run({{"input_ids": ids, "attention_mask": ids}})["logits"].shape)
assert not {{"torch", "coremltools", "transformers", "onnx"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "(2, 3)"), done.stderr
