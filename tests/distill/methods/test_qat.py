"""Method `qat`: what is learned, on which rows, exactly resumed, and undone where it does not help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, family_of
from pocketbert.core.families.weight_records import LearnedRanges
from pocketbert.core.heads.head import Prepared
from pocketbert.core.recipe.stages import QatStage
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Scheme
from pocketbert.distill.methods import qat
from pocketbert.distill.methods.method import (
    CandidateDecision,
    ExportFunctions,
    StageJob,
    StageResult,
    TeacherStudent,
    TrainedCandidate,
)
from pocketbert.distill.students.fake_quantization import Prepare
from pocketbert.distill.training.data import TrainSet
from pocketbert.export.prepare import prepare
from pocketbert.quantize.table import find_row

TASK = task_of("text-classification")
FAMILY = family_of("bert")


@pytest.fixture(scope="module")
def rows(open_tiny: Callable[..., Any], labelled_rows: Callable[..., list[dict[str, Any]]]) -> TrainSet:
    texts = labelled_rows(60)
    tokenizer = open_tiny("bert", 2)[2]
    encoded = tokenizer.encode([r["text"] for r in texts])
    return TrainSet(Prepared([], encoded, np.arange(60), {"labels": np.arange(60) % 3}), tokenizer)


def form(
    scheme: Scheme, judge: Callable[[TrainedCandidate], CandidateDecision], format: Format = Format.ONNX
) -> ExportFunctions:
    roundings = find_row(format, scheme).simulation
    assert roundings is not None
    return ExportFunctions(lambda m, _: prepare(m, FAMILY, TASK, format), lambda _: roundings, judge)


def follow(family: Family, format: Format) -> Prepare:
    return lambda model, _: prepare(model, family, TASK, format)


def job(student: Any, rows: TrainSet, work: Path, kept: bool = True, **stage: Any) -> StageJob[QatStage]:
    section = QatStage(**{"method": "qat", "steps": 12, "batch": 8, "checkpoint": 3, **stage})
    return StageJob(
        pair=TeacherStudent(student, student, FAMILY, section),
        rows=lambda: rows,
        seed=1,
        work=work,
        task=TASK,
        exported=lambda: form(section.scheme, lambda _: CandidateDecision(kept, "compared"), section.format),
    )


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


def learned(result: StageResult) -> LearnedRanges:
    return LearnedRanges.model_validate(result.carried[qat.LEARNED_RANGES_PART].facts)


@pytest.mark.parametrize(("scheme", "format"), [("a8w8", "onnx"), ("a8w8", "tflite"), ("w4", "onnx")])
def test_a_student_learns_its_own_answers(
    scheme: str, format: str, make_classifier: Callable[..., Any], rows: TrainSet, tmp_path: Path
) -> None:
    student = make_classifier("bert", 2, ("a", "b", "c"))
    before = weights(student)
    result = qat.train(job(student, rows, tmp_path, scheme=scheme, format=format, steps=40, lr=1e-3))
    losses = [r.loss for r in result.outcome.history]
    assert losses[-1] < losses[0]
    after = weights(student)
    assert after.keys() == before.keys(), "ranges are no part of the student"
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert "classifier.weight" in changed
    assert not any("embeddings.weight" in k for k in changed), "tables are frozen"
    products = learned(result).products
    assert len(products) == (14 if scheme == "a8w8" else 0)
    assert all((p.outputs is not None) == (format == "tflite") for p in products.values())


def test_a_killed_stage_ends_with_the_same_numbers(
    make_classifier: Callable[..., Any], rows: TrainSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halved = (make_classifier("bert", 2, ("a", "b", "c")) for _ in range(2))
    expected = qat.train(job(whole, rows, tmp_path / "whole"))
    right, left = qat.QuantizedTraining.__call__, [7]

    def dying(self: Any, model: Any, batch: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return right(self, model, batch)

    with monkeypatch.context() as patch:
        patch.setattr(qat.QuantizedTraining, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            qat.train(job(halved, rows, tmp_path / "halved"))
    again = make_classifier("bert", 2, ("a", "b", "c"))
    assert learned(qat.train(job(again, rows, tmp_path / "halved"))) == learned(expected)
    assert same(weights(again), weights(whole))


def test_a_student_that_became_worse_is_given_back(
    make_classifier: Callable[..., Any], rows: TrainSet, tmp_path: Path
) -> None:
    student = make_classifier("bert", 2, ("a", "b", "c"))
    before = weights(student)
    result = qat.train(job(student, rows, tmp_path, kept=False, lr=0.1))
    assert same(weights(student), before)
    assert qat.LEARNED_RANGES_PART not in result.carried
    assert result.notes == ("compared",)


def test_rows_that_select_are_not_trained_on(rows: TrainSet) -> None:
    training, calibration, selection = qat._divide_rows(rows, "distill.0")
    read = [
        {tuple(f["input_ids"][0].tolist()) for f in part.single_inputs(("input_ids",))}
        for part in (training, calibration, selection)
    ]
    assert not read[0] & read[2]
    assert read[1] <= read[0]
    assert len(training.numbers) + len(selection.numbers) == 60
    twice = replace(rows, rows=replace(rows.rows, encoded=[rows.rows.encoded[0]] * 60))
    with pytest.raises(InputError, match="at least 4 different rows"):
        qat._divide_rows(twice, "distill.0")


def test_a_graph_that_training_cannot_follow_is_refused(
    make_classifier: Callable[..., Any], rows: TrainSet, tmp_path: Path
) -> None:
    student, family = make_classifier("deberta-v2", 2, ("a", "b")), family_of("deberta-v2")
    given = job(student, rows, tmp_path)
    own = replace(
        form(Scheme.A8W8, lambda _: CandidateDecision(True, "")), prepare=lambda m, _: prepare(m, family, TASK)
    )
    wrong = replace(given, pair=replace(given.pair, family=family), exported=lambda: own)
    with pytest.raises(InputError, match=r"distill\.0: the graph of .*DeBERTa.* Leave the stage out"):
        qat.train(wrong)


@pytest.mark.parametrize("format", ["onnx", "tflite", "coreml"])
def test_relu6_has_the_range_that_it_clips_to(
    format: str, make_classifier: Callable[..., Any], rows: TrainSet, tmp_path: Path
) -> None:
    student = make_classifier("mobilebert", 2, ("a", "b", "c"))
    family, kind = family_of("mobilebert"), Format(format)
    given = job(student, rows, tmp_path, format=format, activation="relu6", range_lr=0.5)
    own = replace(form(Scheme.A8W8, lambda _: CandidateDecision(True, ""), kind), prepare=follow(family, kind))
    pair = replace(given.pair, family=family)
    products = learned(qat.train(replace(given, pair=pair, exported=lambda: own))).products
    assert student.config.hidden_act == "relu6"
    read = [p.inputs for p in products.values() if p.inputs is not None]
    assert read.count((0.0, 6.0)) == 4, "two layers of two feed-forward parts"
    assert len(set(read)) > 4, "other ranges are learned"
    made = [p.outputs for p in products.values() if p.outputs is not None]
    assert made.count((0.0, 6.0)) == (0 if format == "onnx" else 4)


def test_a_student_that_relu6_made_worse_gets_its_relu_back(
    make_classifier: Callable[..., Any], rows: TrainSet, tmp_path: Path
) -> None:
    student, family = make_classifier("mobilebert", 2, ("a", "b", "c")), family_of("mobilebert")
    before, seen = weights(student), []

    def judge(rival: TrainedCandidate) -> CandidateDecision:
        kinds = (rival.former, rival.student)
        seen.extend(any(isinstance(m, torch.nn.ReLU6) for m in model.modules()) for model in kinds)
        return CandidateDecision(False, "compared")

    own = replace(form(Scheme.A8W8, judge), prepare=follow(family, Format.ONNX))
    given = job(student, rows, tmp_path, activation="relu6", lr=0.1)
    result = qat.train(replace(given, pair=replace(given.pair, family=family), exported=lambda: own))
    assert seen == [False, True], "the student before the stage is the one with relu"
    assert same(weights(student), before)
    assert student.config.hidden_act == "relu"
    assert not any(isinstance(m, torch.nn.ReLU6) for m in student.modules())
    assert qat.LEARNED_RANGES_PART not in result.carried
