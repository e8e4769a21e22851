"""Every head of the task table in fewer bits: types, sizes, and heads that were never trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError
from pocketbert.core.families import family_of, find_family
from pocketbert.core.predict.predictor import Predictor, TorchPredictor
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.export import onnx as onnx_exporter
from pocketbert.export.prepare import prepare
from pocketbert.quantize import weights
from pocketbert.quantize.coreml import THRESHOLD
from pocketbert.quantize.files import quantize, read_stored_numbers
from pocketbert.quantize.onnx import dynamic as onnx_quantizer
from pocketbert.quantize.onnx.tables import retie_embeddings, untie_embeddings
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import Use, WeightTypes
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import BASIC as FAMILIES

FILL, REGRESSION = TASKS[TaskName.FILL_MASK], TASKS[TaskName.REGRESSION]
LABELS = {TaskName.REGRESSION: 1, TaskName.QUESTION_ANSWERING: 2}
LENGTH = 16
SUFFIX = {Format.ONNX: ".onnx", Format.TFLITE: ".tflite", Format.COREML: ".mlpackage"}
SCHEMES = [
    (Format.ONNX, Scheme.INT8),
    (Format.TFLITE, Scheme.INT8),
    (Format.TFLITE, Scheme.W8),
    (Format.TFLITE, Scheme.FP16),
    (Format.COREML, Scheme.W8),
]
WORDS = 1031  # no other axis is a multiple of it

Inputs = dict[str, NDArray[np.int64]]
Models = Callable[..., Any]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", THRESHOLD + 1)


@pytest.fixture
def headed(make_classifier: Callable[..., Any]) -> Models:
    """`headed(family, task)`: a random model with the head of a task."""

    def build(name: str, task: Task, **changes: Any) -> Any:
        return make_classifier(name, 1, tuple("abc"[: LABELS.get(task.name, 3)]), auto_class=task.auto_class, **changes)

    return build


def inputs_of(name: str) -> Inputs:
    ids = np.random.default_rng(3).integers(5, 90, (3, LENGTH))
    mask = np.ones_like(ids)
    ids[1, 9:], mask[1, 9:] = find_family(name).tiny["pad_token_id"], 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}


def write(format: Format, model: Any, name: str, task: Task, path: Path) -> Path:
    """The float file."""
    family = family_of(name)
    module = prepare(model, family, task, format)
    if format is Format.ONNX:
        onnx_exporter.export(module, family, task, inputs_of(name), path)
    elif format is Format.TFLITE:
        pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
        from pocketbert.export import tflite

        tflite.export(module, family, task, [LENGTH], path)
    else:
        pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
        from pocketbert.export import coreml

        info = coreml.CoremlInfo("", "1", "", "", ("a", "b", "c"))
        coreml.export(module, family, task, [LENGTH], path, coreml.CoremlForm(), info)
    return path


def opened(format: Format, path: Path) -> Predictor:
    from pocketbert.runtime.engines import open_file

    return open_file(path, format)


def made(format: Format, scheme: Scheme, model: Any, name: str, task: Task, folder: Path) -> tuple[Path, WeightTypes]:
    """The float file in fewer bits, and the types that were found in it."""
    source = write(format, model, name, task, folder / f"float{SUFFIX[format]}")
    target = folder / f"small{SUFFIX[format]}"
    return target, quantize(source, target, Plan(format, scheme))


QUICK = [("bert", task, Format.ONNX, Scheme.INT8) for task in TASKS if TASKS[task].outputs != ("logits",)]
ALL = [(name, task, *how) for name in FAMILIES for task in TASKS for how in SCHEMES]


@pytest.mark.parametrize(
    ("name", "task", "format", "scheme"),
    [*QUICK, *(pytest.param(*c, marks=pytest.mark.slow) for c in ALL if c not in QUICK)],
)
def test_types_are_those_of_the_scheme_and_answers_stay(
    name: str, task: TaskName, format: Format, scheme: Scheme, headed: Models, tmp_path: Path
) -> None:
    model = headed(name, TASKS[task])
    path, types = made(format, scheme, model, name, TASKS[task], tmp_path)
    assert find_row(format, scheme).problems(types, path.name) == []
    dtype = "float16" if scheme is Scheme.FP16 else "int8"
    assert {u.dtype for u in types.uses if u.numbers > THRESHOLD} == {dtype}
    predictor, inputs = opened(format, path), inputs_of(name)
    reference = TorchPredictor(model, TASKS[task], family_of(name).inputs).run(inputs)
    found = predictor.run(inputs)
    assert tuple(found) == predictor.outputs == TASKS[task].outputs
    for output, want in reference.items():
        assert found[output].shape == want.shape
        assert found[output].dtype == np.float32
        per_token = output != "sentence_embedding" and want.shape[:2] == inputs["input_ids"].shape
        real = inputs["attention_mask"] == 1 if per_token else slice(None)
        a, b = (np.asarray(v[real], np.float64).ravel() for v in (found[output], want))
        assert np.linalg.norm(a - b) < 0.25 * np.linalg.norm(b), output


# The decoder of fill-mask, which reads the embedding table.


@pytest.mark.parametrize("name", ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES[1:])])
def test_onnx_stores_the_table_once_and_multiplies_it_in_int8(name: str, headed: Models, tmp_path: Path) -> None:
    model = headed(name, FILL, vocab_size=WORDS)
    path, types = made(Format.ONNX, Scheme.INT8, model, name, FILL, tmp_path)
    uses = [u for u in types.uses if u.numbers % WORDS == 0]
    tied = 3 if name == "mobilebert" else 2
    assert [u.use for u in uses].count(Use.TABLE) == 1
    assert len(uses) == tied
    assert all(u.dtype == "int8" and not u.dequantized for u in uses)
    assert all(u.per_channel for u in uses if u.use is Use.MATMUL)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    assert [t.dtype for t in stored.values() if t.size % WORDS == 0 and t.ndim == 2] == [np.int8] * (tied - 1)
    float_table = model.get_input_embeddings().weight.detach().numpy()
    (table,) = {u.name for u in uses if u.use is Use.TABLE}
    # a scale for each word: no number is further off than half a step of its own row
    steps = np.abs(float_table).max(1, keepdims=True) / 127
    assert (np.abs(stored[table] * steps - float_table) <= 0.51 * steps + 1e-7).all()
    assert stored[table].dtype == np.int8


def test_a_decoder_left_float_is_an_error(headed: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_quantizer, "untie_embeddings", lambda *_: {})
    with pytest.raises(GateError, match=r"still float: .*decoder\.weight"):
        made(
            Format.ONNX,
            Scheme.INT8,
            headed("bert", FILL, vocab_size=WORDS),
            "bert",
            FILL,
            tmp_path,
        )


def test_a_decoder_of_its_own_is_quantized_too(headed: Models, tmp_path: Path) -> None:
    model = headed("bert", FILL, vocab_size=WORDS, tie_word_embeddings=False)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    types = made(Format.ONNX, Scheme.INT8, model, "bert", FILL, tmp_path)[1]
    uses = [u for u in types.uses if u.numbers % WORDS == 0]
    assert [(u.use, u.dtype, u.dequantized) for u in uses] == [(Use.TABLE, "int8", False), (Use.MATMUL, "int8", False)]
    assert len({u.name for u in uses}) == 2


def test_untying_keeps_the_numbers(headed: Models, tmp_path: Path) -> None:
    source = write(Format.ONNX, headed("bert", FILL, vocab_size=WORDS), "bert", FILL, tmp_path / "a.onnx")
    model = onnx.load(source)
    tables_by_matrix = untie_embeddings(model)
    ((matrix, table),) = tables_by_matrix.items()
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(stored[table].T, stored[matrix])
    onnx.save(model, tmp_path / "b.onnx")
    inputs = inputs_of("bert")
    np.testing.assert_allclose(
        *(OnnxPredictor(tmp_path / n, 1).run(inputs)["logits"] for n in ("a.onnx", "b.onnx")), rtol=1e-6
    )
    assert untie_embeddings(model) == {}
    with pytest.raises(ValueError, match="no symmetric matrix"):
        retie_embeddings(model, tables_by_matrix)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "scheme"), SCHEMES[1:])
@pytest.mark.parametrize("name", FAMILIES)
def test_other_formats_store_the_table_once_too(
    name: str, format: Format, scheme: Scheme, headed: Models, tmp_path: Path
) -> None:
    path, _ = made(format, scheme, headed(name, FILL, vocab_size=WORDS), name, FILL, tmp_path)
    numbers = [v for _, v in read_stored_numbers(path, format)]
    tables = [v for v in numbers if v.size % WORDS == 0 and v.size > WORDS]
    assert len(tables) == (2 if name == "mobilebert" else 1)


# Heads with one output, and heads that were never trained.


@pytest.mark.parametrize(
    ("format", "scheme"), [SCHEMES[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in SCHEMES[1:])]
)
def test_one_output_is_one_channel(
    format: Format, scheme: Scheme, headed: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if format is Format.COREML:
        from pocketbert.quantize import coreml as reading

        monkeypatch.setattr(reading, "THRESHOLD", 16)
    model = headed("bert", REGRESSION)
    path, types = made(format, scheme, model, "bert", REGRESSION, tmp_path)
    heads = [u for u in types.uses if u.use is Use.MATMUL and u.numbers == 32]
    assert [u.dtype for u in heads] == ["float16" if scheme is Scheme.FP16 else "int8"]
    assert [u.per_channel for u in heads] == [False if scheme is Scheme.FP16 else None]
    inputs = inputs_of("bert")
    want = TorchPredictor(model, REGRESSION, family_of("bert").inputs).run(inputs)["logits"]
    assert want.shape == (3, 1)
    assert rms_error(np.asarray(opened(format, path).run(inputs)["logits"]), want) < 0.5


@pytest.mark.parametrize(
    ("format", "scheme"), [SCHEMES[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in SCHEMES[1:])]
)
@pytest.mark.parametrize("factor", [0.0, 1e-30])
@pytest.mark.parametrize("task", [REGRESSION.name, TaskName.TOKEN_CLASSIFICATION])
def test_a_head_of_zeros_answers_with_its_bias(
    task: TaskName,
    factor: float,
    format: Format,
    scheme: Scheme,
    headed: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if format is Format.COREML:
        from pocketbert.quantize import coreml as reading

        monkeypatch.setattr(reading, "THRESHOLD", 16)
    model = headed("bert", TASKS[task])
    with torch.no_grad():
        model.classifier.weight *= factor
        model.classifier.bias.fill_(0.75)
    path, _ = made(format, scheme, model, "bert", TASKS[task], tmp_path)
    inputs = inputs_of("bert")
    found = opened(format, path).run(inputs)["logits"][inputs["attention_mask"][:, :1].ravel() == 1]
    np.testing.assert_allclose(found, 0.75, atol=1e-3)
    numbers = [v for _, v in read_stored_numbers(path, format) if v.dtype.kind == "f"]
    assert all(np.isfinite(v).all() for v in numbers)


@pytest.mark.parametrize(
    ("format", "scheme"), [SCHEMES[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in SCHEMES[1:])]
)
def test_one_channel_of_zeros_leaves_the_others_alone(
    format: Format, scheme: Scheme, headed: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if format is Format.COREML:
        from pocketbert.quantize import coreml as reading

        monkeypatch.setattr(reading, "THRESHOLD", 16)
    task = TASKS[TaskName.TOKEN_CLASSIFICATION]
    model = headed("bert", task)
    with torch.no_grad():
        model.classifier.weight[1] = 0
        model.classifier.bias.copy_(torch.tensor([0.1, -0.5, 0.2]))
    path, _ = made(format, scheme, model, "bert", task, tmp_path)
    inputs = inputs_of("bert")
    want = TorchPredictor(model, task, family_of("bert").inputs).run(inputs)["logits"][0]
    found = np.asarray(opened(format, path).run(inputs)["logits"], np.float64)[0]
    np.testing.assert_allclose(found[:, 1], -0.5, atol=1e-3)
    for channel in (0, 2):
        assert np.corrcoef(found[:, channel], want[:, channel])[0, 1] > 0.98
