"""How thoroughly a benchmark measures: presets in Python, in a recipe and on the command line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.main import get_command

from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import FOLDER_OPTIONS, preset_options
from pocketbert.cli.main import app
from pocketbert.cli.measure import _benchmark_options
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.presets import PRESETS, Preset
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.pipeline.make.measuring import section_options


def test_mlperf_makes_what_its_rules_want():
    options = preset_options("mlperf")
    assert options.runs * options.repeats >= 1024
    assert options.least_s >= 60
    assert options.lengths == ("text",)
    for preset in Preset:
        preset_options(preset).check(["a"])
    with pytest.raises(InputError, match="mlperf"):
        preset_options("mlperv")


def test_the_thorough_presets_time_single_calls_and_quick_has_no_time_for_them():
    assert [preset_options(name).gaps_ms for name in ("quick", "standard", "mlperf")] == [(), (100.0,), (100.0,)]


def test_a_recipe_gives_a_preset_and_changes_single_keys():
    section = BenchmarkSection(preset="quick", threads=[1], repeats=2)
    options = section_options(section, [32])
    assert (options.runs, options.repeats, options.gaps_ms, options.lengths) == (35, 2, [], ("text",))
    again = BenchmarkSection.model_validate(section.model_dump())
    assert section_options(again, [32]) == options  # a resolved recipe measures the same
    assert section_options(BenchmarkSection(), [32]).lengths == ["text", 32]


def test_options_of_the_command_line_change_single_settings_of_the_preset():
    assert _benchmark_options("standard", None, None, None, runs=None) == FOLDER_OPTIONS
    quick = _benchmark_options("quick", "2", "16", "none", runs=20, budget_s=None)
    assert quick == replace(preset_options("quick"), threads=[2], lengths=["text", 16], gaps_ms=[], runs=20)


def test_every_figure_has_the_least_seconds_whatever_the_budget(variants, texts):
    options = replace(
        preset_options("mlperf"), threads=(1,), runs=10, repeats=2, gaps_ms=(1.0,), least_s=0.2, budget_s=1e-3, label=""
    )
    made = benchmark(variants, texts, options)
    for m in made.measurements:
        assert m.gap_ms or all(sum(repeat) >= 100 for repeat in m.wall_ms)
        assert all(len(repeat) >= 10 for repeat in m.wall_ms)
    assert {m.gap_ms for m in made.measurements} == {
        0.0,
        1.0,
    }  # single calls are no part of that bound, and are all made
    assert not made.protocol.shortened
    assert "at least 20 inferences and 0.2 s of them" in made.protocol.description
    assert "p90 is the figure to quote" in made.protocol.description


def test_without_that_bound_a_tiny_budget_makes_fewer_runs(variants, texts):
    options = replace(
        preset_options("mlperf"), threads=(1,), runs=10, repeats=2, gaps_ms=(), least_s=0, budget_s=1e-3, label=""
    )
    assert benchmark(variants, texts, options).protocol.shortened


def test_the_help_tells_what_the_presets_set():
    told = {p.opts[-1]: " ".join(p.help.split()) for p in get_command(app).commands["benchmark"].params if p.help}
    for flag, of in (("--repeats", "repeats"), ("--runs", "runs")):
        usual, *others = [f"{preset} {getattr(PRESETS[preset], of)}" for preset in (Preset.STANDARD, *Preset)]
        assert f"default {usual.removeprefix('standard ')}; " in told[flag]
        for words in others:
            assert words.startswith("standard") or words in told[flag], (flag, words)
    assert "default 32,64,128; quick real text only; mlperf real text only" in told["--lengths"]
    assert "default 240; quick 10; mlperf no limit" in told["--budget"]
    assert "default 100; quick none" in told["--gaps"]
    assert "at least 1,024 inferences and 60 s" in told["--preset"]
    section = BenchmarkSection()
    assert (section.runs, section.repeats, tuple(section.gaps_ms)) == (
        FOLDER_OPTIONS.runs,
        FOLDER_OPTIONS.repeats,
        FOLDER_OPTIONS.gaps_ms,
    )
