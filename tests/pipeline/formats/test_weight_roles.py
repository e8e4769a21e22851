"""Schemes by role: the weights that a recipe leaves stay as they were, every other one has the scheme, and gates tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.families import find_family
from pocketbert.core.families.weight_records import WeightRole, classify_weight, matrix_digest
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.pipeline.formats.weight_roles import (
    check_weight_choices,
    list_weights,
    resolve_schemes,
    simulation_of_file,
)
from pocketbert.quantize import Plan, find_row, quantize, weights
from pocketbert.quantize.files import find_weight_problems
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import SchemeRow, explain_refused_role, list_rows
from pocketbert.quantize.weights import WeightTypes
from pocketbert.runtime.onnx import OnnxPredictor
from support.quantized import CLASSIFY, answer_sentences, export_file
from support.tiny import EXPORTED, tiny_classifier
from support.tiny_tokenizers import write_tokenizer

LABELS = ("negative", "neutral", "positive")
LAYERS = 2
INT8 = find_row(Format.ONNX, Scheme.INT8)
FLOAT_DOWN = {"ffn_down": None, "embedding": None}


def choose(found: list[WeightRole], row: SchemeRow = INT8, **section: Any) -> list[WeightRole]:
    return resolve_schemes(QuantizeSection.model_validate(section), found, row.scheme_of)


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


@dataclass(frozen=True)
class Made:
    """An exported model, its weights, its tokenizer and itself."""

    path: Path
    weights: list[WeightRole]
    tokenizer: TextTokenizer
    exact: PreparedPredictor

    def write(self, folder: Path, row: SchemeRow, chosen: Sequence[WeightRole] = ()) -> tuple[Path, WeightTypes]:
        """Quantize the model, with the scheme that was chosen for each weight."""
        path, rows = (
            folder / f"{row.scheme}.onnx",
            [self.tokenizer.pad([e]) for e in self.tokenizer.encode([*SENTENCES])],
        )
        plan = Plan(Format.ONNX, row.scheme, rows=(lambda: rows) if row.calibrated else None, weights=chosen)
        return path, quantize(self.path, path, plan)

    def compare(self, path: Path, row: SchemeRow, chosen: list[WeightRole]) -> tuple[float, float]:
        """RMS errors: of the file against its simulation, and of the simulation against the model."""
        rows = [self.tokenizer.pad([e]) for e in self.tokenizer.encode([*SENTENCES])]
        simulated = SimulatedPredictor(self.exact, simulation_of_file(row, chosen, Scheme.FP32), rows)
        predictors = OnnxPredictor(path), simulated, self.exact
        found, wanted, right = (answer_sentences(p, self.tokenizer) for p in predictors)
        return rms_error(found, wanted), rms_error(wanted, right)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, family = tmp_path_factory.mktemp("roles"), find_family("bert")
    write_tokenizer(folder, 0)
    module = prepare(tiny_classifier("bert", LAYERS, LABELS, seed=1), family, CLASSIFY, Format.ONNX)
    path = export_file(module, family, folder / "model.onnx")
    return Made(path, list_weights(module), TextTokenizer(folder, 40), PreparedPredictor(module, family, CLASSIFY))


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.A8W8])
def test_weights_that_are_left_are_those_of_the_model_and_the_simulation_agrees(
    made: Made, tmp_path: Path, scheme: Scheme
) -> None:
    row = find_row(Format.ONNX, scheme)
    chosen = choose(made.weights, row, roles=FLOAT_DOWN)
    path, types = made.write(tmp_path, row, chosen)
    floats = [u for u in types.uses if u.dtype == "float32" and u.numbers >= 512]
    assert len(floats) == LAYERS + 2
    apart, error = made.compare(path, row, chosen)
    assert apart < 0.3 * error
    assert apart < 0.3 * made.compare(path, row, choose(made.weights, row))[0], "not as if nothing had been left"


@pytest.mark.parametrize(
    ("scheme", "roles", "kinds"),
    [
        (Scheme.INT8, {"embedding": "w4", "ffn_up": None}, {"int8", "int4", "float32"}),
        (Scheme.INT8_B32, {"ffn_down": "w4", "ffn_up": None}, {"int8", "int4", "float32"}),
        (Scheme.W4, {"attention_projection": "int8-b32"}, {"int8", "int4"}),
    ],
)
def test_a_role_has_a_second_scheme_and_the_gate_knows_a_file_without_it(
    made: Made, tmp_path: Path, scheme: Scheme, roles: dict[str, str], kinds: set[str]
) -> None:
    row = find_row(Format.ONNX, scheme)
    chosen = choose(made.weights, row, roles=roles)
    path, types = made.write(tmp_path, row, chosen)
    assert {u.dtype for u in types.uses if u.numbers >= 512} == kinds
    apart, error = made.compare(path, row, chosen)
    assert apart < 0.4 * error
    ignored = [w if w.scheme is None else w.model_copy(update={"scheme": scheme}) for w in chosen]
    assert find_weight_problems(path, row, types, "mixed", ignored)
    other, alike = made.write(tmp_path, row, ignored)
    problems = find_weight_problems(other, row, alike, "alike", chosen)
    assert any("and the file has too few such weights" in p for p in problems), problems


def test_the_gate_knows_a_file_that_was_quantized_whole_and_one_with_too_much_left(made: Made, tmp_path: Path) -> None:
    chosen = choose(made.weights, roles=FLOAT_DOWN)
    path, types = made.write(tmp_path, INT8)
    (lost,) = find_weight_problems(path, INT8, types, "whole", chosen)
    assert "to be left as exported, and not so in the file" in lost
    less = choose(made.weights, roles={"ffn_down": None})
    path, types = made.write(tmp_path, INT8, chosen)
    problems = find_weight_problems(path, INT8, types, "left", less)
    assert any("still float" in p and "word_embeddings" in p for p in problems)


def test_weights_that_are_left_must_have_the_models_numbers(made: Made, tmp_path: Path) -> None:
    chosen = choose(made.weights, roles=FLOAT_DOWN)
    other = [w.model_copy(update={"digest": "0" * 64}) if w.role is Role.FFN_DOWN else w for w in chosen]
    with pytest.raises(GateError, match="layer.0.down"):
        made.write(tmp_path, INT8, other)


# What a recipe chooses.


def test_a_scheme_has_its_own_choice_of_roles_where_the_recipe_has_none(made: Made) -> None:
    row = find_row(Format.TFLITE, Scheme.A8W8)
    plain, asked = (
        {w.role: w.scheme for w in choose(made.weights, row, roles=r)}
        for r in ({}, {"ffn_down": "a8w8", "ffn_up": None})
    )
    assert plain[Role.FFN_DOWN] is Scheme.INT8
    assert asked[Role.FFN_DOWN] is plain[Role.FFN_UP] is Scheme.A8W8
    assert asked[Role.FFN_UP] is None


def test_a_name_counts_before_a_role_and_a_later_name_before_an_earlier(made: Made) -> None:
    names = {"encoder.layer.1.*": None, "layer.1.up": "int8", "classifier": "none"}
    schemes = {
        w.name.removeprefix("model."): w.scheme for w in choose(made.weights, roles={"ffn_up": None}, names=names)
    }
    assert schemes["bert.encoder.layer.0.up.weight"] is None
    assert schemes["bert.encoder.layer.0.down.weight"] is Scheme.INT8
    assert schemes["bert.encoder.layer.1.down.weight"] is None
    assert schemes["bert.encoder.layer.1.up.weight"] is Scheme.INT8
    assert schemes["classifier.weight"] is None


def test_a_file_has_its_own_choices_before_those_of_all_files() -> None:
    old = {"scheme": "int8", "runtime": "tflite216", "roles": {"ffn_down": "int8", "embedding": None}}
    section = QuantizeSection.model_validate({"roles": {"ffn_down": None, "head": None}, "files": ["int8", old]})
    everywhere = {"ffn_down": "none", "head": "none"}
    for one in (section, QuantizeSection.model_validate(section.model_dump(mode="json"))):
        assert one.of(Format.ONNX, Scheme.INT8).chosen == everywhere
        assert one.of(Format.COREML, Scheme.W8).chosen == everywhere, "int8 means w8 there"
        own = one.of(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16).chosen
        assert own == {"ffn_down": "int8", "head": "none", "embedding": "none"}
    twice = ["int8", {"scheme": "int8", "format": "onnx", "roles": {"ffn_down": None}}]
    with pytest.raises(ValueError, match="chooses roles of 'int8' of onnx twice"):
        QuantizeSection.model_validate({"files": twice})


def test_names_without_a_weight_and_a_choice_of_everything_are_refused_together(made: Made) -> None:
    with pytest.raises(InputError) as error:
        check_weight_choices(QuantizeSection.model_validate({"names": {"layr.1": None, "*": None}}), made.weights)
    assert "'layr.1' is no module" in str(error.value) and "leaves every weight" in str(error.value)
    poolerless = [w for w in made.weights if w.role is not Role.POOLER]
    with pytest.raises(InputError, match="has no pooler"):
        check_weight_choices(QuantizeSection.model_validate({"roles": {"pooler": None}}), poolerless)
    check_weight_choices(QuantizeSection(), made.weights)


def test_every_row_answers_for_every_role_and_tells_why_not() -> None:
    assert any(row.usual for row in list_rows())
    for row in (r for r in list_rows() if r.write is not None):
        for role in Role:
            reason = explain_refused_role(row, role, None)
            assert reason is None or row.title in reason
            assert (reason is None) is (row.selective or role not in row.computes)
            seconds = [s for s, second in row.seconds.items() if role in second.roles]
            usual = [row.usual[role]] if role in row.usual else []
            assert [s for s in (*seconds, *usual) if explain_refused_role(row, role, s)] == []


@pytest.mark.parametrize(
    ("scheme", "role", "second", "said"),
    [
        (Scheme.INT8, Role.NORM, None, None),
        (Scheme.INT8, Role.NORM, Scheme.INT8, "stays float"),
        (Scheme.INT8, Role.EMBEDDING, Scheme.W4, None),
        (Scheme.INT8, Role.FFN_UP, Scheme.W4, "has w4 for embedding only"),
        (Scheme.INT8, Role.EMBEDDING, Scheme.LUT4, "has w4 as a second scheme, not lut4"),
        (Scheme.A8W8, Role.FFN_UP, Scheme.W4, "no second scheme, only weights that are left float"),
    ],
)
def test_why_a_role_is_refused(scheme: Scheme, role: Role, second: Scheme | None, said: str | None) -> None:
    reason = explain_refused_role(find_row(Format.ONNX, scheme), role, second)
    assert reason is None if said is None else said in str(reason)


@pytest.mark.parametrize("family", EXPORTED)
def test_every_role_of_a_family_is_found(family: str) -> None:
    module = prepare(tiny_classifier(family, 1, LABELS), find_family(family), CLASSIFY, Format.ONNX)
    matrices = [n for n, p in module.named_parameters() if matrix_digest(p.detach().numpy()) is not None]
    roles = {n: classify_weight(n) for n in matrices}
    assert {Role.EMBEDDING, Role.ATTENTION_PROJECTION, Role.FFN_UP, Role.FFN_DOWN} <= set(roles.values())
    assert not [n for n, role in roles.items() if role is Role.HEAD and ".0." in n]
    assert all(role in (Role.HEAD, Role.POOLER) for n, role in roles.items() if n.endswith("classifier.weight"))


def test_a_digest_is_that_of_the_transpose() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert matrix_digest(values) == matrix_digest(values.T) == matrix_digest(values[None])
    assert matrix_digest(values) != matrix_digest(values + 1)
    for square in (np.arange(9, dtype=np.float32).reshape(3, 3), np.eye(3, dtype=np.float32), np.full((2, 2), np.nan)):
        assert matrix_digest(square) == matrix_digest(square.T)
    left, right = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    left[2, 0] = right[2, 1] = 5
    assert matrix_digest(left) != matrix_digest(right)
    assert matrix_digest(np.ones(3, np.float32)) is None
    assert WeightRole(name="a.b.c.weight", role=Role.HEAD, digest="0" * 64).matches("b.c")
