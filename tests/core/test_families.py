from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import transformers

from pocketbert.core import families
from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, all_families, check_exported, family_of, register_family
from pocketbert.core.types import Signal

NAMES = [f.name for f in all_families()]


@pytest.fixture(params=all_families(), ids=NAMES)
def family(request: pytest.FixtureRequest) -> Family:
    assert isinstance(request.param, Family)
    return request.param


def test_the_first_rows() -> None:
    assert {"bert", "roberta", "distilbert", "mobilebert", "ib-bert"} <= set(NAMES)


def test_class_names_exist(family: Family) -> None:
    classes = transformers if family.module is None else importlib.import_module(family.module)
    assert hasattr(classes, f"{family.classes}ForSequenceClassification")
    assert hasattr(classes, f"{family.classes}Model")


def test_a_family_that_no_exporter_writes_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(InputError, match=r"teacher.model: no exporter writes IB-BERT.*Distil a MobileBERT"):
        check_exported(family_of("ib_bert"), "teacher.model")
    for name in ("bert", "roberta", "distilbert", "mobilebert"):
        check_exported(family_of(name))


def test_the_layer_path_leads_to_the_layers(family: Family, make_classifier: Callable[..., Any]) -> None:
    model = make_classifier(family.name, 3, ("a", "b"))
    assert len(model.get_submodule(family.layer_path)) == 3


def test_inputs_are_what_the_model_takes(family: Family, make_classifier: Callable[..., Any]) -> None:
    import inspect

    taken = inspect.signature(make_classifier(family.name, 1, ("a", "b")).forward).parameters
    assert set(family.inputs) <= set(taken)
    assert family.uses_segments == ("token_type_ids" in family.inputs)


def test_every_signal_is_valid_or_has_a_reason(family: Family) -> None:
    for signal in Signal:
        assert (signal in family.signals) != bool(family.invalid_signals.get(signal))


def test_the_position_offset_is_the_rows_no_token_uses(family: Family, make_classifier: Callable[..., Any]) -> None:
    model = make_classifier(family.name, 1, ("a", "b"))
    pad = model.config.pad_token_id
    assert family.position_offset == (pad + 1 if family.name == "roberta" else 0)


def test_a_family_is_found_by_model_type() -> None:
    assert family_of("roberta").title == "RoBERTa"


def test_an_unknown_model_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"x/config.json: model_type 'distil-bert'.*did you mean 'distilbert'"):
        family_of("distil-bert", "x/config.json")


def test_users_add_and_replace_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    mine = replace(family_of("bert"), name="mine", model_types=("my-bert",))
    register_family(mine)
    assert family_of("my-bert") is mine
    register_family(replace(mine, padding_side="left"))
    assert family_of("my-bert").padding_side == "left"
    assert [f.name for f in all_families()].count("mine") == 1
