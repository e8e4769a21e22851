"""Systems that load as BERT, and checkpoints of BERT's kin in the layouts in which their authors publish them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, all_families, find_family
from pocketbert.core.families.table import choose_row
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import FAMILY_KEY, open_model_folder
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny import NAMES, tiny_classifier
from support.tiny_tokenizers import write_tokenizer

CLASSIFY, FILL, EMBED = (
    TASKS[t] for t in (TaskName.TEXT_CLASSIFICATION, TaskName.FILL_MASK, TaskName.FEATURE_EXTRACTION)
)
KIN = [f.name for f in all_families() if f.loads_as is not None]
OWN = {"name", "title", "loads_as", "signs", "signals", "invalid_signals", "objectives", "limits"}
State = dict[str, torch.Tensor]


def old_names(state: State) -> State:
    """Names of the norms as in TensorFlow."""
    return {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
        for k, v in state.items()
    }


def bare_old_names(state: State) -> State:
    return {k.removeprefix("bert."): v for k, v in old_names(state).items()}


def with_fit_denses(state: State) -> State:
    more = {f"fit_denses.{i}.{n}": torch.ones(s) for i in range(3) for n, s in (("weight", (48, 32)), ("bias", (48,)))}
    return {**state, **more}


def write_published(
    folder: Path,
    suffix: str,
    change: Callable[[State], State] = dict,
    head: str = "SequenceClassification",
    family: str = "bert",
) -> Path:
    """A tiny checkpoint with changed names of weights."""
    tiny_classifier(family, 2, NAMES, auto_class=f"AutoModelFor{head}").save_pretrained(folder)
    write_tokenizer(folder)
    file = folder / "model.safetensors"
    state = {k: v.contiguous() for k, v in change(load_file(file)).items()}
    if suffix == "bin":
        torch.save(state, folder / "pytorch_model.bin")
        file.unlink()
    else:
        save_file(state, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("name", KIN)
def test_a_system_that_loads_as_another_has_its_graph(name: str) -> None:
    row = find_family(name)
    base = find_family(row.graph)
    assert {f.name for f in fields(Family) if getattr(row, f.name) != getattr(base, f.name)} <= OWN
    assert base.loads_as is None
    assert choose_row(base, name, "--family") is row


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
@pytest.mark.parametrize(
    ("layout", "row"),
    [(dict, "bert"), (old_names, "bert"), (with_fit_denses, "tinybert"), (bare_old_names, "structbert")],
)
@torch.no_grad()
def test_names_of_weights_suggest_the_row_and_the_numbers_are_the_models(
    layout: Callable[[State], State], row: str, suffix: str, tmp_path: Path
) -> None:
    folder = open_model_folder(str(write_published(tmp_path / "m", suffix, layout)))
    assert folder.family.name == row
    assert bool(folder.row_reason) == (row != "bert")
    ids = torch.arange(5, 17)[None]
    expected = tiny_classifier("bert", 2, NAMES)(ids, token_type_ids=ids % 2).logits
    torch.testing.assert_close(load_model(folder, CLASSIFY)(ids, token_type_ids=ids % 2).logits, expected)


def test_a_choice_decides_and_is_kept_with_the_saved_model(tmp_path: Path) -> None:
    made = write_published(tmp_path / "m", "safetensors", with_fit_denses)
    assert open_model_folder(str(made), family="bert").family.name == "bert"
    folder = open_model_folder(str(made), family="macbert")
    assert (folder.family.title, folder.row_reason) == ("MacBERT", "it was chosen")
    (tmp_path / "saved").mkdir()
    save_model(load_model(folder, CLASSIFY), folder, Labels(NAMES), 32, tmp_path / "saved")
    again = open_model_folder(str(tmp_path / "saved"))
    assert (again.family.name, again.config[FAMILY_KEY]) == ("macbert", "macbert")
    with pytest.raises(InputError, match=r"teacher.family: 'roberta' is RoBERTa.*another graph.*one of bert, spanbert"):
        open_model_folder(str(made), where="teacher.model", family="roberta")
    with pytest.raises(InputError, match="'macbrt' is not in the family table; did you mean 'macbert'"):
        open_model_folder(str(made), family="macbrt")


def test_an_archive_without_pooler_and_heads_teaches_its_states_and_no_words(tmp_path: Path) -> None:
    def bare(state: State) -> State:
        return {k: v for k, v in state.items() if k.startswith("bert.") and "pooler" not in k}

    folder = open_model_folder(str(write_published(tmp_path / "m", "bin", bare, "PreTraining")))
    assert load_model(folder, EMBED).config.hidden_size == 32
    assert load_model(folder, CLASSIFY, Labels(NAMES), new_head=True).config.num_labels == 3
    with pytest.raises(InputError, match=r"no trained head for fill-mask \(cls.predictions.*missing\)"):
        load_model(folder, FILL)


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_a_discriminator_has_no_guesses_of_words_and_that_is_said(suffix: str, tmp_path: Path) -> None:
    folder = open_model_folder(str(write_published(tmp_path / "m", suffix, dict, "PreTraining", "electra")))
    with pytest.raises(InputError, match=r"no head for fill-mask that can be used: the checkpoint is a discriminator"):
        load_model(folder, FILL)
    ours = load_model(folder, CLASSIFY, Labels(NAMES), new_head=True).electra.state_dict()
    theirs = tiny_classifier("electra", 2, NAMES, auto_class="AutoModelForPreTraining").electra.state_dict()
    assert all(torch.equal(ours[k], v) for k, v in theirs.items())
