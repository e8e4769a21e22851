"""The probe: built and run here, in an emulator, over ssh and adb; what it tells is checked, never how fast anything is."""

import hashlib
import importlib.util
import json
import platform
from importlib import resources
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import hardware_probe as build
from pocketbert.benchmarks.devices.machine_facts import Probe, read_facts
from pocketbert.benchmarks.devices.table import probe
from pocketbert.cli.main import app
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from pocketbert.core.host.hardware import describe_machine, select_extensions
from pocketbert.core.types import Provenance
from support import adb_device, arm, ssh_server
from support.ports import free_port

COMPILER = platform.system() == "Linux" and next(build.compilers(build.ARCHITECTURES.get(platform.machine(), "")), None)
built_here = pytest.mark.skipif(not COMPILER, reason="no C compiler for this machine")
emulated = pytest.mark.skipif(bool(arm.missing()), reason=arm.missing())
RATES = {
    "memory": {
        "buffer_bytes": 1 << 27,
        "read": {"best": 12.34, "median": 12.0},
        "copy": {"best": 14.0, "median": 13.0},
    },
    "fp32": {"kernel": "asimd", "rate": {"best": 30.0, "median": 29.0}},
    "int8": {"kernel": "asimddp", "rate": {"best": 120.0, "median": 119.0}},
}
PHONE = {
    "probe": 1,
    "arch": "aarch64",
    "page_bytes": 16384,
    "features": ["fp", "asimd", "asimddp"],
    "hwcap": [1048579, 0],
    "cores": [
        {"number": n, "part": "0x41:0xd05", "model": "", "least_khz": 300000, "most_khz": 1800000, "governor": "sched"}
        for n in range(4)
    ]
    + [{"number": 4, "part": "0x41:0xd0b", "model": "", "most_khz": 2400000}],
    "memory_bytes": 8_000_000_000,
    "available_bytes": None,
    "load": 0.5,
    "thermal": [{"name": "skin", "celsius": 31.2}, {"name": "cpu-0", "celsius": 44.0}],
    "rates": RATES,
}
PROGRAM = {"arch": "aarch64", "compiler": "gcc 12", "sha256": "0" * 64}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Slices of 1 ms."""
    monkeypatch.setattr(build, "SLICE_MS", 1)


def pocketbert(*arguments):
    return CliRunner().invoke(app, list(arguments))


@built_here
def test_this_machine(monkeypatch):
    done = pocketbert("devices", "--probe", "local", "--json")
    assert done.exit_code == 0, done.output
    told = Probe.model_validate_json(done.stdout)
    assert (told.device, told.provenance, told.facts.arch) == ("local", Provenance.MEASURED, platform.machine())
    assert len(told.program.sha256) == 64
    assert len(told.facts.cores) == describe_machine().cores
    assert (
        select_extensions(told.facts.arch, told.facts.features) == describe_machine().isa
    )  # the kernel's list and the processor's
    assert told.facts.memory_bytes >= told.facts.available_bytes > 0
    assert told.facts.rates is not None
    table = pocketbert("devices", "--probe", "local").stdout
    assert "int8 matrix product, one thread\t" in table
    assert f"{len(told.facts.cores)} × " in table


@built_here
@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        (
            "gemm_int8.c",
            "int i = 0; i < tall; i++)\n            p->run",
            "int i = 1; i < tall; i++)\n p->run",
            "int8 product",
        ),
        ("gemm_fp32.c", "sum[i][1] += right * a[i];", "sum[i][1] += right * a[0];", "fp32 product"),
        ("bandwidth.c", "i < count; i += 4", "i < count - 4; i += 4", "sum of the memory"),
    ],
)
def test_a_program_that_computes_wrongly_gives_no_rates(monkeypatch, tmp_path, name, right, wrong, said):
    sources = tmp_path / "sources" / "probe"
    sources.mkdir(parents=True)
    for entry in resources.files("pocketbert.benchmarks.devices").joinpath("sources", "probe").iterdir():
        if entry.name.endswith((".c", ".h")):
            text = entry.read_text()
            assert entry.name != name or right in text
            (sources / entry.name).write_text(text.replace(right, wrong, 1) if entry.name == name else text)
    monkeypatch.setattr(build, "resources", SimpleNamespace(files=lambda _: tmp_path))
    with pytest.raises(MachineError, match=f"local: the probe ended with exit status 3: the {said}.* is wrong"):
        probe("local")


@emulated
def test_an_emulated_processor_is_described_and_not_timed(monkeypatch, tmp_path):
    arm.use(monkeypatch, tmp_path)
    monkeypatch.setenv(build.CROSS, str(arm.CACHE / "cross"))  # the installed wheel does not know the checkout
    if next(build.compilers("aarch64"), None) is None:
        pytest.skip("no C compiler for aarch64: run 'make tools' on Debian")
    old, new = probe("qemu-arm64:cortex-a53"), probe("qemu-arm64")
    assert (old.provenance, new.provenance) == (Provenance.EMULATED, Provenance.EMULATED)
    assert "Cortex-A53" in old.facts.processor
    assert "Cortex-A76" in new.facts.processor
    assert (select_extensions("aarch64", old.facts.features), select_extensions("aarch64", new.facts.features)) == (
        ["asimd"],
        ["asimd", "asimddp"],
    )
    assert old.facts.rates is new.facts.rates is None
    assert "none: those of an emulator" in dict(new.rows)["rates"]
    program = build.build_probe("aarch64", tmp_path, "test")[0]
    for processor in ("cortex-a53", "cortex-a76", "max,sme=off"):  # the int8 kernels asimd, asimddp and i8mm
        build.run_probe(["qemu-aarch64", "-cpu", processor, str(program), "all", "1"], "test")  # checks its products


@built_here
@pytest.mark.skipif(bool(adb_device.missing()), reason=adb_device.missing())
def test_a_phone_behind_adb(monkeypatch, tmp_path):
    phone = adb_device.start(tmp_path)
    try:
        monkeypatch.setenv("PATH", f"{phone.tools}:/usr/bin:/bin")
        told = probe(f"adb:{adb_device.SERIAL}@big")  # the device's taskset refuses other masks than that of big cores
        assert (told.device, told.name) == (f"adb:{adb_device.SERIAL}@big", "Maker Phone 9 (Chip 3)")
        assert told.facts.rates is not None
        with pytest.raises(MissingBackendError, match="a C compiler for"):
            monkeypatch.setattr(build, "compilers", lambda _: iter(()))
            probe(f"adb:{adb_device.SERIAL}")
        assert phone.left() == []
    finally:
        phone.stop()


@built_here
@pytest.mark.skipif(bool(ssh_server.missing()), reason=ssh_server.missing())
def test_a_machine_behind_ssh(monkeypatch, tmp_path):
    keys, tools = tmp_path / "server", tmp_path / "client"
    keys.mkdir()
    tools.mkdir()
    ssh_server.make_keys(keys, "user", "host")
    server = ssh_server.start(keys)
    try:
        monkeypatch.setenv("PATH", f"{ssh_server.client(tools, server)}:/usr/bin:/bin")
        told = probe(server.device)
        assert told.device == server.device
        assert told.facts.rates is not None
        assert server.left() == []
        with pytest.raises(InputError, match="nothing accepts connections at that port"):
            probe(f"ssh:127.0.0.1:{free_port()}")
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no Zig: pip install ziglang")
@pytest.mark.parametrize("arch", ["aarch64", "x86_64"])
def test_zig_builds_it_where_there_is_no_other_compiler(monkeypatch, tmp_path, arch):
    folder = tmp_path / "built"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(build.shutil, "which", lambda name: None)
        patch.setenv(build.CROSS, str(tmp_path / "none"))
        (only,) = build.compilers(arch)
        assert "ziglang" in only[0]
        path, built = build.build_probe(arch, folder, "test")
    assert "clang" in built.compiler
    header = path.read_bytes()[:64]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == {"aarch64": 183, "x86_64": 62}[arch]  # e_machine
    assert built.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    if arch == build.ARCHITECTURES.get(platform.machine()):
        facts = read_facts(build.run_probe([str(path), "all", "1"], "test"), "test")  # checks its products
        assert facts.rates is not None
        assert select_extensions(facts.arch, facts.features) == describe_machine().isa
    elif arch == "aarch64" and not arm.missing():
        arm.use(monkeypatch, tmp_path)
        for processor in ("cortex-a53", "cortex-a76", "max,sme=off"):
            told = build.run_probe(["qemu-aarch64", "-cpu", processor, str(path), "all", "1"], "test")
            assert read_facts(told, "test").arch == "aarch64"


def test_no_compiler_and_one_that_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("POCKETBERT_CROSS", str(tmp_path))
    with pytest.raises(
        MissingBackendError, match="C compiler for aarch64.*apt-get install gcc-aarch64-linux-gnu"
    ) as told:
        build.build_probe("aarch64", tmp_path, "adb:X")
    assert told.value.exit_code == ExitCode.MISSING
    compiler = tmp_path / "aarch64-linux-gnu-gcc"
    compiler.write_text("#!/bin/sh\necho 'probe.c:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(MachineError, match="adb:X: the probe cannot be built: .*error: no such thing"):
        build.build_probe("aarch64", tmp_path, "adb:X")


def test_what_a_phone_tells():
    facts = read_facts(f"Welcome\n{json.dumps(PHONE)}\n", "adb:X")
    told = Probe(device="adb:X", name="Phone 9", provenance=Provenance.MEASURED, program=PROGRAM, facts=facts)
    rows = dict(told.rows)
    assert rows["processor"] == "4 × Cortex-A55, 1 × Cortex-A76"
    assert rows["clock of cores 0 to 3"] == "300 to 1800 MHz, sched"
    assert rows["clock of cores 4"] == "2400 MHz"
    assert rows["page size"] == "16384 bytes"
    assert rows["hottest thermal zone"] == "44.0 °C (cpu-0)"
    assert rows["memory, read by one thread"] == "12.3 GB/s (median 12)"
    assert rows["int8 matrix product, one thread"] == "120 GOP/s (median 119), asimddp"
    assert Probe.model_validate_json(told.model_dump_json(by_alias=True)) == told
    with pytest.raises(ValidationError, match="rates are measured or there are none"):
        Probe(device="qemu-arm64", name="", provenance=Provenance.EMULATED, program=PROGRAM, facts=facts)


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("", "printed 'nothing' instead of its facts"),
        ("Killed", "printed 'Killed' instead"),
        (json.dumps(PHONE | {"probe": 2}), "is wrong: probe: Input should be 1"),
        (json.dumps(PHONE | {"cores": []}), "is wrong: cores: List should have at least 1 item"),
        (json.dumps(PHONE).replace("12.34", "-1"), "is wrong: rates.memory.read.best"),
    ],
)
def test_what_no_probe_prints(printed, why):
    with pytest.raises(MachineError, match=why):
        read_facts(printed, "adb:X")


def test_devices_that_cannot_be_probed():
    with pytest.raises(InputError, match="its processor is 'armv7l'; the probe is written for aarch64 and x86_64"):
        build.check_architecture("armv7l\n", "adb:X")
    for name, why in (
        ("qnn-host:SM8650", "the probe does not run there; it runs on local"),
        ("loca", "unknown device"),
    ):
        done = pocketbert("devices", "--probe", name)
        assert done.exit_code == 2
        assert why in done.stderr
