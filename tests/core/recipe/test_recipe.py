from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pocketbert.core.recipe.recipe import Recipe, StudentSection
from pocketbert.core.recipe.stages import SignalWeights, TaskStage
from pocketbert.core.recipe.updates import Optimisation
from pocketbert.core.types import Client, Format, Runtime, Scheme, Signal


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


@pytest.mark.parametrize("opset", [17, 21])
def test_only_operator_sets_that_phones_read(opset: int) -> None:
    with pytest.raises(ValidationError, match="opset"):
        recipe(export={"opset": opset})


def test_what_the_formats_can_hold_is_asked_of_their_table() -> None:
    for scheme in Scheme:
        assert recipe(export={"formats": ["tflite"]}, quantize={"scheme": scheme}).quantize.scheme is scheme
    made = recipe(quantize={"targets": ["tflite-2.16"]})
    assert made.quantize.targets == [Runtime.TFLITE_2_16]
    assert made.export.clients == [Client.MEDIAPIPE]
    assert recipe(export={"formats": ["onnx"]}, quantize={"scheme": "fp32"}).export.formats == [Format.ONNX]


@pytest.mark.parametrize(
    ("sections", "messages"),
    [
        ({"quantize": {"scheme": "w8"}}, ["quantize.scheme: onnx has no 'w8' in this version, only fp32, int8"]),
        ({"export": {"formats": ["onnx"]}, "quantize": {"scheme": "fp16"}}, ["onnx has no 'fp16'"]),
        (
            {"export": {"formats": ["onnx"]}, "quantize": {"targets": ["tflite-2.16"]}},
            ["quantize.targets: 'tflite-2.16' is a form of tflite int8; add tflite to export.formats"],
        ),
        (
            {"export": {"formats": ["tflite"]}, "quantize": {"scheme": "w8", "targets": ["tflite-2.16"]}},
            ["'tflite-2.16' is a form of tflite int8", "set scheme: int8"],
        ),
        (
            {"export": {"formats": ["tflite"]}, "quantize": {"targets": ["openvino"]}},
            ["'openvino' is a form of onnx int8; add onnx to", "'openvino' measures ranges on training texts"],
        ),
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
        ({"quantize": {"targets": ["tflite-2.17"]}}, ["'tflite-2.16'"]),
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
            quantize={"scheme": "w8", "targets": ["tflite-2.16"]},
            student={"layers": 2},
        )
    [error] = caught.value.errors()
    for message in (
        "onnx has no 'w8'",
        "'tflite-2.16' is a form of tflite int8",
        "lists a format twice",
        "a student without a distill stage",
    ):
        assert error["msg"].count(message) == 1
