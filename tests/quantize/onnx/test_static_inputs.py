"""a8w8 for ONNX: answers that do not depend on batch and padding, and ranges that no padding reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import logit_spread, rms_error
from pocketbert.core.errors import GateError
from pocketbert.core.types import Calibration, Format, Scheme
from pocketbert.quantize import Plan, quantize, weights
from pocketbert.quantize.onnx import static as static_inputs
from pocketbert.runtime.onnx import OnnxPredictor

Feed = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


def rows(count: int, seed: int = 0) -> list[Feed]:
    """Unpadded rows of 4 to 30 tokens."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(5, 90, (1, draw.integers(4, 31))) for _ in range(count)]
    return [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]


def together(feeds: list[Feed], length: int) -> Feed:
    """All rows as one batch, padded to a length."""
    return {
        name: np.concatenate([np.pad(f[name], ((0, 0), (0, length - f[name].shape[1]))) for f in feeds])
        for name in feeds[0]
    }


def plan(feeds: list[Feed], method: Calibration = Calibration.MINMAX) -> Plan:
    return Plan(Format.ONNX, Scheme.A8W8, rows=lambda: feeds, calibration=method)


@pytest.fixture(scope="module")
def made(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("static-inputs") / "model_a8w8.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", 512)
        quantize(exported("bert"), path, plan(rows(40)))
    return path


def operands_of(path: Path) -> Callable[[Feed], list[NDArray[Any]]]:
    """A function that runs a file, and returns the quantized inputs of all products."""
    model = onnx.load(path)
    names = list(dict.fromkeys(n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"))
    for name in names:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, None))
    shown = path.with_name("shown.onnx")
    onnx.save(model, shown)
    assert names
    predictor = OnnxPredictor(shown, threads=1)

    def run(feed: Feed) -> list[NDArray[Any]]:
        found = predictor.run(feed)
        return [found[name] for name in names]

    return run


def of_row(many: NDArray[Any], one: NDArray[Any], row: int, batch: tuple[int, int]) -> NDArray[Any]:
    """What a row has in a batch of [B, L] tokens, without padding; products of the feed-forward part read [B * L, H]."""
    if many.shape[0] == batch[0] * batch[1] and one.shape[0] > 1:
        return many.reshape(*batch, -1)[row, : one.shape[0]]
    return many[row : row + 1][tuple(slice(0, n) for n in one.shape)]


def test_batch_and_padding_change_no_answer(made: Path, exported: Callable[[str], Path], tmp_path: Path) -> None:
    feeds = rows(16, seed=3)
    predictor = OnnxPredictor(made, threads=1)
    alone = np.concatenate([predictor.run(f)["logits"] for f in feeds])
    batch = predictor.run(together(feeds, 40))["logits"]
    padded = np.concatenate([predictor.run(together([f], 40))["logits"] for f in feeds])
    assert np.abs(batch - alone).max() <= 1e-6 * logit_spread(alone)
    assert np.abs(padded - alone).max() <= 1e-6 * logit_spread(alone)
    dynamic = tmp_path / "model_int8.onnx"
    quantize(exported("bert"), dynamic, Plan(Format.ONNX, Scheme.INT8))
    other = OnnxPredictor(dynamic, threads=1)
    ranged = np.concatenate([other.run(f)["logits"] for f in feeds])
    assert rms_error(other.run(together(feeds, 40))["logits"], ranged) > 5e-3, "the dynamic file's answers depend on it"


def test_quantized_operands_of_a_row_are_the_same_in_a_batch(made: Path) -> None:
    feeds, total, operands = rows(16, seed=4), 0, operands_of(made)
    alone = [operands(feed) for feed in feeds]
    for length in (max(f["input_ids"].shape[1] for f in feeds), 40):
        whole = operands(together(feeds, length))
        for i, (feed, own) in enumerate(zip(feeds, alone, strict=True)):
            padded = operands(together([feed], length))
            for one, wide, many in zip(own, padded, whole, strict=True):
                assert np.array_equal(of_row(wide, one, 0, (1, length)), one)
                assert np.array_equal(of_row(many, one, i, (len(feeds), length)), one)
                total += one.size
    assert total > 100_000


def test_the_operators_are_standard_and_the_bytes_those_of_the_dynamic_file(
    made: Path, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    model = onnx.load(made)
    assert {e.domain for e in model.opset_import} <= {"", "ai.onnx.ml", "com.microsoft"}
    assert {n.domain for n in model.graph.node} == {""}
    assert not [n for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
    quantize(exported("bert"), tmp_path / "b.onnx", Plan(Format.ONNX, Scheme.INT8))
    assert made.stat().st_size < 1.05 * (tmp_path / "b.onnx").stat().st_size


@pytest.mark.parametrize("method", Calibration)
def test_every_way_to_choose_ranges_gives_a_file(
    method: Calibration, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    quantize(exported("bert"), tmp_path / "a.onnx", plan(rows(20), method))
    feeds = rows(10, seed=5)
    exact, found = (
        np.concatenate([OnnxPredictor(p, threads=1).run(f)["logits"] for f in feeds])
        for p in (exported("bert"), tmp_path / "a.onnx")
    )
    assert 0 < rms_error(found, exact) < 0.4


def test_a_file_that_measures_while_it_answers_is_refused(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_inputs, "_store_ranges", lambda *_: None)
    with pytest.raises(GateError, match="on the fly, not in a measured range"):
        quantize(exported("bert"), tmp_path / "a.onnx", plan(rows(5)))
