"""Longformer: windows, global tokens and padding as transformers computes them, over pairs and over blocks, captured and in students."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Attention, Format, Scheme, Shapes
from pocketbert.distill.capture import record_attention
from pocketbert.distill.students.build import build_student
from pocketbert.export import coreml, onnx
from pocketbert.export.adapters.longformer import DENSE
from pocketbert.export.prepare import prepare
from pocketbert.runtime.engines import open_file
from support.commands import command
from support.published import edit_json
from support.tiny import NAMES, tiny_classifier
from support.tiny_tokenizers import write_byte_bpe

ROW = find_family("longformer")
BLOCKS = ROW.over_blocks()
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
SEPARATOR, PAD = 3, 1
WINDOWS = [8, 16, 8]
HEADS = (
    TaskName.TEXT_CLASSIFICATION,
    TaskName.TOKEN_CLASSIFICATION,
    TaskName.QUESTION_ANSWERING,
    TaskName.FILL_MASK,
    TaskName.FEATURE_EXTRACTION,
)


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


def answer(task: TaskName, model: Any, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        out = model(**inputs)
    names = [n for n in TASKS[task].outputs if n != "sentence_embedding"]
    return torch.stack([out[n] for n in names], -1)


def difference(task: TaskName, model: Any, module: Any, inputs: dict[str, Tensor]) -> float:
    expected = answer(task, model, inputs)
    with torch.no_grad():
        made = module(*inputs.values())
    found = torch.stack(made[: expected.shape[-1]], -1)
    real = slice(None) if task is TaskName.TEXT_CLASSIFICATION else inputs["attention_mask"].bool()
    return float((found - expected)[real].abs().max() / expected[real].std())


def prepare_blocks(model: Any, task: Task, format: Format = Format.ONNX) -> Any:
    """The module with attention over blocks at any length, known or not."""
    module: Any = prepare(model, BLOCKS, task, format)
    module.dense = 0
    return module


@pytest.mark.parametrize("blocks", [False, True], ids=["pairs", "blocks"])
@pytest.mark.parametrize("task", HEADS)
def test_the_graph_gives_the_models_numbers_below_at_and_above_the_window(task: TaskName, blocks: bool) -> None:
    model = model_of(task)
    if blocks and task is TaskName.QUESTION_ANSWERING:
        with pytest.raises(InputError, match="every token of a question is global"):
            prepare(model, BLOCKS, TASKS[task])
        return
    for format in (Format.ONNX, Format.TFLITE):
        module = prepare_blocks(model, TASKS[task], format) if blocks else prepare(model, ROW, TASKS[task], format)
        for length in (6, 16, 31):
            inputs = inputs_of(length, [length, max(6, length // 2), 6])
            assert difference(task, model, module, inputs) < 1e-4, (format, length)
        if task is not TaskName.TEXT_CLASSIFICATION:  # where no place is special, padding may be on the left
            assert difference(task, model, module, inputs_of(21, [21, 9], left=True)) < 1e-4


@pytest.mark.parametrize("task", HEADS)
def test_window_and_global_tokens_would_be_missed(task: TaskName) -> None:
    """Else a graph without them would pass every comparison."""
    model, inputs = model_of(task), inputs_of(40, [40])
    own = answer(task, model, inputs)
    others = [answer(task, model_of(task, attention_window=64), inputs)]
    if task in (TaskName.TEXT_CLASSIFICATION, TaskName.QUESTION_ANSWERING):
        others.append(answer(task, model, {**inputs, "global_attention_mask": torch.zeros_like(inputs["input_ids"])}))
    assert all(float((other - own).abs().max()) > 0.02 * float(own.std()) for other in others)


def test_a_question_needs_a_separator() -> None:
    question = model_of(TaskName.QUESTION_ANSWERING)
    question.config.sep_token_id = None
    with pytest.raises(InputError, match="sep_token_id"):
        prepare(question, ROW, TASKS[TaskName.QUESTION_ANSWERING])


def spread_bands(local: Tensor, width: int, length: int) -> Tensor:
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
            full = spread_bands(expected, width, 21)
            full[..., 0] += first[..., 0]
            wide = theirs.global_attentions[layer][:, :, :21, 0]
            torch.testing.assert_close(found[:, :, 0], wide, rtol=1e-3, atol=1e-5)
        else:
            full = spread_bands(expected, width, 21)
        real = inputs["attention_mask"][:, None, rows, None].bool().expand_as(full[:, :, rows])
        torch.testing.assert_close(found[:, :, rows][real], full[:, :, rows][real], rtol=1e-3, atol=1e-5)
        keys = recorder.relations[layer]
        assert keys.query.shape == keys.value.shape == (2, 4, 21, 8)


def test_a_captured_model_learns_and_may_end_early() -> None:
    model, inputs = model_of(TaskName.TEXT_CLASSIFICATION).train(), inputs_of(12, [12, 9])
    with record_attention(model, ROW, [1], stop=True) as recorder:
        model(**inputs)
    recorder.scores[1].square().mean().backward()
    got = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert "longformer.encoder.layer.1.attention.self.key_global.weight" in got
    assert not any(".layer.2." in n for n in got)


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
    small = build_student(model_of(TaskName.FILL_MASK, attention_window=8), ROW, narrow, 0)
    assert small.config.attention_window == [8]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = write_byte_bpe(tmp_path)
    model = model_of(TaskName.TEXT_CLASSIFICATION, vocab_size=rows, sep_token_id=2, max_position_embeddings=2002)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_one_window_is_as_good_as_a_list_and_a_saved_folder_keeps_attention_over_blocks(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    edit_json(folder / "config.json", attention_window=8)
    model = load_model(open_model_folder(str(folder)), CLASSIFY)
    assert model.config.attention_window == [8, 8, 8]
    saved, pairs_saved = (tmp_path_factory.mktemp(name) for name in ("blocks", "pairs"))
    assert open_model_folder(str(folder)).positions == ROW.most_tokens == DENSE
    long = open_model_folder(str(folder), attention=Attention.BLOCKS)
    assert long.positions == 2000
    save_model(load_model(long, CLASSIFY), long, Labels(tuple(long.labels or ())), 1500, saved)
    again = open_model_folder(str(saved))
    assert again.family.in_blocks
    assert again.positions == 2000
    pairs = open_model_folder(str(saved), attention=Attention.PAIRS)
    assert not pairs.family.in_blocks
    save_model(load_model(pairs, CLASSIFY), pairs, Labels(tuple(pairs.labels or ())), 1000, pairs_saved)
    assert "pocketbert_attention" not in json.loads((pairs_saved / "config.json").read_text())


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


# Attention over blocks.


class Largest(TorchDispatchMode):
    """The largest tensor that a pass makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count = max(
            [self.count, *(t.numel() for t in (out if isinstance(out, tuple) else [out]) if isinstance(t, Tensor))]
        )
        return out


def test_graphs_of_known_lengths_are_over_pairs_as_long_as_that_is_as_fast() -> None:
    """Over pairs the largest tensor grows with the square of the length, up to the limit and not beyond it."""
    model = model_of(TaskName.TOKEN_CLASSIFICATION, max_position_embeddings=2 * DENSE + 2)
    task, largest = TASKS[TaskName.TOKEN_CLASSIFICATION], dict[tuple[str, int], int]()
    for row, name in ((ROW, "pairs"), (BLOCKS, "blocks")):
        module: Any = prepare(model, row, task)
        for length in (DENSE, DENSE + 8):
            with Largest() as seen, torch.no_grad():
                module(*inputs_of(length, [length]).values())
            largest[name, length] = seen.count
    assert largest["blocks", DENSE] == largest["pairs", DENSE]
    assert largest["blocks", DENSE + 8] < largest["pairs", DENSE + 8] / 2


def test_systems_without_windows_refuse_the_option(tmp_path: Path) -> None:
    tiny_classifier("bert", 1, ("a", "b")).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="'blocks' is for Longformer; attention of BERT is over all pairs"):
        open_model_folder(str(tmp_path), attention=Attention.BLOCKS)
    assert open_model_folder(str(tmp_path), attention=Attention.PAIRS).family.adapter == "mask-4d"
    with pytest.raises(ValueError, match="BERT has no attention over blocks"):
        find_family("bert").over_blocks()


def to_numpy(inputs: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in inputs.items()}


@pytest.mark.slow
def test_one_onnx_file_takes_lengths_below_and_above_a_block(tmp_path: Path) -> None:
    model = tiny_classifier("longformer", 2, ("a", "b", "c"), 1, attention_window=[8, 16])
    onnx.export(
        prepare(model, BLOCKS, CLASSIFY), BLOCKS, CLASSIFY, to_numpy(inputs_of(12, [12, 9])), tmp_path / "x.onnx"
    )
    predictor = open_file(tmp_path / "x.onnx", Format.ONNX)
    worst = 0.0
    for length, sizes in ((1, [1]), (3, [3, 2]), (4, [4]), (8, [8, 5]), (13, [13]), (40, [40, 21, 5]), (61, [61, 33])):
        ids = torch.full((len(sizes), length), PAD)
        mask = torch.zeros_like(ids)
        for i, size in enumerate(sizes):
            ids[i, :size], mask[i, :size] = torch.arange(size) + 5, 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        expected = answer(CLASSIFY.name, model, inputs)[..., 0].numpy()
        (found,) = predictor.run(to_numpy(inputs)).values()
        worst = float(np.max([worst, np.abs(found - expected).max() / expected.std()]))
    assert worst < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [Shapes.RANGED, Shapes.ENUMERATED, Shapes.FIXED])
@pytest.mark.parametrize("task", [TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION])
def test_core_ml_packages_take_numbers_of_blocks_that_are_known_or_not(
    task: TaskName, shapes: Shapes, tmp_path: Path
) -> None:
    model, lengths = model_of(task), (9, 20, 64)
    form, info = coreml.CoremlForm(shapes=shapes, precision=Scheme.FP32), coreml.CoremlInfo("d", "1", "a", "l")
    module = prepare_blocks(model, TASKS[task], Format.COREML)
    coreml.export(module, BLOCKS, TASKS[task], lengths, tmp_path / "x.mlpackage", form, info)
    predictor = open_file(tmp_path / "x.mlpackage", Format.COREML)
    for length in {Shapes.FIXED: lengths[-1:], Shapes.RANGED: (6, 8, 9, 33, 64)}.get(shapes, lengths):
        inputs = inputs_of(length, [max(6, length - 5)])
        expected = answer(task, model, inputs)
        found = np.stack([*predictor.run(to_numpy(inputs)).values()], -1)
        real = slice(None) if task is TaskName.TEXT_CLASSIFICATION else inputs["attention_mask"].bool()
        assert np.abs(found - expected.numpy())[real].max() < 1e-4 * float(expected[real].std()), length


@pytest.mark.slow
@pytest.mark.parametrize("task", [t for t in HEADS if t is not TaskName.QUESTION_ANSWERING])
def test_long_texts_are_exported_and_pass_every_gate(task: TaskName, tmp_path: Path) -> None:
    source, phone = tmp_path / "model", tmp_path / "phone"
    source.mkdir()
    labels = ("O", "B-X", "I-X") if task is TaskName.TOKEN_CLASSIFICATION else ("a", "b", "c")
    sizes = {"vocab_size": write_byte_bpe(source), "sep_token_id": 2, "max_position_embeddings": 1302}
    windows = {"attention_window": list(WINDOWS)}
    tiny_classifier("longformer", 3, labels, 1, TASKS[task].auto_class, **windows, **sizes).save_pretrained(source)
    lengths = ("--lengths", "32,1100", "--max-length", "1283")
    words = command("export", "-m", source, "--task", task, "-o", phone, "--attention", "blocks", *lengths)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert open_model_folder(str(phone)).family.in_blocks
