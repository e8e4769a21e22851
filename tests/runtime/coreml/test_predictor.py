"""Core ML files behind the interface of all engines."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.runtime.coreml import evaluator
from pocketbert.runtime.coreml import predictor as module
from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.predictor import SWITCH, CoremlPredictor


def rows(count: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(count * length).reshape(count, length) % 90 + 5
    mask = np.ones_like(ids)
    mask[:, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def test_rows_are_run_one_by_one(bert16: Path) -> None:
    predictor = CoremlPredictor(bert16)
    assert predictor.engine == "coreml-reference" and predictor.engine_version
    assert predictor.inputs == ("input_ids", "attention_mask") and predictor.outputs == ("logits",)
    assert predictor.lengths == (8, 16, 24) and predictor.path == bert16
    batch = rows(3, 16)
    out = predictor.run(batch)["logits"]
    assert out.shape == (3, 3) and out.dtype == np.float32
    one_by_one = Evaluator(bert16)
    for i in range(3):
        one = {n: batch[n][i : i + 1] for n in predictor.inputs}
        np.testing.assert_array_equal(out[i], np.asarray(one_by_one.run(one)["logits"])[0])


def test_the_signature_names_the_open_axis(bert16: Path, build_program: Callable[..., Path]) -> None:
    signature = CoremlPredictor(bert16).signature
    assert [(t.name, t.dtype, t.shape) for t in signature.inputs] == [
        ("input_ids", "int32", [1, "sequence"]),
        ("attention_mask", "int32", [1, "sequence"]),
    ]
    assert [(t.name, t.dtype, t.shape) for t in signature.outputs] == [("logits", "float16", [1, 3])]
    assert signature.lengths == [8, 16, 24]
    fixed = CoremlPredictor(
        build_program([((1, 5), "int32")], lambda mb, x: mb.cast(x=x, dtype="fp32", name="logits"))
    ).signature
    assert fixed.inputs[0].shape == [1, 5] and fixed.outputs[0].shape == [1, 5] and fixed.lengths == [5]


def test_other_lengths_and_missing_inputs_are_refused(bert16: Path) -> None:
    predictor = CoremlPredictor(bert16)
    with pytest.raises(InputError, match=r"takes 8, 16, 24 tokens, not 12\. Fix: Pad"):
        predictor.run(rows(1, 12))
    with pytest.raises(InputError, match="wants the inputs attention_mask too"):
        predictor.run({"input_ids": rows(1, 8)["input_ids"]})


def test_logits_come_first(build_program: Callable[..., Path]) -> None:
    def body(mb: Any, x: Any) -> Any:
        logits = mb.cast(x=x, dtype="fp32", name="logits")
        return mb.relu(x=logits, name="another"), mb.softmax(x=logits, axis=-1, name="probabilities"), logits

    assert CoremlPredictor(build_program([((1, 4), "int32")], body)).outputs == (
        "logits",
        "probabilities",
        "another",
    )


def test_rows_are_computed_at_the_same_time_as_alone_by_one_blas_thread_each(
    bert16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, str]]()
    pools = SimpleNamespace(limit=lambda limits, user_api: asked.append((limits, user_api)) or contextlib.nullcontext())
    fake = SimpleNamespace(ThreadpoolController=lambda: pools)
    monkeypatch.setitem(sys.modules, "threadpoolctl", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(evaluator, "_find_thread_pools", evaluator._find_thread_pools.__wrapped__)
    batch, alone = rows(5, 8), CoremlPredictor(bert16, threads=1)
    together = CoremlPredictor(bert16, threads=2).run(batch)["logits"]
    single = [alone.run({name: value[i : i + 1] for name, value in batch.items()})["logits"] for i in range(5)]
    np.testing.assert_array_equal(together, np.concatenate(single))
    assert asked == [(1, "blas")] * 6
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert evaluator._find_thread_pools() is None, "without the library nothing is limited"


class FakeModel:
    """coremltools' MLModel on a Mac."""

    opened: ClassVar[list[str]] = []
    given: ClassVar[list[dict[str, np.ndarray]]] = []

    def __init__(self, path: str) -> None:
        if "broken" in path:
            raise RuntimeError("compile error\nsecond line")
        self.opened.append(path)

    def predict(self, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
        self.given.append(inputs)
        if (inputs["input_ids"] < 0).any():
            raise RuntimeError("out of bounds")
        return {"logits": inputs["input_ids"][:, :3].astype(np.float16), "classLabel": "a"}


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeModel, "opened", [])
    monkeypatch.setattr(FakeModel, "given", [])
    fake = ModuleType("coremltools.models")
    fake.MLModel = FakeModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "coremltools.models", fake)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(module, "version_of", lambda name: {"coremltools": "9.0", "pocketbert": "0.1"}.get(name))


@pytest.mark.usefixtures("mac")
def test_on_a_mac_core_ml_itself_computes(bert16: Path) -> None:
    predictor = CoremlPredictor(bert16)
    assert (predictor.engine, predictor.engine_version) == ("coreml", "9.0")
    assert predictor.lengths == (8, 16, 24) and predictor.signature.lengths == [8, 16, 24]
    out = predictor.run(rows(2, 8))
    assert out["logits"].tolist() == [[5, 6, 7], [13, 14, 15]] and out["logits"].dtype == np.float32
    assert FakeModel.opened == [str(bert16)]
    assert all(v.shape == (1, 8) and v.dtype == np.int32 for g in FakeModel.given for v in g.values())
    bad = rows(1, 8)
    bad["input_ids"][:] = -1
    with pytest.raises(InputError, match="Core ML cannot run the file on this input: out of bounds"):
        predictor.run(bad)


@pytest.mark.usefixtures("mac")
def test_on_a_mac_the_evaluator_can_be_asked_for(bert16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CoremlPredictor(bert16, reference=True).engine == "coreml-reference"
    monkeypatch.setenv(SWITCH, "1")
    assert CoremlPredictor(bert16).engine == "coreml-reference"
    monkeypatch.setenv(SWITCH, "0")
    assert CoremlPredictor(bert16).engine == "coreml"
    assert FakeModel.opened == [str(bert16)]


@pytest.mark.usefixtures("mac")
def test_on_a_mac_a_refusal_is_one_line_and_a_broken_coremltools_is_named(
    bert16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="Core ML refuses the file: compile error$"):
        CoremlPredictor(Path(shutil.copytree(bert16, tmp_path / "broken.mlpackage")))
    monkeypatch.setitem(sys.modules, "coremltools.models", None)
    with pytest.raises(MissingBackendError, match="coremltools"):
        CoremlPredictor(bert16)
