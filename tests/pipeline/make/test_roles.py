"""Schemes by role: the weights that a recipe leaves stay as they were, every other one has the scheme, and gates tell."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.families import find_family
from pocketbert.core.families.weight_records import WeightRole, classify_weight, matrix_digest
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.export import onnx as exporter
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.pipeline.formats.weight_roles import (
    check_weight_choices,
    list_weights,
    resolve_schemes,
    simulation_of_file,
)
from pocketbert.quantize import Plan, find_row, quantize, read_weight_types, weights
from pocketbert.quantize.files import find_weight_problems
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import explain_refused_role, list_rows
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import EXPORTED, tiny_classifier
from support.tiny_tokenizers import write_tokenizer

LABELS = ("negative", "neutral", "positive")
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
DOWN = QuantizeSection.model_validate({"roles": {"ffn_down": None, "embedding": None}})
LAYERS = 2
INT8 = find_row(Format.ONNX, Scheme.INT8)


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """An exported model, its weights, its tokenizer and itself."""
    folder, family = tmp_path_factory.mktemp("roles"), find_family("bert")
    write_tokenizer(folder, 0)
    tokenizer = TextTokenizer(folder, 40)
    module = prepare(tiny_classifier("bert", LAYERS, LABELS, seed=1), family, TASK, Format.ONNX)
    exporter.export(module, family, TASK, tokenizer.pad(tokenizer.encode(list(SENTENCES[:2]))), folder / "model.onnx")
    return folder, list_weights(module), tokenizer, PreparedPredictor(module, family, TASK)


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.A8W8])
def test_weights_that_are_left_are_those_of_the_model_and_the_simulation_agrees(made, tmp_path: Path, scheme) -> None:
    folder, found, tokenizer, exact = made
    chosen = resolve_schemes(DOWN, found, find_row(Format.ONNX, scheme).scheme_of)
    encoded = tokenizer.encode(list(SENTENCES))
    rows = [tokenizer.pad([row]) for row in encoded]
    plan = Plan(Format.ONNX, scheme, rows=(lambda: rows) if scheme.static else None, weights=chosen)
    types = quantize(folder / "model.onnx", tmp_path / "out.onnx", plan)
    floats = [u for u in types.uses if u.dtype == "float32" and u.numbers >= 512]
    assert len(floats) == LAYERS + 2
    simulation = find_row(Format.ONNX, scheme).simulation
    assert simulation is not None
    left = replace(simulation, left=frozenset(w.name for w in chosen if w.scheme is None))
    answers = partial(run_rows, tokenizer=tokenizer, encoded=encoded, task=TASK)
    expected, file = join_texts(answers(exact)), join_texts(answers(OnnxPredictor(tmp_path / "out.onnx")))
    same = join_texts(answers(SimulatedPredictor(exact, left, rows)))
    assert rms_error(file, same) < 0.3 * rms_error(same, expected)
    whole_scheme = join_texts(answers(SimulatedPredictor(exact, simulation, rows)))
    assert rms_error(file, same) < 0.3 * rms_error(file, whole_scheme)


def test_the_gate_knows_a_file_that_was_quantized_whole_and_one_with_too_much_left(made, tmp_path: Path) -> None:
    folder, found, _, _ = made
    row = find_row(Format.ONNX, Scheme.INT8)
    quantize(folder / "model.onnx", tmp_path / "whole.onnx", Plan(Format.ONNX, Scheme.INT8))
    chosen = resolve_schemes(DOWN, found, INT8.scheme_of)
    types = read_weight_types(tmp_path / "whole.onnx", Format.ONNX)
    (lost,) = find_weight_problems(tmp_path / "whole.onnx", row, types, "whole", chosen)
    assert "to be left as exported, and not so in the file" in lost
    quantize(folder / "model.onnx", tmp_path / "left.onnx", Plan(Format.ONNX, Scheme.INT8, weights=chosen))
    types = read_weight_types(tmp_path / "left.onnx", Format.ONNX)
    less = resolve_schemes(QuantizeSection.model_validate({"roles": {"ffn_down": None}}), found, INT8.scheme_of)
    problems = find_weight_problems(tmp_path / "left.onnx", row, types, "left", less)
    assert any("still float" in p and "word_embeddings" in p for p in problems)


@pytest.mark.parametrize(
    ("scheme", "roles", "kinds"),
    [
        (Scheme.INT8, {"embedding": "w4", "ffn_up": None}, {"int8", "int4", "float32"}),
        (Scheme.INT8_B32, {"ffn_down": "w4", "ffn_up": None}, {"int8", "int4", "float32"}),
        (Scheme.W4, {"attention_projection": "int8-b32"}, {"int8", "int4"}),
    ],
)
def test_a_role_has_a_second_scheme_and_the_gate_knows_a_file_without_it(
    made, tmp_path: Path, scheme: Scheme, roles: dict[str, str], kinds: set[str]
) -> None:
    folder, found, tokenizer, exact = made
    row = find_row(Format.ONNX, scheme)
    chosen = resolve_schemes(QuantizeSection.model_validate({"roles": roles}), found, row.scheme_of)
    types = quantize(folder / "model.onnx", tmp_path / "mixed.onnx", Plan(Format.ONNX, scheme, weights=chosen))
    assert {u.dtype for u in types.uses if u.numbers >= 512} == kinds
    encoded = tokenizer.encode(list(SENTENCES))
    answers = partial(run_rows, tokenizer=tokenizer, encoded=encoded, task=TASK)
    how = simulation_of_file(row, chosen, Scheme.FP32)
    same = join_texts(answers(SimulatedPredictor(exact, how)))
    expected, given = join_texts(answers(exact)), join_texts(answers(OnnxPredictor(tmp_path / "mixed.onnx")))
    assert rms_error(given, same) < 0.4 * rms_error(same, expected)
    ignored = [w if w.scheme is None else w.model_copy(update={"scheme": scheme}) for w in chosen]
    alike = quantize(folder / "model.onnx", tmp_path / "alike.onnx", Plan(Format.ONNX, scheme, weights=ignored))
    problems = find_weight_problems(tmp_path / "alike.onnx", row, alike, "alike", chosen)
    assert any("and the file has too few such weights" in p for p in problems), problems
    assert find_weight_problems(tmp_path / "mixed.onnx", row, types, "mixed", ignored), "and the other way round"


def test_a_scheme_has_its_own_choice_of_roles_where_the_recipe_has_none(made) -> None:
    _, found, _, _ = made
    row = find_row(Format.TFLITE, Scheme.A8W8)
    plain, asked = (
        {w.role: w.scheme for w in resolve_schemes(QuantizeSection.model_validate({"roles": r}), found, row.scheme_of)}
        for r in ({}, {"ffn_down": "a8w8", "ffn_up": None})
    )
    assert plain[Role.FFN_DOWN] is Scheme.INT8
    assert asked[Role.FFN_DOWN] is plain[Role.FFN_UP] is Scheme.A8W8
    assert asked[Role.FFN_UP] is None


def test_what_is_usual_for_a_role_is_a_second_scheme_that_the_file_can_have() -> None:
    for row in list_rows():
        for role, scheme in row.usual.items():
            assert explain_refused_role(row, role, scheme) is None, f"{row.title}: {role}"
    assert any(row.usual for row in list_rows())


def test_weights_that_are_left_must_have_the_models_numbers(made, tmp_path: Path) -> None:
    folder, found, _, _ = made
    chosen = resolve_schemes(DOWN, found, INT8.scheme_of)
    other = [w.model_copy(update={"digest": "0" * 64}) if w.role is Role.FFN_DOWN else w for w in chosen]
    with pytest.raises(GateError, match="layer.0.down"):
        quantize(folder / "model.onnx", tmp_path / "out.onnx", Plan(Format.ONNX, Scheme.INT8, weights=other))


def test_a_name_counts_before_a_role_and_a_later_name_before_an_earlier(made) -> None:
    _, found, _, _ = made
    section = QuantizeSection.model_validate(
        {
            "roles": {"ffn_up": None},
            "names": {"encoder.layer.1.*": None, "layer.1.up": "int8", "classifier": "none"},
        }
    )
    schemes = {w.name: w.scheme for w in resolve_schemes(section, found, INT8.scheme_of)}
    assert schemes["model.bert.encoder.layer.0.up.weight"] is None
    assert schemes["model.bert.encoder.layer.0.down.weight"] is Scheme.INT8
    assert schemes["model.bert.encoder.layer.1.down.weight"] is None
    assert schemes["model.bert.encoder.layer.1.up.weight"] is Scheme.INT8
    assert schemes["model.classifier.weight"] is None
    assert section.model_dump(mode="json")["names"]["encoder.layer.1.*"] == "none"


def test_a_file_has_its_own_choices_before_those_of_all_files() -> None:
    section = QuantizeSection.model_validate(
        {
            "roles": {"ffn_down": None, "head": None},
            "files": [
                "int8",
                {"scheme": "int8", "runtime": "tflite216", "roles": {"ffn_down": "int8", "embedding": None}},
            ],
        }
    )
    assert section.of(Format.ONNX, Scheme.INT8).chosen == {"ffn_down": "none", "head": "none"}
    assert section.of(Format.COREML, Scheme.W8).chosen == {"ffn_down": "none", "head": "none"}, "int8 means w8 there"
    old = section.of(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16).chosen
    assert old == {"ffn_down": "int8", "head": "none", "embedding": "none"}
    again = QuantizeSection.model_validate(section.model_dump(mode="json"))
    assert again.of(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16).chosen == old
    twice = ["int8", {"scheme": "int8", "format": "onnx", "roles": {"ffn_down": None}}]
    with pytest.raises(ValueError, match="chooses roles of 'int8' of onnx twice"):
        QuantizeSection.model_validate({"files": twice})


def test_names_without_a_weight_and_a_choice_of_everything_are_refused_together(made) -> None:
    _, found, _, _ = made
    absent = {"names": {"layr.1": None, "*": None}}
    with pytest.raises(InputError) as error:
        check_weight_choices(QuantizeSection.model_validate(absent), found)
    assert "'layr.1' is no module" in str(error.value) and "leaves every weight" in str(error.value)
    with pytest.raises(InputError, match="has no pooler"):
        poolerless = [w for w in found if w.role is not Role.POOLER]
        check_weight_choices(QuantizeSection.model_validate({"roles": {"pooler": None}}), poolerless)
    check_weight_choices(QuantizeSection(), found)


def test_every_row_answers_for_every_role_and_tells_why_not() -> None:
    for row in (r for r in list_rows() if r.write is not None):
        for role in Role:
            reason = explain_refused_role(row, role, None)
            assert reason is None or row.title in reason
            assert (reason is None) is (row.selective or role not in row.computes)
            assert all(
                explain_refused_role(row, role, s) is None for s, second in row.seconds.items() if role in second.roles
            )
    int8 = find_row(Format.ONNX, Scheme.INT8)
    assert explain_refused_role(int8, Role.NORM, None) is None
    assert "stays float" in str(explain_refused_role(int8, Role.NORM, Scheme.INT8))
    assert explain_refused_role(int8, Role.EMBEDDING, Scheme.W4) is None
    assert "has w4 for embedding only" in str(explain_refused_role(int8, Role.FFN_UP, Scheme.W4))
    assert "has w4 as a second scheme, not lut4" in str(explain_refused_role(int8, Role.EMBEDDING, Scheme.LUT4))
    static = find_row(Format.ONNX, Scheme.A8W8)
    assert "no second scheme, only weights that are left float" in str(
        explain_refused_role(static, Role.FFN_UP, Scheme.W4)
    )


@pytest.mark.parametrize("family", EXPORTED)
def test_every_role_of_a_family_is_found(family: str) -> None:
    format = Format.ONNX
    module = prepare(tiny_classifier(family, 1, LABELS), find_family(family), TASK, format)
    roles = {
        n: classify_weight(n) for n, p in module.named_parameters() if matrix_digest(p.detach().numpy()) is not None
    }
    expected = {Role.EMBEDDING, Role.ATTENTION_PROJECTION, Role.FFN_UP, Role.FFN_DOWN}
    assert expected <= set(roles.values())
    head = [n for n, r in roles.items() if r is Role.HEAD]
    assert not any(".0." in n for n in head), head
    assert all(role in (Role.HEAD, Role.POOLER) for n, role in roles.items() if n.endswith("classifier.weight"))


def test_a_digest_is_that_of_the_transpose() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert matrix_digest(values) == matrix_digest(values.T) == matrix_digest(values[None])
    assert matrix_digest(values) != matrix_digest(values + 1)
    assert matrix_digest(np.ones(3, np.float32)) is None
    assert WeightRole(name="a.b.c.weight", role=Role.HEAD, digest="0" * 64).matches("b.c")
