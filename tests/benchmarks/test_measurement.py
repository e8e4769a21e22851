"""`benchmark.json` as it is written and read, and how thoroughly presets measure."""

import json
from dataclasses import replace

import pytest

from pocketbert.benchmarks.measurement import FOLDER_OPTIONS, BenchmarkResult, preset_options
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.presets import Preset
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.pipeline.make.measuring import section_options


def test_a_result_reads_back_what_it_wrote_and_newer_files_of_the_same_major_schema(result, tmp_path):
    path = tmp_path / "benchmark.json"
    result.write(path)
    assert BenchmarkResult.read(path) == result
    content = json.loads(path.read_text())
    content["schema_version"] = "2.7"
    content["measurements"][0]["energy_mj"] = 3
    path.write_text(json.dumps(content))
    assert BenchmarkResult.read(path).measurements == result.measurements


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(schema_version="1.1"), r"cannot be read; this version reads 2\.1"),
        (lambda c: c.update(schema_version=None), r"cannot be read; this version reads 2\.1"),
        (lambda c: c["measurements"][0].pop("engine"), r"measurements\.0\.engine"),
        (None, "cannot be read"),
    ],
)
def test_other_schemas_and_broken_files_are_refused_with_the_place(result, tmp_path, change, said):
    path, content = tmp_path / "benchmark.json", json.loads(result.model_dump_json())
    if change is None:
        content = []
    else:
        change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        BenchmarkResult.read(path)


# --- presets ---------------------------------------------------------------------------------------------------------------------


def test_find_and_compare(result):
    assert result.find("student int8", 2, 16).threads == 2
    assert result.find("student int8", 3, 16) is None
    assert result.compare("student int8", 1, "text").length == "text"
    assert result.compare("teacher fp32", 1, "text") is None
    table = result._repr_html_()
    assert table.count("teacher fp32") == 6


def test_presets_measure_more_and_more_thoroughly():
    quick, standard, mlperf = (preset_options(name) for name in ("quick", "standard", "mlperf"))
    assert mlperf.runs * mlperf.repeats >= 1024  # what its rules want
    assert mlperf.least_s >= 60
    assert mlperf.lengths == ("text",)
    assert [o.gaps_ms for o in (quick, standard, mlperf)] == [(), (100.0,), (100.0,)]
    assert [o.fresh for o in (quick, standard, mlperf)] == [False, True, True]
    for preset in Preset:
        preset_options(preset).check(["a"])
    with pytest.raises(InputError, match="mlperf"):
        preset_options("mlperv")


def test_a_recipe_gives_a_preset_and_changes_single_keys():
    section = BenchmarkSection(preset="quick", threads=[1], repeats=2)
    options = section_options(section, [32])
    assert (options.runs, options.repeats, options.gaps_ms, options.lengths) == (35, 2, [], ("text",))
    again = BenchmarkSection.model_validate(section.model_dump())
    assert section_options(again, [32]) == options  # a resolved recipe measures the same
    usual = section_options(BenchmarkSection(), [32])
    assert usual.lengths == ["text", 32]
    assert (usual.runs, usual.repeats) == (FOLDER_OPTIONS.runs, FOLDER_OPTIONS.repeats)
    assert tuple(usual.gaps_ms) == FOLDER_OPTIONS.gaps_ms


@pytest.mark.parametrize(
    ("arguments", "preset", "changes"),
    [
        ("", "standard", {}),
        (
            "--preset quick --threads 2 --lengths 16 --gaps none --runs 20",
            "quick",
            {"threads": [2], "lengths": ["text", 16], "gaps_ms": [], "runs": 20},
        ),
        ("--gaps 1,2.5 --budget 7", "standard", {"gaps_ms": [1.0, 2.5], "budget_s": 7.0}),
    ],
)
def test_options_of_the_command_line_change_single_settings_of_the_preset(
    phone, pocketbert, monkeypatch, arguments, preset, changes
):
    asked = []
    monkeypatch.setattr("pocketbert.api.benchmark", lambda folders, options, **_: asked.append(options) or 1 / 0)
    pocketbert("benchmark", "-m", phone, *arguments.split())
    assert asked == [replace(preset_options(preset), devices=["local"], **changes)]
