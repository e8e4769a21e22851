import numpy as np
import pytest

from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.report import ModelRow, ReportData, render_report
from pocketbert.benchmarks.report.output import _sustained_lines, describe_sessions, make_latency_table
from pocketbert.benchmarks.statistics import Statistics, paired_ratio
from pocketbert.benchmarks.timing import LEAST_SINGLES
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Provenance


def test_every_combination_is_measured_once(result):
    found = [(m.variant, m.threads, m.length) for m in result.measurements]
    assert len(set(found)) == len(found)
    assert set(found) == {(v, t, x) for v in ("teacher fp32", "student int8") for t in (1, 2) for x in (16, 32, "text")}


def test_raw_samples_are_kept_and_the_statistics_come_from_them(result):
    for m in result.measurements:
        assert [len(r) for r in m.wall_ms] == [len(r) for r in m.cpu_ms] == [10, 10, 10]
        assert m.wall == Statistics.of([x for r in m.wall_ms for x in r])
        assert m.cpu == Statistics.of([x for r in m.cpu_ms for x in r])
        assert m.wall_interval is not None
        assert m.warmup_runs >= 10


def test_provenance_and_origin_are_on_every_figure(result, variants):
    digests = {v.name: v.sha256 for v in variants}
    for m in result.measurements:
        assert m.provenance is Provenance.MEASURED
        assert (m.device, m.engine, m.batch) == ("local", "onnxruntime", 1)
        assert m.sha256 == digests[m.variant]
        assert m.machine == result.machine
        assert 0 <= m.load.others <= 1
    stamped = [*result.comparisons, *result.tokenizers, *result.profiles]
    assert {s.provenance for s in stamped} == {Provenance.MEASURED}


def test_comparisons_can_be_recomputed_from_the_raw_samples(result):
    assert {(c.variant, c.baseline) for c in result.comparisons} == {("student int8", "teacher fp32")}
    assert len(result.comparisons) == 2 * 3

    def rounds(m):
        k = result.protocol.burst
        return [float(np.median(r[i : i + k])) for r in m.wall_ms for i in range(0, len(r), k)]

    for c in result.comparisons:
        pair = [result.find(name, c.threads, c.length) for name in (c.variant, c.baseline)]
        assert c.wall == paired_ratio(rounds(pair[0]), rounds(pair[1]))
        assert c.wall.pairs == 6


def test_cold_start_tokenizer_profile_and_placement(result):
    for m in result.measurements:
        assert m.cold.load_ms > 0
        assert m.cold.first_ms > 0
        assert m.cold.length == 32
        assert m.cold.peak_rss_bytes > m.cold.peak_memory_bytes >= 0
    (tokenizer,) = result.tokenizers
    assert tokenizer.variants == ["teacher fp32", "student int8"]
    assert (tokenizer.texts, tokenizer.per_text.n) == (12, 36)
    teacher, student = result.profiles
    assert {o.op_type: o.nodes for o in teacher.ops}["MatMul"] == 5
    assert {o.op_type: o.nodes for o in student.ops}["MatMul"] == 2
    assert sum(o.share for o in teacher.ops) == pytest.approx(1)
    assert [p.provider for p in teacher.placement] == ["CPUExecutionProvider"]
    assert sum(p.nodes for p in teacher.placement) == sum(o.nodes for o in teacher.ops)


def test_lengths_beyond_the_models_are_clipped_and_said(result):
    assert result.protocol.lengths == [16, 32, "text"]
    assert any("64 clipped to 32" in n for n in result.protocol.notes)
    assert result.find("teacher fp32", 1, 32).tokens_mean == 32
    assert 3 < result.find("teacher fp32", 1, "text").tokens_mean < 10


def test_the_protocol_says_what_was_done(result):
    p = result.protocol
    assert (p.runs_asked, p.runs_made, p.repeats, p.texts, p.shortened) == (10, (10, 10), 3, 10, False)
    assert p.baseline == "teacher fp32"
    assert "nearest-rank" in p.description


def test_a_tiny_budget_makes_fewer_runs_and_says_so(variants, texts):
    options = BenchmarkOptions(runs=500, repeats=2, label="", budget_s=1e-3, profile=False, baseline="student int8")
    made = benchmark(variants, texts, options)
    assert made.protocol.shortened
    assert made.protocol.runs_made == (5, 5)
    assert made.protocol.texts == 5
    assert any("instead of 500" in n for n in made.protocol.notes)
    assert [len(r) for r in made.measurements[0].wall_ms] == [5, 5]
    assert made.measurements[0].wall_interval is None
    assert made.profiles == []
    assert [(c.variant, c.baseline) for c in made.comparisons] == [("teacher fp32", "student int8")]
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made


def test_inferences_after_idle_times_are_figures_of_their_own(variants, texts):
    options = BenchmarkOptions(
        lengths=("text", 16), runs=10, repeats=3, gaps_ms=(1.0, 2.0), label="", profile=False, budget_s=30
    )
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
    with_idle = make_latency_table(made)[1]
    idle_rows = {f"{x}, after {gap} ms idle" for x in ("text", 16) for gap in (1, 2)}
    assert {row[2] for row in with_idle} == {"text", "16"} | idle_rows
    assert not any("No single inferences" in note for note in made.protocol.notes)
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made


def test_idle_times_fit_into_the_budget(variants, texts):
    options = BenchmarkOptions(
        lengths=("text", 16), runs=50, repeats=2, gaps_ms=(20.0,), label="", profile=False, budget_s=1e-3
    )
    made = benchmark(variants, texts, options)
    singles = [m for m in made.measurements if m.gap_ms]
    assert [len(r) for m in singles for r in m.wall_ms] == [LEAST_SINGLES] * 4
    assert {m.length for m in singles} == {"text"}  # at the first length at any rate
    (note,) = (n for n in made.protocol.notes if "No single inferences" in n)
    assert note.startswith(
        "No single inferences after 20 ms idle at 16 tokens: they take 0 s more, and idle times take at most 50 %"
    )
    assert note in describe_sessions(made)


def test_files_run_for_minutes_one_after_the_other(variants, texts):
    options = BenchmarkOptions(threads=(1,), runs=10, repeats=2, profile=False, budget_s=1, sustained_min=0.01)
    made = benchmark(variants, texts, options)
    assert [s.variant for s in made.sustained] == [v.name for v in variants]
    for s in made.sustained:
        assert (s.device, s.threads, s.length, s.provenance) == ("local", 1, "text", Provenance.MEASURED)
        assert [x.wall for x in s.slices] == [Statistics.of(wall) for wall in s.wall_ms]
    lines = _sustained_lines(made)
    assert len(lines) == len(variants)
    assert "last slice to the first" in lines[0]
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made
    assert "wall_ms" not in made.to_dict()["sustained"][0]
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in made.variants]
    data = ReportData(title="t", task=TaskName.TEXT_CLASSIFICATION, machine=made.machine, rows=rows, benchmark=made)
    assert "<h3>Sustained</h3>" in render_report(data)


def test_all_wrong_arguments_are_told_at_once(variants, texts):
    with pytest.raises(InputError) as caught:
        benchmark(
            [*variants, variants[0]],
            texts,
            BenchmarkOptions(
                devices=["locla", "coreml"],
                threads=[0],
                lengths=[2, 8.5],
                runs=0,
                repeats=-1,
                budget_s=0,
                baseline="techer",
                gaps_ms=[100, 20_000],
                sustained_min=-1,
            ),
        )
    told = {p.where for p in caught.value.problems}
    assert told == {
        "variants",
        "devices",
        "threads",
        "lengths",
        "runs",
        "repeats",
        "budget_s",
        "baseline",
        "gaps",
        "sustained",
    }
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
