"""The study's figures: intervals, records, the page's sentences, time per stage."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from study.arms import ARMS
from study.bootstrap import Estimate, Verdict, bootstrap, paired
from study.clock import StageClock
from study.comparisons import COMPARISONS, difference
from study.page import page
from study.records import ArmRecord, StageRecord, Surroundings, append_record, find_record, read_records

from pocketbert.core.errors import InputError

MADE_WITH = Surroundings(
    machine="a machine [avx2]", device="cpu", threads=2, dtype="float32", versions={"torch": "1.0"}
)
GENERAL = {"t4-general", "m4-minilm"}


def record(arm: str, seed: int, accuracy: float, rows: int = 400, **changes) -> ArmRecord:
    stage = StageRecord(
        name="distill.0", method="task", general=False, steps=10, batch=32, cpu_s=12.0, wall_s=7.0, loss=0.5
    )
    stages = [stage.model_copy(update={"method": "minilm", "general": True}), stage] if arm in GENERAL else [stage]
    right = round(accuracy * rows)
    return ArmRecord(
        arm=arm,
        seed=seed,
        recipe="abc",
        parameters=1000,
        train_rows=640,
        correct="1" * right + "0" * (rows - right),
        stages=stages,
        cpu_s=20.0,
        peak_mib=500.0,
        resumed=False,
        date="2026-01-02T03:04:05+00:00",
        made_with=MADE_WITH,
    ).model_copy(update=changes)


tables = arrays(np.bool_, st.tuples(st.integers(1, 4), st.integers(1, 40)))


@settings(max_examples=25)
@given(tables)
def test_the_interval_holds_the_mean_and_stays_between_0_and_1(table):
    found = bootstrap(table, 500)
    assert found.mean == pytest.approx(table.mean())
    assert 0 <= found.low <= found.high <= 1
    if table.all() or not table.any():
        assert found.low == found.high == found.mean


@settings(max_examples=25)
@given(tables)
def test_an_arm_does_not_differ_from_itself(table):
    found = paired(table, table)
    assert (found.mean, found.low, found.high) == (0, 0, 0)
    assert found.verdict is Verdict.NOT_VISIBLE


@settings(max_examples=25)
@given(tables, st.integers(0, 2**31))
def test_swapping_two_arms_turns_the_difference_round(table, seed):
    other = np.random.default_rng(seed).random(table.shape) < 0.5
    one, two = paired(table, other), paired(other, table)
    assert one.mean == pytest.approx(-two.mean)
    assert one.low == pytest.approx(-two.high)
    assert one.high == pytest.approx(-two.low)


def test_one_seeds_interval_is_as_wide_as_the_normal_one():
    hits = np.arange(872)[None] < 700
    found, share = bootstrap(hits), 700 / 872
    error = 1.96 * np.sqrt(share * (1 - share) / 872)
    assert found.low == pytest.approx(share - error, abs=2e-3)
    assert found.high == pytest.approx(share + error, abs=2e-3)


def test_seeds_that_disagree_widen_the_interval():
    rows = np.arange(872)
    alike = np.stack([rows < 700, rows < 700])
    apart = np.stack([rows < 800, rows < 600])
    width = [e.high - e.low for e in (bootstrap(alike), bootstrap(apart))]
    assert width[1] > 2 * width[0]


def test_pairing_sees_what_separate_intervals_do_not():
    rows = np.arange(872)
    worse, better = (rows < 700)[None], (rows < 715)[None]
    assert paired(better, worse).verdict is Verdict.HELPS
    assert paired(worse, better).verdict is Verdict.HURTS
    assert bootstrap(worse).high > bootstrap(better).low


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (5,)])
def test_an_empty_table_is_refused(shape):
    with pytest.raises(ValueError, match="a table"):
        bootstrap(np.zeros(shape))


def test_tables_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="not the same"):
        paired(np.zeros((1, 5), np.bool_), np.zeros((2, 5), np.bool_))


def test_an_interval_that_touches_0_shows_nothing():
    assert Estimate(0.1, 0.0, 0.2).verdict is Verdict.NOT_VISIBLE
    assert Estimate(0.1, 0.01, 0.2).verdict is Verdict.HELPS
    assert Estimate(-0.1, -0.2, -0.01).verdict is Verdict.HURTS


def test_only_seeds_that_both_arms_have_are_compared():
    comparison = COMPARISONS[-1]
    some = [record(comparison.having, s, 0.9) for s in (1, 2)] + [record(comparison.lacking, s, 0.5) for s in (2, 3)]
    found = difference(comparison, some)
    assert found is not None
    assert found.seeds == (2,)
    assert found.estimate.mean == pytest.approx(0.4)
    assert found.sentence.startswith(f"{comparison.what} helps: +40.00 [")
    assert "1 seed." in found.sentence
    assert difference(comparison, some[:2]) is None


def test_records_are_read_back_and_a_line_that_a_kill_cut_is_not(tmp_path):
    path = tmp_path / "results.jsonl"
    made = [record("m4-none", 1, 0.5), record("m4-none", 2, 0.6)]
    assert read_records(path) == []
    append_record(path, made[0])
    with path.open("a") as stream:
        stream.write('{"arm": "m4-no')
    assert read_records(path) == made[:1]
    append_record(path, made[1])
    assert read_records(path) == made


def test_an_arm_is_skipped_only_with_its_own_settings(tmp_path):
    made = [record("m4-none", 1, 0.5)]
    assert find_record(made, "m4-none", 1, "abc", tmp_path) == made[0]
    assert find_record(made, "m4-none", 2, "abc", tmp_path) is None
    with pytest.raises(InputError, match="m4-none, seed 1.*--minutes"):
        find_record(made, "m4-none", 1, "other", tmp_path)


def test_the_page_shows_every_arm_and_judges_every_comparison():
    accuracy = {"t4-general": 0.5, "m4-minilm": 0.9}
    made = [record(a.name, s, accuracy.get(a.name, 0.7)) for a in ARMS for s in (1, 2)]
    text = page(made, "the data")
    for arm in ARMS:
        assert f"| {arm.name} | 1, 2 | " in text
    assert "- TinyBERT's general stage hurts: -20.00 [" in text
    assert "- MiniLM's general stage helps: +20.00 [" in text
    assert text.count("is not visible at this budget: +0.00 [+0.00, +0.00]") == len(COMPARISONS) - 2
    for needed in (
        "the data",
        "a machine [avx2]",
        "2 threads",
        "torch 1.0",
        "2026-01-02",
        "neighbours in the teacher's embedding",
        "| 320 of 640 |",
    ):
        assert needed in text
    assert "| 20 (12), 20 (12) |" in text, "the general stage's time is apart"


def test_the_page_of_an_unfinished_study_says_what_is_missing():
    text = page([record("m4-none", 1, 0.7, resumed=True)], "the data")
    assert text.count("was not measured") == len(COMPARISONS)
    assert "| ≥ 20 |" in text


def test_the_clock_tells_the_stages_apart(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"stage": "distill.0", "step": 20},
        {"stage": "distill.0", "step": 40},
        {"stage": "distill.1", "step": 20},
    ]
    with StageClock(path, {"distill.0": 40, "distill.1": 20, "distill.2": 9}) as clock:
        path.write_text("".join(f"{json.dumps(r)}\n" for r in rows[:1]))
        assert clock.spent() == {}
        path.write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    spent = clock.spent()
    assert list(spent) == ["distill.0", "distill.1"]
    assert all(t.cpu >= 0 and t.wall >= 0 for t in spent.values())
