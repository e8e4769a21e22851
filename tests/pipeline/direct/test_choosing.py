"""Which candidates form the front, which file and which student is chosen, and which one is nearest where none is inside."""

from __future__ import annotations

import pytest
import yaml

from pocketbert.core.artefacts import Candidate, ConsideredStudent
from pocketbert.core.formats import FORMATS
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.direct.choosing import (
    FormatResult,
    StudentResult,
    best_candidate,
    best_student,
    cannot_win,
    chosen_files,
    is_inside,
    merge_student_results,
    nearest_candidate,
    no_student_error,
    pareto_front,
    recipe_lines,
    widened_budget,
)

INT8, SMALL, W4 = Scheme.INT8, Scheme.SMALL, Scheme.W4
ONNX, TFLITE, COREML = Format.ONNX, Format.TFLITE, Format.COREML


def candidate(scheme: Scheme, mb: float, rel: float, drop: float | None = None, **more: object) -> Candidate:
    figures = {"bytes": int(mb * 1e6), "rel": rel, "drop": drop, **more}
    return Candidate(**{"path": f"onnx/model_{scheme}.onnx", "format": ONNX, "scheme": scheme, **figures})


def test_the_front_has_what_no_other_one_beats_in_size_and_error() -> None:
    found = [
        candidate(INT8, 17, 0.03),
        candidate(Scheme.A8W8, 17, 0.04),
        candidate(SMALL, 12, 0.05),
        candidate(W4, 13, 0.06),
        candidate(Scheme.LUT4, 5, float("nan")),
        candidate(Scheme.LUT6, 5, 0.01, note="a gate failed"),
    ]
    assert [c.scheme for c in pareto_front(found)] == [SMALL, INT8]


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"max_drop": 0.01, "max_size_mb": 13}, SMALL),
        ({"max_drop": 0.002, "max_size_mb": 13}, W4),
        ({"max_drop": 0.01, "max_size_mb": 20}, INT8),
        ({"max_drop": 0.01}, W4),
    ],
)
def test_with_a_limit_on_size_the_closest_file_wins_and_without_one_the_smallest(
    limits: dict[str, float], wanted: Scheme
) -> None:
    found = [candidate(W4, 11, 0.06, 0.001), candidate(SMALL, 12, 0.05, 0.004), candidate(INT8, 17, 0.03, 0.002)]
    budget = BudgetSection(**limits)
    chosen = best_candidate([c.model_copy(update={"inside": is_inside(c, budget)}) for c in found], budget)
    assert chosen.scheme is wanted


def test_a_missing_figure_is_neither_inside_nor_outside_and_nan_is_outside() -> None:
    budget = BudgetSection(max_drop=0.01, max_size_mb=13)
    for mb, drop, note, inside in (
        (12, 0.001, "", True),
        (12, None, "", None),
        (14, None, "", False),
        (12, float("nan"), "", False),
        (12, 0.001, "a gate failed", False),
    ):
        assert is_inside(candidate(SMALL, mb, 0.05, drop, note=note), budget) is inside


def test_the_nearest_one_and_the_limits_that_would_take_it() -> None:
    found = [candidate(W4, 11.04, 0.06, 0.0304), candidate(SMALL, 12.45, 0.05, 0.0121), candidate(INT8, 17, 0.03, 0.0)]
    budget = BudgetSection(max_drop=0.01, max_size_mb=12)
    nearest = nearest_candidate(found, budget)
    assert nearest.scheme is SMALL
    enough = widened_budget(nearest, budget)
    assert enough.text == "max_drop=0.013,max_size_mb=12.5"
    assert is_inside(nearest, enough)
    assert nearest_candidate([candidate(SMALL, 12, 0.05)], budget) is None, "it was never scored"


def chosen_lines(*chosen: tuple[Format, Scheme, list[Role]]) -> str:
    files = [Candidate(path=f"{f}/model", format=f, scheme=s, left=left) for f, s, left in chosen]
    return recipe_lines(chosen_files(files))


def test_recipe_lines_make_the_chosen_files_and_no_others() -> None:
    assert chosen_lines((ONNX, SMALL, []), (TFLITE, SMALL, [])) == "quantize: {files: [small]}"
    assert chosen_lines((ONNX, INT8, []), (COREML, Scheme.W8, [])) == "quantize: {files: [int8]}", "Core ML has w8"
    both = chosen_lines((ONNX, SMALL, []), (COREML, Scheme.LUT6, []))
    assert both == "quantize: {files: [{scheme: small, format: onnx}, {scheme: lut6, format: coreml}]}"
    left = chosen_lines((ONNX, INT8, [Role.EMBEDDING, Role.FFN_DOWN]), (COREML, Scheme.W8, []))
    assert left == (
        "quantize: {files: [{scheme: int8, format: onnx, roles: {embedding: null, ffn_down: null}}, "
        "{scheme: w8, format: coreml}]}"
    )
    read = QuantizeSection.model_validate(yaml.safe_load(left)["quantize"])
    assert read.of(ONNX, INT8).chosen == {"embedding": "none", "ffn_down": "none"}
    assert not read.of(COREML, Scheme.W8).chosen
    for format, scheme in ((f, s) for f, info in FORMATS.items() for s in info.schemes if info.smaller(s) is s):
        assert scheme in chosen_lines((format, scheme, []))


def considered(name: str, *files: tuple[Format, float, int, bool]) -> StudentResult:
    """A student with one file of a format, of an error and a size, inside or not."""
    findings = []
    for format, rel, size, inside in files:
        more = {"path": f"{format}/model_small", "format": format, "student": name, "bytes": size}
        one = candidate(SMALL, 0, rel, 0.0, inside=inside, chosen=inside, **more)
        findings.append(FormatResult(format, "accuracy", [one], one if inside else None, None if inside else one))
    return StudentResult(ConsideredStudent(name=name), findings)


def test_the_student_must_have_a_file_inside_in_every_format() -> None:
    half = considered("half", (ONNX, 0.01, 10, True), (TFLITE, 0.01, 90, False))
    close = considered("close", (ONNX, 0.02, 60, True), (TFLITE, 0.03, 60, True))
    small = considered("small", (ONNX, 0.20, 20, True), (TFLITE, 0.30, 20, True))
    by_size, by_drop = BudgetSection(max_size_mb=1), BudgetSection(max_drop=0.01)
    assert best_student([half, close, small], by_size) is close
    assert best_student([half, close, small], by_drop) is small
    assert best_student([half], by_drop) is None
    assert cannot_win(0.05, close, by_size)
    assert not cannot_win(0.025, close, by_size), "the file of one format may still be closer"
    assert not cannot_win(0.05, close, by_drop), "where the smallest wins, further files may"
    kept = [c for f in merge_student_results([half, close, small], close) for c in f.candidates]
    assert {c.student for c in kept if c.chosen} == {"close"}
    assert [c.student for c in kept if c.front and c.format is ONNX] == ["half"]
    lines = no_student_error([half], BudgetSection(max_size_mb=0.00005)).failures
    assert "The nearest is half" in lines[0]
    assert "tflite: no file is inside" in lines[0]
