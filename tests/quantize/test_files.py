"""Heads in fewer bits: the table that a decoder reads too, heads with one output, and heads that were never trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError
from pocketbert.core.families import family_of, find_family
from pocketbert.core.predict.predictor import Arrays, TorchPredictor
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.quantize import coreml
from pocketbert.quantize.files import quantize, read_stored_numbers
from pocketbert.quantize.onnx import dynamic
from pocketbert.quantize.onnx.tables import retie_embeddings, untie_embeddings
from pocketbert.quantize.table import Plan
from pocketbert.quantize.weights import Use, WeightTypes
from pocketbert.runtime.engines import open_file
from support.quantized import SUFFIX, Feed, export_file
from support.tiny import BASIC as FAMILIES

FILL, REGRESSION, TAGS = (TASKS[n] for n in (TaskName.FILL_MASK, TaskName.REGRESSION, TaskName.TOKEN_CLASSIFICATION))
LENGTH = 16
WORDS = 1031  # no other axis is a multiple of it
SCHEMES = [
    (Format.ONNX, Scheme.INT8),
    (Format.TFLITE, Scheme.INT8),
    (Format.TFLITE, Scheme.W8),
    (Format.TFLITE, Scheme.FP16),
    (Format.COREML, Scheme.W8),
]
INT8 = Plan(*SCHEMES[0])
ONE_QUICK = [SCHEMES[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in SCHEMES[1:])]

Head = Callable[..., Any]


@pytest.fixture
def head(make_classifier) -> Head:
    """`head(family, task)`: a random model with the head of a task."""

    def build(name: str, task: Task, **changes: Any) -> Any:
        return make_classifier(
            name,
            1,
            tuple("abc"[: {REGRESSION.name: 1, TaskName.QUESTION_ANSWERING: 2}.get(task.name, 3)]),
            auto_class=task.auto_class,
            **changes,
        )

    return build


def draw_inputs(name: str) -> Feed:
    ids = np.random.default_rng(3).integers(5, 90, (3, LENGTH))
    mask = np.ones_like(ids)
    ids[1, 9:], mask[1, 9:] = find_family(name).tiny["pad_token_id"], 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}


def export(format: Format, model: Any, name: str, task: Task, folder: Path) -> Path:
    module = prepare(model, family_of(name), task, format)
    return export_file(module, family_of(name), folder / f"float{SUFFIX[format]}", (LENGTH,), task)


def make(format: Format, scheme: Scheme, model: Any, name: str, task: Task, folder: Path) -> tuple[Path, WeightTypes]:
    """The model in fewer bits, and the types that were found in it."""
    target = folder / f"small{SUFFIX[format]}"
    return target, quantize(export(format, model, name, task, folder), target, Plan(format, scheme))


def answer(format: Format, path: Path, name: str = "bert") -> Arrays:
    return open_file(path, format).run(draw_inputs(name))


@pytest.mark.parametrize("task", [t for t in TASKS.values() if t.outputs != ("logits",)], ids=lambda t: t.name)
def test_all_outputs_of_a_head_stay_near_those_of_torch(task, head, tmp_path):
    model, inputs = head("bert", task), draw_inputs("bert")
    path, types = make(Format.ONNX, Scheme.INT8, model, "bert", task, tmp_path)
    assert {u.dtype for u in types.uses if u.numbers > coreml.THRESHOLD} == {"int8"}
    reference, found = TorchPredictor(model, task, family_of("bert").inputs).run(inputs), answer(Format.ONNX, path)
    assert tuple(found) == task.outputs
    for output, want in reference.items():
        assert (found[output].shape, found[output].dtype) == (want.shape, np.float32)
        real = inputs["attention_mask"] == 1 if output != "sentence_embedding" else slice(None)
        a, b = (np.asarray(v[real], np.float64).ravel() for v in (found[output], want))
        assert np.linalg.norm(a - b) < 0.25 * np.linalg.norm(b), output


# The decoder of fill-mask, which reads the embedding table.


@pytest.fixture(scope="module")
def tied(make_classifier, tmp_path_factory) -> tuple[Any, Path]:
    """A model with the head of fill-mask, and its exported file."""
    model = make_classifier("bert", 1, tuple("abc"), auto_class=FILL.auto_class, vocab_size=WORDS)
    return model, export(Format.ONNX, model, "bert", FILL, tmp_path_factory.mktemp("tied"))


@pytest.mark.parametrize("name", ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES[1:])])
def test_onnx_stores_the_table_once_and_multiplies_it_in_int8(name, tied, head, tmp_path):
    model, source = tied
    if name != "bert":
        model = head(name, FILL, vocab_size=WORDS)
        source = export(Format.ONNX, model, name, FILL, tmp_path)
    path = tmp_path / "small.onnx"
    uses = [u for u in quantize(source, path, INT8).uses if u.numbers % WORDS == 0]
    assert len(uses) == (3 if name == "mobilebert" else 2)
    assert all(u.dtype == "int8" and not u.dequantized for u in uses)
    assert all(u.per_channel for u in uses if u.use is Use.MATMUL)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    assert [t.dtype for t in stored.values() if t.size % WORDS == 0 and t.ndim == 2] == [np.int8] * (len(uses) - 1)
    (table,) = [u.name for u in uses if u.use is Use.TABLE]
    numbers = model.get_input_embeddings().weight.detach().numpy()
    steps = np.abs(numbers).max(1, keepdims=True) / 127  # a scale for each word
    assert (np.abs(stored[table] * steps - numbers) <= 0.51 * steps + 1e-7).all()


def test_a_decoder_of_its_own_is_quantized_too(head, tmp_path):
    model = head("bert", FILL, vocab_size=WORDS, tie_word_embeddings=False)
    types = make(*SCHEMES[0], model, "bert", FILL, tmp_path)[1]
    uses = [u for u in types.uses if u.numbers % WORDS == 0]
    assert [(u.use, u.dtype, u.dequantized) for u in uses] == [(Use.TABLE, "int8", False), (Use.MATMUL, "int8", False)]
    assert len({u.name for u in uses}) == 2


def test_a_decoder_left_float_is_an_error(tied, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic, "untie_embeddings", lambda *_: {})
    with pytest.raises(GateError, match=r"still float: .*decoder\.weight"):
        quantize(tied[1], tmp_path / "a.onnx", INT8)


def test_untying_keeps_the_numbers(tied, tmp_path):
    model = onnx.load(tied[1])
    tables_by_matrix = untie_embeddings(model)
    ((matrix, table),) = tables_by_matrix.items()
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(stored[table].T, stored[matrix])
    onnx.save(model, tmp_path / "untied.onnx")
    before, after = (answer(Format.ONNX, p)["logits"] for p in (tied[1], tmp_path / "untied.onnx"))
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert untie_embeddings(model) == {}
    with pytest.raises(ValueError, match="no symmetric matrix"):
        retie_embeddings(model, tables_by_matrix)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "scheme"), SCHEMES[1:])
@pytest.mark.parametrize("name", FAMILIES)
def test_other_formats_store_the_table_once_too(name, format, scheme, head, tmp_path):
    path, _ = make(format, scheme, head(name, FILL, vocab_size=WORDS), name, FILL, tmp_path)
    sizes = [v.size for _, v in read_stored_numbers(path, format) if v.size % WORDS == 0 and v.size > WORDS]
    assert len(sizes) == (2 if name == "mobilebert" else 1)


# Heads with one output, and heads that were never trained.


@pytest.mark.parametrize(("format", "scheme"), ONE_QUICK)
def test_one_output_is_one_channel(format, scheme, head, tmp_path, monkeypatch):
    monkeypatch.setattr(coreml, "THRESHOLD", 16)
    model = head("bert", REGRESSION)
    path, types = make(format, scheme, model, "bert", REGRESSION, tmp_path)
    [last] = [u for u in types.uses if u.use is Use.MATMUL and u.numbers == 32]
    halves = scheme is Scheme.FP16
    assert (last.dtype, last.per_channel) == (("float16", False) if halves else ("int8", None))
    want = TorchPredictor(model, REGRESSION, family_of("bert").inputs).run(draw_inputs("bert"))["logits"]
    assert want.shape == (3, 1)
    assert rms_error(np.asarray(answer(format, path)["logits"]), want) < 0.5


@pytest.mark.parametrize(("format", "scheme"), ONE_QUICK)
@pytest.mark.parametrize(("task", "factor"), [(REGRESSION, 0.0), (TAGS, 1e-30)], ids=["zeros", "nearly zeros"])
def test_a_head_of_zeros_answers_with_its_bias(task, factor, format, scheme, head, tmp_path, monkeypatch):
    monkeypatch.setattr(coreml, "THRESHOLD", 16)
    model = head("bert", task)
    with torch.no_grad():
        model.classifier.weight *= factor
        model.classifier.bias.fill_(0.75)
    path, _ = make(format, scheme, model, "bert", task, tmp_path)
    np.testing.assert_allclose(answer(format, path)["logits"], 0.75, atol=1e-3)
    numbers = [v for _, v in read_stored_numbers(path, format) if v.dtype.kind == "f"]
    assert all(np.isfinite(v).all() for v in numbers)


@pytest.mark.parametrize(("format", "scheme"), ONE_QUICK)
def test_one_channel_of_zeros_leaves_the_others_alone(format, scheme, head, tmp_path, monkeypatch):
    monkeypatch.setattr(coreml, "THRESHOLD", 16)
    model = head("bert", TAGS)
    with torch.no_grad():
        model.classifier.weight[1] = 0
        model.classifier.bias.copy_(torch.tensor([0.1, -0.5, 0.2]))
    path, _ = make(format, scheme, model, "bert", TAGS, tmp_path)
    want = TorchPredictor(model, TAGS, family_of("bert").inputs).run(draw_inputs("bert"))["logits"][0]
    found = np.asarray(answer(format, path)["logits"], np.float64)[0]
    np.testing.assert_allclose(found[:, 1], -0.5, atol=1e-3)
    for channel in (0, 2):
        assert np.corrcoef(found[:, channel], want[:, channel])[0, 1] > 0.98
