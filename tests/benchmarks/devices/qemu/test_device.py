"""The device `qemu-arm64` with QEMU's user mode and Arm wheels, `make tools`: counts and answers, never times."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import connect
from pocketbert.benchmarks.devices.qemu import PROCESSORS, write_system_files
from pocketbert.benchmarks.inputs import compare_answers
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report.output import make_latency_table
from pocketbert.cli.main import app
from pocketbert.core.errors import InputError, MachineError, MissingBackendError
from pocketbert.core.types import Provenance


@pytest.fixture(scope="module")
def result(tools, files, texts):
    options = BenchmarkOptions(devices=["qemu-arm64"], lengths=[16, 32], runs=10, repeats=3, label="", budget_s=600)
    return benchmark(files, texts, options)


def test_instructions_are_counted_and_no_time_is_told(result):
    assert len(result.measurements) == 4
    for m in result.measurements:
        assert (m.device, m.provenance, m.wall, m.cpu, m.cold) == ("qemu-arm64", Provenance.EMULATED, None, None, None)
        assert m.wall_ms == m.cpu_ms == []
        assert m.machine.arch == "aarch64"
        assert m.machine.cpu.startswith("4 × Cortex-A76, emulated by QEMU 7.2")
        assert m.machine.isa == ["asimd", "asimddp"]
        assert m.guest_instructions.n == 30
        assert m.load.before is not None
    for name in ("fp32", "int8"):
        short, long = (result.find(name, 1, length).guest_instructions.p50 for length in (16, 32))
        assert 1.1 * short < long < 4 * short  # more tokens are more work
    assert result.comparisons == result.tokenizers == result.profiles == []
    assert {"onnxruntime", "numpy", "qemu"} == set(result.versions)
    header, _ = make_latency_table(result)
    assert header == ["file", "device", "threads", "length", "guest instructions"]
    assert "NaN" not in json.dumps(result.to_dict())
    assert BenchmarkResult.model_validate_json(result.model_dump_json()) == result


def test_answers_are_those_of_this_machine(result):
    fp32, int8 = result.answers
    assert (fp32.rows, fp32.provenance, fp32.passed, int8.passed) == (2, Provenance.EMULATED, True, True)
    assert fp32.largest < 1e-5
    assert "2 inputs compared with this machine: largest difference" in fp32.words


@pytest.mark.slow
def test_a_processor_without_dot_product(tools, files):
    connection = connect("qemu-arm64:cortex-a53")
    ids = np.array([[2, 7, 8, 9, 3]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    try:
        assert connection.machine().isa == ["asimd"]
        assert compare_answers(files[1], [feed], connection.answers(files[1].file, [feed]), Provenance.EMULATED).passed
        with pytest.raises(InputError, match="1 thread only, not with 2.*Fix: Give --threads 1"):
            connection.open(files[1].file, 2)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("name", "why"), [("max", "computes int8 models wrongly"), ("max-sme", "wrongly"), ("cortex-a710", "is unknown")]
)
def test_processors_that_are_refused(name, why):
    with pytest.raises(InputError, match=f"{why}.*allowed: cortex-a53, cortex-a72, cortex-a76, neoverse-n1"):
        connect(f"qemu-arm64:{name}")


def test_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="apt-get install qemu-user"):
        connect("qemu-arm64")
    for name in ("qemu-aarch64", "gcc"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
        if name == "qemu-aarch64":
            with pytest.raises(MissingBackendError, match="apt-get install gcc"):
                connect("qemu-arm64")
    monkeypatch.setenv("POCKETBERT_ARM64_ROOT", str(tmp_path))
    with pytest.raises(MissingBackendError, match="export POCKETBERT_ARM64_ROOT=FOLDER"):
        connect("qemu-arm64")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.11").write_bytes(b"")
    with pytest.raises(MachineError, match="cannot build the plugin"):
        connect("qemu-arm64")


def test_wrong_answers_fail(files):
    """The value that QEMU 7.2's `max` gives in place of 0.25 is 0.49: twice as much."""
    feed = {"input_ids": np.array([[2, 7, 8, 3]]), "attention_mask": np.ones((1, 4), np.int64)}
    right = files[1].file.open(1).run(feed)["logits"]
    for wrong in (right * 2, right * np.nan, right[:, :2]):
        told = compare_answers(files[1], [feed], [{"logits": wrong}], Provenance.EMULATED)
        assert not told.passed
    assert not compare_answers(files[1], [feed], [], Provenance.EMULATED).passed
    assert not compare_answers(files[1], [feed], [{}], Provenance.EMULATED).passed
    nearly = compare_answers(files[1], [feed], [{"logits": right * 1.05}], Provenance.EMULATED)
    assert nearly.passed
    assert not compare_answers(
        files[0], [feed], [{"logits": files[0].file.open(1).run(feed)["logits"] * 1.05}], Provenance.EMULATED
    ).passed


@pytest.mark.slow
def test_the_command_line_ends_with_3_where_answers_differ(tools, files, phone, monkeypatch):
    class Wrong:
        method = "Nothing is run."

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __init__(self, inner):
            self.inner = inner

        def answers(self, file, feeds):
            return [{name: value + 9 for name, value in told.items()} for told in self.inner.answers(file, feeds)]

    monkeypatch.setattr("pocketbert.benchmarks.latency.connect", lambda name: Wrong(connect(name)))
    done = CliRunner().invoke(
        app,
        [
            "benchmark",
            "-m",
            str(phone),
            "--device",
            "qemu-arm64",
            "--runs",
            "10",
            "--repeats",
            "2",
            "--lengths",
            "16",
        ],
    )
    assert done.exit_code == 3, done.output
    assert "inputs compared with this machine: largest difference 9" in done.stderr
    assert "Threads 2 left out: qemu-arm64 measures with 1 at most." in done.stdout  # 1,2 is the default


def test_the_system_files_describe_the_processor(tmp_path):
    root, folder = tmp_path / "root", tmp_path / "prefix"
    (root / "usr").mkdir(parents=True)
    (root / "proc").mkdir()
    folder.mkdir()
    write_system_files(PROCESSORS["cortex-a53"], root, folder)
    text = (folder / "proc/cpuinfo").read_text()
    assert text.count("processor\t:") == 4
    assert "0xd03" in text
    assert "asimddp" not in text
    assert (folder / "usr").resolve() == root / "usr"
    assert (folder / "sys/devices/system/cpu/online").read_text() == "0-3\n"
