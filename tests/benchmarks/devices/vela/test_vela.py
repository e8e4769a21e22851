"""The device `vela`: with Arm's compiler where it is installed, and with scripts in its place anywhere."""

import configparser
import importlib.resources
import importlib.util
import itertools
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import vela as compiler
from pocketbert.benchmarks.devices.vela import (
    MEMORY_MODES,
    NPUS,
    SYSTEMS,
    _connect_vela,
    _vela_missing,
    _vela_refusal,
    vela_target,
)
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report import ModelRow, ReportData, render_report
from pocketbert.cli.main import app
from pocketbert.core.artefacts import ModelRecord, read_artefacts, write_artefacts
from pocketbert.core.devices import parse_device
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.types import Format, Provenance, Runtime, Scheme
from pocketbert.pipeline.make.measuring import is_benchmarked
from pocketbert.runtime.tflite import TflitePredictor

WHY_NOT = _vela_missing()
with_vela = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
U55, U85 = "vela:ethos-u55-128", "vela:ethos-u85-256"
TEXTS = ["a good day", "what a bad day it was", "the day was good"]


def pocketbert(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def compiled(variants, *devices):
    return benchmark(variants, TEXTS, BenchmarkOptions(devices=devices, lengths=[16], label="", budget_s=60))


@pytest.fixture
def npu_phone(phone, tmp_path):
    """`npu_phone(file)`: an artefact folder whose file for an NPU is that one."""

    def make(file):
        folder = tmp_path / "phone"
        shutil.copytree(phone, folder)
        (folder / "tflite").mkdir()
        shutil.copy(file, folder / "tflite/model_a8w8_npu.tflite")
        record = ModelRecord(
            path="tflite/model_a8w8_npu.tflite",
            sha256=sha256_file(folder / "tflite/model_a8w8_npu.tflite"),
            bytes=1,
            format=Format.TFLITE,
            scheme=Scheme.A8W8,
            runtime=Runtime.NPU,
        )
        artefacts = read_artefacts(folder)
        write_artefacts(folder, artefacts.model_copy(update={"files": [*artefacts.files, record]}))
        return folder

    return make


@with_vela
def test_a_student_is_compiled_and_estimated_for_two_configurations(npu_variant, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = compiled([npu_variant], U55, U85)
    assert not list(tmp_path.iterdir())
    assert result.sessions == []
    small, large = result.compilations
    [length] = TflitePredictor(npu_variant.path, 1).lengths
    for one in (small, large):
        assert (one.failed, one.wrong, one.answers, one.length) == ("", "", None, length)
        assert one.provenance is Provenance.COMPILED_ONLY
        assert one.op_types["FULLY_CONNECTED"] > 4
        assert one.op_types["BATCH_MATMUL"] == 4
        assert {left.op_type for left in one.left} == {"QUANTIZE", "CAST", "EMBEDDING_LOOKUP", "DEQUANTIZE"}
        assert all(left.reason.startswith(("Unsupported opType", "Operation has tensor")) for left in one.left)
        assert one.compiled_bytes > 10_000
        assert one.engine_version.startswith("5.")
        assert one.estimate.provenance is Provenance.ESTIMATED
        assert one.estimate.products_left == 0
        assert one.estimate.time_ms == pytest.approx(one.estimate.cycles / one.estimate.clock_mhz / 1e3, rel=1e-3)
    assert small.target == "Arm Ethos-U55-128 with Ethos_U55_High_End_Embedded, Shared_Sram"
    assert small.estimate.cycles > large.estimate.cycles
    assert small.estimate.flash_traffic > large.estimate.flash_traffic == 0 < large.estimate.dram_traffic
    assert BenchmarkResult.model_validate_json(result.model_dump_json()) == result


@with_vela
def test_a_file_in_floats_puts_no_product_on_the_npu_and_fails(float_variant, npu_phone):
    """Vela itself ends well, and expects a few microseconds for what is left."""
    (one,) = compiled([float_variant], U55).compilations
    assert one.estimate is None
    assert re.search(r"no matrix product goes on the NPU: \d+ FULLY_CONNECTED \(.*Float32", one.wrong), one.wrong
    done = pocketbert("benchmark", "-m", npu_phone(float_variant.path), "--device", U55)
    assert done.exit_code == 3, done.output
    assert "no matrix product goes on the NPU" in done.stderr
    assert "estimated" not in done.stdout.split("No NPU was timed")[0].replace("estimated ms", "")


@with_vela
def test_estimates_are_told_as_such_and_never_as_latency(npu_variant, npu_phone, tmp_path):
    folder, page = npu_phone(npu_variant.path), tmp_path / "report.html"
    arguments = ["--device", "local", "--device", U55, "--runs", 10, "--repeats", 2, "--lengths", 16, "--threads", 1]
    done = pocketbert("benchmark", "-m", folder, *arguments, "-o", tmp_path / "benchmark.json")
    assert done.exit_code == 0, done.output
    result = BenchmarkResult.read(tmp_path / "benchmark.json")
    assert [s.device for s in result.sessions] == ["local"]
    assert all(m.variant != "tflite/model_a8w8_npu.tflite" for m in result.measurements)
    assert all("npu" not in c.variant for c in result.comparisons)
    (one,) = result.compilations
    assert "estimated ms on the NPU" in done.stdout
    assert "no NPU and no simulator ran them" in done.stdout
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in result.variants]
    data = ReportData(title="t", task="text-classification", machine=result.machine, rows=rows, benchmark=result)
    page = render_report(data)
    latency, npu = page.split('<section id="latency">')[1].split('<section id="npu">')
    assert "vela" not in latency
    assert "Estimated by the compiler" in npu
    assert one.estimate.system in npu
    assert "time, cycles, memory: estimated" in npu
    assert "Where the estimated cycles go" in npu


def scripted(monkeypatch, tmp_path, script):
    """Vela replaced by a shell script; `$out` is the folder that it shall write to, `$given` the file it is given."""
    program = tmp_path / "vela"
    program.write_text(
        '#!/bin/sh\nfor a in "$@"; do case $a in --output-dir=*) out=${a#--output-dir=};; *.tflite) given=$a;; esac; done\n'
        + script
    )
    program.chmod(0o755)
    monkeypatch.setattr(compiler, "_PROGRAM", (str(program),))
    monkeypatch.setattr(compiler, "_vela_missing", str)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Error: Invalid tflite file'; exit 1", "the process ended with status 1; Error: Invalid tflite file"),
        ("kill -SEGV $$", "the process was ended by SIGSEGV"),
        ("exit 0", "not compiled: no output"),
        ("sleep 60 & sleep 60", "the process did not end within 0 s"),
        ("mkdir $out; cp $given $out/given_vela.tflite", "no matrix product goes on the NPU: .*gives no reason"),
    ],
)
def test_what_is_not_compiled_fails(monkeypatch, tmp_path, float_variant, script, why):
    monkeypatch.setattr(compiler, "_COMPILE_S", 0.4 if "sleep" in script else 60.0)
    scripted(monkeypatch, tmp_path, script)
    (one,) = compiled([float_variant], U55).compilations
    assert one.failed
    assert one.estimate is None
    assert re.search(why, one.wrong), one.wrong


@with_vela
def test_tables_that_cannot_be_read_fail(monkeypatch, npu_variant):
    monkeypatch.setattr("pocketbert.benchmarks.devices.vela._MAX_TABLE_BYTES", 10)
    (one,) = compiled([npu_variant], U55).compilations
    assert "what vela expects cannot be read: its table given_summary_" in one.wrong


def test_configurations(monkeypatch):
    assert (
        compiler._VelaCompiler(vela_target("ethos-u65-512")).target
        == "Arm Ethos-U65-512 with Ethos_U65_High_End, Dedicated_Sram_384KB"
    )
    chosen = parse_device("vela:ethos-u85-256@Ethos_U85_SYS_Flash_High+Sram_Only")
    assert vela_target(chosen.argument).memory == "Sram_Only"
    assert BenchmarkSection(devices=[str(chosen)]).devices == [str(chosen)]
    monkeypatch.setattr(compiler, "_vela_missing", str)
    for name, why in {
        "ethos-u55-129": "unknown configuration 'ethos-u55-129'; did you mean 'ethos-u55-128'",
        "ethos-u55-128@Ethos_U85_SYS_DRAM_Mid+Sram_Only": "no system of ethos-u55-128; .*Ethos_U55",
        "ethos-u55-128@Ethos_U55_Deep_Embedded+Sram": "unknown memory mode 'Sram'",
        "ethos-u55-128@Ethos_U55_Deep_Embedded+Dedicated_Sram": "allowed: Sram_Only, Shared_Sram",
    }.items():
        with pytest.raises(InputError, match=why):
            _connect_vela(name)
    for name in ("vela", "vela:", "vela:ethos-u55-128@", "vela:a b"):
        with pytest.raises(ValueError, match=re.escape("CONFIG[@SYSTEM+MEMORY]")):
            parse_device(name)


def test_a_recipe_measures_where_it_makes_a_file_that_is_taken():
    devices = ["export.formats=[tflite]", f"benchmark.devices=['{U55}']"]
    recipe = importlib.resources.files("pocketbert.recipes") / "text-classification/demo.yaml"
    assert not is_benchmarked(load_recipe(recipe, devices))
    files = "quantize={files: [int8, {scheme: a8w8, runtime: npu}]}"
    assert is_benchmarked(load_recipe(recipe, [*devices, files]))


def test_an_unknown_configuration_ends_with_exit_code_2(phone):
    done = pocketbert("benchmark", "-m", phone, "--device", "vela:ethos-u55-129")
    assert done.exit_code == 2, done.output


def test_without_vela(monkeypatch, npu_file, npu_phone):
    monkeypatch.setattr(compiler, "version_of", lambda name: None)
    with pytest.raises(MissingBackendError, match=re.escape("pip install 'pocketbert[vela]'")):
        _connect_vela("ethos-u55-128")
    assert "pip install 'pocketbert[vela]'" in _vela_missing()
    done = pocketbert("benchmark", "-m", npu_phone(npu_file), "--device", U55)
    assert done.exit_code == 4, done.output
    listed = next(line for line in pocketbert("devices").stdout.splitlines() if line.startswith("vela:"))
    assert "estimated: time on the NPU, NPU cycles, SRAM; compiled-only: placement" in listed
    assert "ethos-u-vela is not installed" in listed


@with_vela
def test_it_answers_nothing_so_that_nothing_is_scored(npu_file, npu_phone, tmp_path):
    (tmp_path / "dev.csv").write_text("text,label\nset an alarm,a\n")
    done = pocketbert("benchmark", "-m", npu_phone(npu_file), "--device", U55, "--data", tmp_path / "dev.csv")
    assert done.exit_code == 2, done.output
    assert "--data: is scored on devices with an emulator of an NPU only" in done.stderr


def test_files_that_are_not_taken():
    assert _vela_refusal(Format.TFLITE, Runtime.NPU) == ""
    assert "computes in floats" in _vela_refusal(Format.TFLITE, None)
    assert "computes in floats" in _vela_refusal(Format.TFLITE, Runtime.GPU)
    assert _vela_refusal(Format.ONNX, None) == "ONNX does not go through vela"


@with_vela
def test_the_configurations_are_those_of_the_installed_vela():
    package = Path(importlib.util.find_spec("ethosu").submodule_search_locations[0])
    parser = configparser.ConfigParser()
    parser.read(package / "config_files" / compiler.SYSTEMS_FILE)
    named = [section.split(".", 1) for section in parser.sections()]
    assert {name for kind, name in named if kind == "System_Config"} == set(SYSTEMS)
    assert {name for kind, name in named if kind == "Memory_Mode"} == set(MEMORY_MODES)
    memory = {name: parser[f"System_Config.{name}"]["axi1_port"] == "Dram" for name in SYSTEMS}
    assert memory == SYSTEMS
    source = (package / "vela/architecture_features.py").read_text()
    assert set(re.findall(r'"(ethos-u\d+-\d+)"', source)) == set(NPUS)
    assert all(compiler.vela_target(npu) for npu in NPUS)


@pytest.mark.slow
@with_vela
@pytest.mark.parametrize("npu", ["ethos-u55-32", "ethos-u65-512", "ethos-u85-128", "ethos-u85-2048"])
def test_systems_and_memory_modes_go_together_as_vela_says(npu, npu_file, tmp_path):
    """Every one that is refused here is refused by vela, and no other."""
    shutil.copy(npu_file, tmp_path / "given.tflite")
    fitting = [name for name in SYSTEMS if name.startswith(f"Ethos_{npu.split('-')[1].upper()}_")]
    for system, memory in itertools.product(fitting, MEMORY_MODES):
        ended = compiler._VelaCompiler(compiler._VelaTarget(npu, system, memory))._run_vela(tmp_path)
        if compiler.DEDICATED in memory and not SYSTEMS[system]:
            assert ended.problem
            with pytest.raises(ValueError, match=memory):
                vela_target(f"{npu}@{system}+{memory}")
        else:
            assert not ended.problem, ended.log
            assert vela_target(f"{npu}@{system}+{memory}").memory == memory
