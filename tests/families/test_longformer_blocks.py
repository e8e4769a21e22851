"""Longformer's attention over blocks: the model's own numbers at any length, memory that grows with the length, and the option."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families.test_longformer import HEADS, ROW, answers, difference, inputs_of, model_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Attention, Format, Scheme, Shapes
from pocketbert.export import coreml, onnx
from pocketbert.export.adapters.longformer import DENSE
from pocketbert.export.prepare import prepare
from pocketbert.runtime.engines import open_file
from support.commands import command
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_byte_bpe

BLOCKS = ROW.over_blocks()
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
TASKED = [t for t in HEADS if t is not TaskName.QUESTION_ANSWERING]
LENGTHS = (7, 16, 31)
"""Below a block of 8 tokens, at two of them, and between multiples of 4 and 8."""


def blocks_of(model: Any, task: Task, format: Format = Format.ONNX) -> Any:
    """The module with attention over blocks at any length, known or not."""
    module: Any = prepare(model, BLOCKS, task, format)
    module.dense = 0
    return module


@pytest.mark.parametrize("task", TASKED)
@pytest.mark.parametrize("format", [Format.ONNX, pytest.param(Format.TFLITE, marks=pytest.mark.slow)])
def test_blocks_give_the_models_numbers(task: TaskName, format: Format) -> None:
    model = model_of(task)
    module = blocks_of(model, TASKS[task], format)
    for length in LENGTHS:
        assert difference(task, model, module, inputs_of(length, [length, max(6, length // 2), 6])) < 1e-4, length


@pytest.mark.parametrize("task", [TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK, TaskName.FEATURE_EXTRACTION])
def test_where_no_place_is_special_padding_may_be_on_the_left_of_blocks(task: TaskName) -> None:
    model = model_of(task)
    assert difference(task, model, blocks_of(model, TASKS[task]), inputs_of(21, [21, 9], left=True)) < 1e-4


def test_questions_are_refused_with_the_reason() -> None:
    task = TASKS[TaskName.QUESTION_ANSWERING]
    with pytest.raises(InputError, match="every token of a question is global"):
        prepare(model_of(task.name), BLOCKS, task)


class _Largest(TorchDispatchMode):
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


@pytest.mark.parametrize("task", [TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION])
def test_memory_grows_with_the_length_and_not_with_its_square(task: TaskName) -> None:
    model, largest = model_of(task, max_position_embeddings=600), list[int]()
    for blocks in (True, False):
        module: Any = blocks_of(model, TASKS[task]) if blocks else prepare(model, ROW, TASKS[task])
        for length in (256, 512):
            with _Largest() as seen, torch.no_grad():
                module(*inputs_of(length, [length]).values())
            largest.append(seen.count)
    assert largest[1] <= 2 * largest[0]
    assert largest[3] == 4 * largest[2]
    assert largest[1] < largest[3]


def test_graphs_of_known_lengths_are_over_pairs_as_long_as_that_is_as_fast() -> None:
    module: Any = prepare(model_of(TaskName.TEXT_CLASSIFICATION), BLOCKS, CLASSIFY)
    assert not module._masks(torch.ones(1, DENSE), None).blocks
    assert module._masks(torch.ones(1, DENSE + 1), None).blocks
    assert (
        not prepare(model_of(TaskName.TEXT_CLASSIFICATION), ROW, CLASSIFY)._masks(torch.ones(1, 2 * DENSE), None).blocks
    )  # type: ignore[operator]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    rows = write_byte_bpe(folder)
    model_of(CLASSIFY.name, vocab_size=rows, sep_token_id=2, max_position_embeddings=2002).save_pretrained(folder)
    return folder


def test_the_option_lengthens_the_texts_and_a_saved_folder_keeps_it(folder: Path, tmp_path: Path) -> None:
    assert open_model_folder(str(folder)).positions == DENSE
    long = open_model_folder(str(folder), attention=Attention.BLOCKS)
    assert long.positions == 2000
    save_model(load_model(long, CLASSIFY), long, Labels(tuple(long.labels or ())), 1500, tmp_path)
    again = open_model_folder(str(tmp_path))
    assert again.family.in_blocks
    assert again.positions == 2000
    pairs = open_model_folder(str(tmp_path), attention=Attention.PAIRS)
    assert not pairs.family.in_blocks
    (tmp_path / "pairs").mkdir()
    save_model(load_model(pairs, CLASSIFY), pairs, Labels(tuple(pairs.labels or ())), 1000, tmp_path / "pairs")
    assert "pocketbert_attention" not in json.loads((tmp_path / "pairs/config.json").read_text())


def test_systems_without_windows_refuse_the_option(tmp_path: Path) -> None:
    tiny_classifier("bert", 1, ("a", "b")).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="'blocks' is for Longformer; attention of BERT is over all pairs"):
        open_model_folder(str(tmp_path), attention=Attention.BLOCKS)
    assert open_model_folder(str(tmp_path), attention=Attention.PAIRS).family.adapter == "mask-4d"
    with pytest.raises(ValueError, match="BERT has no attention over blocks"):
        find_family("bert").over_blocks()


def fed(inputs: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in inputs.items()}


@pytest.mark.slow
def test_one_onnx_file_takes_lengths_below_and_above_a_block(tmp_path: Path) -> None:
    model = tiny_classifier("longformer", 2, ("a", "b", "c"), 1, attention_window=[8, 16])
    onnx.export(prepare(model, BLOCKS, CLASSIFY), BLOCKS, CLASSIFY, fed(inputs_of(12, [12, 9])), tmp_path / "x.onnx")
    predictor = open_file(tmp_path / "x.onnx", Format.ONNX)
    worst = 0.0
    for length, sizes in ((1, [1]), (3, [3, 2]), (4, [4]), (8, [8, 5]), (13, [13]), (40, [40, 21, 5]), (61, [61, 33])):
        inputs = {
            "input_ids": torch.full((len(sizes), length), 1),
            "attention_mask": torch.zeros(len(sizes), length).long(),
        }
        for i, size in enumerate(sizes):
            inputs["input_ids"][i, :size], inputs["attention_mask"][i, :size] = torch.arange(size) + 5, 1
        expected = answers(CLASSIFY.name, model, inputs)[..., 0].numpy()
        (found,) = predictor.run(fed(inputs)).values()
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
    coreml.export(
        blocks_of(model, TASKS[task], Format.COREML), BLOCKS, TASKS[task], lengths, tmp_path / "x.mlpackage", form, info
    )
    predictor = open_file(tmp_path / "x.mlpackage", Format.COREML)
    for length in {Shapes.FIXED: lengths[-1:], Shapes.RANGED: (6, 8, 9, 33, 64)}.get(shapes, lengths):
        inputs = inputs_of(length, [max(6, length - 5)])
        expected = answers(task, model, inputs)
        found = np.stack([*predictor.run(fed(inputs)).values()], -1)
        real = slice(None) if task is TaskName.TEXT_CLASSIFICATION else inputs["attention_mask"].bool()
        assert np.abs(found - expected.numpy())[real].max() < 1e-4 * float(expected[real].std()), length


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKED)
def test_long_texts_are_exported_and_pass_every_gate(task: TaskName, tmp_path: Path) -> None:
    source, phone = tmp_path / "model", tmp_path / "phone"
    source.mkdir()
    labels = ("O", "B-X", "I-X") if task is TaskName.TOKEN_CLASSIFICATION else ("a", "b", "c")
    sizes = {"vocab_size": write_byte_bpe(source), "sep_token_id": 2, "max_position_embeddings": 1302}
    tiny_classifier(
        "longformer", 3, labels, 1, TASKS[task].auto_class, attention_window=[8, 16, 8], **sizes
    ).save_pretrained(source)
    words = command("export", "-m", source, "--task", task, "-o", phone, "--attention", "blocks")
    done = subprocess.run(
        [*words, "--lengths", "32,1100", "--max-length", "1283"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert open_model_folder(str(phone)).family.in_blocks
