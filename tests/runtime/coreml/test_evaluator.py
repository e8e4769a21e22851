"""What an evaluator says about a model, what it takes, and what it hands out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.errors import InputError
from pocketbert.runtime.coreml import EVALUATOR_LIMITS
from pocketbert.runtime.coreml import evaluator as module
from pocketbert.runtime.coreml.evaluator import Evaluator, Precision, Step
from pocketbert.runtime.coreml.package import FeatureKind
from pocketbert.runtime.coreml.types import Dtype

LABELS = ["negative", "neutral", "positive"]


@pytest.fixture(scope="module")
def classifier(build_program: Callable[..., Path]) -> Path:
    """Logits, their probabilities' dictionary and a label."""
    import coremltools as ct

    def body(mb: Any, x: Any) -> Any:
        weight = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
        logits = mb.linear(x=x, weight=weight, bias=np.zeros(3, np.float32), name="logits")
        return mb.softmax(x=logits, axis=-1, name="probabilities"), logits

    return build_program(
        [(1, 2)], body, classifier_config=ct.ClassifierConfig(LABELS, predicted_probabilities_output="probabilities")
    )


def test_a_classifier_gives_label_probabilities_and_logits(classifier: Path) -> None:
    evaluator = Evaluator(classifier)
    assert evaluator.labels == tuple(LABELS)
    assert {f.kind for f in evaluator.outputs} == {
        FeatureKind.TEXT,
        FeatureKind.DICTIONARY,
        FeatureKind.ARRAY,
    }
    result = evaluator.run({"x0": np.array([[0.5, 2.0]], np.float32)})
    logits = np.array([0.5, 2.0, 2.5])
    np.testing.assert_allclose(np.asarray(result["logits"]), [logits], rtol=1e-6)
    assert result["classLabel"] == "positive"
    probabilities = next(v for v in result.values() if isinstance(v, dict))
    assert list(probabilities) == LABELS
    np.testing.assert_allclose(list(probabilities.values()), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6)


def test_what_a_model_says_of_itself(bert16: Path, build_program: Callable[..., Path]) -> None:
    evaluator = Evaluator(bert16)
    assert [f.name for f in evaluator.inputs] == ["input_ids", "attention_mask"]
    assert evaluator.inputs[0].dtype is Dtype.INT32 and evaluator.inputs[0].shape == (1, 16)
    assert evaluator.inputs[0].shapes == ((1, 8), (1, 16), (1, 24))
    assert [f.name for f in evaluator.outputs] == ["logits"]
    assert evaluator.lengths == (8, 16, 24) and evaluator.length_range is None
    assert evaluator.labels == ()
    assert evaluator.specification == 9
    fixed = Evaluator(build_program([((1, 5), "int32")], lambda mb, x: mb.add(x=x, y=1)))
    assert fixed.lengths == (5,)


def test_metadata(build_program: Callable[..., Path], edit: Callable[..., None]) -> None:
    path = build_program([(1, 5)], lambda mb, x: mb.relu(x=x))

    def change(model: Any, block: Any) -> None:
        model.description.metadata.author = "me"
        model.description.metadata.userDefined["max_length"] = "48"

    edit(path, change)
    metadata = Evaluator(path).metadata
    assert metadata["author"] == "me" and metadata["max_length"] == "48" and "license" not in metadata


def test_ranged_lengths(convert: Callable[..., Path], batch: Callable[..., dict[str, np.ndarray]]) -> None:
    import torch

    class Sum(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return (input_ids * attention_mask).to(torch.float32).sum(1)

    evaluator = Evaluator(convert(Sum().eval(), "ranged"))
    assert evaluator.lengths == () and evaluator.length_range == (8, 32)
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
    change: Callable[[dict[str, np.ndarray]], Any],
    message: str,
    bert16: Path,
    batch: Callable[..., dict[str, np.ndarray]],
) -> None:
    inputs = batch(16)
    change(inputs)
    with pytest.raises(InputError, match=message):
        Evaluator(bert16).run(inputs)


def test_a_run_leaves_nothing_behind(bert16: Path, batch: Callable[..., dict[str, np.ndarray]]) -> None:
    evaluator, inputs = Evaluator(bert16), batch(16)
    before = {n: v.copy() for n, v in inputs.items()}
    first = np.asarray(evaluator.run(inputs)["logits"])
    evaluator.run(batch(8, seed=1))
    np.testing.assert_array_equal(np.asarray(evaluator.run(inputs)["logits"]), first)
    for name, value in before.items():
        np.testing.assert_array_equal(inputs[name], value)


@pytest.mark.parametrize("precision", Precision)
def test_a_trace_shows_every_result_as_declared(
    precision: Precision, bert16: Path, batch: Callable[..., dict[str, np.ndarray]]
) -> None:
    steps: list[Step] = []
    Evaluator(bert16, precision).run(batch(8), steps.append)
    assert len(steps) > 20 and {"linear", "softmax", "layer_norm", "gelu", "gather"} <= {s.op_type for s in steps}
    halves = [s for s in steps if s.type.dtype is Dtype.FP16]  # type: ignore[union-attr]
    want = np.float16 if precision is Precision.DECLARED else np.float32
    assert len(halves) > 15 and all(np.asarray(s.value).dtype == want for s in halves)
    made = {s.output for s in steps} | {"input_ids", "attention_mask"}
    assert all(set(s.reads) <= made for s in steps)


def test_an_error_in_a_trace_is_the_callers(bert16: Path, batch: Callable[..., dict[str, np.ndarray]]) -> None:
    def stop(step: Step) -> None:
        raise KeyError(step.output)

    with pytest.raises(KeyError):
        Evaluator(bert16).run(batch(8), stop)


def test_results_that_pile_up_are_refused(
    bert16: Path, batch: Callable[..., dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RUN_BYTES", 10_000)
    evaluator = Evaluator(bert16)
    evaluator.run(batch(8))
    with pytest.raises(InputError, match="more memory than there is, or may be taken"):
        evaluator.run(batch(24))


def test_a_constant_output_and_an_input_that_is_an_output(build_program: Callable[..., Path]) -> None:
    path = build_program([(1, 3)], lambda mb, x: (mb.identity(x=x, name="same"), mb.add(x=x, y=1.0, name="more")))
    result = Evaluator(path).run({"x0": np.array([[1, 2, 3]])})
    np.testing.assert_array_equal(np.asarray(result["same"]), [[1, 2, 3]])
    np.testing.assert_array_equal(np.asarray(result["more"]), [[2, 3, 4]])


def test_fp16_inputs_are_rounded(build_program: Callable[..., Path]) -> None:
    path = build_program([((1, 3), "fp16")], lambda mb, x: mb.add(x=x, y=np.float16(0)), precision="FLOAT16")
    value = np.array([[0.1, 2049, 1e-9]])
    (result,) = Evaluator(path).run({"x0": value}).values()
    np.testing.assert_array_equal(np.asarray(result), value.astype(np.float16))


def test_it_says_what_it_cannot_tell() -> None:
    text = " ".join(EVALUATOR_LIMITS)
    for word in ("sums in another order", "Neural Engine", "compiles", "not the latency of a device"):
        assert word in text


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
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 3)"
