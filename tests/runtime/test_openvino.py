"""OpenVINO answers as ONNX Runtime does, in bf16 where that costs little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.host.hardware import Machine, describe_machine
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime import openvino as module
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.openvino import OpenVinoPredictor

pytest.importorskip("openvino")


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 100 + 5
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def machine_with(*isa: str) -> Machine:
    return replace(describe_machine(), isa=list(isa))


@pytest.fixture(scope="module")
def opened(exported: Callable[[str], Path]) -> OpenVinoPredictor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "describe_machine", machine_with)  # computes in fp32, so that digits can be compared
        return OpenVinoPredictor(exported("bert"), threads=1)


@pytest.mark.parametrize("shape", [(1, 3), (4, 17), (2, 48)])
def test_answers_are_those_of_onnx_runtime(
    opened: OpenVinoPredictor, exported: Callable[[str], Path], shape: tuple[int, int]
) -> None:
    other = OnnxPredictor(exported("bert"))
    assert (opened.inputs, opened.outputs, opened.signature) == (other.inputs, other.outputs, other.signature)
    inputs = {**batch(*shape), "position_ids": np.zeros(shape, np.int64)}  # more than the graph wants
    found, wanted = opened.run(inputs)["logits"], other.run(inputs)["logits"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("isa", "wanted"),
    [(["avx512_bf16"], "bf16"), (["avx512_bf16", "amx_bf16"], "f32"), (["avx512_vnni"], "f32")],
    ids=["bf16", "amx", "neither"],
)
def test_bf16_where_it_adds_little_error(
    isa: list[str], wanted: str, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if wanted == "bf16" and "avx512_bf16" not in describe_machine().isa:
        pytest.skip("no bf16 here")
    monkeypatch.setattr(module, "describe_machine", lambda: machine_with(*isa))
    predictor = OpenVinoPredictor(exported("bert"), threads=1)
    compiled = predictor._request.get_compiled_model()
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == wanted
    found, reference = (p.run(batch(4, 17))["logits"] for p in (predictor, OnnxPredictor(exported("bert"))))
    bound = (0.05 if wanted == "bf16" else 1e-5) * float(np.std(reference)) + 1e-6
    np.testing.assert_allclose(found, reference, atol=bound)


def test_an_answer_outlives_the_next_run_and_inputs_may_be_views(opened: OpenVinoPredictor) -> None:
    views = {name: value[:, ::2] for name, value in batch(1, 12).items()}
    first = opened.run(views)["logits"]
    kept = first.copy()
    np.testing.assert_array_equal(opened.run({n: v.copy() for n, v in views.items()})["logits"], kept)
    opened.run({name: value[:, ::-1].copy() for name, value in views.items()})
    np.testing.assert_array_equal(first, kept)


def test_a_file_made_for_it_is_opened_by_it(exported: Callable[[str], Path]) -> None:
    file = EngineFile(exported("bert"), Format.ONNX, Runtime.OPENVINO)
    assert file.open(1).engine == "openvino"
    assert file._replace(runtime=None).open(1).engine == "onnxruntime"


def test_a_missing_input_or_file_is_named(opened: OpenVinoPredictor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wants the inputs attention_mask, token_type_ids too"):
        opened.run({"input_ids": batch(1, 3)["input_ids"]})
    with pytest.raises(InputError, match="none.onnx: file not found"):
        OpenVinoPredictor(tmp_path / "none.onnx")


@pytest.mark.parametrize("raw", [b"", b"garbage" * 50, b"\x08\x07"])
def test_a_broken_file_is_an_input_error_on_one_line(
    tmp_path: Path, raw: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.onnx").write_bytes(raw)
    with pytest.raises(InputError, match=r"a.onnx: (OpenVINO [\d.]+ refuses the file: |is no ONNX model)") as caught:
        OpenVinoPredictor(tmp_path / "a.onnx")
    assert len(str(caught.value).splitlines()) == 1
    assert not any(capfd.readouterr())


def test_without_openvino_the_fix_is_named(exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pocketbert\[openvino\]"):
        OpenVinoPredictor(exported("bert"))
