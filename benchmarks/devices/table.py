"""The devices that this version can measure on."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.types import Provenance


@dataclass(frozen=True)
class Device:
    """A place where a model file can run.

    Attributes:
        name: What a recipe's ``benchmark.devices`` and ``--device`` call it.
        yields: Which figures come from it.
        provenance: What those figures are stamped with.
        reached: How it is reached.
    """

    name: str
    yields: str
    provenance: Provenance
    reached: str


DEVICES: tuple[Device, ...] = (
    Device(
        name="local",
        yields="latency, CPU time, load time, first inference, peak memory, time per operator, placement",
        provenance=Provenance.MEASURED,
        reached="this machine's CPU, by ONNX Runtime or LiteRT in this process and in fresh child processes",
    ),
    Device(
        name="coreml",
        yields="latency per compute unit, load time, first inference, peak memory, answers; the compute plan as an estimate",
        provenance=Provenance.MEASURED,
        reached="a Mac, by coreml/benchmark_on_mac.py of an artefact folder; then `pocketbert benchmark --import FILE`; no recipe key",
    ),
)


def device(name: str) -> Device:
    """The device of a name.

    Raises:
        InputError: If there is no such device in this version.
    """
    for known in DEVICES:
        if known.name == name:
            return known
    raise InputError(Problem("devices", f"no device '{name}'; {nearest(name, [d.name for d in DEVICES])}."))
