"""Which candidates form the front, which one is chosen, and which one is nearest where none is inside."""

from __future__ import annotations

import yaml

from pocketbert.core.artefacts import Candidate
from pocketbert.core.formats import FORMATS
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.direct.choosing import (
    best_candidate,
    chosen_files,
    is_inside,
    nearest_candidate,
    pareto_front,
    recipe_lines,
    widened_budget,
)


def candidate(scheme: Scheme, mb: float, rel: float, drop: float | None = None, **more: object) -> Candidate:
    figures = {"bytes": int(mb * 1e6), "rel": rel, "drop": drop, **more}
    return Candidate(path=f"onnx/model_{scheme}.onnx", format=Format.ONNX, scheme=scheme, **figures)


INT8, SMALL, W4 = Scheme.INT8, Scheme.SMALL, Scheme.W4


def judged(found: list[Candidate], budget: BudgetSection) -> list[Candidate]:
    return [c.model_copy(update={"inside": is_inside(c, budget)}) for c in found]


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


def test_with_a_limit_on_size_the_closest_file_wins_and_without_one_the_smallest() -> None:
    found = [candidate(W4, 11, 0.06, 0.001), candidate(SMALL, 12, 0.05, 0.004), candidate(INT8, 17, 0.03, 0.002)]
    for limits, wanted in (
        ({"max_drop": 0.01, "max_size_mb": 13}, SMALL),
        ({"max_drop": 0.002, "max_size_mb": 13}, W4),
        ({"max_drop": 0.01, "max_size_mb": 20}, INT8),
        ({"max_drop": 0.01}, W4),
    ):
        budget = BudgetSection(**limits)
        chosen = best_candidate(judged(found, budget), budget)
        assert chosen is not None
        assert chosen.scheme is wanted, limits


def test_a_missing_figure_is_neither_inside_nor_outside_and_nan_is_outside() -> None:
    budget = BudgetSection(max_drop=0.01, max_size_mb=13)
    assert is_inside(candidate(SMALL, 12, 0.05), budget) is None
    assert is_inside(candidate(SMALL, 14, 0.05), budget) is False
    assert is_inside(candidate(SMALL, 12, 0.05, float("nan")), budget) is False
    assert is_inside(candidate(SMALL, 12, 0.05, 0.001, note="a gate failed"), budget) is False
    assert is_inside(candidate(SMALL, 12, 0.05, 0.001), budget) is True


def test_the_nearest_one_and_the_limits_that_would_take_it() -> None:
    found = [candidate(W4, 11.04, 0.06, 0.0304), candidate(SMALL, 12.45, 0.05, 0.0121), candidate(INT8, 17, 0.03, 0.0)]
    budget = BudgetSection(max_drop=0.01, max_size_mb=12)
    nearest = nearest_candidate(found, budget)
    assert nearest is not None
    assert nearest.scheme is SMALL
    enough = widened_budget(nearest, budget)
    assert enough.text == "max_drop=0.013,max_size_mb=12.5"
    assert is_inside(nearest, enough)
    assert nearest_candidate([candidate(SMALL, 12, 0.05)], budget) is None, "it was never scored"


def test_recipe_lines_make_the_chosen_files_and_no_others() -> None:
    def file(format: str, scheme: Scheme, *left: Role) -> Candidate:
        return Candidate(path=f"{format}/model", format=Format(format), scheme=scheme, left=[*left])

    def lines(**chosen: Scheme) -> str:
        return recipe_lines(chosen_files([file(f, s) for f, s in chosen.items()]))

    assert lines(onnx=SMALL, tflite=SMALL) == "quantize: {files: [small]}"
    assert lines(onnx=INT8, coreml=Scheme.W8) == "quantize: {files: [int8]}", "Core ML has w8 instead"
    both = lines(onnx=SMALL, coreml=Scheme.LUT6)
    assert both == "quantize: {files: [{scheme: small, format: onnx}, {scheme: lut6, format: coreml}]}"
    found = chosen_files([file("onnx", INT8, Role.EMBEDDING, Role.FFN_DOWN), file("coreml", Scheme.W8)])
    assert recipe_lines(found) == (
        "quantize: {files: [{scheme: int8, format: onnx, roles: {embedding: null, ffn_down: null}}, "
        "{scheme: w8, format: coreml}]}"
    )
    read = QuantizeSection.model_validate(yaml.safe_load(recipe_lines(found))["quantize"])
    assert read.of(Format.ONNX, INT8).chosen == {"embedding": "none", "ffn_down": "none"}
    assert not read.of(Format.COREML, Scheme.W8).chosen
    for format, scheme in ((f, s) for f, info in FORMATS.items() for s in info.schemes if info.smaller(s) is s):
        assert scheme in lines(**{format: scheme})
