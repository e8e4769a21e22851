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

from pocketbert.benchmarks.devices import vela
from pocketbert.benchmarks.devices.vela import DEVICE, MEMORY_MODES, NPUS, SYSTEMS, vela_target
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report import render_report
from pocketbert.core.devices import parse_device
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.pipeline.make.measuring import is_benchmarked
from pocketbert.runtime.tflite import TflitePredictor

with_vela = pytest.mark.skipif(bool(DEVICE.missing()), reason=DEVICE.missing())
U55, U85 = "vela:ethos-u55-128", "vela:ethos-u85-256"
TEXTS = ["a good day", "what a bad day it was", "the day was good"]


def compile_on(variant, *devices):
    options = BenchmarkOptions(devices=devices or (U55,), lengths=[16], label="", budget_s=60)
    return benchmark([variant], TEXTS, options)


@with_vela
def test_a_student_is_compiled_and_estimated_for_two_configurations(npu_variant, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = compile_on(npu_variant, U55, U85)
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
def test_a_file_in_floats_puts_no_product_on_the_npu_and_fails(float_variant, npu_phone, pocketbert):
    """Vela itself ends well, and expects a few microseconds for what is left."""
    done = pocketbert("benchmark", "-m", npu_phone(float_variant.path), "--device", U55)
    assert done.exit_code == 3, done.output
    assert re.search(r"no matrix product goes on the NPU: \d+ FULLY_CONNECTED \(.*Float32", done.stderr), done.stderr
    assert "estimated" not in done.stdout.split("No NPU was timed")[0].replace("estimated ms", "")


# --- a script in the place of vela -----------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "recorded"
"""Tables that vela 5.2.0 wrote of a tiny student on an Ethos-U55."""
SUMMARY, LAYERS = "given_summary_Ethos_U55_High_End_Embedded.csv", "given_per-layer.csv"
# Of vela 5.2.0 on the demo's a16w8 file.
LOG = """
Warning (supported operators) operator: DEQUANTIZE, ofm: 'seq_64_logits_output_dequant'
Reason: Unsupported opType

Warning (supported operators) operator: QUANTIZE, ofm: 'operator0008_0_signature2_quantized'
Reason: Operation has tensor with unsupported DataType Float32 (operator0008_0_signature2)
Feature-map dataTypes must be one of {"INT16", "INT8"}

Warning (supported operators) operator: QUANTIZE, ofm: 'operator0005_0_signature2_quantized'
Reason: Operation has tensor with unsupported DataType Float32 (operator0005_0_signature2)
Feature-map dataTypes must be one of {"INT16", "INT8"}

Warning (supported operators) operator: BATCH_MATMUL, ofm: 'a (or b), 'c''
Reason: Matmul with unsupported IFM type
IF Matmul or (FC with dynamic weights): IFM precision must be Int8

################################################################################
"""


@pytest.fixture
def play_vela(monkeypatch, tmp_path):
    """`play_vela(script)`: a shell script in its place; it shall write to the folder `$out` and is given `$given`."""

    def play(script):
        program = tmp_path / "vela"
        read = 'for a in "$@"; do case $a in --output-dir=*) out=${a#--output-dir=};; *.tflite) given=$a;; esac; done'
        program.write_text(f"#!/bin/sh\n{read}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(vela, "_PROGRAM", (str(program),))
        monkeypatch.setattr(vela, "_vela_missing", str)

    return play


@pytest.fixture
def compile_with_tables(play_vela, npu_variant, write_compiled, tmp_path):
    """`compile_with_tables()`: a compiled file of which some operators are left, with the tables in the folder `tables`."""
    tables = Path(shutil.copytree(RECORDED, tmp_path / "tables"))
    (tmp_path / "log").write_text(LOG)
    made = write_compiled(npu_variant.path, "ethos-u", "QUANTIZE", "BATCH_MATMUL", "EMBEDDING_LOOKUP", "DEQUANTIZE")
    play_vela(f"mkdir $out; cp {made} $out/given_vela.tflite; cp {tables}/* $out; cat {tmp_path}/log")

    def compile_it():
        (one,) = compile_on(npu_variant).compilations
        return one

    compile_it.tables = tables
    return compile_it


def test_operators_reasons_and_the_recorded_tables_are_read(compile_with_tables):
    one = compile_with_tables()
    assert (one.failed, one.partitions) == ("", 2)
    assert one.op_types["FULLY_CONNECTED"] > 4
    assert {left.op_type: left.reason for left in one.left} == {
        "DEQUANTIZE": "Unsupported opType",
        "QUANTIZE": "Operation has tensor with unsupported DataType Float32",
        "BATCH_MATMUL": "Matmul with unsupported IFM type: IF Matmul or (FC with dynamic weights): IFM precision must be Int8",
        "EMBEDDING_LOOKUP": "the log of the compiler gives no reason",
    }
    found = one.estimate
    assert (found.system, found.memory, found.clock_mhz) == ("Ethos_U55_High_End_Embedded", "Shared_Sram", 500)
    assert (found.provenance, found.products_left) == (Provenance.ESTIMATED, 4)
    assert found.time_ms == pytest.approx(found.cycles / 500e3)
    assert 0 < found.npu_cycles < found.cycles
    share = 0.009608455440787893  # of the first operator, which has 640 bytes in the other table
    assert found.sram_bytes == round(640 / share)
    assert found.flash_bytes > 0
    assert found.dram_bytes == found.dram_traffic == 0
    assert found.sram_traffic > found.sram_bytes
    cycles = {one.op_type: one.cycles for one in found.operators}
    assert {"FULLY_CONNECTED", "BATCH_MATMUL", "MUL"} <= set(cycles)
    assert "EMBEDDING_LOOKUP" not in cycles  # it stays on the CPU, without cycles
    assert list(cycles.values()) == sorted(cycles.values(), reverse=True)
    assert sum(cycles.values()) == found.cycles


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        (SUMMARY, "cycles_total", "cycles_all", "no cycles_total"),
        (SUMMARY, "Shared_Sram,500000000.0", "Shared_Sram,-1", "'-1' as core_clock"),
        (SUMMARY, "Shared_Sram,500000000.0", "Shared_Sram,nan", "'nan' as core_clock"),
        (SUMMARY, "Shared_Sram,500000000.0", "Shared_Sram,fast", "'fast' as core_clock"),
        (LAYERS, "Target", "Place", "no Target"),
        (LAYERS, "NPU,640,0.9608455440787893,509", "NPU,640,0.9608455440787893,", "no Op Cycles"),
        (SUMMARY, "\n", "\nx,y\n", "2 rows instead of 1"),
        (SUMMARY, "", "\udcff", r"is wrong: .*decode"),
        (LAYERS, None, "", r"0 files \*_per-layer.csv instead of 1"),
        (LAYERS, "", "", "has 23,783 bytes, more than 5,000"),
    ],
)
def test_tables_that_are_wrong_missing_or_large_fail(compile_with_tables, monkeypatch, name, old, new, why):
    path = compile_with_tables.tables / name
    if old is None:
        path.unlink()
    else:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1), errors="surrogateescape")
    if "5,000" in why:
        monkeypatch.setattr(vela, "_MAX_TABLE_BYTES", 5000)
    wrong = compile_with_tables().wrong
    assert re.search(f"what vela expects cannot be read: .*{why}", wrong), wrong


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Error: Invalid tflite file'; echo bye; exit 1", "ended with status 1; Error: Invalid tflite file"),
        ("echo ethosu.vela.errors.CliOptionError: Incorrect argument; exit 1", "CliOptionError: Incorrect argument"),
        ("kill -SEGV $$", "the process was ended by SIGSEGV"),
        ("exit 0", "not compiled: no output"),
        ("sleep 60 & sleep 60", "the process did not end within 0 s"),
        ("mkdir $out; cp $given $out/given_vela.tflite", "no matrix product goes on the NPU: .*gives no reason"),
    ],
)
def test_what_is_not_compiled_fails(play_vela, monkeypatch, float_variant, script, why):
    monkeypatch.setattr(vela, "_COMPILE_S", 0.3 if "sleep" in script else 60.0)
    play_vela(script)
    (one,) = compile_on(float_variant).compilations
    assert one.failed
    assert one.estimate is None
    assert re.search(why, one.wrong), one.wrong


def test_estimates_are_told_as_such_and_never_as_latency(
    compile_with_tables, npu_variant, npu_phone, make_data, pocketbert, tmp_path
):
    options = ("--device", "local", "--device", U55, "--preset", "quick", "--runs", 10, "--repeats", 2, "--threads", 1)
    folder, output = npu_phone(npu_variant.path), tmp_path / "benchmark.json"
    done = pocketbert("benchmark", "-m", folder, *options, "-o", output)
    assert done.exit_code == 0, done.output
    result = BenchmarkResult.read(output)
    assert [s.device for s in result.sessions] == ["local"]
    assert all("npu" not in one.variant for one in (*result.measurements, *result.comparisons))
    (one,) = result.compilations
    assert "estimated ms on the NPU" in done.stdout
    assert "no NPU and no simulator ran them" in done.stdout
    page = render_report(make_data(benchmark=result))
    latency, npu = page.split('<section id="latency">')[1].split('<section id="npu">')
    assert "vela" not in latency
    titles = ("Estimated by the compiler", ">estimated [", "Where the estimated cycles go")
    assert [words for words in titles if words not in npu] == []
    assert [words for words in (one.estimate.system, "estimated: time, cycles, memory by") if words not in page] == []


# --- configurations --------------------------------------------------------------------------------------------------------------


def test_configurations(play_vela):
    play_vela("exit 1")
    assert DEVICE.compiler("ethos-u65-512").target == "Arm Ethos-U65-512 with Ethos_U65_High_End, Dedicated_Sram_384KB"
    chosen = parse_device("vela:ethos-u85-256@Ethos_U85_SYS_Flash_High+Sram_Only")
    assert vela_target(chosen.argument).memory == "Sram_Only"
    assert BenchmarkSection(devices=[str(chosen)]).devices == [str(chosen)]
    for name, why in {
        "ethos-u55-129": "unknown configuration 'ethos-u55-129'; did you mean 'ethos-u55-128'",
        "ethos-u55-128@Ethos_U85_SYS_DRAM_Mid+Sram_Only": "no system of ethos-u55-128; .*Ethos_U55",
        "ethos-u55-128@Ethos_U55_Deep_Embedded+Sram": "unknown memory mode 'Sram'",
        "ethos-u55-128@Ethos_U55_Deep_Embedded+Dedicated_Sram": "allowed: Sram_Only, Shared_Sram",
    }.items():
        with pytest.raises(InputError, match=why):
            DEVICE.compiler(name)
    for name in ("vela", "vela:", "vela:ethos-u55-128@", "vela:a b"):
        with pytest.raises(ValueError, match=re.escape("CONFIG[@SYSTEM+MEMORY]")):
            parse_device(name)


def test_a_recipe_measures_where_it_makes_a_file_that_is_taken():
    devices = ["export.formats=[tflite]", f"benchmark.devices=['{U55}']"]
    recipe = importlib.resources.files("pocketbert.recipes") / "text-classification/demo.yaml"
    assert not is_benchmarked(load_recipe(recipe, devices))
    files = "quantize={files: [int8, {scheme: a8w8, runtime: npu}]}"
    assert is_benchmarked(load_recipe(recipe, [*devices, files]))
    assert DEVICE.refusal(Format.TFLITE, Runtime.NPU) == ""
    for runtime in (None, Runtime.GPU):
        assert "computes in floats" in DEVICE.refusal(Format.TFLITE, runtime)
    assert DEVICE.refusal(Format.ONNX, None) == "ONNX does not go through vela"


def test_the_command_refuses_without_vela_and_what_has_no_answers(
    play_vela, npu_variant, npu_phone, pocketbert, monkeypatch, tmp_path
):
    command = ("benchmark", "-m", npu_phone(npu_variant.path), "--device")
    assert pocketbert(*command, "vela:ethos-u55-129").exit_code == 2
    with monkeypatch.context() as patch:
        patch.setattr(vela, "version_of", lambda name: None)
        with pytest.raises(MissingBackendError, match=re.escape("pip install 'pocketbert[vela]'")):
            DEVICE.compiler("ethos-u55-128")
        assert "pip install 'pocketbert[vela]'" in DEVICE.missing()
        done = pocketbert(*command, U55)
        assert done.exit_code == 4, done.output
        listed = next(line for line in pocketbert("devices").stdout.splitlines() if line.startswith("vela:"))
    assert "estimated: time on the NPU, NPU cycles, SRAM; compiled-only: placement" in listed
    assert "ethos-u-vela is not installed" in listed
    play_vela("exit 1")
    (tmp_path / "dev.csv").write_text("text,label\nset an alarm,a\n")
    done = pocketbert(*command, U55, "--data", tmp_path / "dev.csv")
    assert done.exit_code == 2, done.output
    assert "--data: is scored on devices with an emulator of an NPU only" in done.stderr


@with_vela
def test_the_configurations_are_those_of_the_installed_vela():
    package = Path(importlib.util.find_spec("ethosu").submodule_search_locations[0])
    parser = configparser.ConfigParser()
    parser.read(package / "config_files" / vela.SYSTEMS_FILE)
    named = [section.split(".", 1) for section in parser.sections()]
    assert {name for kind, name in named if kind == "System_Config"} == set(SYSTEMS)
    assert {name for kind, name in named if kind == "Memory_Mode"} == set(MEMORY_MODES)
    assert {name: parser[f"System_Config.{name}"]["axi1_port"] == "Dram" for name in SYSTEMS} == SYSTEMS
    source = (package / "vela/architecture_features.py").read_text()
    assert set(re.findall(r'"(ethos-u\d+-\d+)"', source)) == set(NPUS)
    assert all(vela_target(npu) for npu in NPUS)


@pytest.mark.slow
@with_vela
@pytest.mark.parametrize("npu", ["ethos-u55-32", "ethos-u65-512", "ethos-u85-128", "ethos-u85-2048"])
def test_systems_and_memory_modes_go_together_as_vela_says(npu, npu_variant, tmp_path):
    """Every one that is refused here is refused by vela, and no other."""
    shutil.copy(npu_variant.path, tmp_path / "given.tflite")
    fitting = [name for name in SYSTEMS if name.startswith(f"Ethos_{npu.split('-')[1].upper()}_")]
    for system, memory in itertools.product(fitting, MEMORY_MODES):
        ended = vela._VelaCompiler(vela._VelaTarget(npu, system, memory))._run_vela(tmp_path)
        if vela.DEDICATED in memory and not SYSTEMS[system]:
            assert ended.problem
            with pytest.raises(ValueError, match=memory):
                vela_target(f"{npu}@{system}+{memory}")
        else:
            assert not ended.problem, ended.log
            assert vela_target(f"{npu}@{system}+{memory}").memory == memory
