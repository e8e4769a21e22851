"""Files of every head, in every format, against the untouched model at its real tokens; all families are in the matrix of tests/families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from pocketbert.core.families import Family, find_family
from pocketbert.core.predict.predictor import Predictor, TorchPredictor
from pocketbert.core.tasks import TASKS, Task, TaskName, several_task
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.export import onnx as onnx_exporter
from pocketbert.export.prepare import PreparedPredictor, prepare
from support.drawn import draw_inputs
from support.tiny import BASIC, ENTRIES, NAMES, noisy_model
from support.tiny_tokenizers import vocabulary

LENGTHS = (8, 16)
FILL, EMBED, TAG, SPANS = (
    TASKS[n]
    for n in (
        TaskName.FILL_MASK,
        TaskName.FEATURE_EXTRACTION,
        TaskName.TOKEN_CLASSIFICATION,
        TaskName.QUESTION_ANSWERING,
    )
)
LABELS = {TaskName.REGRESSION: 1, TaskName.MULTIPLE_CHOICE: 1, TaskName.QUESTION_ANSWERING: 2}
SUFFIX = {Format.ONNX: "a.onnx", Format.TFLITE: "a.tflite", Format.COREML: "a.mlpackage"}
BOUND = 2e-5
"""Largest difference relative to the largest number of the output, in fp32."""


def model_of(name: str, task: Task, **changes: Any) -> Any:
    words = len(vocabulary(find_family(name).tiny["pad_token_id"]))
    sizes = {"vocab_size": words, **changes}
    return noisy_model(name, 2, task.auto_class, NAMES[: LABELS.get(task.name, 3)], **sizes)


def batch(row: Family, length: int, padding: tuple[int, ...]) -> dict[str, NDArray[np.int64]]:
    return {n: v.numpy() for n, v in draw_inputs(row.name, length, padding).items()}


def write(
    format: Format,
    model: Any,
    row: Family,
    task: Task,
    folder: Path,
    layout: Layout = Layout.PLAIN,
    shapes: Shapes = Shapes.ENUMERATED,
) -> Predictor:
    """Export a model and open the file."""
    from pocketbert.runtime.engines import open_file

    path, module = folder / SUFFIX[format], prepare(model, row, task, format, layout)
    if format is Format.ONNX:
        onnx_exporter.export(module, row, task, batch(row, 16, (0, 3)), path)
    elif format is Format.TFLITE:
        pytest.importorskip("litert_torch", reason="needs pocketbert[tflite]", exc_type=ImportError)
        from pocketbert.export import tflite

        tflite.export(module, row, task, [*LENGTHS, *LENGTHS[::-1]], path)  # they are sorted, and each is written once
    else:
        pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
        from pocketbert.export import coreml

        form = coreml.CoremlForm(18, shapes, Scheme.FP32)
        coreml.export(module, row, task, LENGTHS, path, form, coreml.CoremlInfo("", "1", "", ""))
    return open_file(path, format, 1)


def worst(subject: Predictor, model: Any, row: Family, task: Task, sizes: list[tuple[int, tuple[int, ...]]]) -> float:
    """Largest difference at real tokens relative to the largest number of its output; names, shapes and types are checked."""
    reference, off = TorchPredictor(model, task, row.inputs), list[float]()
    assert tuple(subject.outputs) == tuple(reference.outputs) == task.outputs
    for inputs in (batch(row, length, padding) for length, padding in sizes):
        found, wanted, mask = subject.run(inputs), reference.run(inputs), inputs["attention_mask"] == 1
        assert list(found) == list(wanted)
        for name, want in wanted.items():
            assert (found[name].dtype, found[name].shape) == (np.float32, want.shape), name
            per_token = name != "sentence_embedding" and want.shape[:2] == mask.shape
            a, b = ((v[mask] if per_token else v).astype(np.float64) for v in (found[name], want))
            off.append(float(np.abs(a - b).max() / np.abs(b).max()))
    return float(np.max(off))


LISTED = [(n, (0, n // 2, n - 2)) for n in LENGTHS]
FREE = [(5, (0,)), (13, (0, 4)), (40, (1, 0, 38))]
HEADS = [TAG.name, SPANS.name, FILL.name, EMBED.name]


QUICK = [(SPANS.name, Format.ONNX), *((EMBED.name, format) for format in Format)]
OTHERS = [(task, format) for task in (*HEADS, TaskName.REGRESSION) for format in Format if (task, format) not in QUICK]


@pytest.mark.parametrize(("task", "format"), [*QUICK, *(pytest.param(*c, marks=pytest.mark.slow) for c in OTHERS)])
def test_the_file_computes_what_the_model_computes(task: TaskName, format: Format, tmp_path: Path) -> None:
    row, model = find_family("bert"), model_of("bert", TASKS[task])
    predictor: Any = write(format, model, row, TASKS[task], tmp_path)
    sizes = [*LISTED, *(FREE if format is Format.ONNX else [])]
    assert worst(predictor, model, row, TASKS[task], sizes) < BOUND
    assert predictor.lengths == (() if format is Format.ONNX else LENGTHS)
    assert [t.name for t in predictor.signature.inputs] == list(row.inputs)
    assert {t.dtype for t in predictor.signature.outputs} == {"float32"}


@pytest.mark.slow
@pytest.mark.parametrize("task", [SPANS.name, FILL.name, EMBED.name])
@pytest.mark.parametrize("name", BASIC)
def test_the_layout_for_the_neural_engine_has_all_heads(name: str, task: TaskName, tmp_path: Path) -> None:
    row, model = find_family(name), model_of(name, TASKS[task])
    predictor = write(Format.COREML, model, row, TASKS[task], tmp_path, Layout.ANE)
    assert worst(predictor, model, row, TASKS[task], LISTED) < BOUND


def test_a_ranged_package_answers_for_as_many_tokens_as_it_is_given(tmp_path: Path) -> None:
    row, model = find_family("bert"), model_of("bert", SPANS)
    predictor = write(Format.COREML, model, row, SPANS, tmp_path, shapes=Shapes.RANGED)
    # the package itself takes 3 tokens and more
    assert worst(predictor, model, row, SPANS, [(n, (0, n // 2)) for n in (2, 3, 7, 16)]) < BOUND


def stored_sizes(path: Path, format: Format) -> list[int]:
    """How many numbers each stored array has."""
    if format is Format.ONNX:
        return [int(np.prod(t.dims)) for t in onnx.load(path).graph.initializer]
    if format is Format.TFLITE:
        from pocketbert.quantize.tflite.reading import TfliteGraph

        return [v.size for _, v in TfliteGraph(path).stored()]
    from pocketbert.runtime.coreml.stored import StoredTensors

    return [v.size for _, v in StoredTensors(path).arrays()]


WORDS = 1031  # no other axis is a multiple of it


TIED = [(name, format) for name in ("bert", "mobilebert") for format in Format]


@pytest.mark.parametrize(("name", "format"), [TIED[0], *(pytest.param(*c, marks=pytest.mark.slow) for c in TIED[1:])])
def test_a_tied_table_is_stored_once(name: str, format: Format, tmp_path: Path) -> None:
    row, model = find_family(name), model_of(name, FILL, vocab_size=WORDS)
    predictor = write(format, model, row, FILL, tmp_path)
    assert worst(predictor, model, row, FILL, LISTED) < BOUND
    tables = [n for n in stored_sizes(tmp_path / SUFFIX[format], format) if n % WORDS == 0 and n > WORDS]
    # MobileBERT's decoder has a matrix of its own beside the table
    assert sorted(tables) == ([16 * WORDS, 16 * WORDS] if name == "mobilebert" else [32 * WORDS])


# Several heads on one encoder

OF_HEADS = ("intent: a", "intent: b", "mood: number", "slots: O", "slots: B-x", "slots: I-x")
SEVERAL = several_task(
    {"intent": "text-classification", "mood": "regression", "slots": "token-classification"}, OF_HEADS
)
OF_TEXTS = several_task({"intent": "text-classification", "mood": "regression"}, OF_HEADS[:3])

CALLED_SPANS = several_task(
    {"start": "text-classification", "end": "regression"}, ("start: a", "start: b", "end: number")
)
"""Outputs with the names of those of question answering."""


def several_model(name: str, task: Task) -> Any:
    words = len(vocabulary(find_family(name).tiny["pad_token_id"]))
    return noisy_model(name, 2, task.auto_class, OF_HEADS[: task.heads[-1].stop], vocab_size=words)


@pytest.mark.parametrize("format", list(Format))
def test_a_file_of_several_heads_has_an_output_for_each(format: Format, tmp_path: Path) -> None:
    row, model = find_family("bert"), several_model("bert", SEVERAL)
    predictor: Any = write(format, model, row, SEVERAL, tmp_path)
    assert worst(predictor, model, row, SEVERAL, [*LISTED, *(FREE if format is Format.ONNX else [])]) < BOUND
    assert [t.name for t in predictor.signature.outputs] == ["intent_logits", "mood_logits", "slots_logits"]


@pytest.mark.parametrize(
    ("name", "task"), [*((n, SEVERAL) for n in ENTRIES), ("bert", OF_TEXTS), ("bert", CALLED_SPANS)]
)
def test_heads_of_every_system_are_read_where_its_model_has_them(name: str, task: Task) -> None:
    row = find_family(name)
    if why := row.invalid_tasks.get(TaskName.SEVERAL) or row.instead_of_export:
        pytest.skip(why)
    model = several_model(name, task)
    sizes = [(5, (0,)), (13, (0, 4))]
    # a head of one number has no larger one beside it
    assert worst(PreparedPredictor(prepare(model, row, task), row, task), model, row, task, sizes) < 5 * BOUND
