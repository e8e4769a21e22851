"""The table of devices: the code of every device, by name; its facts are in `pocketbert.core.devices`.

`register_device` adds a row. `device` looks a row up; `connect`, `compiler_of`, `service_of` and `probe` use what
it offers. `list_device_statuses` lists what can be used now, and `refusals` explains why no device runs a kind of file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pocketbert.benchmarks.browser.measuring import Browsers, browser_refusal
from pocketbert.benchmarks.devices import adb, litert_npu, local, qai_hub, qemu, qnn, ssh, vela
from pocketbert.benchmarks.devices.hardware_probe import probe_adb, probe_local, probe_qemu, probe_ssh
from pocketbert.benchmarks.devices.machine_facts import Probe
from pocketbert.benchmarks.devices.protocol import Allowed, Compiler, Connection, Device, Reachable, Service
from pocketbert.core.devices import (
    ANDROID,
    BROWSER,
    COREML,
    DEVICES,
    DeviceInfo,
    add_device,
    parse_measuring_device,
    remove_device,
)
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.plugins import load_plugins
from pocketbert.core.types import Format, Runtime

_ROWS = (
    replace(local.DEVICE, probe=probe_local),
    replace(ssh.DEVICE, probe=probe_ssh),
    replace(adb.DEVICE, probe=probe_adb),
    replace(qemu.DEVICE, probe=probe_qemu),
    qnn.DEVICE,
    litert_npu.DEVICE,
    vela.DEVICE,
    qai_hub.DEVICE,
    Device(DEVICES[BROWSER], service=Browsers, refusal=browser_refusal),
    Device(DEVICES[COREML]),  # its figures are imported: pocketbert.benchmarks.imported.mac
    Device(DEVICES[ANDROID]),  # likewise: pocketbert.benchmarks.imported.android_app
)
_devices: dict[str, Device] = {row.info.name: row for row in _ROWS}


def register_device(device: Device) -> None:
    """Register a device, so that recipes and ``--device`` accept it and `pocketbert devices` lists it.

    Args:
        device: The device. Exactly one of these must be set: ``connect`` (it can be connected to), ``compiler`` (files
            are compiled for it), ``service`` (it measures by itself), or ``instead`` in its `info` (a text on how to use
            it).

    Raises:
        ValueError: If the name is taken or invalid, or not exactly one of the four is set.
    """
    ways = (device.connect, device.compiler, device.service, device.info.instead or None)
    if sum(way is not None for way in ways) != 1:
        raise ValueError(
            f"device '{device.info.name}': give one of 'connect', 'compiler', 'service' and 'info.instead'."
        )
    add_device(device.info)
    _devices[device.info.name] = device


def unregister_device(name: str) -> None:
    """Remove a registered device, e.g. at the end of a test."""
    remove_device(name)
    del _devices[name]


def device(name: str) -> Device:
    """Return a device's row of the table, by its name with or without an argument.

    Raises:
        ValueError: If the device is unknown, or results of it can only be imported.
    """
    return _devices[parse_measuring_device(name).info.name]


def connect(name: str) -> Connection:
    """Connect to a device and return the connection.

    Args:
        name: Name of the device with its argument, as in a recipe.

    Raises:
        ValueError: If the name is wrong.
        PocketBertError: If the device cannot be reached or used: InputError, MissingBackendError or MachineError.
    """
    connect_device = device(name).connect
    assert connect_device is not None  # the latency protocol calls it for no other device
    return connect_device(parse_measuring_device(name).argument)


def compiler_of(name: str) -> Compiler:
    """Return the compiler of a device that files are only compiled for.

    It raises the errors of `connect`.
    """
    prepare = device(name).compiler
    assert prepare is not None
    return prepare(parse_measuring_device(name).argument)


def probe(name: str) -> Probe:
    """Run the hardware probe (a C program) on a device; return cores, extensions, memory, temperatures and rates.

    An emulated processor has no rates.

    Args:
        name: Name of the device with its argument, as in a recipe.

    Raises:
        ValueError: If the name is wrong.
        InputError: If the probe does not run on such a device, or the device cannot be reached.
        MissingBackendError: If a program that this needs is not installed, such as a compiler.
        MachineError: If the probe cannot be built, or fails.
    """
    run = device(name).probe
    if run is None:
        known = ", ".join(d.info.spelled for d in _devices.values() if d.probe is not None)
        raise InputError(Problem(name, f"the probe does not run there; it runs on {known}."))
    return run(parse_measuring_device(name).argument)


def service_of(name: str) -> Service:
    """Return the service that measures files on devices of its own.

    It raises the errors of `connect`.
    """
    prepare = device(name).service
    assert prepare is not None
    return prepare(parse_measuring_device(name).argument)


@dataclass(frozen=True)
class DeviceStatus:
    """Whether a device can be used now, as far as this machine knows.

    Attributes:
        info: The device's entry in the table of devices: name, argument, and what it measures.
        reachable: What can be used now; None if only a connection would show it, or if results are imported.
        missing: What this machine lacks to use the device; empty if nothing is known to be missing.
        allowed: Parts of the device's argument that have a fixed list of values.
    """

    info: DeviceInfo
    reachable: Sequence[Reachable] | None
    missing: str
    allowed: Sequence[Allowed]


def list_device_statuses() -> list[DeviceStatus]:
    """Return for each device what can be used now and what is missing; this takes seconds and uses no network."""
    load_plugins()
    return [
        DeviceStatus(one.info, one.look() if one.look is not None else None, one.missing(), one.allowed)
        for one in _devices.values()
    ]


def refusals(names: Sequence[str], format: Format, runtime: Runtime | None) -> list[str]:
    """Return why none of these devices can run files of this format and runtime; an empty list if one can."""
    reasons = [device(name).refusal(format, runtime) for name in names]
    return [] if "" in reasons else list(dict.fromkeys(reasons))
