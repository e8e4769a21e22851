from __future__ import annotations

from dataclasses import replace

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.families import (
    ADAPTERS,
    Family,
    all_families,
    check_exportable,
    family_of,
    find_family,
    register_family,
    table,
)
from pocketbert.core.plugins import Registry, register_before_lookup
from pocketbert.core.types import Signal
from support.tiny import FAMILIES


@pytest.fixture(params=all_families(), ids=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    assert isinstance(request.param, Family)
    return request.param


def test_the_first_rows() -> None:
    assert {"bert", "roberta", "distilbert", "mobilebert", "ib-bert"} <= set(FAMILIES)


def test_a_family_that_no_exporter_writes_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(InputError, match=r"teacher.model: no exporter writes IB-BERT.*Distil a MobileBERT"):
        check_exportable(family_of("ib_bert"), "teacher.model")
    for name in ("bert", "roberta", "distilbert", "mobilebert"):
        check_exportable(family_of(name))


def test_every_signal_is_valid_or_has_a_reason(family: Family) -> None:
    for signal in Signal:
        assert (signal in family.signals) != bool(family.invalid_signals.get(signal))


def test_a_family_is_found_by_model_type() -> None:
    assert family_of("roberta").title == "RoBERTa"


def test_an_unknown_model_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"x/config.json: model_type 'distil-bert'.*did you mean 'distilbert'"):
        family_of("distil-bert", "x/config.json")


def test_users_add_and_replace_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
    mine = replace(family_of("bert"), name="mine", model_types=("my-bert",))
    register_family(mine)
    assert family_of("my-bert") is mine
    register_family(replace(mine, padding_side="left"))
    assert family_of("my-bert").padding_side == "left"
    assert [f.name for f in all_families()].count("mine") == 1


def test_a_family_is_found_by_its_name() -> None:
    assert find_family("ib-bert").title == "IB-BERT"
    with pytest.raises(InputError, match=r"--family: 'robert' is not in the family table; did you mean 'roberta'"):
        find_family("robert", "--family")


def test_a_key_that_nothing_is_registered_under_is_named_with_the_function_that_registers_one() -> None:
    with pytest.raises(InputError, match=r"family x: no adapter is registered as 'mask-5d'.*register_adapter"):
        ADAPTERS.find("mask-5d", "family x")


def test_registered_code_is_found_and_replaced_but_the_packages_own_never_replaces_it() -> None:
    registry: Registry[int] = Registry("dummy", "register_dummy")
    loaded: list[int] = []
    register_before_lookup("dummy", lambda: loaded.append(1))
    registry.register("a", 1)
    assert not loaded
    registry.register("a", 2)
    registry.add("a", 3)
    assert (registry.find("a", ""), registry.keys(), registry.values(), loaded) == (2, ("a",), (2,), [1])
