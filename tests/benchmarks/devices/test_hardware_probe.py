"""The probe: built and run here, in an emulator, over ssh and adb; what it tells is checked, never how fast anything is."""

import importlib.util
import json
import platform
from functools import partial
from importlib import resources
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from pocketbert.benchmarks.devices import hardware_probe
from pocketbert.benchmarks.devices.hardware_probe import ARCHITECTURES, CROSS, build_probe, compilers, run_probe
from pocketbert.benchmarks.devices.machine_facts import Probe, read_facts
from pocketbert.benchmarks.devices.table import probe
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from pocketbert.core.host.hardware import describe_machine, select_extensions
from pocketbert.core.types import Provenance
from support import adb_device, arm, ssh_server
from support.ports import free_port

COMPILER = platform.system() == "Linux" and next(compilers(ARCHITECTURES.get(platform.machine(), "")), None)
built_here = pytest.mark.skipif(not COMPILER, reason="no C compiler for this machine")
slow = partial(pytest.param, marks=pytest.mark.slow)
EMULATED = ("cortex-a53", "cortex-a76", "max,sme=off")
"""Processors that take the int8 kernels asimd, asimddp and i8mm."""


@pytest.fixture(autouse=True)
def short_slices(monkeypatch):
    monkeypatch.setattr(hardware_probe, "SLICE_MS", 1)


@built_here
def test_this_machine(pocketbert):
    done = pocketbert("devices", "--probe", "local", "--json")
    assert done.exit_code == 0, done.output
    told = Probe.model_validate_json(done.stdout)
    facts = told.facts
    assert (told.device, told.provenance, facts.arch) == ("local", Provenance.MEASURED, platform.machine())
    assert len(told.program.sha256) == 64
    assert len(facts.cores) == describe_machine().cores
    # the kernel's list and the processor's
    assert select_extensions(facts.arch, facts.features) == describe_machine().isa
    assert facts.memory_bytes >= facts.available_bytes > 0
    assert facts.rates is not None
    rows = dict(told.rows)
    assert "int8 matrix product, one thread" in rows
    assert rows["processor"].startswith(f"{len(facts.cores)} × ")


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
        slow("gemm_fp32.c", "sum[i][1] += right * a[i];", "sum[i][1] += right * a[0];", "fp32 product"),
        slow("bandwidth.c", "i < count; i += 4", "i < count - 4; i += 4", "sum of the memory"),
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
    monkeypatch.setattr(hardware_probe, "resources", SimpleNamespace(files=lambda _: tmp_path))
    with pytest.raises(MachineError, match=f"local: the probe ended with exit status 3: the {said}.* is wrong"):
        probe("local")


@pytest.mark.skipif(bool(arm.missing()), reason=arm.missing())
def test_an_emulated_processor_is_described_and_not_timed(monkeypatch, tmp_path):
    arm.use(monkeypatch, tmp_path)
    monkeypatch.setenv(CROSS, str(arm.CACHE / "cross"))  # the installed wheel does not know the checkout
    if next(compilers("aarch64"), None) is None:
        pytest.skip("no C compiler for aarch64: run 'make tools' on Debian")
    for name, part, extensions in (("qemu-arm64:cortex-a53", "A53", []), ("qemu-arm64", "A76", ["asimddp"])):
        told = probe(name)
        assert told.provenance is Provenance.EMULATED
        assert f"Cortex-{part}" in told.facts.processor
        assert select_extensions("aarch64", told.facts.features) == ["asimd", *extensions]
        assert told.facts.rates is None
        assert "none: those of an emulator" in dict(told.rows)["rates"]
    program = build_probe("aarch64", tmp_path, "test")[0]
    for processor in EMULATED:
        run_probe(["qemu-aarch64", "-cpu", processor, str(program), "all", "1"], "test")  # checks its products


@built_here
def test_a_phone_behind_adb(android, reach, monkeypatch):
    reach(android)
    told = probe(f"adb:{adb_device.SERIAL}@big")  # the device's taskset refuses other masks than that of big cores
    assert (told.device, told.name) == (f"adb:{adb_device.SERIAL}@big", "Maker Phone 9 (Chip 3)")
    assert told.facts.rates is not None
    monkeypatch.setattr(hardware_probe, "compilers", lambda _: iter(()))
    with pytest.raises(MissingBackendError, match="a C compiler for"):
        probe(f"adb:{adb_device.SERIAL}")
    assert android.left() == []


@built_here
@pytest.mark.skipif(bool(ssh_server.missing()), reason=ssh_server.missing())
def test_a_machine_behind_ssh(monkeypatch, tmp_path):
    ssh_server.make_keys(tmp_path, "user", "host")
    server = ssh_server.start(tmp_path)
    try:
        monkeypatch.setenv("PATH", f"{ssh_server.client(tmp_path, server)}:/usr/bin:/bin")
        told = probe(server.device)
        assert told.device == server.device
        assert told.facts.rates is not None
        assert server.left() == []
        with pytest.raises(InputError, match="nothing accepts connections at that port"):
            probe(f"ssh:127.0.0.1:{free_port()}")
    finally:
        server.stop()


def test_zig_is_the_compiler_where_there_is_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware_probe.importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CROSS, str(tmp_path))
    ((command, _),) = compilers("aarch64")
    assert command[3:] == ("ziglang", "cc", "-target", "aarch64-linux-musl")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no Zig: pip install ziglang")
@pytest.mark.parametrize(("arch", "machine"), [("aarch64", 183), ("x86_64", 62)])  # e_machine of ELF
def test_zig_builds_it(monkeypatch, tmp_path, arch, machine):
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.setenv(CROSS, str(tmp_path))
        path, built = build_probe(arch, tmp_path, "test")
    header = path.read_bytes()[:20]
    assert (header[:4], int.from_bytes(header[18:], "little")) == (b"\x7fELF", machine)
    assert "clang" in built.compiler
    if arch == platform.machine():
        assert read_facts(run_probe([str(path), "all", "1"], "test"), "test").rates  # checks its products


def test_no_compiler_and_one_that_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware_probe.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CROSS, str(tmp_path))
    missing = "C compiler for aarch64.*apt-get install gcc-aarch64-linux-gnu"
    with pytest.raises(MissingBackendError, match=missing) as told:
        build_probe("aarch64", tmp_path, "adb:X")
    assert told.value.exit_code == ExitCode.MISSING
    compiler = tmp_path / "aarch64-linux-gnu-gcc"
    compiler.write_text("#!/bin/sh\necho 'probe.c:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(MachineError, match="adb:X: the probe cannot be built: .*error: no such thing"):
        build_probe("aarch64", tmp_path, "adb:X")


# --- what a probe prints ---------------------------------------------------------------------------------------------------------

CORE = {"model": "", "most_khz": 1800000}
LITTLE = {**CORE, "part": "0x41:0xd05", "least_khz": 300000, "governor": "sched"}
PHONE = {
    "probe": 1,
    "arch": "aarch64",
    "page_bytes": 16384,
    "features": ["fp", "asimd", "asimddp"],
    "hwcap": [1048579, 0],
    "cores": [{**LITTLE, "number": n} for n in range(4)]
    + [{**CORE, "number": 4, "part": "0x41:0xd0b", "most_khz": 2400000}],
    "memory_bytes": 8_000_000_000,
    "available_bytes": None,
    "load": 0.5,
    "thermal": [{"name": "skin", "celsius": 31.2}, {"name": "cpu-0", "celsius": 44.0}],
    "rates": {
        "memory": {
            "buffer_bytes": 1 << 27,
            "read": {"best": 12.34, "median": 12.0},
            "copy": {"best": 14.0, "median": 13.0},
        },
        "fp32": {"kernel": "asimd", "rate": {"best": 30.0, "median": 29.0}},
        "int8": {"kernel": "asimddp", "rate": {"best": 120.0, "median": 119.0}},
    },
}


def test_what_a_phone_tells():
    facts = read_facts(f"Welcome\n{json.dumps(PHONE)}\n", "adb:X")
    about = {
        "name": "Phone 9",
        "program": {"arch": "aarch64", "compiler": "gcc 12", "sha256": "0" * 64},
        "facts": facts,
    }
    told = Probe(device="adb:X", provenance=Provenance.MEASURED, **about)
    wanted = {
        "processor": "4 × Cortex-A55, 1 × Cortex-A76",
        "clock of cores 0 to 3": "300 to 1800 MHz, sched",
        "clock of cores 4": "2400 MHz",
        "page size": "16384 bytes",
        "hottest thermal zone": "44.0 °C (cpu-0)",
        "memory, read by one thread": "12.3 GB/s (median 12)",
        "int8 matrix product, one thread": "120 GOP/s (median 119), asimddp",
    }
    assert wanted.items() <= dict(told.rows).items()
    assert Probe.model_validate_json(told.model_dump_json(by_alias=True)) == told
    with pytest.raises(ValidationError, match="rates are measured or there are none"):
        Probe(device="qemu-arm64", provenance=Provenance.EMULATED, **about)


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


def test_devices_that_cannot_be_probed(pocketbert, monkeypatch):
    for name, why in (
        ("qnn-host:SM8650", "the probe does not run there; it runs on local"),
        ("loca", "unknown device"),
    ):
        done = pocketbert("devices", "--probe", name)
        assert done.exit_code == 2
        assert why in done.stderr
    monkeypatch.setattr(platform, "machine", lambda: "armv7l")
    with pytest.raises(InputError, match="its processor is 'armv7l'; the probe is written for aarch64 and x86_64"):
        probe("local")
