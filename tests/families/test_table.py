"""Every row of the family table: its keys resolve, its tiny model is captured, and prepared for every format with its own numbers."""

from __future__ import annotations

import copy
import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.families import ADAPTERS, CAPTURES, CHECKPOINTS, LAYER_PARTS, all_families, find_family
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LmHead
from pocketbert.distill.students.build import CLASS_CHANGES, build_student
from pocketbert.distill.training import machine
from pocketbert.distill.training.machine import training_dtype
from pocketbert.export.adapters.lean import find_layer_parts, find_layers
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.published import edit_json
from support.tiny import ENTRIES, EXPORTED, GRAPHS, NAMES, noisy_model, tiny_classifier, tiny_config
from support.tiny_tokenizers import vocabulary

HEADS = {task.head: task for task in reversed(TASKS.values())}
"""One task for each class of transformers."""
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
WORDS = len(vocabulary(0))
PADDED = (0, 3, 6)
"""Padded tokens of three rows."""


def model_of(name: str, head: str, **changes: Any) -> Any:
    labels = NAMES[:2] if HEADS[head].name is TaskName.QUESTION_ANSWERING else NAMES
    return noisy_model(name, 2, HEADS[head].auto_class, labels, **{"vocab_size": WORDS, **changes})


def is_offered(name: str, head: str) -> bool:
    """Whether an Auto class opens the family with a head: transformers' own classes, and those that the package makes known."""
    auto = getattr(transformers, HEADS[head].auto_class)
    return type(tiny_config(name, 1, ())) in auto._model_mapping


# Keys and facts.


def test_what_is_registered_is_what_the_rows_name() -> None:
    rows = all_families()
    assert set(CAPTURES.keys()) == {f.capture for f in rows}
    assert set(ADAPTERS.keys()) == {f.adapter for f in rows} | ({f.block_adapter for f in rows} - {None})
    assert set(LAYER_PARTS.keys()) == {f.layer_parts for f in rows} - {None}
    assert set(CHECKPOINTS.keys()) == {f.checkpoints for f in rows} - {None}
    assert build_student  # importing it registers the package's own changes of class
    changes = {(c.teacher, c.student) for c in CLASS_CHANGES.values()}
    assert changes == {(teacher, f.name) for f in rows for teacher in f.students_of}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_tiny_model_is_what_the_row_describes(name: str) -> None:
    row, model = find_family(name), tiny_classifier(name, 3, NAMES)
    assert type(model).__name__ == f"{row.classes}ForSequenceClassification"
    assert len(model.get_submodule(row.layer_path)) == getattr(model.config, row.stored_layers)
    assert set(row.inputs) <= set(inspect.signature(model.forward).parameters)
    assert row.uses_segments == ("token_type_ids" in row.inputs)
    positions = model.config.max_position_embeddings - row.position_offset
    with torch.no_grad():  # the longest input that the table of positions takes, and not one token more
        full = draw_inputs(name, positions if positions > 0 else row.longest)
        assert model(**full).logits.shape == (1, 3)
        if positions > 0 and ENTRIES[name].position_table:
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                model(**draw_inputs(name, positions + 1))
    for ours, theirs in row.config_names.items():
        assert (hasattr(model.config, theirs), hasattr(model.config, ours)) == (True, False)


# What no model of a family has.

GLOBAL, WINDOW = "full_attention", "attention_window"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("albert", {"num_hidden_groups": 2}, "says 2 layers, the weights have 1"),
    ("bert", {"type_vocab_size": 0}, "a whole number from"),
    ("deberta", {"type_vocab_size": -1}, "a whole number from"),
    ("deberta", {"max_relative_positions": 1 << 20}, "a whole number from"),
    ("ernie-thu", {"layer_kinds": ["sim", "fused"]}, "has fused; allowed: sim, mix, norm"),
    ("ernie-thu", {"layer_kinds": ["sim"] * 3}, "lists 3 layers, the model has 2"),
    ("ernie-thu", {"entity_size": 10}, "10 is no multiple of 4 entity heads"),
    ("longformer", {WINDOW: [8, 8, 8]}, "does not describe a model"),
    ("longformer", {WINDOW: 7}, "has to be an even value"),
    ("longformer", {WINDOW: [8, 1 << 20]}, "attention_window is 1048576; a whole number from 1 to 4,096"),
    ("longformer", {WINDOW: [8, True]}, "attention_window is True"),
    ("longformer", {WINDOW: "8"}, "attention_window is '8'"),
    ("longformer", {WINDOW: []}, r"attention_window is \[\]"),
    ("longformer", {WINDOW: [8] * 600}, "lists 600 values; at most 512"),
    ("modernbert", {"rope_parameters": {GLOBAL: {"rope_type": "dynamic", "factor": 2.0}}}, "has the rope_type dynamic"),
    ("modernbert", {"rope_parameters": [1]}, "an object with rope_type"),
    ("modernbert", {"rope_scaling": {"type": "yarn"}}, "has the rope_type yarn"),
    ("modernbert", {"global_rope_theta": 0}, "a number from 1 to"),
    ("modernbert", {"rope_parameters": {GLOBAL: {"factor": 0}}}, "factor of .* is 0; a number from 1 to"),
    ("modernbert", {"local_rope_theta": "many"}, "a number from 1 to"),
    ("modernbert", {"rope_parameters": {GLOBAL: {"beta_fast": 2}}}, "beta_fast, which nothing here computes"),
    ("modernbert", {"layer_types": [GLOBAL]}, "one for each layer"),
    ("modernbert", {"layer_types": [GLOBAL, "chunked"]}, "one for each layer"),
    ("modernbert", {"local_attention": 1 << 30}, "local_attention is"),
    ("mpnet", {"relative_attention_num_buckets": 16}, "_buckets is 16; a whole number from 32 to 1,024"),
    ("squeezebert", {"embedding_size": 16}, "does not describe a model: .*embedding_size"),
    ("squeezebert", {"k_groups": 5}, "does not describe a model: .*divisible by groups"),
    ("xlm", {"causal": True}, "causal is True; only False is computed"),
    ("xlm", {"asm": True}, "asm is True; only False is computed"),
    ("xlm", {"summary_proj_to_labels": False}, "summary_proj_to_labels is False; only True is computed"),
    ("xlnet", {"attn_type": "uni"}, "attn_type is 'uni'; only 'bi' is computed"),
    ("xlnet", {"bi_data": True}, "bi_data is True"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, ids=str)
def test_configurations_that_no_model_of_the_family_has_are_refused(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = tiny_classifier(name, 2, NAMES)
    model.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(InputError, match=message):
        load_model(open_model_folder(str(tmp_path)), CLASSIFY)
    if "only" in message or "bi_data" in changes:  # a model that is in memory is refused too
        model.config.update(changes)
        with pytest.raises(InputError, match=message):
            prepare(model, find_family(name), CLASSIFY)


# Learning.


def is_captured(name: str, shape: dict[str, Any]) -> bool:
    return ENTRIES[name].all_pairs and "inner_group_num" not in shape  # with which ALBERT neither teaches nor learns


SHAPES = [(name, shape) for name in GRAPHS for shape in ({}, *ENTRIES[name].shapes)]


@pytest.mark.parametrize(("name", "shape"), [case for case in SHAPES if is_captured(*case)], ids=str)
@torch.no_grad()
def test_captured_scores_are_those_that_softmax_gets(name: str, shape: dict[str, Any]) -> None:
    row, model, inputs = find_family(name), model_of(name, CLASSIFY.head, **shape), draw_inputs(name, 12, PADDED)
    stock = copy.deepcopy(model)
    stock.set_attn_implementation("eager")
    expected = stock(**inputs, output_attentions=True, output_hidden_states=True)
    with record_attention(model, row, range(2), range(2)) as recorder:
        found = model(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    for signal, layers in ((Signal.ATTENTION, recorder.scores), (Signal.RELATIONS, recorder.relations)):
        assert signal not in row.signals or sorted(layers) == [0, 1]
    assert len(expected.hidden_states) == 3
    real = inputs["attention_mask"].bool()
    for layer, returned in enumerate(expected.attentions):
        probabilities = returned if ENTRIES[name].probabilities else returned.softmax(-1)
        scores = recorder.scores[layer].softmax(-1).transpose(1, 2)[real]
        torch.testing.assert_close(scores, probabilities.transpose(1, 2)[real], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in GRAPHS if find_family(n).lm_head is not None])
@torch.no_grad()
def test_the_head_that_guesses_words_begins_where_the_row_says(name: str) -> None:
    model, inputs, chosen = model_of(name, "ForMaskedLM"), draw_inputs(name, 11, PADDED), torch.tensor([0, 4, 12])
    made = LmHead(model, name).run(model, inputs, chosen)
    torch.testing.assert_close(made.logits, model(**inputs).logits.flatten(0, 1)[chosen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in EXPORTED if ENTRIES[n].copied])
def test_a_student_takes_over_all_parts_of_the_chosen_layers(name: str) -> None:
    row, teacher = find_family(name), noisy_model(name, 3, CLASSIFY.auto_class)
    student = build_student(teacher, row, StudentSection(layers=2, teacher_layers=[1, 3]), 1)
    theirs, own = teacher.state_dict(), student.state_dict()
    for path in (row.layer_path, *row.layer_lists):
        second = [key for key in own if key.startswith(f"{path}.1.")]
        assert second
        assert all(torch.equal(own[k], theirs[k.replace(f"{path}.1.", f"{path}.2.", 1)]) for k in second)
    outside = [k for k in own if not k.startswith((row.layer_path, *row.layer_lists))]
    assert all(torch.equal(own[k], theirs[k]) for k in outside)
    if ENTRIES[name].resized:
        smaller = StudentSection(layers=1, init="random", hidden=16, heads=2, intermediate=20)
        assert build_student(teacher, row, smaller, 1).eval()(**draw_inputs(name, 11, PADDED[:2])).logits.shape == (
            2,
            3,
        )


@pytest.mark.parametrize("name", EXPORTED)
def test_the_row_says_whether_training_in_bf16_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast shows it on any machine."""
    model, trains = tiny_classifier(name, 2, NAMES).train(), find_family(name).trains_in_bf16
    monkeypatch.setattr(machine, "_bf16_is_fast", lambda: True)
    assert training_dtype(model) is (torch.bfloat16 if trains else torch.float32)
    with (
        nullcontext() if trains else pytest.raises(RuntimeError, match="BFloat16 without overflow"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        loss = model(**draw_inputs(name, 12, PADDED), labels=torch.tensor([0, 1, 2])).loss
        loss.backward()
        assert 0 < float(loss.detach()) < 100
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


# Export.

CASES = [(name, head, {}) for name in EXPORTED for head in HEADS if is_offered(name, head)]
CASES += [(name, CLASSIFY.head, shape) for name, shape in SHAPES if shape and name in EXPORTED]


EITHER_SIDE = ("deberta", "deberta-v2", "xlm")
"""Families with distances or masks of their own, whose texts may be padded on either side."""
ROUNDED = ("deberta", "deberta-v2", "xlm", "longformer", "modernbert")
"""Families with tables, masks or angles in fp32, whatever the model computes in."""


def expected_bound(name: str, shape: dict[str, Any]) -> tuple[bool, float]:
    """Whether a model computes in double precision, and how exact its graph then is."""
    if name == "xlnet" or "conv_kernel_size" in shape:
        return False, 2e-4
    return True, 3e-6 if name in ROUNDED else 1e-12


@pytest.mark.parametrize(("name", "head", "shape"), CASES, ids=str)
def test_the_prepared_module_gives_the_models_own_numbers(name: str, head: str, shape: dict[str, Any]) -> None:
    row, task, model = find_family(name), HEADS[head], model_of(name, head, **shape)
    double, bound = expected_bound(name, shape)
    model = model.double() if double else model
    outputs = [n for n in task.outputs if n != "sentence_embedding"]
    drawn = [(7, ""), (40, "")]
    if name in EITHER_SIDE and head in ("ForTokenClassification", "ForMaskedLM"):  # where no place is special
        drawn += [(3, "right"), (9, "left"), (48, "left"), (64, "right")]
    for format in Format:
        module = prepare(model, row, task, format)
        for length, side in drawn:
            found = difference(model, module, draw_inputs(name, length, (0, 1), side), outputs)
            assert found <= bound, (format, length, side)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_mask_that_is_forgotten_would_be_seen(name: str) -> None:
    model, inputs = tiny_classifier(name, 2, NAMES), draw_inputs(name, 11, PADDED)
    with torch.inference_mode():
        whole = model(**inputs).logits
        blind = model(**{**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}).logits
    assert float((whole - blind)[1:].abs().max()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "head"), [(n, h) for n in EXPORTED for h in HEADS if is_offered(n, h)])
def test_batch_and_length_are_free_in_the_graph_for_onnx(name: str, head: str) -> None:
    inputs = draw_inputs(name, 13, PADDED[:2])
    free = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("length", min=3, max=48)}
    module = prepare(model_of(name, head), find_family(name), HEADS[head])
    torch.export.export(module, tuple(inputs.values()), dynamic_shapes=tuple(free for _ in inputs), strict=False)


@pytest.mark.parametrize("name", EXPORTED)
def test_layer_parts_know_the_layers_of_the_family_and_who_has_none_has_no_layout_for_the_neural_engine(
    name: str,
) -> None:
    row, model = find_family(name), tiny_classifier(name, 2, NAMES)
    known = find_layer_parts(row)
    if known is not None:
        assert known.post_norm or known.lean
        assert find_layers(model.base_model, row, known)[1] is model.get_submodule(row.layer_path)
        assert all(is_offered(name, suffix) for suffix in known.first_token_heads)
    if known is not None and (known.post_norm or known.channels_first):
        assert prepare(model, row, CLASSIFY, Format.COREML, Layout.ANE)
        return
    with pytest.raises(InputError, match=f"'ane' has no rewrite for the encoder of '{row.model_types[0]}'"):
        prepare(model, row, CLASSIFY, Format.COREML, Layout.ANE)
