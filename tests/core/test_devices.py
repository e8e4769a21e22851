import pytest

from pocketbert.core.devices import (
    DEVICES,
    DeviceInfo,
    Figure,
    add_device,
    parse_device,
    parse_measuring_device,
    parse_measuring_devices,
    remove_device,
)
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.types import Provenance

COUNTED = {Figure.GUEST_INSTRUCTIONS: Provenance.EMULATED}


@pytest.fixture
def devices():
    """A device that needs an argument, one that may have one, one that is imported only."""
    added = (
        DeviceInfo("wire", {Figure.LATENCY: Provenance.MEASURED}, "a wire", argument="HOST"),
        DeviceInfo("chip", COUNTED, "an emulator", argument="CPU", optional=True),
        DeviceInfo("paper", {Figure.LATENCY: Provenance.MEASURED}, "a page", instead="read the page"),
    )
    for info in added:
        add_device(info)
    yield
    for info in added:
        remove_device(info.name)


def test_the_built_in_devices():
    measured = ["local", "ssh", "adb", "qai-hub", "coreml", "android"]
    others = {
        "qemu-arm64": Provenance.EMULATED,
        "qnn-host": Provenance.EMULATED,
        "litert-npu": Provenance.COMPILED_ONLY,
        "vela": Provenance.ESTIMATED,
    }
    assert {name: d.provenance for name, d in DEVICES.items()} == {
        **dict.fromkeys(measured, Provenance.MEASURED),
        **others,
    }
    assert DEVICES["coreml"].yields.endswith("; estimated: placement")


@pytest.mark.usefixtures("devices")
def test_names_with_arguments():
    built_in = ["local", "ssh:[USER@]HOST[:PORT]", "adb[:[SERIAL][@CORES]]", "qemu-arm64[:CPU]", "qnn-host:SOC"]
    built_in += ["litert-npu:SOC", "vela:CONFIG[@SYSTEM+MEMORY]", "qai-hub:PHONE", "coreml", "android"]
    assert [d.spelled for d in DEVICES.values()] == [*built_in, "wire:HOST", "chip[:CPU]", "paper"]
    for text, name, argument in (
        ("local", "local", ""),
        ("wire:pi4", "wire", "pi4"),
        ("wire:me@10.0.0.1:22", "wire", "me@10.0.0.1:22"),
        ("chip", "chip", ""),
        ("chip:a76", "chip", "a76"),
    ):
        found = parse_device(text)
        assert (found.info.name, found.argument, str(found)) == (name, argument, text)


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "locla",
            r"unknown device 'locla'; did you mean 'local'\? \(allowed: adb, android, chip, coreml, litert-npu, local, paper, qai-hub, qemu-arm64, qnn-host, ssh, vela, wire\)",
        ),
        ("local:0", "'local' takes no argument; write local"),
        ("wire", "HOST is missing; write wire:HOST"),
        ("wire:", "HOST is missing"),
        ("chip:", r"CPU is missing; write chip\[:CPU\]"),
        ("paper", "cannot be named here: read the page"),
        ("coreml", "'pocketbert benchmark -m FOLDER --import FILE'"),
        ("ssh:-oProxyCommand=id", r"'-oProxyCommand=id' is no \[USER@\]HOST\[:PORT\]; write ssh:"),
        ("", "unknown device ''"),
    ],
)
def test_wrong_names(text, message):
    with pytest.raises(ValueError, match=message):
        parse_measuring_device(text)
    with pytest.raises(ValueError, match=message):
        BenchmarkSection(devices=["local", text])


def test_all_wrong_names_of_a_command_are_told_at_once():
    assert [str(d) for d in parse_measuring_devices(["local", "local"], "--device")] == ["local"]
    with pytest.raises(InputError) as caught:
        parse_measuring_devices(["locla", "local", "corml"], "--device")
    assert [p.where for p in caught.value.problems] == ["--device", "--device"]


def test_a_time_is_never_emulated():
    with pytest.raises(ValueError, match="latency, load time cannot be emulated"):
        DeviceInfo("chip", dict.fromkeys((Figure.LATENCY, Figure.LOAD_TIME), Provenance.EMULATED), "an emulator")
    with pytest.raises(ValueError, match="latency cannot be compiled-only"):
        DeviceInfo("chip", {Figure.LATENCY: Provenance.COMPILED_ONLY}, "a compiler")
    with pytest.raises(ValueError, match="no figure"):
        DeviceInfo("chip", {}, "an emulator")


@pytest.mark.parametrize(
    ("name", "message"), [("local", "registered already"), ("a:b", "no colon"), ("a b", "no space")]
)
def test_names_that_cannot_be_added(name, message):
    with pytest.raises(ValueError, match=message):
        add_device(DeviceInfo(name, COUNTED, ""))
