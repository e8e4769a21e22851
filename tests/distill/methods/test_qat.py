"""Method `qat`: what is learned, on which rows, exactly resumed, and undone where it does not help."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.families.weight_records import LearnedRanges
from pocketbert.core.heads.head import Prepared
from pocketbert.core.recipe.stages import QatStage
from pocketbert.core.types import Format
from pocketbert.distill.methods import qat
from pocketbert.distill.methods.method import (
    CandidateDecision,
    ExportFunctions,
    StageJob,
    StageResult,
    TeacherStudent,
    TrainedCandidate,
)
from pocketbert.distill.training.data import TrainSet
from pocketbert.export.prepare import prepare
from pocketbert.quantize.table import find_row
from support.objectives import CLASSIFY


@pytest.fixture(scope="module")
def rows(open_tiny, labelled_rows) -> TrainSet:
    tokenizer = open_tiny("bert", 2)[2]
    encoded = tokenizer.encode([r["text"] for r in labelled_rows(60)])
    return TrainSet(Prepared([], encoded, np.arange(60), {"labels": np.arange(60) % 3}), tokenizer)


class Killed(Exception):
    """The process dies here."""


@dataclass
class Counted:
    """Training rows that note which texts are in batches; the process dies at a step.

    Attributes:
        rows: The rows.
        dies_at: The step, from 0.
        seen: Ids of the texts that were trained on.
    """

    rows: TrainSet
    dies_at: int
    seen: set[tuple[int, ...]]

    @property
    def lengths(self) -> Sequence[int]:
        return self.rows.lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        if step == self.dies_at:
            raise Killed
        made = self.rows.batch(rows, step)
        if len(rows) > 1:  # else it is looked at alone
            self.seen.update(map(real_ids, made["input_ids"], made["attention_mask"]))
        return made


def real_ids(ids: Tensor, mask: Tensor) -> tuple[int, ...]:
    return tuple(ids[mask == 1].tolist())


def keep(_: TrainedCandidate) -> CandidateDecision:
    return CandidateDecision(True, "compared")


def discard(_: TrainedCandidate) -> CandidateDecision:
    return CandidateDecision(False, "compared")


def job_of(
    student: Any, rows: Any, work: Path, judge: Callable[[TrainedCandidate], CandidateDecision] = keep, **stage: Any
) -> StageJob[QatStage]:
    section = QatStage(**{"method": "qat", "steps": 12, "batch": 8, "checkpoint": 3, **stage})
    family, format = family_of(student.config.model_type), Format(section.format)
    roundings = find_row(format, section.scheme).simulation
    assert roundings is not None
    form = ExportFunctions(lambda model, _: prepare(model, family, CLASSIFY, format), lambda _: roundings, judge)
    pair = TeacherStudent(student, student, family, section)
    return StageJob(pair=pair, rows=lambda: rows, seed=1, work=work, task=CLASSIFY, exported=lambda _: form)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


def learned(result: StageResult) -> LearnedRanges:
    return LearnedRanges.model_validate(result.carried[qat.LEARNED_RANGES_PART].facts)


@pytest.mark.parametrize(("scheme", "format"), [("a8w8", "onnx"), ("a8w8", "tflite"), ("w4", "onnx")])
def test_a_student_learns_its_own_answers(scheme, format, make_classifier, rows, tmp_path):
    student = make_classifier("bert", 2, ("a", "b", "c"))
    before = weights(student)
    result = qat.train(job_of(student, rows, tmp_path, scheme=scheme, format=format, steps=40, lr=1e-3))
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


def test_a_killed_stage_ends_with_the_same_numbers(make_classifier, rows, tmp_path):
    whole, halved, again = (make_classifier("bert", 2, ("a", "b", "c")) for _ in range(3))
    expected = qat.train(job_of(whole, rows, tmp_path / "whole"))
    with pytest.raises(Killed):
        qat.train(job_of(halved, Counted(rows, 7, set()), tmp_path / "halved"))
    assert learned(qat.train(job_of(again, rows, tmp_path / "halved"))) == learned(expected)
    assert same(weights(again), weights(whole))


def test_rows_that_select_are_not_trained_on(make_classifier, rows, tmp_path):
    counted, rivals = Counted(rows, -1, set()), list[TrainedCandidate]()

    def judge(rival: TrainedCandidate) -> CandidateDecision:
        rivals.append(rival)
        return keep(rival)

    student = make_classifier("bert", 1, ("a", "b", "c"))
    qat.train(job_of(student, counted, tmp_path, judge))
    selection, calibration = (
        {real_ids(row["input_ids"][0], row["attention_mask"][0]) for row in part}
        for part in (rivals[0].selection, rivals[0].calibration)
    )
    assert len(selection) + len(calibration) == len({tuple(e.ids.tolist()) for e in rows.rows.encoded})
    assert counted.seen and counted.seen <= calibration and not selection & calibration
    twice = replace(rows, rows=replace(rows.rows, encoded=[rows.rows.encoded[0]] * 60))
    with pytest.raises(InputError, match="at least 4 different rows"):
        qat.train(job_of(student, twice, tmp_path))


def test_a_graph_that_training_cannot_follow_and_a_job_without_a_file_are_refused(make_classifier, rows, tmp_path):
    job = job_of(make_classifier("deberta-v2", 2, ("a", "b")), rows, tmp_path)
    with pytest.raises(InputError, match=r"distill\.0: the graph of .*DeBERTa.* Leave the stage out"):
        qat.train(job)
    with pytest.raises(ValueError, match=r"StageJob\(exported"):
        qat.train(replace(job, exported=None))


@pytest.mark.parametrize("format", ["onnx", "tflite", "coreml"])
def test_relu6_has_the_range_that_it_clips_to(format, make_classifier, rows, tmp_path):
    student = make_classifier("mobilebert", 2, ("a", "b", "c"))
    job = job_of(student, rows, tmp_path, steps=4, format=format, activation="relu6", range_lr=0.5)
    products = learned(qat.train(job)).products
    assert student.config.hidden_act == "relu6"
    read = [p.inputs for p in products.values() if p.inputs is not None]
    assert read.count((0.0, 6.0)) == 4, "two layers of two feed-forward parts"
    assert len(set(read)) > 4, "other ranges are learned"
    made = [p.outputs for p in products.values() if p.outputs is not None]
    assert made.count((0.0, 6.0)) == (0 if format == "onnx" else 4)


def test_a_student_that_relu6_made_worse_gets_its_relu_back(make_classifier, rows, tmp_path):
    student, clipped = make_classifier("mobilebert", 2, ("a", "b", "c")), list[bool]()
    before = weights(student)

    def is_clipped(model: Any) -> bool:
        return any(isinstance(m, torch.nn.ReLU6) for m in model.modules())

    def judge(rival: TrainedCandidate) -> CandidateDecision:
        clipped.extend(map(is_clipped, (rival.former, rival.student)))
        return discard(rival)

    result = qat.train(job_of(student, rows, tmp_path, judge, steps=4, activation="relu6", lr=0.1))
    assert clipped == [False, True], "the student before the stage is the one with relu"
    assert same(weights(student), before)
    assert student.config.hidden_act == "relu" and not is_clipped(student)
    assert qat.LEARNED_RANGES_PART not in result.carried
