"""The import of what the script for Macs writes: figures, pages, and every form of nonsense."""

import copy
import json
import math
import random
from pathlib import Path

import pytest

from pocketbert.benchmarks.imported.mac import import_mac, read_mac_record
from pocketbert.benchmarks.imported.validation import MAX_PROBLEMS, UNCHECKED
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.statistics import nearest_rank
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance

SYNTHETIC = Path(__file__).parents[1] / "data" / "synthetic_mac_benchmark.json"
MODEL, W8 = "coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"
HERE = ("--runs", 10, "--repeats", 2, "--threads", 1, "--lengths", 16, "--preset", "quick")


@pytest.fixture
def synthetic():
    """Content of the recorded file; no figure in it was measured on an Apple system."""
    return json.loads(SYNTHETIC.read_text())


@pytest.fixture
def write(tmp_path):
    """`write(content)`: a file as the script writes it."""

    def write_file(content):
        path = tmp_path / "mac.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write_file


def test_the_recorded_file_becomes_measurements_like_all_others(synthetic):
    assert synthetic["about"].startswith("SYNTHETIC")
    (result,) = import_mac([SYNTHETIC], {})
    assert [v.name for v in result.variants] == [f"{MODEL} all", f"{MODEL} cpu-only"]
    assert result.protocol.lengths == [32, 64]
    for m in result.measurements:
        assert (m.provenance, m.device) == (Provenance.MEASURED, "Synthetic chip, Synthetic1,1")
        assert (m.engine, m.threads, m.place) == ("Core ML", 0, f"{m.device} {m.unit}")
        assert m.variant.endswith(m.unit)
        assert (m.machine.cpu, m.machine.system) == ("Synthetic chip", "macOS 15.1 (00A00)")
        assert m.sha256 == synthetic["packages"][0]["sha256"]
    m = result.find(f"{MODEL} cpu-only", 0, 64)
    recorded = synthetic["packages"][0]["units"][1]
    samples = [x for r in recorded["cells"][1]["wall_ms"] for x in r]
    assert (m.wall.n, m.wall.p50, m.wall.p90) == (30, nearest_rank(samples, 50), nearest_rank(samples, 90))
    assert m.engine_wall.p50 == 0.005
    assert m.wall_interval.low <= m.wall_interval.high
    assert (m.cold.load_ms, m.cold.first_ms, m.cold.length) == (recorded["load_ms"], recorded["first_ms"], 64)
    assert {p.provenance for p in result.profiles} == {Provenance.ESTIMATED}
    assert [(p.provider, p.cost) for p in result.profiles[0].placement][2] == ("Neural Engine", 0.7)
    assert all(a.passed for a in result.answers)
    assert UNCHECKED in result.protocol.notes


def test_the_page_shows_each_machine_apart(phone, mac_json, pocketbert, tmp_path):
    page, twice = tmp_path / "b.html", tmp_path / "again.html"
    done = pocketbert("benchmark", "-m", phone, "--import", mac_json, *HERE, "-o", page)
    assert done.exit_code == 0, done.output
    html = page.read_text()
    for words in (
        "Benchmark of tiny",
        'onnx/model.onnx<span class="badge">default</span>',
        "<h3>On local</h3>",
        f"<h3>On {import_mac([mac_json], {})[0].device}</h3>",
        "Figures of different devices are not compared with each other.",
        "Answers on the device",
        "70.0 % of the estimated cost",
        "nodes on Neural Engine",
        "by Core ML's clock",
        ">estimated [2]</a> 128 tokens",
    ):
        assert words in html, words
    ids = [part.split('"')[0] for part in html.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    again = pocketbert("benchmark", "-m", phone, "--no-local", "--import", mac_json, "-o", twice)
    assert again.exit_code == 0, again.output
    assert "<h3>On " not in twice.read_text()
    assert "<h3>Tokenizer</h3>" not in twice.read_text()


def test_figures_of_other_files_are_refused(phone, mac_json, write, synthetic, pocketbert):
    refused = pocketbert("benchmark", "-m", phone, "--import", SYNTHETIC)
    assert (refused.exit_code, refused.stdout) == (2, "")
    digest = next(f.sha256 for f in read_artefacts(phone).models() if f.path == MODEL)
    assert synthetic["packages"][0]["sha256"] in refused.stderr
    assert f"in {phone} that file has sha256 {digest}. Figures belong to the files" in refused.stderr
    synthetic["packages"][0]["path"] = "coreml/Other.mlpackage"
    imports = [word for path in (write(synthetic), mac_json, mac_json) for word in ("--import", path)]
    other = pocketbert("benchmark", "-m", phone, *imports)
    assert other.exit_code == 2
    for words in ("2 problems:", f"{phone} lists no such file", "imported already"):
        assert words in other.stderr


def test_wrong_answers_on_the_mac_end_with_3_after_the_table(write, synthetic, pocketbert, tmp_path):
    units = synthetic["packages"][0]["units"]
    units[0]["answers"].update(largest=0.5)
    units[1]["answers"].update(finite=False)
    shown = pocketbert("benchmark", "--import", write(synthetic), "-o", tmp_path / "b.json")
    assert shown.exit_code == 3
    assert "\t32\t" in shown.stdout
    assert shown.stderr.startswith("2 problems:")
    assert f"{MODEL} all: 3 golden rows: largest difference 0.5, allowed 0.01" in shown.stderr
    assert "answers that are not numbers" in shown.stderr
    assert [a.passed for a in BenchmarkResult.read(tmp_path / "b.json").answers] == [False, False]


def test_what_the_reader_should_know_is_noted(write, synthetic):
    first, second = synthetic["packages"][0]["units"]
    first["answers"] = None
    second["answers"]["skipped"] = 4
    for unit in (first, second):
        for cell, stable in zip(unit["cells"], (False, True), strict=True):
            cell["warmup_stable"] = stable
    first["cells"][0]["engine_ms"] = None
    second["cells"][0]["cpu_ms"] = [[0.0] * 10] * 3
    synthetic["machine"] |= dict.fromkeys(("chip", "model", "power", "thermal"), "")
    (result,) = import_mac([write(synthetic)], {})
    notes = " ".join(result.protocol.notes)
    for words in ("power source unknown; thermal state unknown", "answers were not checked", "4 golden rows left out"):
        assert words in notes, words
    assert "2 warm-ups" in notes
    assert result.measurements[0].device == result.machine.cpu == "a Mac"
    assert result.measurements[0].engine_wall is None
    assert math.isfinite(result.comparisons[0].cpu.median)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "-m/--model: nothing to measure."),
        (["--import", "nowhere.json"], "nowhere.json: file not found."),
        (["--import", SYNTHETIC, "-o", "page.html"], "Give the folder with -m."),
        (["--import", SYNTHETIC, "-o", "."], "is a folder, and a file is written"),
        (["-m", "PACKAGES", "--no-local"], "run coreml/benchmark_on_mac.py there, then --import its file"),
    ],
)
def test_wrong_usage(arguments, message, mac_phone, pocketbert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = pocketbert("benchmark", *(mac_phone if word == "PACKAGES" else word for word in arguments))
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


FAILED = {"unit": "all", "failed": "not here"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(schema_version="2.0"), "schema version '2.0' cannot be read; this version reads 1.1."),
        (lambda c: c.update(kind="other"), "not a file of benchmark_on_mac.py."),
        (lambda c: c.update(packages=[]), "packages: List should have at least 1 item"),
        (lambda c: c["protocol"].update(runs=9), "protocol says 9 runs in 3 repeats"),
        (lambda c: c.update(load={"before": math.nan, "after": -1}), "load.before: Input should be"),
        (lambda c: c.update(made="\x1b[2J"), "made: String should match pattern"),
        (lambda c: c["packages"][0].update(units=[FAILED]), "nothing could be measured there: not here"),
        (
            lambda c: c["packages"][0]["units"].__setitem__(0, {"unit": "all", "cells": []}),
            "no answers, first_ms, load_ms, plan, specialize_ms, though it did not fail",
        ),
        (lambda c: c["packages"][0]["units"].append(FAILED), "unit all is there twice"),
    ],
)
def test_what_is_wrong_is_named(write, synthetic, change, said):
    change(synthetic)
    with pytest.raises(InputError) as error:
        read_mac_record(write(synthetic))
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["[]", "null", "{", "", "[" * 100_000, '"x"', '{"kind": 1}'])
def test_other_json_and_none(write, pocketbert, text):
    refused = pocketbert("benchmark", "--import", write(text))
    assert refused.exit_code == 2
    assert "Traceback" not in refused.output


def test_a_failed_unit_needs_nothing_and_all_problems_are_told_at_once_and_bounded(write, synthetic):
    package = synthetic["packages"][0]
    package["units"][0] = FAILED
    assert read_mac_record(write(synthetic)).packages[0].units[0].failed == "not here"
    synthetic["machine"]["cores"] = -1
    package |= {"sha256": "x", "path": "../../etc/passwd"}
    with pytest.raises(InputError) as error:
        read_mac_record(write(synthetic))
    assert len(error.value.problems) == 3
    package["units"][1]["cells"][0]["wall_ms"] = [["x"] * 100] * 50
    with pytest.raises(InputError, match="problems more") as error:
        read_mac_record(write(synthetic))
    assert len(error.value.problems) == MAX_PROBLEMS + 1


def list_places(value, path=()):
    """Yield every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, content in inner:
        yield from list_places(content, (*path, key))


STRANGE = [None, -1, 0, 1e300, math.nan, math.inf, -math.inf, "", "\n", "x" * 5000, True, [], {}, [[]], 2**70]
STRANGE.append(["x"] * 10_000)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_files_end_with_2_or_are_right(synthetic, write, seed):
    draw = random.Random(seed)
    places = [p for p in list_places(synthetic) if p and p[0] != "about"]
    refusals = 0
    for _ in range(60):
        content = copy.deepcopy(synthetic)
        *way, last = draw.choice(places)
        holder = content
        for key in way:
            holder = holder[key]
        if draw.random() < 0.3:
            del holder[last]
        else:
            holder[last] = draw.choice(STRANGE)
        try:
            (result,) = import_mac([write(content)], {})
        except InputError as error:
            refusals += 1
            assert 1 <= len(error.problems) <= MAX_PROBLEMS + 1
            assert all(len(str(p)) < 2000 for p in error.problems)
            continue
        assert all(0 < m.wall.p50 < math.inf for m in result.measurements)
    assert refusals > 40
