"""Longformer: windows, global tokens and padding as transformers computes them, in the graph, in the capture and in students."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LayerOutputs
from pocketbert.distill.students.build import build_student
from pocketbert.export.prepare import prepare
from support.commands import command
from support.tiny import NAMES, tiny_classifier
from support.tiny_tokenizers import write_byte_bpe

ROW = find_family("longformer")
SEPARATOR, PAD = 3, 1
WINDOWS = [8, 16, 8]
HEADS = {
    TaskName.TEXT_CLASSIFICATION: "classifier",
    TaskName.TOKEN_CLASSIFICATION: "classifier",
    TaskName.QUESTION_ANSWERING: "qa_outputs",
    TaskName.FILL_MASK: "lm_head",
    TaskName.FEATURE_EXTRACTION: None,
}


def model_of(task: TaskName, **changes: Any) -> Any:
    labels = NAMES[:2] if task is TaskName.QUESTION_ANSWERING else NAMES
    settings = {"attention_window": list(WINDOWS), **changes}
    return tiny_classifier("longformer", 3, labels, 1, TASKS[task].auto_class, **settings)


def inputs_of(length: int, sizes: Sequence[int], left: bool = False) -> dict[str, Tensor]:
    """Rows of drawn tokens with the three separators of a pair, padded to a length."""
    ids = torch.full((len(sizes), length), PAD)
    mask = torch.zeros_like(ids)
    draw = torch.Generator().manual_seed(length)
    for i, size in enumerate(sizes):
        own = slice(length - size, None) if left else slice(size)
        row = torch.randint(5, 90, (size,), generator=draw)
        row[[size // 3, size // 3 + 1, size - 1]] = SEPARATOR
        ids[i, own], mask[i, own] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def answers(task: TaskName, model: Any, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        out = model(**inputs)
    names = [n for n in TASKS[task].outputs if n != "sentence_embedding"]
    return torch.stack([out[n] for n in names], -1)


def difference(task: TaskName, model: Any, module: Any, inputs: dict[str, Tensor]) -> float:
    expected = answers(task, model, inputs)
    with torch.no_grad():
        made = module(*inputs.values())
    found = torch.stack(made[: expected.shape[-1]], -1)
    real = slice(None) if task is TaskName.TEXT_CLASSIFICATION else inputs["attention_mask"].bool()
    return float((found - expected)[real].abs().max() / expected[real].std())


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("format", [Format.ONNX, Format.TFLITE])
def test_the_graph_gives_the_models_numbers_below_at_and_above_the_window(task: TaskName, format: Format) -> None:
    model = model_of(task)
    module = prepare(model, ROW, TASKS[task], format)
    for length in (6, 9, 17, 40):
        for sizes in ([length, length], [length, max(6, length // 2)]):
            assert difference(task, model, module, inputs_of(length, sizes)) < 1e-4, (length, sizes)


@pytest.mark.parametrize("task", [t for t in HEADS if t is not TaskName.TEXT_CLASSIFICATION])
def test_where_no_place_is_special_padding_may_be_on_the_left(task: TaskName) -> None:
    model = model_of(task)
    module = prepare(model, ROW, TASKS[task])
    assert difference(task, model, module, inputs_of(21, [21, 9], left=True)) < 1e-4


@pytest.mark.parametrize("task", HEADS)
def test_window_and_global_tokens_would_be_missed(task: TaskName) -> None:
    """Else a graph without them would pass every comparison."""
    model, inputs = model_of(task), inputs_of(40, [40])
    own = answers(task, model, inputs)
    wide = model_of(task, attention_window=64)
    assert float((answers(task, wide, inputs) - own).abs().max()) > 0.02 * float(own.std())
    if task in (TaskName.TEXT_CLASSIFICATION, TaskName.QUESTION_ANSWERING):
        none = answers(task, model, {**inputs, "global_attention_mask": torch.zeros_like(inputs["input_ids"])})
        assert float((none - own).abs().max()) > 0.02 * float(own.std())


@pytest.mark.parametrize("task", HEADS)
def test_weights_that_no_answer_depends_on_are_those_of_global_attention_that_the_row_names(task: TaskName) -> None:
    model, inputs = model_of(task), inputs_of(40, [40])
    answers_with_gradient = model(**inputs)[TASKS[task].outputs[0]]
    answers_with_gradient.square().sum().backward()
    encoder = getattr(model, model.base_model_prefix, model)
    unread = {n for n, p in encoder.named_parameters() if p.ndim > 1 and (p.grad is None or not p.grad.any())} - {
        "pooler.dense.weight"
    }
    wide = {f"encoder.layer.{i}.attention.self.{n}_global.weight" for i in range(3) for n in ("query", "key", "value")}
    near = {f"encoder.layer.2.attention.self.{n}.weight" for n in ("query", "key", "value")}
    expected = {
        TaskName.TEXT_CLASSIFICATION: near,  # the head reads the first token, and that is global
        TaskName.QUESTION_ANSWERING: set(),
    }
    assert unread == expected.get(task, wide)


def test_each_window_has_a_mask_of_its_own_and_one_that_holds_the_whole_input_none() -> None:
    module: Any = prepare(model_of(TaskName.TOKEN_CLASSIFICATION), ROW, TASKS[TaskName.TOKEN_CLASSIFICATION])
    for length, rows in ((5, {4: 1, 8: 1}), (9, {4: 9, 8: 1}), (10, {4: 10, 8: 10})):
        masks = module._masks(*inputs_of(length, [length]).values())
        assert {reach: mask.shape[2] for reach, mask in masks.near.items()} == rows


def test_no_graph_for_the_neural_engine_and_none_without_a_separator() -> None:
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    with pytest.raises(InputError, match="no rewrite for the encoder of 'longformer'"):
        prepare(model_of(task.name), ROW, task, Format.COREML, Layout.ANE)
    question = model_of(TaskName.QUESTION_ANSWERING)
    question.config.sep_token_id = None
    with pytest.raises(InputError, match="sep_token_id"):
        prepare(question, ROW, TASKS[TaskName.QUESTION_ANSWERING])


def banded(local: Tensor, width: int, length: int) -> Tensor:
    """Probabilities by distance, [B, H, S, window + 1], as [B, H, S, S]."""
    out = torch.zeros(*local.shape[:2], length, length)
    for i in range(length):
        for place in range(width + 1):
            j = i + place - width // 2
            if 0 <= j < length:
                out[:, :, i, j] = local[:, :, i, place]
    return out


@pytest.mark.parametrize("task", [TaskName.TEXT_CLASSIFICATION, TaskName.FILL_MASK])
@torch.no_grad()
def test_the_recorded_scores_are_those_of_the_stock_attention(task: TaskName) -> None:
    stock, model, inputs = model_of(task), model_of(task), inputs_of(21, [21, 13])
    theirs = stock(**inputs, output_attentions=True)
    with record_attention(model, ROW, range(3), range(3)) as recorder:
        out = model(**inputs, output_hidden_states=True)
    torch.testing.assert_close(out.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    assert {h.shape[1] for h in out.hidden_states} == {21}
    rows = slice(1 if task is TaskName.TEXT_CLASSIFICATION else 0, None)
    for layer, width in enumerate(WINDOWS):
        found = recorder.scores[layer].softmax(-1)
        assert found.shape == (2, 4, 21, 21)
        expected = theirs.attentions[layer]
        if task is TaskName.TEXT_CLASSIFICATION:
            first, expected = expected[..., :1], expected[..., 1:]
            full = banded(expected, width, 21)
            full[..., 0] += first[..., 0]
            wide = theirs.global_attentions[layer][:, :, :21, 0]
            torch.testing.assert_close(found[:, :, 0], wide, rtol=1e-3, atol=1e-5)
        else:
            full = banded(expected, width, 21)
        real = inputs["attention_mask"][:, None, rows, None].bool().expand_as(full[:, :, rows])
        torch.testing.assert_close(found[:, :, rows][real], full[:, :, rows][real], rtol=1e-3, atol=1e-5)
        keys = recorder.relations[layer]
        assert keys.query.shape == keys.value.shape == (2, 4, 21, 8)


def test_a_captured_model_learns_and_may_end_early() -> None:
    model, inputs = model_of(TaskName.TEXT_CLASSIFICATION).train(), inputs_of(12, [12, 9])
    recorder = record_attention(model, ROW, [1], stop=True)
    with recorder:
        model(**inputs)
    recorder.scores[1].square().mean().backward()
    got = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert "longformer.encoder.layer.1.attention.self.key_global.weight" in got
    assert not any(".layer.2." in n for n in got)
    outputs = LayerOutputs(model, ROW.layer_path, [0, 2])
    with outputs:
        model(**inputs)
    assert {s.shape for s in outputs.states.values()} == {(2, 12, 32)}


@pytest.mark.parametrize(("chosen", "windows"), [(None, [16, 8]), ([1, 2], [8, 16])])
def test_a_student_takes_the_windows_of_its_layers(chosen: list[int] | None, windows: list[int]) -> None:
    teacher = model_of(TaskName.TEXT_CLASSIFICATION)
    wanted = StudentSection(layers=2, teacher_layers=chosen)
    student = build_student(teacher, ROW, wanted, 0).eval()
    assert student.config.attention_window == windows
    taken = (chosen or [2, 3])[0] - 1
    own, theirs = student.longformer.encoder.layer[0], teacher.longformer.encoder.layer[taken]
    assert torch.equal(own.attention.self.query_global.weight, theirs.attention.self.query_global.weight)
    assert teacher.config.attention_window == WINDOWS
    narrow = StudentSection(layers=1, init="random", hidden=16, heads=2)
    assert build_student(model_of(TaskName.FILL_MASK, attention_window=8), ROW, narrow, 0).config.attention_window == [
        8
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = write_byte_bpe(tmp_path)
    model = model_of(TaskName.TEXT_CLASSIFICATION, vocab_size=rows, sep_token_id=2, max_position_embeddings=2000)
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([8, 8], "does not describe a model"),
        (7, "has to be an even value"),
        ([8, 1 << 20, 8], "attention_window is 1048576; a whole number from 1 to 4,096"),
        ([8, True, 8], "attention_window is True"),
        ("8", "attention_window is '8'"),
        ([], r"attention_window is \[\]"),
        ([8] * 600, "lists 600 values; at most 512"),
    ],
)
def test_windows_that_no_model_has_are_refused(folder: Path, windows: Any, message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_window": windows}))
    with pytest.raises(InputError, match=message):
        load_model(open_model_folder(str(folder)), TASKS[TaskName.TEXT_CLASSIFICATION])


def test_one_window_for_all_layers_is_as_good_as_a_list(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_window": 8}))
    model = load_model(open_model_folder(str(folder)), TASKS[TaskName.TEXT_CLASSIFICATION])
    assert model.config.attention_window == [8, 8, 8]


def test_inputs_are_no_longer_than_the_row_says_whatever_the_table_of_positions_has(folder: Path) -> None:
    assert ROW.most_tokens == 1024
    assert open_model_folder(str(folder)).positions == 1024


def test_a_checkpoint_of_the_published_layout_is_read(tmp_path: Path) -> None:
    """pytorch_model.bin of allenai/longformer-base-4096: places as a buffer, a pooler, and the head that guesses words."""
    rows = write_byte_bpe(tmp_path)
    model = model_of(TaskName.FILL_MASK, vocab_size=rows)
    state = {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("lm_head.decoder.")}
    state["longformer.embeddings.position_ids"] = torch.arange(66)[None]
    state |= {"longformer.pooler.dense.weight": torch.eye(32), "longformer.pooler.dense.bias": torch.zeros(32)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    model.config.save_pretrained(tmp_path)
    opened = open_model_folder(str(tmp_path))
    found = load_model(opened, TASKS[TaskName.FILL_MASK])
    for name, value in found.state_dict().items():
        if name in state:
            assert torch.equal(value, state[name]), name
    assert found.lm_head.decoder.weight is found.longformer.embeddings.word_embeddings.weight
    with pytest.raises(InputError, match="no trained head for text-classification"):
        load_model(opened, TASKS[TaskName.TEXT_CLASSIFICATION])


@pytest.mark.slow
@pytest.mark.parametrize("task", HEADS)
def test_every_task_is_exported_and_passes_every_gate(task: TaskName, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    model = model_of(task, vocab_size=write_byte_bpe(source), sep_token_id=2, max_position_embeddings=130)
    model.save_pretrained(source)
    words = command("export", "-m", source, "--task", task, "-o", tmp_path / "phone")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
