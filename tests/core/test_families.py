"""The family table, what is registered beside it, and ranges that are kept with weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
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
from pocketbert.core.families.weight_records import (
    LearnedRanges,
    ProductRanges,
    product_fingerprint,
    read_learned_ranges,
    write_learned_ranges,
)
from pocketbert.core.plugins import Registry, register_before_lookup
from pocketbert.core.types import Format, Runtime, Scheme, Signal
from support.tiny import FAMILIES


def test_a_family_is_found_by_its_name_and_model_type_and_refused_where_no_exporter_writes_it() -> None:
    with pytest.raises(InputError, match=r"teacher.model: no exporter writes IB-BERT.*Distil a MobileBERT"):
        check_exportable(family_of("ib_bert"), "teacher.model")
    for name in ("bert", "roberta", "distilbert", "mobilebert"):
        check_exportable(family_of(name))
    assert family_of("roberta").title == "RoBERTa"
    assert find_family("ib-bert").title == "IB-BERT"
    with pytest.raises(InputError, match=r"--family: 'robert' is not in the family table; did you mean 'roberta'"):
        find_family("robert", "--family")


@pytest.mark.parametrize("family", all_families(), ids=FAMILIES)
def test_every_signal_is_valid_or_has_a_reason(family: Family) -> None:
    for signal in Signal:
        assert (signal in family.signals) != bool(family.invalid_signals.get(signal))


@pytest.mark.parametrize("kind", ["distil-bert", "roformer", "convbert", "squeeze_bert", "xlm-roberta-xl"])
def test_another_kind_of_model_is_refused_without_a_guess_what_was_meant(kind: str) -> None:
    with pytest.raises(InputError) as caught:
        family_of(kind, "x/config.json")
    listed = len({t for f in all_families() if f.loads_as is None for t in f.model_types})
    assert str(caught.value) == (
        f"x/config.json: model_type '{kind}' is not in the family table (`pocketbert families` lists its {listed}). "
        "Fix: Use a checkpoint of a listed system, or add this one by a package of your own: docs/extending.md."
    )


def test_users_add_and_replace_rows_and_an_unknown_key_names_the_function_that_registers_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
    mine = replace(family_of("bert"), name="mine", model_types=("my-bert",))
    register_family(mine)
    assert family_of("my-bert") is mine
    register_family(replace(mine, padding_side="left"))
    assert family_of("my-bert").padding_side == "left"
    assert [f.name for f in all_families()].count("mine") == 1
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


WEIGHT = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LEARNED = LearnedRanges(
    scheme=Scheme.A8W8,
    format=Format.ONNX,
    products={product_fingerprint(WEIGHT): ProductRanges(inputs=(-1.0, 2.0))},
)


def test_ranges_are_found_by_a_weight_in_whatever_orientation_and_precision() -> None:
    for other in (WEIGHT.T, WEIGHT.astype(np.float16), WEIGHT[:, :, None, None], np.asfortranarray(WEIGHT)):
        assert LEARNED.of(other).inputs == (-1.0, 2.0)
    changed = WEIGHT.copy()
    changed[0, 0] += 0.01
    assert LEARNED.of(changed).inputs is None
    assert LEARNED.of(WEIGHT[::-1]).inputs is None


def test_a_folder_keeps_the_ranges_of_its_scheme_and_runtime(tmp_path: Path) -> None:
    assert read_learned_ranges(tmp_path, Scheme.A8W8) is None
    write_learned_ranges(tmp_path, LEARNED)
    assert read_learned_ranges(tmp_path, Scheme.A8W8) == LEARNED
    assert read_learned_ranges(tmp_path, Scheme.W4) is None
    assert read_learned_ranges(tmp_path, Scheme.A8W8, Runtime.NPU) is None
