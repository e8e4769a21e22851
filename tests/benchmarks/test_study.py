"""The study of methods: its plan of arms, intervals, records, page, and time per stage."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from study.arms import ARMS, BASE_MINUTES, arm_recipe, teacher_recipe
from study.bootstrap import Estimate, Verdict, bootstrap, paired
from study.clock import StageClock
from study.comparisons import COMPARISONS, difference
from study.page import page
from study.records import ArmRecord, StageRecord, Surroundings, append_record, find_record, read_records
from study.sources import sources

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import dump_recipe, load_recipe

BY_NAME = {a.name: a for a in ARMS}

# --- the plan --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    for name in ("sst2/train", "sst2/dev", "text/a", "text/b"):
        path = tmp_path / f"{name}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return sources(tmp_path / "sst2", tmp_path / "text")


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: f"{c.having}-{c.lacking}")
def test_compared_arms_differ_in_one_thing_and_see_as_many_task_rows(comparison):
    having, lacking = BY_NAME[comparison.having], BY_NAME[comparison.lacking]
    assert having.student == lacking.student
    for minutes in (0.01, 0.5, 1.7, 6.0, 90.0):
        factor = minutes / BASE_MINUTES
        assert having.task_rows(factor) == lacking.task_rows(factor) > 0
    if "instead" in comparison.what:
        one, other = having.stages, lacking.stages
        assert one[1:] == other[1:]
        assert one[0].strategy != other[0].strategy
        same = {"strategy": "joint", "transfer_steps": None}
        assert one[0].model_copy(update=same) == other[0].model_copy(update=same)
    elif "general" in comparison.what or "transfer" in comparison.what:
        assert having.stages[1:] == lacking.stages
        assert having.stages[0].general
    elif "Augmentation" in comparison.what:
        assert [s.model_copy(update={"augmented": False}) for s in having.stages] == list(lacking.stages)
        assert having.augmented and not lacking.augmented
    else:
        methods = {s.method for s in lacking.stages}
        assert [s.method for s in having.stages if s.method not in methods] == ["tinybert-intermediate"]
        assert having.augmented == lacking.augmented


@pytest.mark.parametrize("arm", ARMS, ids=lambda a: a.name)
def test_an_arm_is_a_recipe_that_can_be_run_alone_with_the_teacher_of_its_seed(arm, data, tmp_path):
    recipe, teacher = arm_recipe(arm, data, seed=5, factor=0.1, teacher_steps=9), teacher_recipe(data, 5, 9)
    path = tmp_path / "arm.yaml"
    path.write_text(dump_recipe(recipe))
    assert load_recipe(path) == recipe
    assert (recipe.data.corpus is not None) == arm.general
    assert (recipe.data.augment is not None) == arm.augmented
    for name in ("teacher", "seed", "task", "answer"):
        assert getattr(recipe, name) == getattr(teacher, name)
    assert recipe.data.model_copy(update={"corpus": None, "augment": None}) == teacher.data


def test_more_minutes_are_more_steps_of_every_stage():
    for arm in ARMS:
        few, many = arm.scaled(0.24), arm.scaled(4)
        assert [s.method for s in few] == [s.method for s in many]
        assert all(a.steps * 200 == b.steps * 12 for a, b in zip(few, many, strict=True))
        assert all(s.steps % 50 == 0 for s in arm.stages)
        assert arm.scaled(1.0) == list(arm.stages)


def test_files_that_are_missing_are_all_named_and_without_folders_the_data_come_from_the_hub(tmp_path):
    with pytest.raises(InputError) as caught:
        sources(tmp_path / "nothing", tmp_path)
    assert all(words in str(caught.value) for words in ("train.jsonl.gz", "dev.jsonl.gz", "--wikitext"))
    data = sources(None, None)
    assert (data.train.dataset, data.train.split) == ("nyu-mll/glue", "train")
    assert data.dev.split == "validation"
    assert data.corpus.sources[0].dataset == "Salesforce/wikitext"


# --- intervals -------------------------------------------------------------------------------------------------------------------

ROWS = np.arange(400)


@settings(max_examples=25)
@given(arrays(np.bool_, st.tuples(st.integers(1, 4), st.integers(1, 40))), st.integers(0, 2**31))
def test_intervals_hold_their_mean_and_turn_round_with_the_arms(table, seed):
    found = bootstrap(table, 500)
    assert found.mean == pytest.approx(table.mean())
    assert 0 <= found.low <= found.high <= 1
    if table.all() or not table.any():
        assert found.low == found.high == found.mean
    same = paired(table, table)
    assert (same.mean, same.low, same.high, same.verdict) == (0, 0, 0, Verdict.NOT_VISIBLE)
    other = np.random.default_rng(seed).random(table.shape) < 0.5
    one, two = paired(table, other), paired(other, table)
    assert (one.mean, one.low, one.high) == pytest.approx((-two.mean, -two.high, -two.low))


def test_one_seeds_interval_is_as_wide_as_the_normal_one_and_seeds_that_disagree_widen_it():
    found, share = bootstrap((ROWS < 320)[None]), 0.8
    error = 1.96 * np.sqrt(share * (1 - share) / 400)
    assert (found.low, found.high) == pytest.approx((share - error, share + error), abs=4e-3)
    alike = bootstrap(np.stack([ROWS < 320, ROWS < 320]))
    apart = bootstrap(np.stack([ROWS < 260, ROWS < 380]))
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


def test_pairing_sees_what_separate_intervals_do_not():
    worse, better = (ROWS < 320)[None], (ROWS < 335)[None]
    assert paired(better, worse).verdict is Verdict.HELPS
    assert paired(worse, better).verdict is Verdict.HURTS
    assert bootstrap(worse).high > bootstrap(better).low
    assert Estimate(0.1, 0.0, 0.2).verdict is Verdict.NOT_VISIBLE  # an interval that touches 0 shows nothing


def test_tables_that_are_empty_or_of_other_shapes_are_refused():
    for shape in ((0, 5), (2, 0), (5,)):
        with pytest.raises(ValueError, match="a table"):
            bootstrap(np.zeros(shape))
    with pytest.raises(ValueError, match="not the same"):
        paired(np.zeros((1, 5), np.bool_), np.zeros((2, 5), np.bool_))


# --- records and page ------------------------------------------------------------------------------------------------------------


def make_record(arm, seed, accuracy, **changes):
    costs = {"general": False, "steps": 10, "batch": 32, "cpu_s": 12.0, "wall_s": 7.0, "loss": 0.5}
    stages = [StageRecord(name="distill.0", method="task", **costs)]
    if arm in ("t4-general", "m4-minilm"):
        stages.insert(0, stages[0].model_copy(update={"method": "minilm", "general": True}))
    facts = {"device": "cpu", "threads": 2, "dtype": "float32", "versions": {"torch": "1.0"}}
    made_with = Surroundings(machine="a machine [avx2]", **facts)
    right = round(accuracy * 100)
    counts = {"parameters": 1000, "train_rows": 640, "cpu_s": 20.0, "peak_mib": 500.0, "resumed": False}
    about = {"recipe": "abc", "date": "2026-01-02T03:04:05+00:00", "made_with": made_with, "stages": stages}
    record = ArmRecord(arm=arm, seed=seed, correct="1" * right + "0" * (100 - right), **counts, **about)
    return record.model_copy(update=changes)


def test_only_seeds_that_both_arms_have_are_compared():
    comparison = COMPARISONS[-1]
    some = [make_record(comparison.having, s, 0.9) for s in (1, 2)]
    found = difference(comparison, [*some, *(make_record(comparison.lacking, s, 0.5) for s in (2, 3))])
    assert found.seeds == (2,)
    assert found.estimate.mean == pytest.approx(0.4)
    assert found.sentence.startswith(f"{comparison.what} helps: +40.00 [")
    assert "1 seed." in found.sentence
    assert difference(comparison, some) is None


def test_records_are_read_back_and_a_line_that_a_kill_cut_is_not(tmp_path):
    path, made = tmp_path / "results.jsonl", [make_record("m4-none", 1, 0.5), make_record("m4-none", 2, 0.6)]
    assert read_records(path) == []
    append_record(path, made[0])
    with path.open("a") as stream:
        stream.write('{"arm": "m4-no')
    assert read_records(path) == made[:1]
    append_record(path, made[1])
    assert read_records(path) == made


def test_an_arm_is_skipped_only_with_its_own_settings(tmp_path):
    made = [make_record("m4-none", 1, 0.5)]
    assert find_record(made, "m4-none", 1, "abc", tmp_path) == made[0]
    assert find_record(made, "m4-none", 2, "abc", tmp_path) is None
    with pytest.raises(InputError, match="m4-none, seed 1.*--minutes"):
        find_record(made, "m4-none", 1, "other", tmp_path)


def test_the_page_shows_every_arm_and_judges_every_comparison():
    accuracy = {"t4-general": 0.5, "m4-minilm": 0.9}
    text = page([make_record(a.name, s, accuracy.get(a.name, 0.7)) for a in ARMS for s in (1, 2)], "the data")
    for arm in ARMS:
        assert f"| {arm.name} | 1, 2 | " in text
    assert "- TinyBERT's general stage hurts: -20.00 [" in text
    assert "- MiniLM's general stage helps: +20.00 [" in text
    assert text.count("is not visible at this budget: +0.00 [+0.00, +0.00]") == len(COMPARISONS) - 2
    needed = ("the data", "a machine [avx2]", "2 threads", "torch 1.0", "2026-01-02", "| 320 of 640 |")
    for words in (*needed, "neighbours in the teacher's embedding", "| 20 (12), 20 (12) |"):  # the general stage apart
        assert words in text
    unfinished = page([make_record("m4-none", 1, 0.7, resumed=True)], "the data")
    assert unfinished.count("was not measured") == len(COMPARISONS)
    assert "| ≥ 20 |" in unfinished


def test_the_clock_tells_the_stages_apart(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"stage": f"distill.{stage}", "step": step} for stage, step in ((0, 20), (0, 40), (1, 20))]
    with StageClock(path, {"distill.0": 40, "distill.1": 20, "distill.2": 9}) as clock:
        path.write_text(f"{json.dumps(rows[0])}\n")
        assert clock.spent() == {}
        path.write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    spent = clock.spent()
    assert list(spent) == ["distill.0", "distill.1"]
    assert all(t.cpu >= 0 and t.wall >= 0 for t in spent.values())
