"""The sections of a recipe: what each may hold, and what does not go together."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from pocketbert.core.errors import InputError
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import AnswerSettings
from pocketbert.core.recipe.budget import BudgetSection, parse_budget
from pocketbert.core.recipe.quantize import QuantizedFile, QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import MobileBertStage, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Client, Format, Runtime, Scheme

OLD = {"scheme": "int8", "runtime": "tflite216"}
STATIC = {"scheme": "a8w8", "runtime": "openvino"}
DATA = {"train": {"path": "train.jsonl"}}


def recipe(**more: Any) -> Recipe:
    return Recipe.model_validate(
        {"schema": 1, "name": "a", "task": "text-classification", "teacher": {"model": "minilm-l6"}, **more}
    )


def test_the_smallest_recipe_exports_and_quantizes_a_model_and_shares_no_defaults() -> None:
    made = recipe()
    assert made.export.formats == [Format.ONNX, Format.TFLITE, Format.COREML]
    assert made.export.lengths == [32, 64, 128]
    assert made.quantize.scheme is Scheme.INT8
    assert made.verify.max_drop == 0.01
    assert (made.student, made.distill, made.benchmark) == (None, [], None)
    made = recipe()
    with pytest.raises(ValidationError, match="frozen"):
        made.seed = 3  # type: ignore[misc]
    made.export.lengths.append(7)
    assert recipe().export.lengths == [32, 64, 128]


# Stages and the student


WRONG_STAGES = (
    "steps: 0|batch: 0|lr: 0.0|lr: 2.0|warmup: 1.1|dropout: 1.0|clip: 0.0|precision: fp16|step: 3|temperature: 0|"
    "method: null|epochs: 0, steps: null|epochs: .inf, steps: null"
).split("|")
STEPS_OR_EPOCHS = "exactly one of 'steps' and 'epochs'"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *((text, text.split(":")[0]) for text in WRONG_STAGES),
        ("steps: null", STEPS_OR_EPOCHS),
        ("epochs: 1", STEPS_OR_EPOCHS),
    ],
)
def test_stages_that_are_refused(wrong: str, message: str) -> None:
    stage = {"method": "task", "steps": 3, **yaml.safe_load(f"{{{wrong}}}")}
    with pytest.raises(ValidationError, match=message):
        TaskStage.model_validate({k: v for k, v in stage.items() if v is not None})


@pytest.mark.parametrize(
    ("epochs", "batch", "rows", "steps"), [(1, 32, 64, 2), (1, 32, 65, 3), (0.64, 32, 9003, 181), (2.5, 48, 9007, 470)]
)
def test_passes_become_steps(epochs: float, batch: int, rows: int, steps: int) -> None:
    settings = Optimisation(epochs=epochs, batch=batch, lr=1e-3).for_rows(rows)
    assert (settings.steps, settings.epochs, settings.lr) == (steps, None, 1e-3)


def test_steps_stay_and_only_what_was_given_is_written() -> None:
    settings = Optimisation(steps=180, batch=32)
    assert settings.for_rows(9003) is settings
    assert settings.passes(9003) == "180 steps of 32 rows: 0.64 passes over 9,003 rows"
    assert Optimisation(steps=4000, batch=64).passes(100).endswith("2,560 passes over 100 rows")
    by_steps, by_epochs = TaskStage(method="task", steps=3), TaskStage(method="task", epochs=1.5)
    assert "epochs" not in by_steps.model_dump()
    assert "steps" not in by_epochs.model_dump()
    for stage in (by_steps, by_epochs, MobileBertStage(method="mobilebert", epochs=2, transfer_steps=5)):
        assert type(stage).model_validate(stage.model_dump()) == stage


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 64, "init": "teacher-layers"}, "set init: embeddings or random"),
        ({"hidden": 64, "teacher_layers": [1, 2]}, "teacher_layers has no meaning with init: embeddings"),
        ({"family": "distil-bert"}, r"students of 'distil-bert'; did you mean 'distilbert'"),
        ({"family": "bert"}, "no teacher of another family can have students of 'bert'"),
    ],
)
def test_students_that_are_refused(settings: dict[str, Any], message: str) -> None:
    sizes = ({"hidden": 64}, {"heads": 2}, {"hidden": 64, "init": "random"}, {})
    starts = [StudentSection.model_validate({"layers": 2, **size}).init for size in sizes]
    assert starts == ["embeddings", "embeddings", "random", "teacher-layers"]
    assert StudentSection(layers=1, family="distilbert").family == "distilbert"
    with pytest.raises(ValidationError, match=message):
        StudentSection(layers=2, **settings)


STAGE = {"method": "task", "steps": 10}
LOGITS = {**STAGE, "signals": {"logits": 1, "hidden": 0, "attention": 0}}
ROWS = {"train": {"path": "a.jsonl"}, "eval": {"path": "b.jsonl"}}
CORPUS = {"corpus": {"sources": [{"path": "c.jsonl"}]}}
GENERAL = {"method": "minilm", "steps": 3}


def prune(
    vocabulary: dict[str, Any], *stages: dict[str, Any], task: str = "text-classification", **more: Any
) -> Recipe:
    return recipe(
        **{"task": task, "data": ROWS, **more, "student": {"layers": 2, "vocabulary": vocabulary}, "distill": [*stages]}
    )


def test_pieces_of_the_training_rows_go_with_every_signal_and_most_tasks() -> None:
    for task in ("text-classification", "token-classification", "multi-label", "regression"):
        made = prune({}, STAGE, task=task).student
        assert made is not None
        assert made.vocabulary is not None
        assert not made.vocabulary.reads_otherwise


@pytest.mark.parametrize(
    ("vocabulary", "told"),
    [
        ({"at_least": 2}, "at_least: 2"),
        ({"resplit": 0.5}, "resplit: 0.5"),
        ({"at_least": 3, "resplit": 0.25}, "at_least: 3 and resplit: 0.25"),
    ],
)
def test_rows_that_are_read_otherwise_go_with_logits_only(vocabulary: dict[str, Any], told: str) -> None:
    prune(vocabulary, LOGITS, {"method": "tinybert-prediction", "steps": 3})
    prune(vocabulary, GENERAL, LOGITS, data={**ROWS, **CORPUS})
    with pytest.raises(ValidationError, match=told) as caught:
        prune(vocabulary, STAGE, {"method": "tinybert-intermediate", "steps": 3}, LOGITS)
    assert "distill.0: method task compares single tokens" in str(caught.value)
    assert "distill.1: method tinybert-intermediate compares single tokens" in str(caught.value)
    assert "distill.2" not in str(caught.value)
    with pytest.raises(ValidationError, match="text by text"):
        prune(vocabulary, LOGITS, task="token-classification")


def test_everything_that_does_not_fit_a_pruned_vocabulary_is_named_at_once() -> None:
    data = {**ROWS, "augment": {"copies": 2}}
    with pytest.raises(ValidationError, match="fill-mask guesses pieces") as caught:
        prune({"resplit": 1}, {**STAGE, "augmented": True}, task="fill-mask", data=data)
    for words in ("distill.0.augmented: copies of rows", "distill.0: method task compares"):
        assert words in str(caught.value)
    with pytest.raises(ValidationError, match=r"add data.train and data.eval"):
        prune({}, GENERAL, task="fill-mask", data=CORPUS)


# Answers


@pytest.mark.parametrize(
    ("answer", "task", "message"),
    [
        *[({"temperature": wrong}, "", "temperature") for wrong in (0, -1, float("inf"), float("nan"))],
        ({"temperature": 1.5}, "multi-label", "has no meaning for multi-label, only for text-classification"),
        ({"unknown": 0.5}, "regression", "answer.unknown: has no meaning for regression, only for text-class"),
        ({"unknown": {"accuracy": 0.9}}, "token-classification", "answer.unknown: has no meaning for token-class"),
        ({"unknown": {}}, "", "takes either below, a probability, or accuracy, a share of right labels"),
        ({"unknown": {"below": 0.5, "accuracy": 0.9}}, "", "takes either below, a probability, or accuracy"),
        ({"unknown": 95}, "", "less than 1"),
        ({"unknown": True}, "", "valid number"),
        ({"unknown": {"keep": 0.95}}, "", "keep"),
    ],
)
def test_answers_that_are_refused(answer: dict[str, Any], task: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(answer=answer, **({"task": task} if task else {}))


def test_a_threshold_is_given_or_fitted_for_an_accuracy() -> None:
    given, fitted = recipe(answer={"unknown": 0.5}).answer, recipe(answer={"unknown": {"accuracy": 0.95}}).answer
    assert (given.unknown_below, given.unknown_accuracy) == (0.5, None)
    assert (fitted.unknown_below, fitted.unknown_accuracy) == (None, 0.95)
    assert recipe(answer={"unknown": {"below": 0.5}}).answer == given
    for settings in (given, fitted, recipe().answer):
        assert AnswerSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert (recipe().answer.unknown, recipe().answer.temperature) == (None, None)
    assert recipe(answer={"temperature": 1.5}).answer.temperature == 1.5


# Formats and schemes


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


def test_files_are_written_in_the_formats_that_have_their_scheme() -> None:
    files = {"files": ["int8", "lut6", OLD, {"scheme": "w4", "format": "onnx"}]}
    assert QuantizeSection.model_validate(files).written([Format.ONNX, Format.COREML]) == {
        (Format.ONNX, Scheme.INT8, None),
        (Format.ONNX, Scheme.W4, None),
        (Format.COREML, Scheme.INT8, None),
        (Format.COREML, Scheme.LUT6, None),
    }


@pytest.mark.parametrize("section", [{"scheme": "fp32"}, {"files": ["int8", "w8", OLD]}], ids=str)
def test_a_section_is_written_as_it_was_given(section: dict[str, Any]) -> None:
    made = recipe(quantize=section).quantize
    assert made.model_dump(mode="json", exclude_none=True) == section
    assert QuantizeSection.model_validate(made.model_dump(mode="json")) == made


@pytest.mark.parametrize(
    ("export", "quantize", "message"),
    [
        ("", "scheme: w8", "quantize.scheme: onnx has no 'w8' in this version, only fp32, int8"),
        ("", "files: [w8, fp16]", "quantize.files: onnx has no 'w8' or 'fp16' in this version"),
        ("formats: [onnx]", "files: [int8, w8]", "no exported format has 'w8', only tflite, coreml; add one to"),
        ("formats: [onnx]", f"files: [int8, {OLD}]", "'int8' for tflite216 is a file of tflite; add tflite to export"),
        ("formats: [tflite]", "files: [{scheme: w8, runtime: tflite216}]", "tflite216 has only int8 (tflite); choose"),
        ("formats: [tflite]", f"files: [{STATIC}]", "'a8w8' for openvino is a file of onnx; add onnx to"),
        ("formats: [tflite]", f"files: [{STATIC}]", "measures ranges on training texts; name them in"),
        ("", "{scheme: int8, files: [int8]}", "scheme is the short form of files"),
        ("", f"files: [int8, {OLD}, {{scheme: int8}}]", "files lists 'int8' twice"),
        ("", "files: []", "at least 1 item"),
        ("", "files: [{scheme: int8, runtime: tflite217}]", "'tflite216'"),
        ("formats: []", "", "at least 1 item"),
        ("formats: [openvino]", "", "'onnx', 'tflite' or 'coreml'"),
        ("opset: 17", "", "opset"),
        ("coreml: {ios: 17, shapes: enumerated}", "", "needs ios 18, this is ios 17; possible here: ranged, fixed"),
        ("coreml: {ios: 16, shapes: ranged}", "", "needs ios 17, this is ios 16; possible here: fixed"),
        ("coreml: {ios: 15}", "", "16, 17 or 18"),
        ("coreml: {precision: int8}", "", "precision 'int8' is not fp16 or fp32"),
        ("clients: [mediapie]", "", "'mediapipe'"),
    ],
)
def test_formats_schemes_and_targets_that_do_not_go_together(export: str, quantize: str, message: str) -> None:
    sections = {"export": yaml.safe_load(export), "quantize": yaml.safe_load(quantize)}
    with pytest.raises(ValidationError, match=re.escape(message)):
        recipe(**{name: section for name, section in sections.items() if section})


def test_lengths_of_a_core_ml_package_follow_from_the_oldest_ios() -> None:
    shapes = {
        "{}": "enumerated",
        "ios: 17": "fixed",
        "ios: 17, shapes: ranged": "ranged",
        "ios: 18, shapes: fixed": "fixed",
    }
    for settings, wanted in shapes.items():
        made = recipe(export={"coreml": yaml.safe_load(settings if settings == "{}" else f"{{{settings}}}")})
        assert made.export.coreml.lengths == wanted, settings


# Limits of files


def test_limits_are_read_and_written_as_the_command_line_takes_them() -> None:
    budget = parse_budget(["max_drop=0.01", " max_size_mb = 8 "], "--budget")
    assert budget.set_limits == {"max_drop": 0.01, "max_size_mb": 8.0}
    assert budget.text == "max_drop=0.01,max_size_mb=8"
    assert not budget.smallest_wins
    assert parse_budget(["max_drop=0.01"], "--budget").smallest_wins
    assert BudgetSection(max_drop=0.01, max_size_mb=8) == budget
    with pytest.raises(ValidationError, match="no limit is set"):
        BudgetSection()


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["max_drop=2"], ["200 points: it is a fraction, 0.01 is one point. For 2 points write 0.02"]),
        (["max_drop=0.5"], ["For 0.5 points write 0.005"]),
        (["max_drop=-0.01"], ["it is the loss that is allowed"]),
        (["max_size_mb=8000000"], ["for 8,000,000 bytes write 8"]),
        (["max_size_mb=0"], ["not above 0"]),
        (["max_p90_ms=5000000"], ["for 5,000,000 microseconds write 5000"]),
        (["max_p90_ms=0.005"], ["0.005 ms is less than any encoder takes: for 0.005 seconds write 5"]),
        (["max_p90_ms=5ms"], ["units are part of the name"]),
        (["max_drop=nan"], ["max_drop=nan is not a number"]),
        (["max_size_mb="], ["max_size_mb has no value"]),
        (["max_dorp=0.01"], ["did you mean 'max_drop'?"]),
        ([""], ["is no limit"]),
        (
            ["max_drop=2", "max_size_mb=8000000", "size=3", "max_p90_ms", "max_drop=0.1"],
            ["2 points", "8,000,000 bytes", "'size' is no limit", "max_p90_ms has no value", "given twice"],
        ),
    ],
)
def test_wrong_limits_are_refused_with_the_reason_all_at_once(texts: list[str], told: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_budget(texts, "--budget")
    assert len(caught.value.problems) == len(told)
    assert all(words in str(caught.value) for words in told)
    assert all(p.where.startswith("--budget") for p in caught.value.problems)
