"""Every head of the task table, in every family and format, against the untouched model at its real tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.families import Family, family_of
from pocketbert.core.predict.predictor import Predictor, TorchPredictor
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.export import onnx as onnx_exporter
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.mask_4d import ExportPlan
from pocketbert.export.adapters.mobilebert import SplitDecoder
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import BASIC as FAMILIES

OTHERS = FAMILIES[1:]
LENGTHS = (8, 16)
LABELS = {TaskName.REGRESSION: 1, TaskName.QUESTION_ANSWERING: 2}
EMBED = TASKS[TaskName.FEATURE_EXTRACTION]
FILL = TASKS[TaskName.FILL_MASK]
POOLINGS = [Pooling(kind, normalize) for kind in PoolingKind for normalize in (True, False)]
BOUND = 2e-5
"""Largest difference relative to the largest number of the output, in fp32."""

Inputs = dict[str, NDArray[np.int64]]
Models = Callable[..., Any]


@pytest.fixture
def headed(make_classifier: Callable[..., Any]) -> Models:
    """`headed(family, task)`: a random model with the head of a task, whose biases and factors are random too."""

    def build(name: str, task: Task, **changes: Any) -> Any:
        labels = tuple("abc"[: LABELS.get(task.name, 3)])
        model = make_classifier(name, 2, labels, auto_class=task.auto_class, **changes)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(1)
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    return build


def batch(family: Family, length: int, padding: tuple[int, ...]) -> Inputs:
    """Rows of random tokens, so many of them padded at the end."""
    draw = np.random.default_rng(length)
    ids = draw.integers(5, 90, (len(padding), length))
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    types[:, length // 2 :] = 1
    for row, padded in enumerate(padding):
        if padded:
            ids[row, -padded:] = 1 if family.name == "roberta" else 0
            mask[row, -padded:] = types[row, -padded:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def fixed(family: Family) -> list[Inputs]:
    """Batches of the lengths that files are written for: full, half empty, nearly empty."""
    return [batch(family, n, (0, n // 2, n - 2)) for n in LENGTHS]


def free(family: Family) -> list[Inputs]:
    """Batches of other lengths."""
    return [batch(family, 5, (0,)), batch(family, 13, (0, 4)), batch(family, 40, (1, 0, 38))]


def at_tokens(name: str, value: NDArray[np.generic], inputs: Mapping[str, Any]) -> NDArray[np.float64]:
    """Numbers that belong to real tokens; all of them where the output has one entry per text."""
    mask = inputs["attention_mask"] == 1
    per_token = name != "sentence_embedding" and value.shape[:2] == mask.shape
    return np.asarray(value[mask] if per_token else value, np.float64)


def worst(subject: Predictor, reference: Predictor, batches: list[Inputs]) -> float:
    """Largest difference relative to the largest number of its output; names, shapes and types are checked."""
    assert tuple(subject.outputs) == tuple(reference.outputs)
    off = []
    for inputs in batches:
        found, wanted = subject.run(inputs), reference.run(inputs)
        assert list(found) == list(wanted)
        for name, want in wanted.items():
            assert found[name].dtype == np.float32, name
            assert found[name].shape == want.shape, name
            a, b = (at_tokens(name, v, inputs) for v in (found[name], want))
            off.append(float(np.abs(a - b).max() / np.abs(b).max()))
    return float(np.max(off))


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_prepared_module_computes_what_the_model_computes(
    name: str, task: TaskName, format: Format, headed: Models
) -> None:
    family, model = family_of(name), headed(name, TASKS[task])
    reference = TorchPredictor(model, TASKS[task], family.inputs)
    prepared = PreparedPredictor(prepare(model, family, TASKS[task], format), family, TASKS[task])
    assert worst(prepared, reference, [*fixed(family), *free(family)]) < BOUND


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_prepared_module_pools_as_asked(name: str, layout: Layout, pooling: Pooling, headed: Models) -> None:
    family, model = family_of(name), headed(name, EMBED)
    reference = TorchPredictor(model, EMBED, family.inputs, pooling)
    module = prepare(model, family, EMBED, Format.COREML, layout, pooling)
    assert worst(PreparedPredictor(module, family, EMBED), reference, free(family)) < BOUND
    other = next(p for p in POOLINGS if p.kind is not pooling.kind and p.normalize == pooling.normalize)
    wrong = TorchPredictor(model, EMBED, family.inputs, other)
    assert worst(PreparedPredictor(module, family, EMBED), wrong, free(family)) > 1e-2


@pytest.mark.parametrize("task", [FILL.name, TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING])
def test_a_forgotten_mask_is_seen_at_real_tokens(
    task: TaskName, headed: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, model = family_of("bert"), headed("bert", TASKS[task])
    monkeypatch.setattr(mask_4d, "MASK_VALUE", 0.0)
    broken = PreparedPredictor(prepare(model, family, TASKS[task]), family, TASKS[task])
    assert worst(broken, TorchPredictor(model, TASKS[task], family.inputs), fixed(family)) > 1e-3


def write(
    format: Format,
    model: Any,
    family: Family,
    task: Task,
    path: Path,
    layout: Layout = Layout.PLAIN,
    pooling: Pooling = DEFAULT_POOLING,
    shapes: Shapes = Shapes.ENUMERATED,
) -> Predictor:
    """Export a model and open the file."""
    module = prepare(model, family, task, format, layout, pooling)
    if format is Format.ONNX:
        onnx_exporter.export(module, family, task, batch(family, 16, (0, 3)), path)
        return OnnxPredictor(path, 1)
    if format is Format.TFLITE:
        pytest.importorskip("litert_torch", reason="needs pocketbert[tflite]", exc_type=ImportError)
        from pocketbert.export import tflite
        from pocketbert.runtime.tflite import TflitePredictor

        tflite.export(module, family, task, LENGTHS, path)
        return TflitePredictor(path, 1)
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.export import coreml
    from pocketbert.runtime.coreml.predictor import CoremlPredictor

    form = coreml.CoremlForm(18, shapes, Scheme.FP32)
    coreml.export(module, family, task, LENGTHS, path, form, coreml.CoremlInfo("", "1", "", ""))
    return CoremlPredictor(path)


SUFFIX = {Format.ONNX: "a.onnx", Format.TFLITE: "a.tflite", Format.COREML: "a.mlpackage"}
QUICK = [("bert", task, Format.ONNX) for task in TASKS if TASKS[task].outputs != ("logits",)]
QUICK += [("bert", task, Format.ONNX) for task in (TaskName.TOKEN_CLASSIFICATION, TaskName.REGRESSION)]
ALL = [(name, task, format) for name in FAMILIES for task in TASKS for format in Format]


@pytest.mark.parametrize(
    ("name", "task", "format"),
    [*QUICK, *(pytest.param(*c, marks=pytest.mark.slow) for c in ALL if c not in QUICK)],
)
def test_the_file_computes_what_the_model_computes(
    name: str, task: TaskName, format: Format, headed: Models, tmp_path: Path
) -> None:
    family, model = family_of(name), headed(name, TASKS[task])
    reference = TorchPredictor(model, TASKS[task], family.inputs)
    predictor = write(format, model, family, TASKS[task], tmp_path / SUFFIX[format])
    batches = [*fixed(family), *(free(family) if format is Format.ONNX else [])]
    assert worst(predictor, reference, batches) < BOUND
    signature = predictor.signature  # type: ignore[attr-defined]
    assert [t.name for t in signature.inputs] == list(family.inputs)
    assert {t.dtype for t in signature.outputs} == {"float32"}


@pytest.mark.parametrize(
    "format", [Format.ONNX, *(pytest.param(f, marks=pytest.mark.slow) for f in Format if f != Format.ONNX)]
)
def test_files_pool_as_asked(format: Format, headed: Models, tmp_path: Path) -> None:
    family, model, pooling = family_of("bert"), headed("bert", EMBED), Pooling(PoolingKind.CLS, False)
    reference = TorchPredictor(model, EMBED, family.inputs, pooling)
    predictor = write(format, model, family, EMBED, tmp_path / SUFFIX[format], pooling=pooling)
    assert worst(predictor, reference, fixed(family)) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("task", [TaskName.QUESTION_ANSWERING, FILL.name, EMBED.name])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_layout_for_the_neural_engine_has_all_heads(
    name: str, task: TaskName, headed: Models, tmp_path: Path
) -> None:
    family, model = family_of(name), headed(name, TASKS[task])
    reference = TorchPredictor(model, TASKS[task], family.inputs)
    predictor = write(Format.COREML, model, family, TASKS[task], tmp_path / "a.mlpackage", Layout.ANE)
    assert worst(predictor, reference, fixed(family)) < BOUND


@pytest.mark.parametrize("task", [TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING])
def test_a_ranged_package_answers_for_as_many_tokens_as_it_is_given(
    task: TaskName, headed: Models, tmp_path: Path
) -> None:
    family, model = family_of("bert"), headed("bert", TASKS[task])
    reference = TorchPredictor(model, TASKS[task], family.inputs)
    predictor = write(Format.COREML, model, family, TASKS[task], tmp_path / "a.mlpackage", shapes=Shapes.RANGED)
    lengths = [2, 3, 7, 16]  # the package itself takes 3 and more
    assert worst(predictor, reference, [batch(family, n, (0, n // 2)) for n in lengths]) < BOUND


# The decoder of fill-mask, which reads the embedding table.


@pytest.mark.parametrize("size", [16, 32])
def test_the_decoder_in_two_parts_is_exact(size: int, headed: Models) -> None:
    family, model = family_of("mobilebert"), headed("mobilebert", FILL, embedding_size=size).double()
    module = mask_4d.with_additive_mask(copy.deepcopy(model), ExportPlan(family, FILL))
    (decoder,) = [m for m in module.modules() if isinstance(m, SplitDecoder)]
    assert decoder.decoder.weight is module.model.get_input_embeddings().weight
    inputs = {n: torch.from_numpy(batch(family, 13, (0, 4))[n]) for n in family.inputs}
    with torch.inference_mode():
        expected, (found,) = model(**inputs).logits, module(**inputs)
    assert float((found - expected).abs().max()) < 1e-12 * float(expected.abs().max())


def stored(path: Path, format: Format) -> list[int]:
    """How many numbers each stored array has."""
    if format is Format.ONNX:
        return [int(np.prod(t.dims)) for t in onnx.load(path).graph.initializer]
    if format is Format.TFLITE:
        from pocketbert.quantize.tflite.reading import TfliteGraph

        return [v.size for _, v in TfliteGraph(path).stored()]
    from pocketbert.runtime.coreml.stored import StoredTensors

    return [v.size for _, v in StoredTensors(path).arrays()]


WORDS = 1031  # no other axis is a multiple of it


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("bert", Format.ONNX),
        ("mobilebert", Format.ONNX),
        *(
            pytest.param(n, f, marks=pytest.mark.slow)
            for n in FAMILIES
            for f in Format
            if f is not Format.ONNX or n not in ("bert", "mobilebert")
        ),
    ],
)
def test_a_tied_table_is_stored_once(name: str, format: Format, headed: Models, tmp_path: Path) -> None:
    family, model = family_of(name), headed(name, FILL, vocab_size=WORDS)
    reference = TorchPredictor(model, FILL, family.inputs)
    predictor = write(format, model, family, FILL, tmp_path / SUFFIX[format])
    assert worst(predictor, reference, fixed(family)) < BOUND
    tables = [n for n in stored(tmp_path / SUFFIX[format], format) if n % WORDS == 0 and n > WORDS]
    wide = 16 if name == "mobilebert" else 32
    # MobileBERT's decoder has a matrix of its own beside the table
    assert sorted(tables) == ([16 * WORDS, 16 * WORDS] if name == "mobilebert" else [wide * WORDS])
