"""Every row of the family table is complete: its keys resolve, its tiny model builds, learns from, exports."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import transformers

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import ADAPTERS, CAPTURES, CHECKPOINTS, LAYER_PARTS, all_families, find_family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LmHead
from pocketbert.distill.students.build import CLASS_CHANGES, build_student
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.lean import find_layer_parts, find_layers
from pocketbert.export.prepare import prepare
from support.tiny import ENTRIES, EXPORTED, GRAPHS, tiny_classifier, tiny_config
from support.tiny_tokenizers import vocabulary, write_tokenizer

LABELS = ("negative", "neutral", "positive")
HEADS = {task.head: task for task in reversed(TASKS.values())}
"""One task for each class of transformers."""


def inputs_of(name: str, rows: int = 3, length: int = 11) -> dict[str, torch.Tensor]:
    row = find_family(name)
    draw = torch.Generator().manual_seed(length)
    ids = torch.randint(5, len(vocabulary(0)), (rows, length), generator=draw)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    for i in range(1, rows):
        padded = slice(length - 3 * i, length) if row.padding_side == "right" else slice(0, 3 * i)
        mask[i, padded], types[i, padded] = 0, 0
        ids[i, padded] = row.tiny["pad_token_id"]
    separator = ENTRIES[name].separator
    for i in range(rows if separator is not None else 0):
        ids[i, [2, 3, length - 3 * i - 1]] = separator
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {n: made[n] for n in row.inputs}


def test_every_family_has_its_tiny_entry() -> None:
    assert tuple(ENTRIES) == GRAPHS, "a new family needs an entry in tests/support/tiny.py"
    assert all(find_family(name).tiny for name in GRAPHS)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_key_resolves(name: str) -> None:
    row = find_family(name)
    assert callable(CAPTURES.find(row.capture, name))
    if row.instead_of_export is None:
        assert callable(ADAPTERS.find(row.adapter, name))
        assert (row.layer_parts is None) == (find_layer_parts(row) is None)
    if row.checkpoints is not None:
        assert CHECKPOINTS.find(row.checkpoints, name)


def test_nothing_is_registered_that_no_row_names() -> None:
    rows = all_families()
    assert set(CAPTURES.keys()) == {f.capture for f in rows}
    assert set(ADAPTERS.keys()) == {f.adapter for f in rows} | ({f.block_adapter for f in rows} - {None})
    assert set(LAYER_PARTS.keys()) == {f.layer_parts for f in rows} - {None}
    assert set(CHECKPOINTS.keys()) == {f.checkpoints for f in rows} - {None}


def test_the_changes_of_class_are_those_of_the_table() -> None:
    assert build_student  # importing it registers the package's own
    found = {(c.teacher, c.student) for c in CLASS_CHANGES.values()}
    assert found == {(teacher, f.name) for f in all_families() for teacher in f.students_of}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_tiny_model_is_what_the_row_describes(name: str) -> None:
    row = find_family(name)
    model = tiny_classifier(name, 3, LABELS)
    assert type(model).__name__ == f"{row.classes}ForSequenceClassification"
    assert len(model.get_submodule(row.layer_path)) == getattr(model.config, row.stored_layers)
    assert model.config.num_hidden_layers == 3
    assert set(row.inputs) <= set(inspect.signature(model.forward).parameters)
    assert row.uses_segments == ("token_type_ids" in row.inputs)
    assert sum(p.numel() for p in model.parameters()) < 1e5
    positions = model.config.max_position_embeddings - row.position_offset
    with torch.no_grad():  # the longest input that the table of positions takes, and not one token more
        full = inputs_of(name, 1, positions if positions > 0 else row.longest)
        assert model(**full).logits.shape == (1, 3)
        if positions > 0 and ENTRIES[name].position_table:
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                model(**inputs_of(name, 1, positions + 1))
    for ours, theirs in row.config_names.items():
        assert hasattr(model.config, theirs)
        assert not hasattr(model.config, ours)


@pytest.mark.parametrize("name", GRAPHS)
@torch.no_grad()
def test_one_attention_is_captured_for_each_layer_that_runs(name: str) -> None:
    row, depth = find_family(name), 3
    model = tiny_classifier(name, depth, LABELS)
    inputs = inputs_of(name)
    expected = model(**inputs).logits
    with record_attention(model, row, range(depth), range(depth)) as recorder:
        found = model(**inputs).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for signal, layers in ((Signal.ATTENTION, recorder.scores), (Signal.RELATIONS, recorder.relations)):
        assert signal not in row.signals or sorted(layers) == list(range(depth))
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    assert len(hidden) == depth + 1


@pytest.mark.parametrize("name", [n for n in GRAPHS if find_family(n).lm_head is not None])
@torch.no_grad()
def test_the_head_that_guesses_words_begins_where_the_row_says(name: str) -> None:
    model = tiny_classifier(name, 1, LABELS, auto_class="AutoModelForMaskedLM")
    inputs = inputs_of(name)
    chosen = torch.tensor([0, 4, 12])
    made = LmHead(model, name).run(model, inputs, chosen)
    whole = model(**inputs).logits.flatten(0, 1)[chosen]
    torch.testing.assert_close(made.logits, whole, rtol=1e-4, atol=1e-4)


def offered(name: str, head: str) -> bool:
    """Whether an Auto class opens the family with a head: transformers' own classes, and those that the package makes known."""
    auto = getattr(transformers, HEADS[head].auto_class)
    return type(tiny_config(name, 1, ())) in auto._model_mapping


@pytest.mark.parametrize(("name", "head"), [(n, h) for n in EXPORTED for h in HEADS if offered(n, h)])
@pytest.mark.parametrize("format", Format)
def test_every_head_that_transformers_offers_is_ready_for_every_format(name: str, head: str, format: Format) -> None:
    row, task = find_family(name), HEADS[head]
    labels = LABELS[:2] if task.name is TaskName.QUESTION_ANSWERING else LABELS
    model = tiny_classifier(name, 2, labels, auto_class=task.auto_class)
    module = prepare(model, row, task, format)
    inputs = inputs_of(name, 2, 13)
    with torch.inference_mode():
        expected, found = model(**inputs), module(*inputs.values())
    output = task.outputs[0]
    real = inputs["attention_mask"].bool() if found[0].dim() == 3 or task.answer[0] == "start_logits" else slice(None)
    difference = (found[0] - expected[output])[real].abs().max() / expected[output][real].std()
    assert float(difference) < row.parity_atol
    if format is Format.ONNX:
        length = torch.export.Dim("length", min=3, max=48)  # MobileBERT looks at both neighbours
        rows = torch.export.Dim("rows", min=2, max=64)
        torch.export.export(
            module, tuple(inputs.values()), dynamic_shapes=tuple({0: rows, 1: length} for _ in inputs), strict=False
        )


@pytest.mark.parametrize("name", [n for n in EXPORTED if find_family(n).layer_parts is not None])
def test_layer_parts_know_the_layers_of_the_family(name: str) -> None:
    row = find_family(name)
    known = find_layer_parts(row)
    assert known is not None
    assert known.post_norm or known.lean
    model = tiny_classifier(name, 2, LABELS)
    assert find_layers(model.base_model, row, known)[1] is model.get_submodule(row.layer_path)
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    if known.post_norm or known.channels_first:
        prepare(model, row, task, Format.COREML, Layout.ANE)
    else:
        with pytest.raises(InputError, match="'ane' has no rewrite"):
            prepare(model, row, task, Format.COREML, Layout.ANE)
    for suffix in known.first_token_heads:
        assert offered(name, suffix)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_mask_that_is_forgotten_would_be_seen(name: str) -> None:
    model, inputs = tiny_classifier(name, 2, LABELS), inputs_of(name)
    with torch.inference_mode():
        whole = model(**inputs).logits
        blind = model(**{**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}).logits
    assert float((whole - blind)[1:].abs().max()) > 1e-2
    assert mask_4d.MASK_VALUE < -1e3


@pytest.mark.parametrize("name", GRAPHS)
def test_the_tiny_tokenizer_fits_the_tiny_vocabulary(name: str, tmp_path: object) -> None:
    from pathlib import Path

    config = tiny_config(name, 1, LABELS)
    folder = Path(str(tmp_path))
    write_tokenizer(folder, pad_id=config.pad_token_id)
    made = TextTokenizer(folder, 32)
    ids = np.concatenate([np.asarray(row.ids) for row in made.encode(list(SENTENCES[:4]))])
    assert ids.max() < config.vocab_size
