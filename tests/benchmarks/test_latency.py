"""The latency protocol on this machine: what is measured, kept, compared, shortened and refused."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks import latency
from pocketbert.benchmarks.devices import table
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.report import render_report
from pocketbert.benchmarks.report.output import describe_sessions, make_latency_table
from pocketbert.benchmarks.statistics import Statistics, paired_ratio
from pocketbert.benchmarks.timing import LEAST_SINGLES
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance

QUICK = {"label": "", "profile": False}


def test_every_combination_is_measured_once_with_raw_samples_provenance_and_origin(result, variants):
    found = [(m.variant, m.threads, m.length) for m in result.measurements]
    names = [v.name for v in variants]
    assert len(found) == 12
    assert set(found) == {(v, t, x) for v in names for t in (1, 2) for x in (16, 32, "text")}
    digests = {v.name: v.sha256 for v in variants}
    for m in result.measurements:
        assert [len(r) for r in m.wall_ms] == [len(r) for r in m.cpu_ms] == [10, 10, 10]
        assert m.wall == Statistics.of([x for r in m.wall_ms for x in r])
        assert m.cpu == Statistics.of([x for r in m.cpu_ms for x in r])
        assert m.wall_interval is not None
        assert m.warmup_runs >= 10
        assert (m.device, m.engine, m.batch, m.provenance) == ("local", "onnxruntime", 1, Provenance.MEASURED)
        assert m.sha256 == digests[m.variant]
        assert m.machine == result.machine
        assert 0 <= m.load.others <= 1
    stamped = [*result.comparisons, *result.tokenizers, *result.profiles]
    assert {s.provenance for s in stamped} == {Provenance.MEASURED}


def test_comparisons_can_be_recomputed_from_the_raw_samples(result):
    assert {(c.variant, c.baseline) for c in result.comparisons} == {("student int8", "teacher fp32")}
    assert len(result.comparisons) == 2 * 3

    def rounds(name, c):
        repeats, k = result.find(name, c.threads, c.length).wall_ms, result.protocol.burst
        return [float(np.median(r[i : i + k])) for r in repeats for i in range(0, len(r), k)]

    for c in result.comparisons:
        assert c.wall == paired_ratio(rounds(c.variant, c), rounds(c.baseline, c))
        assert c.wall.pairs == 6


def test_cold_start_tokenizer_profile_and_placement(result):
    for m in result.measurements:
        assert min(m.cold.load_ms, m.cold.first_ms) > 0
        assert m.cold.length == 32
        assert m.cold.peak_rss_bytes > m.cold.peak_memory_bytes >= 0
    (tokenizer,) = result.tokenizers
    assert tokenizer.variants == ["teacher fp32", "student int8"]
    assert (tokenizer.texts, tokenizer.per_text.n) == (12, 36)
    teacher, student = result.profiles
    assert [{o.op_type: o.nodes for o in p.ops}["MatMul"] for p in (teacher, student)] == [5, 2]
    assert sum(o.share for o in teacher.ops) == pytest.approx(1)
    assert [p.provider for p in teacher.placement] == ["CPUExecutionProvider"]
    assert sum(p.nodes for p in teacher.placement) == sum(o.nodes for o in teacher.ops)


def test_a_tiny_budget_makes_fewer_runs_and_idle_calls_and_says_so(variants, texts):
    options = BenchmarkOptions(
        lengths=("text", 16), runs=500, repeats=2, gaps_ms=(20.0,), budget_s=1e-3, baseline="student int8", **QUICK
    )
    made = benchmark(variants, texts, options)
    assert made.protocol.shortened
    assert made.protocol.runs_made == (5, 5)
    assert made.protocol.texts == 5
    assert any("instead of 500" in n for n in made.protocol.notes)
    assert [len(r) for r in made.measurements[0].wall_ms] == [5, 5]
    assert made.measurements[0].wall_interval is None
    assert made.profiles == []
    assert {(c.variant, c.baseline) for c in made.comparisons} == {("teacher fp32", "student int8")}
    singles = [m for m in made.measurements if m.gap_ms]
    assert [len(r) for m in singles for r in m.wall_ms] == [LEAST_SINGLES] * 4
    assert {m.length for m in singles} == {"text"}  # at the first length at any rate
    (note,) = (n for n in made.protocol.notes if "No single inferences" in n)
    assert "after 20 ms idle at 16 tokens: they take 0 s more, and idle times take at most 50 %" in note
    assert note in describe_sessions(made)


def test_inferences_after_idle_times_are_figures_of_their_own(variants, texts):
    options = BenchmarkOptions(lengths=("text", 16), runs=10, repeats=3, gaps_ms=(1.0, 2.0), budget_s=30, **QUICK)
    made = benchmark(variants, texts, options)
    names = [v.name for v in variants]
    cadences = [("text", 0), (16, 0), ("text", 1), ("text", 2), (16, 1), (16, 2)]
    assert [(m.variant, m.length, m.gap_ms) for m in made.measurements] == [(n, *c) for c in cadences for n in names]
    for m in made.measurements:
        assert [len(r) for r in m.wall_ms] == [10, 10, 10]
        assert m.wall_interval is not None
    assert made.find(names[1], 1, "text").gap_ms == 0
    idle = made.compare(names[1], 1, "text", 2.0)
    assert idle.wall.pairs == 30  # every inference is a round
    assert idle.wall != made.compare(names[1], 1, "text").wall
    assert "After idle times (1 ms, 2 ms) files take turns of one inference each." in made.protocol.description
    shown = {f"{x}{after}" for x in ("text", 16) for after in ("", ", after 1 ms idle", ", after 2 ms idle")}
    assert {row[2] for row in make_latency_table(made)[1]} == shown
    assert not any("No single inferences" in note for note in made.protocol.notes)
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made


def test_every_figure_has_the_least_seconds_whatever_the_budget(variants, texts):
    options = BenchmarkOptions(runs=10, repeats=2, gaps_ms=(1.0,), least_s=0.1, budget_s=1e-3, **QUICK)
    made = benchmark(variants, texts, options)
    for m in made.measurements:
        assert m.gap_ms or all(sum(repeat) >= 50 for repeat in m.wall_ms)
        assert all(len(repeat) >= 10 for repeat in m.wall_ms)
    assert {m.gap_ms for m in made.measurements} == {0.0, 1.0}  # single calls have no such bound, and are all made
    assert not made.protocol.shortened
    assert "at least 20 inferences and 0.1 s of them" in made.protocol.description
    assert "p90 is the figure to quote" in made.protocol.description


def test_files_run_for_minutes_one_after_the_other(variants, texts, make_data):
    options = BenchmarkOptions(runs=10, repeats=2, budget_s=1, sustained_min=0.005, **QUICK)
    made = benchmark(variants, texts, options)
    assert [s.variant for s in made.sustained] == [v.name for v in variants]
    for s in made.sustained:
        assert (s.device, s.threads, s.length, s.provenance) == ("local", 1, "text", Provenance.MEASURED)
        assert [x.wall for x in s.slices] == [Statistics.of(wall) for wall in s.wall_ms]
    lines = [line for line in describe_sessions(made) if line.startswith("sustained: ")]
    assert len(lines) == len(variants)
    assert "last slice to the first" in lines[0]
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made
    assert "wall_ms" not in made.to_dict()["sustained"][0]
    assert "<h3>Sustained</h3>" in render_report(make_data(benchmark=made))


def test_minutes_without_a_pause_are_no_part_of_the_next_devices_budget(variants, texts, monkeypatch):
    options = BenchmarkOptions(runs=5, repeats=1, budget_s=600, sustained_min=0.005, lengths=(16,), **QUICK)
    made, passed = benchmark(variants[:1], texts, options).sustained[0], [0.0]

    def sustain(*_):
        passed[0] += 1000
        return made

    monkeypatch.setattr(latency, "sustain", sustain)
    monkeypatch.setattr(latency, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    here = table._devices["local"]
    monkeypatch.setitem(table._devices, "ssh", replace(table._devices["ssh"], connect=here.connect))
    both = benchmark(variants[:1], texts, replace(options, devices=("ssh:a", "ssh:b")))
    first, second = (session.protocol for session in both.sessions)
    assert first.budget_s == pytest.approx(300, abs=50)
    assert second.budget_s > first.budget_s, "the minutes of the first device are not counted"


def test_all_wrong_arguments_are_told_at_once(variants, texts):
    wrong = {"devices": ["locla", "coreml"], "threads": [0], "lengths": [2, 8.5], "runs": 0, "repeats": -1}
    wrong |= {"budget_s": 0, "baseline": "techer", "gaps_ms": [100, 20_000], "sustained_min": -1}
    with pytest.raises(InputError) as caught:
        benchmark([*variants, variants[0]], texts, BenchmarkOptions(**wrong))
    told = {p.where for p in caught.value.problems}
    assert told == {"variants", "gaps", "sustained", *wrong} - {"gaps_ms", "sustained_min"}
    with pytest.raises(InputError, match="Name at least one"):
        benchmark([], texts)
    with pytest.raises(InputError, match="none given"):
        benchmark(variants, [])


def test_a_file_that_is_no_model_is_refused(tmp_path, folder, texts):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(InputError, match="refuses the file"):
        benchmark([Variant.of("broken", broken, folder, 32)], texts, BenchmarkOptions(label=""))
    with pytest.raises(InputError, match="file not found"):
        Variant.of("gone", tmp_path / "gone.onnx", folder, 32)
