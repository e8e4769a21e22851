"""Devices that figures are measured on: their names, arguments, and what may be emulated."""

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


def test_figures_of_built_in_devices_are_measured_emulated_or_estimated():
    assert DEVICES["local"].provenance is Provenance.MEASURED
    assert DEVICES["qemu-arm64"].provenance is Provenance.EMULATED
    assert DEVICES["coreml"].yields.endswith("; estimated: placement")


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("text", ["local", "wire:pi4", "wire:me@10.0.0.1:22", "chip", "chip:a76"])
def test_names_with_arguments(text):
    found = parse_device(text)
    name, _, argument = text.partition(":")
    assert (found.info.name, found.argument, str(found)) == (name, argument, text)


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("locla", r"unknown device 'locla'; did you mean 'local'\? \(allowed: adb, android, browser, chip, .*wire\)"),
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


TIMES = dict.fromkeys((Figure.LATENCY, Figure.LOAD_TIME), Provenance.EMULATED)


@pytest.mark.parametrize(
    ("name", "figures", "message"),
    [
        ("chip", TIMES, "latency, load time cannot be"),
        ("chip", {Figure.LATENCY: Provenance.COMPILED_ONLY}, "latency cannot be compiled-only"),
        ("chip", {}, "no figure"),
        ("local", COUNTED, "registered already"),
        ("a:b", COUNTED, "no colon"),
        ("a b", COUNTED, "no space"),
        ("a,b", COUNTED, "no comma"),
    ],
)
def test_devices_that_cannot_be_added(name, figures, message):
    with pytest.raises(ValueError, match=message):
        add_device(DeviceInfo(name, figures, "an emulator"))
