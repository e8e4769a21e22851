from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import AnswerSettings
from pocketbert.core.recipe.quantize import QuantizedFile, QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import SignalWeights, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Client, Format, Runtime, Scheme, Signal

OLD = {"scheme": "int8", "runtime": "tflite216"}
STATIC = {"scheme": "a8w8", "runtime": "openvino"}
DATA = {"train": {"path": "train.jsonl"}}


def recipe(**more: Any) -> Recipe:
    return Recipe.model_validate(
        {"schema": 1, "name": "a", "task": "text-classification", "teacher": {"model": "minilm-l6"}, **more}
    )


def test_the_smallest_recipe_exports_and_quantizes_a_model() -> None:
    made = recipe()
    assert made.export.formats == [Format.ONNX, Format.TFLITE, Format.COREML]
    assert made.export.lengths == [32, 64, 128]
    assert made.quantize.scheme is Scheme.INT8
    assert made.verify.max_drop == 0.01
    assert (made.student, made.distill, made.benchmark) == (None, [], None)


def test_recipes_do_not_change() -> None:
    made = recipe()
    with pytest.raises(ValidationError, match="frozen"):
        made.seed = 3  # type: ignore[misc]


def test_defaults_are_not_shared() -> None:
    recipe().export.lengths.append(7)
    assert recipe().export.lengths == [32, 64, 128]


def test_active_signals_are_those_with_a_weight() -> None:
    assert SignalWeights().active() == (Signal.LOGITS, Signal.HIDDEN, Signal.ATTENTION)
    assert SignalWeights(logits=0, hidden=0.1, attention=0, labels=1).active() == (Signal.HIDDEN,)
    with pytest.raises(ValidationError, match="learn nothing"):
        SignalWeights(logits=0, hidden=0, attention=0)


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"batch": 0},
        {"lr": 0.0},
        {"lr": 2.0},
        {"warmup": 1.1},
        {"dropout": 1.0},
        {"clip": 0.0},
        {"step": 3},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Optimisation.model_validate({"steps": 3, **bad})


def test_a_stage_has_a_method() -> None:
    with pytest.raises(ValidationError, match="method"):
        TaskStage.model_validate({"steps": 3})
    with pytest.raises(ValidationError, match="temperature"):
        TaskStage.model_validate({"method": "task", "steps": 3, "temperature": 0})


def test_sizes_of_its_own_need_a_random_start() -> None:
    assert StudentSection(layers=2, hidden=64, init="random").hidden == 64
    with pytest.raises(ValidationError, match="set init: random"):
        StudentSection(layers=2, hidden=64)


def test_a_temperature_is_for_one_label_of_several() -> None:
    assert recipe(answer={"temperature": 1.5}).answer.temperature == 1.5
    assert recipe().answer.temperature is None
    with pytest.raises(ValidationError, match="has no meaning for multi-label, only for text-classification"):
        recipe(task="multi-label", answer={"temperature": 1.5})
    with pytest.raises(ValidationError, match="answer.unknown: has no meaning for regression, only for text-class"):
        recipe(task="regression", answer={"unknown": 0.5})
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValidationError, match="temperature"):
            recipe(answer={"temperature": wrong})


def test_a_threshold_is_given_or_fitted_for_an_accuracy() -> None:
    given, fitted = recipe(answer={"unknown": 0.5}).answer, recipe(answer={"unknown": {"accuracy": 0.95}}).answer
    assert (given.unknown_below, given.unknown_accuracy) == (0.5, None)
    assert (fitted.unknown_below, fitted.unknown_accuracy) == (None, 0.95)
    assert recipe(answer={"unknown": {"below": 0.5}}).answer == given
    for settings in (given, fitted, recipe().answer):
        assert AnswerSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert recipe().answer.unknown is None
    for task in ("multi-label", "token-classification", "feature-extraction"):
        with pytest.raises(ValidationError, match=f"answer.unknown: has no meaning for {task}, only for text-class"):
            recipe(task=task, answer={"unknown": {"accuracy": 0.9}})
    both = "takes either below, a probability, or accuracy, a share of right labels"
    for wrong, why in (
        ({}, both),
        ({"below": 0.5, "accuracy": 0.9}, both),
        (95, "less than 1"),
        (True, "valid number"),
    ):
        with pytest.raises(ValidationError, match=why):
            recipe(answer={"unknown": wrong})
    with pytest.raises(ValidationError, match="keep"):
        recipe(answer={"unknown": {"keep": 0.95}})


@pytest.mark.parametrize("opset", [17, 21])
def test_only_operator_sets_that_phones_read(opset: int) -> None:
    with pytest.raises(ValidationError, match="opset"):
        recipe(export={"opset": opset})


def test_what_the_formats_can_hold_is_asked_of_their_table() -> None:
    for scheme in FORMATS[Format.TFLITE].schemes:
        assert recipe(export={"formats": ["tflite"]}, quantize={"scheme": scheme}, data=DATA).quantize.scheme is scheme
    made = recipe(quantize={"files": ["int8", OLD]})
    assert made.quantize.wanted == (
        QuantizedFile(scheme=Scheme.INT8),
        QuantizedFile(scheme=Scheme.INT8, runtime=Runtime.TFLITE_2_16),
    )
    assert made.export.clients == [Client.MEDIAPIPE]
    assert recipe(export={"formats": ["onnx"]}, quantize={"scheme": "fp32"}).export.formats == [Format.ONNX]
    assert recipe().quantize.wanted == recipe(quantize={"files": ["int8"]}).quantize.wanted
    assert recipe(quantize={"files": ["int8", "w8"]}).quantize.files  # w8 concerns the formats that have it
    assert recipe(quantize={"files": ["int8", STATIC]}, data=DATA).quantize.files
    assert recipe(quantize={"files": [STATIC]}, data=DATA).quantize.files  # the other formats stay as exported


@pytest.mark.parametrize("section", [{"scheme": "fp32"}, {"files": ["int8", "w8", OLD]}], ids=str)
def test_a_section_is_written_as_it_was_given(section: dict[str, Any]) -> None:
    made = recipe(quantize=section).quantize
    assert made.model_dump(mode="json", exclude_none=True) == section
    assert QuantizeSection.model_validate(made.model_dump(mode="json")) == made


@pytest.mark.parametrize(
    ("sections", "messages"),
    [
        ({"quantize": {"scheme": "w8"}}, ["quantize.scheme: onnx has no 'w8' in this version, only fp32, int8"]),
        ({"quantize": {"files": ["w8", "fp16"]}}, ["quantize.files: onnx has no 'w8' or 'fp16' in this version"]),
        ({"export": {"formats": ["onnx"]}, "quantize": {"scheme": "fp16"}}, ["onnx has no 'fp16'"]),
        (
            {"export": {"formats": ["onnx"]}, "quantize": {"files": ["int8", "w8"]}},
            ["quantize.files: no exported format has 'w8', only tflite, coreml; add one to export.formats"],
        ),
        (
            {"export": {"formats": ["onnx"]}, "quantize": {"files": ["int8", OLD]}},
            ["quantize.files: 'int8' for tflite216 is a file of tflite; add tflite to export.formats"],
        ),
        (
            {"export": {"formats": ["tflite"]}, "quantize": {"files": [{"scheme": "w8", "runtime": "tflite216"}]}},
            ["'w8' for tflite216 does not exist in this version; tflite216 has only int8 (tflite); choose this scheme"],
        ),
        (
            {"export": {"formats": ["tflite"]}, "quantize": {"files": [STATIC]}},
            ["'a8w8' for openvino is a file of onnx; add onnx to", "measures ranges on training texts; name them in"],
        ),
        (
            {"quantize": {"scheme": "fp16"}, "data": DATA},
            ["quantize.scheme: onnx has no 'fp16' in this version, only fp32, int8"],
        ),
        (
            {"quantize": {"scheme": "int8", "files": ["int8"]}},
            ["scheme is the short form of files", "quantize={files: [int8"],
        ),
        ({"quantize": {"files": ["int8", OLD, {"scheme": "int8"}]}}, ["files lists 'int8' twice"]),
        ({"quantize": {"files": []}}, ["at least 1 item"]),
        ({"quantize": {"targets": ["openvino"]}}, ["targets"]),
        ({"export": {"formats": ["tflite", "onnx", "tflite"]}}, ["export.formats: lists a format twice"]),
        ({"export": {"formats": []}}, ["at least 1 item"]),
        ({"export": {"formats": ["openvino"]}}, ["'onnx', 'tflite' or 'coreml'"]),
        (
            {"export": {"coreml": {"ios": 17, "shapes": "enumerated"}}},
            ["shapes 'enumerated' needs ios 18, this is ios 17; possible here: ranged, fixed"],
        ),
        (
            {"export": {"coreml": {"ios": 16, "shapes": "ranged"}}},
            ["shapes 'ranged' needs ios 17, this is ios 16; possible here: fixed"],
        ),
        ({"export": {"coreml": {"ios": 15}}}, ["16, 17 or 18"]),
        ({"export": {"coreml": {"precision": "int8"}}}, ["precision 'int8' is not fp16 or fp32"]),
        ({"export": {"clients": ["mediapie"]}}, ["'mediapipe'"]),
        ({"quantize": {"files": [{"scheme": "int8", "runtime": "tflite217"}]}}, ["'tflite216'"]),
    ],
    ids=str,
)
def test_formats_schemes_and_targets_that_do_not_go_together(sections: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        recipe(**sections)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ({}, "enumerated"),
        ({"ios": 17}, "fixed"),
        ({"ios": 16}, "fixed"),
        ({"ios": 17, "shapes": "ranged"}, "ranged"),
        ({"ios": 18, "shapes": "fixed"}, "fixed"),
    ],
)
def test_lengths_of_a_core_ml_package_follow_from_the_oldest_ios(settings: dict[str, Any], shapes: str) -> None:
    assert recipe(export={"coreml": settings}).export.coreml.lengths == shapes


def test_all_of_these_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        recipe(
            export={"formats": ["onnx", "onnx"]},
            quantize={"files": ["w8", OLD]},
            student={"layers": 2},
        )
    [error] = caught.value.errors()
    for message in (
        "onnx has no 'w8'",
        "'int8' for tflite216 is a file of tflite",
        "lists a format twice",
        "a student without a distill stage",
    ):
        assert error["msg"].count(message) == 1
