"""The code of every device, by name; the facts are in `pocketbert.core.devices`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from pocketbert.benchmarks.devices.adb.connection import adb_refusal, connect_adb
from pocketbert.benchmarks.devices.litert.compiler import connect_litert, litert_missing, litert_refusal
from pocketbert.benchmarks.devices.local import connect_local, local_refusal
from pocketbert.benchmarks.devices.probe.over_ssh import probe_ssh
from pocketbert.benchmarks.devices.probe.places import probe_adb, probe_local, probe_qemu
from pocketbert.benchmarks.devices.probed import Probe
from pocketbert.benchmarks.devices.protocol import Compiler, Connection, Device, Service
from pocketbert.benchmarks.devices.qaihub.service import connect_qai_hub, qai_hub_missing, qai_hub_refusal
from pocketbert.benchmarks.devices.qemu.connection import connect_qemu, qemu_missing
from pocketbert.benchmarks.devices.qnn.compiler import connect_qnn, qnn_missing, qnn_refusal
from pocketbert.benchmarks.devices.remote.connection import remote_refusal
from pocketbert.benchmarks.devices.ssh import connect_ssh
from pocketbert.benchmarks.devices.vela.compiler import connect_vela, vela_missing, vela_refusal
from pocketbert.core.devices import (
    ADB,
    ANDROID,
    COREML,
    DEVICES,
    LITERT_NPU,
    LOCAL,
    QAI_HUB,
    QEMU,
    QNN,
    SSH,
    VELA,
    add_device,
    parse_measuring_device,
    remove_device,
)
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Runtime


def _absent(program: str, package: str) -> str:
    """What is missing where a program is not on the path."""
    return "" if shutil.which(program) else f"{program} is not installed (sudo apt-get install {package})"


_devices: dict[str, Device] = {
    LOCAL: Device(DEVICES[LOCAL], connect_local, local_refusal, probe=probe_local),
    SSH: Device(
        DEVICES[SSH],
        connect_ssh,
        remote_refusal,
        missing=lambda: _absent("ssh", "openssh-client"),
        probe=probe_ssh,
    ),
    ADB: Device(DEVICES[ADB], connect_adb, adb_refusal, missing=lambda: _absent("adb", "adb"), probe=probe_adb),
    QEMU: Device(DEVICES[QEMU], connect_qemu, remote_refusal, missing=qemu_missing, probe=probe_qemu),
    QNN: Device(DEVICES[QNN], compiler=connect_qnn, missing=qnn_missing, refusal=qnn_refusal),
    LITERT_NPU: Device(DEVICES[LITERT_NPU], compiler=connect_litert, missing=litert_missing, refusal=litert_refusal),
    VELA: Device(DEVICES[VELA], compiler=connect_vela, missing=vela_missing, refusal=vela_refusal),
    QAI_HUB: Device(DEVICES[QAI_HUB], service=connect_qai_hub, missing=qai_hub_missing, refusal=qai_hub_refusal),
    COREML: Device(DEVICES[COREML]),  # its figures are imported: pocketbert.benchmarks.devices.mac.importing
    ANDROID: Device(DEVICES[ANDROID]),  # likewise: pocketbert.benchmarks.devices.android.importing
}


def register_device(device: Device) -> None:
    """Register a device: recipes and ``--device`` may then name it, and `pocketbert devices` lists it.

    Args:
        device: The device. Either it can be reached (``connect``), or files are compiled for it (``compiler``), or its
            facts name the way to use it (``instead``).

    Raises:
        ValueError: If its name is taken or wrong, or it has several or none of the three.
    """
    ways = (device.connect, device.compiler, device.service, device.info.instead or None)
    if sum(way is not None for way in ways) != 1:
        raise ValueError(
            f"device '{device.info.name}': give one of 'connect', 'compiler', 'service' and 'info.instead'."
        )
    add_device(device.info)
    _devices[device.info.name] = device


def unregister_device(name: str) -> None:
    """Remove a device that was registered, e.g. at the end of a test."""
    remove_device(name)
    del _devices[name]


def device(name: str) -> Device:
    """The measuring device of a name, which may have an argument.

    Raises:
        ValueError: If it is unknown or cannot be measured on.
    """
    return _devices[parse_measuring_device(name).info.name]


def connect(name: str) -> Connection:
    """Reach a device.

    Args:
        name: Its name with its argument, as in a recipe.

    Raises:
        ValueError: If the name is wrong.
        InputError: If it cannot be reached.
    """
    reach = device(name).connect
    assert reach is not None  # `register_device` asks for it, and the protocol for no other
    return reach(parse_measuring_device(name).argument)


def compiler_of(name: str) -> Compiler:
    """Prepare the compiler of a device that files are compiled for; errors as of `connect`."""
    prepare = device(name).compiler
    assert prepare is not None  # as above
    return prepare(parse_measuring_device(name).argument)


def probe(name: str) -> Probe:
    """Run the probe on a device: cores, extensions, memory, temperatures, and rates where they are measured.

    Args:
        name: Its name with its argument, as in a recipe.

    Raises:
        ValueError: If the name is wrong.
        InputError: If the probe does not run on such a device, or it cannot be reached.
    """
    run = device(name).probe
    if run is None:
        known = ", ".join(d.info.spelled for d in _devices.values() if d.probe is not None)
        raise InputError(Problem(name, f"the probe does not run there; it runs on {known}."))
    return run(parse_measuring_device(name).argument)


def service_of(name: str) -> Service:
    """Prepare a service that measures by itself; errors as of `connect`."""
    prepare = device(name).service
    assert prepare is not None  # as above
    return prepare(parse_measuring_device(name).argument)


def missing(name: str) -> str:
    """What keeps this machine from using a device, named without an argument; empty where nothing is known to."""
    return _devices[name].missing()


def refusals(names: Sequence[str], format: Format, runtime: Runtime | None) -> list[str]:
    """Why none of some devices runs a kind of file; empty where one of them does."""
    reasons = [device(name).refusal(format, runtime) for name in names]
    return [] if "" in reasons else list(dict.fromkeys(reasons))
