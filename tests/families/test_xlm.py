"""XLM: masks as arithmetic, languages as a constant or an input, layers spread over four lists."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import finish_loading, load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LayerOutputs
from pocketbert.distill.students.build import build_student
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.published import edit_json
from support.tiny import NAMES, noisy_model, tiny_classifier
from support.tiny_tokenizers import write_tokenizer

ROW = find_family("xlm")
SPEAKING = ROW.in_form("language", {"n_langs": 3})
CLASSIFY, GUESS = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FILL_MASK]
PADDED = (0, 2, 4, 6)
LANGUAGES = {"n_langs": 3, "lang_id": 1}


def languages_of(ids: torch.Tensor) -> torch.Tensor:
    """Another language for each token, none of them the default one everywhere."""
    return (torch.arange(ids.shape[1]) + torch.arange(len(ids))[:, None]) % 3


def test_padding_may_be_on_the_left_where_no_place_is_special() -> None:
    model = noisy_model("xlm", 2, GUESS.auto_class, NAMES)
    module = prepare(model, ROW, GUESS)
    for length in (3, 11, 48):
        assert difference(model, module, draw_inputs("xlm", length, (0, 1), "left")) < 2e-5, length


# Languages.


@pytest.mark.parametrize("task", [CLASSIFY, GUESS], ids=str)
def test_each_token_may_have_its_own_language(task: Any) -> None:
    model = noisy_model("xlm", 2, task.auto_class, NAMES, **LANGUAGES)
    module, inputs = prepare(model, SPEAKING, task), draw_inputs("xlm", 11, PADDED)
    inputs["langs"] = languages_of(inputs["input_ids"])
    assert difference(model, module, inputs) < 2e-5
    with torch.no_grad():
        other = {**inputs, "langs": torch.zeros_like(inputs["input_ids"])}
        moved = module(*other.values())[0] - module(*inputs.values())[0]
    assert float(moved.abs().max()) > 1e-2


def test_without_languages_as_an_input_all_tokens_have_the_default_one() -> None:
    model, inputs = noisy_model("xlm", 2, CLASSIFY.auto_class, NAMES, **LANGUAGES), draw_inputs("xlm", 11, PADDED)
    module, bare = prepare(model, ROW, CLASSIFY), copy.deepcopy(model)
    for _ in range(2):  # once is enough
        finish_loading(model, ROW)
    assert difference(model, module, inputs) < 2e-5
    with torch.no_grad():
        named = bare(**inputs, langs=torch.ones_like(inputs["input_ids"])).logits
        torch.testing.assert_close(model(**inputs).logits, named)
        assert float((bare(**inputs).logits - named).abs().max()) > 1e-2, "transformers would add no language"
        inputs["langs"] = languages_of(inputs["input_ids"])
        torch.testing.assert_close(model(**inputs).logits, bare(**inputs).logits)


def test_models_that_are_loaded_or_built_have_the_default_language(tmp_path: Path) -> None:
    tiny_classifier("xlm", 2, NAMES, vocab_size=90, **LANGUAGES).save_pretrained(tmp_path)
    teacher = load_model(open_model_folder(str(tmp_path)), CLASSIFY)
    student = build_student(teacher, ROW, StudentSection(layers=2), seed=1).eval()
    inputs = draw_inputs("xlm", 9, (0, 2, 4))
    with torch.no_grad():
        named = teacher(**inputs, langs=torch.ones_like(inputs["input_ids"])).logits
        torch.testing.assert_close(teacher(**inputs).logits, named)
        torch.testing.assert_close(student(**inputs).logits, named)
    edit_json(tmp_path / "config.json", lang_id=3)
    with pytest.raises(InputError, match="lang_id is 3, the model has the languages 0 to 2"):
        load_model(open_model_folder(str(tmp_path)), CLASSIFY)


# Configurations.


@pytest.mark.parametrize(("key", "value"), [("causal", True), ("asm", True), ("summary_proj_to_labels", False)])
def test_another_model_is_refused(key: str, value: bool, tmp_path: Path) -> None:
    model = tiny_classifier("xlm", 1, NAMES)
    model.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **{key: value})
    with pytest.raises(InputError, match=f"{key} is {value}; only {not value} is computed"):
        open_model_folder(str(tmp_path))
    setattr(model.config, key, value)
    with pytest.raises(InputError, match=f"{key} is {value}"):
        prepare(model, ROW, CLASSIFY)


def test_an_old_configuration_names_its_padding_otherwise(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm", "pad_index": 2}))
    assert TextTokenizer(tmp_path, 16).pad_id == 2


# Learning.


@torch.no_grad()
def test_captured_values_are_the_projected_states_and_probabilities_are_not_returned_any_more() -> None:
    model, inputs = noisy_model("xlm", 2, CLASSIFY.auto_class), draw_inputs("xlm", 9, (0, 2, 4))
    with record_attention(model, ROW, range(2), range(2)) as recorder:
        model(**inputs)
    value = recorder.relations[1].value.transpose(1, 2).flatten(2)
    states = model(**inputs, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(value, model.transformer.attentions[1].v_lin(states), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="returns no probabilities"):
        model(**inputs, output_attentions=True)


@torch.no_grad()
def test_the_states_of_layers_are_the_hidden_states() -> None:
    model, inputs = tiny_classifier("xlm", 3, NAMES, vocab_size=90), draw_inputs("xlm", 9, (0, 2, 4))
    with LayerOutputs(model, ROW.layer_path, [0, 2]) as outputs:
        hidden = model(**inputs, output_hidden_states=True).hidden_states
    real = inputs["attention_mask"].bool()
    for layer in (0, 2):
        torch.testing.assert_close(outputs.states[layer][real], hidden[layer + 1][real])


def test_a_student_has_the_width_of_its_feed_forward_part_from_the_hidden_size() -> None:
    with pytest.raises(InputError, match=r"student.intermediate.*no such size"):
        build_student(
            tiny_classifier("xlm", 2, NAMES), ROW, StudentSection(layers=2, init="random", intermediate=64), seed=1
        )
