import copy
import json
import math
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.imported.mac import import_mac, read_mac_record
from pocketbert.benchmarks.imported.validation import MAX_PROBLEMS, UNCHECKED
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.report.output import describe_sessions, make_latency_table
from pocketbert.benchmarks.statistics import nearest_rank
from pocketbert.cli.main import app
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance, Scheme
from support.commander import unwrapped

SYNTHETIC = Path(__file__).parents[2] / "data" / "synthetic_mac_benchmark.json"
MODEL = "coreml/Model.mlpackage"


def pocketbert(*arguments):
    return CliRunner().invoke(app, ["benchmark", *map(str, arguments)])


@pytest.fixture
def synthetic():
    """Content of the recorded file; no figure in it was measured on an Apple system."""
    return json.loads(SYNTHETIC.read_text())


@pytest.fixture
def written(tmp_path):
    def write(content, name="mac.json"):
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def both(phone, mac_json, tmp_path_factory):
    """One call that measures the ONNX file here and imports the Mac's figures; its output and its file."""
    output = tmp_path_factory.mktemp("out") / "bench.json"
    result = pocketbert(
        "-m",
        phone,
        "--import",
        mac_json,
        "--runs",
        10,
        "--repeats",
        2,
        "--threads",
        1,
        "--lengths",
        16,
        "--gaps",
        1,
        "-o",
        output,
    )
    assert result.exit_code == 0, result.output
    return result, BenchmarkResult.read(output)


def test_the_recorded_file_becomes_measurements_like_all_others(synthetic):
    assert synthetic["about"].startswith("SYNTHETIC")
    (result,) = import_mac([SYNTHETIC], {})
    assert [v.name for v in result.variants] == [f"{MODEL} all", f"{MODEL} cpu-only"]
    assert result.protocol.lengths == [32, 64]
    for m in result.measurements:
        assert m.provenance is Provenance.MEASURED
        assert (m.device, m.engine) == ("Synthetic chip, Synthetic1,1", "Core ML")
        assert m.place == f"{m.device} {m.unit}"
        assert m.variant.endswith(m.unit)
        assert (m.machine.cpu, m.machine.system) == ("Synthetic chip", "macOS 15.1 (00A00)")
        assert m.sha256 == synthetic["packages"][0]["sha256"]
        assert m.threads == 0
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


def test_ratios_exist_within_the_mac_only(both):
    result = both[1]
    mac = result.others[0]
    assert {c.baseline for c in mac.comparisons} == {f"{MODEL} all"}
    assert {c.variant for c in mac.comparisons} <= {v.name for v in mac.variants}
    here = {v.name for v in result.variants}
    assert here == {"onnx/model.onnx"}
    assert not here & {v.name for v in mac.variants}
    assert {c.length for c in mac.comparisons if "w8" in c.variant} == {64}
    assert mac.compare("coreml/Model_w8.mlpackage all", 0, 64).wall.pairs == 6
    assert result.sessions == [result, mac]


def test_the_table_shows_both_and_says_where(both):
    shown, result = both
    header, *rows = [line.split("\t") for line in shown.stdout.splitlines() if "\t" in line]
    assert header == [
        "file",
        "device",
        "threads",
        "length",
        "p50 ms",
        "p90 ms",
        "CPU ms",
        "time ratio to the device's first",
    ]
    lengths = ("text", "16", "text, after 1 ms idle", "16, after 1 ms idle")
    assert [r[:4] for r in rows[:4]] == [["onnx/model.onnx", "local", "1", x] for x in lengths]
    assert {r[1] for r in rows[4:]} == {result.others[0].measurements[0].device}
    assert {r[2] for r in rows[4:]} == {"–"}
    ratios = {(r[0], r[3]): r[-1] for r in rows}
    assert ratios[f"{MODEL} all", "64"] == ratios["onnx/model.onnx", "16"] == "1"
    assert "[" in ratios["coreml/Model_w8.mlpackage all", "64"]
    assert "Imported from mac.json" in shown.stdout
    assert "coreml/Model_w8.mlpackage: compiled in " in shown.stdout
    assert UNCHECKED not in shown.stdout
    assert "coreml/Model_w8.mlpackage cpu-and-ne could not be measured: CPU_AND_NE is not available" in shown.stdout
    assert "coreml/Model_w8.mlpackage all: no compute plan: MLComputePlan is not supported." in shown.stdout
    assert f"{MODEL} all: 3 golden rows: largest difference" in shown.stdout
    assert [v.scheme for v in result.others[0].variants][::4] == [Scheme.FP16, Scheme.W8]


def test_imported_alone(phone, mac_json):
    checked = pocketbert("-m", phone, "--no-local", "--import", mac_json)
    assert checked.exit_code == 0, checked.output
    assert "local" not in checked.stdout
    assert UNCHECKED not in checked.stdout
    free = pocketbert("--import", mac_json, "--import", SYNTHETIC, "--json")
    assert free.exit_code == 0
    content = json.loads(free.stdout)
    assert UNCHECKED in content["protocol"]["notes"]
    assert len(content["others"]) == 1
    for session in (content, *content["others"]):
        assert "wall_ms" not in session["measurements"][0]
        assert "engine_ms" not in session["measurements"][0]


def test_a_ratio_that_does_not_exist_is_a_dash(written, synthetic):
    del synthetic["packages"][0]["units"][0]["cells"][1]
    (result,) = import_mac([written(synthetic)], {})
    rows = {(r[0], r[3]): r[-1] for r in make_latency_table(result)[1]}
    assert rows[f"{MODEL} cpu-only", "64"] == "–"
    assert result.protocol.notes[0] in describe_sessions(result)


def test_other_files_are_refused(phone, mac_json, written, synthetic):
    refused = pocketbert("-m", phone, "--import", SYNTHETIC)
    assert refused.exit_code == 2
    digest = next(f.sha256 for f in read_artefacts(phone).models() if f.path == MODEL)
    assert synthetic["packages"][0]["sha256"] in unwrapped(refused.stderr)
    assert f"in {phone} that file has sha256 {digest}. Figures belong to the files" in unwrapped(refused.stderr)
    assert refused.stdout == ""
    synthetic["packages"][0]["path"] = "coreml/Other.mlpackage"
    other = pocketbert("-m", phone, "--import", written(synthetic), "--import", mac_json, "--import", mac_json)
    assert other.exit_code == 2
    assert other.stderr.startswith("2 problems:")
    assert f"{phone} lists no such file" in other.stderr
    assert "imported already" in other.stderr


def test_wrong_answers_on_the_mac_end_with_3_after_the_table(written, synthetic, tmp_path):
    units = synthetic["packages"][0]["units"]
    units[0]["answers"].update(largest=0.5)
    units[1]["answers"].update(finite=False)
    shown = pocketbert("--import", written(synthetic), "-o", tmp_path / "b.json")
    assert shown.exit_code == 3
    assert "\t32\t" in shown.stdout
    assert shown.stderr.startswith("2 problems:")
    assert f"{MODEL} all: 3 golden rows: largest difference 0.5, allowed 0.01" in shown.stderr
    assert "answers that are not numbers" in shown.stderr
    assert [a.passed for a in BenchmarkResult.read(tmp_path / "b.json").answers] == [False, False]


def test_what_the_reader_should_know_is_noted(written, synthetic):
    first, second = synthetic["packages"][0]["units"]
    first["answers"] = None
    second["answers"]["skipped"] = 4
    first["cells"][0]["warmup_stable"] = second["cells"][0]["warmup_stable"] = False
    first["cells"][1]["warmup_stable"] = second["cells"][1]["warmup_stable"] = True
    first["cells"][0]["engine_ms"] = None
    second["cells"][0]["cpu_ms"] = [[0.0] * 10] * 3
    for name in ("chip", "model", "power", "thermal"):
        synthetic["machine"][name] = ""
    (result,) = import_mac([written(synthetic)], {})
    notes = " ".join(result.protocol.notes)
    for words in (
        "power source unknown; thermal state unknown",
        "answers were not checked",
        "4 golden rows left out",
        "2 warm-ups",
    ):
        assert words in notes, words
    assert result.measurements[0].device == result.machine.cpu == "a Mac"
    assert result.measurements[0].engine_wall is None
    assert math.isfinite(result.comparisons[0].cpu.median)


def test_the_page_shows_each_machine_apart(phone, mac_json, tmp_path):
    page = tmp_path / "b.html"
    done = pocketbert(
        "-m",
        phone,
        "--import",
        mac_json,
        "--runs",
        10,
        "--repeats",
        2,
        "--threads",
        1,
        "--lengths",
        16,
        "--gaps",
        "none",
        "-o",
        page,
    )
    assert done.exit_code == 0, done.output
    html = page.read_text()
    device = import_mac([mac_json], {})[0].measurements[0].device
    for words in (
        "Benchmark of tiny",
        'onnx/model.onnx<span class="badge">default</span>',
        "<h3>On local</h3>",
        f"<h3>On {device}</h3>",
        "Figures of different devices are not compared with each other.",
        "Answers on the device",
        "70.0 % of the estimated cost",
        "nodes on Neural Engine",
        "by Core ML's clock",
        "estimated · 128 tokens",
        "onnx/model.onnx",
    ):
        assert words in html, words
    ids = [part.split('"')[0] for part in html.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    twice = tmp_path / "again.html"
    again = pocketbert("-m", phone, "--no-local", "--import", mac_json, "-o", twice)
    assert again.exit_code == 0, again.output
    assert "<h3>On " not in twice.read_text()
    assert "<h3>Tokenizer</h3>" not in twice.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "-m/--model: nothing to measure."),
        (["--import", "nowhere.json"], "nowhere.json: file not found."),
        (["--import", SYNTHETIC, "-o", "page.html"], "Give the folder with -m."),
        (["--import", SYNTHETIC, "-o", "."], "is a folder, and a file is written"),
    ],
)
def test_wrong_usage(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = pocketbert(*arguments)
    assert refused.exit_code == 2
    assert message in unwrapped(refused.stderr)
    assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_of_packages_alone_needs_a_mac(mac_phone):
    refused = pocketbert("-m", mac_phone, "--no-local")
    assert refused.exit_code == 2
    assert "run coreml/benchmark_on_mac.py there, then --import its file" in unwrapped(refused.stderr)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": "2.0"}, "schema version '2.0' cannot be read; this version reads 1.1."),
        ({"schema_version": None}, "schema version 'None' cannot be read"),
        ({"kind": "other"}, "not a file of benchmark_on_mac.py."),
        ({"packages": []}, "packages: List should have at least 1 item"),
        (
            {"protocol": {"runs": 9, "repeats": 3, "burst": 5, "inputs": "", "took_s": 1}},
            "protocol says 9 runs in 3 repeats",
        ),
        ({"load": {"before": math.nan, "after": -1}}, "load.before: Input should be"),
        ({"made": "\x1b[2J"}, "made: String should match pattern"),
    ],
)
def test_what_is_wrong_is_named(written, synthetic, change, said):
    with pytest.raises(InputError) as error:
        read_mac_record(written({**synthetic, **change}))
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["[]", "null", "{", "", "[" * 100_000, '"x"', '{"kind": 1}'])
def test_other_json_and_none(written, text):
    refused = pocketbert("--import", written(text))
    assert refused.exit_code == 2
    assert "Traceback" not in refused.output


def test_a_failed_unit_needs_nothing_and_a_measured_one_everything(written, synthetic):
    units = synthetic["packages"][0]["units"]
    units[0] = {"unit": "all", "failed": "not here"}
    assert read_mac_record(written(synthetic)).packages[0].units[0].failed == "not here"
    with pytest.raises(InputError, match="nothing could be measured there: not here"):
        units[1] = {"unit": "cpu-only", "failed": "nor here"}
        read_mac_record(written(synthetic))
    units[1] = {"unit": "cpu-only", "cells": []}
    with pytest.raises(InputError, match="no answers, first_ms, load_ms, plan, specialize_ms, though it did not fail"):
        read_mac_record(written(synthetic))
    units[1] = {"unit": "all", "failed": "again"}
    with pytest.raises(InputError, match="unit all is there twice"):
        read_mac_record(written(synthetic))


def test_all_problems_at_once_and_bounded(written, synthetic):
    synthetic["machine"]["cores"] = -1
    synthetic["packages"][0]["sha256"] = "x"
    synthetic["packages"][0]["path"] = "../../etc/passwd"
    with pytest.raises(InputError) as error:
        read_mac_record(written(synthetic))
    assert len(error.value.problems) == 3
    synthetic["packages"][0]["units"][0]["cells"][0]["wall_ms"] = [["x"] * 1000] * 500
    with pytest.raises(InputError) as error:
        read_mac_record(written(synthetic))
    assert len(error.value.problems) == MAX_PROBLEMS + 1
    assert "problems more." in str(error.value)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, content in inner:
        yield from places(content, (*path, key))


STRANGE = [
    None,
    -1,
    0,
    1e300,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "\n",
    "x" * 5000,
    True,
    [],
    {},
    [[]],
    ["x"] * 100_000,
    2**70,
]


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_end_with_2_or_are_right(synthetic, written, seed):
    draw = random.Random(seed)
    known = [p for p in places(synthetic) if p and p[0] != "about"]
    refusals = 0
    for _ in range(60):
        content = copy.deepcopy(synthetic)
        *way, last = draw.choice(known)
        holder = content
        for key in way:
            holder = holder[key]
        if draw.random() < 0.3:
            del holder[last]
        else:
            holder[last] = draw.choice(STRANGE)
        path = written(content)
        try:
            (result,) = import_mac([path], {})
        except InputError as error:
            refusals += 1
            assert 1 <= len(error.problems) <= MAX_PROBLEMS + 1
            assert all(len(str(p)) < 2000 for p in error.problems)
            continue
        for m in result.measurements:
            assert 0 < m.wall.p50 < math.inf
    assert refusals > 40
    shown = pocketbert("--import", written({**synthetic, "packages": [{"path": 1}]}))
    assert shown.exit_code == 2
    assert "Traceback" not in shown.output
