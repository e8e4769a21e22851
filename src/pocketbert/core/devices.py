"""The table of devices (`DEVICES`): name, figures and access of each; and the parsers of device names.

Only facts are here, so that a recipe can be checked without any code that measures. The code of a device is in
`pocketbert.benchmarks.devices`, whose `register_device` adds the facts of a new device to this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from pocketbert.core.errors import InputError, Problem, shorten_repr, suggest_allowed
from pocketbert.core.plugins import load_plugins, record_registration
from pocketbert.core.types import Provenance


class Figure(StrEnum):
    """A quantity that a device can measure, such as latency or memory."""

    LATENCY = "latency"
    IDLE_LATENCY = "latency after idle time"
    CPU_TIME = "CPU time"
    LOAD_TIME = "load time"
    FIRST_INFERENCE = "first inference"
    MEMORY = "peak memory"
    TOKENIZER = "tokenizer time"
    POST_PROCESSING = "post-processing time"
    """From the outputs of an engine to the answer."""
    OPERATORS = "time per operator"
    PLACEMENT = "placement"
    ANSWERS = "answers"
    COMPILED = "compiled size"
    NPU_TIME = "time on the NPU"
    NPU_CYCLES = "NPU cycles"
    SRAM = "SRAM"
    GUEST_INSTRUCTIONS = "guest instructions"
    """Instructions that an emulated processor executes: a measure of work, not of time."""


MAX_GAP_MS = 10_000.0
"""Longest idle time before an inference, in ms: longer than an app's user waits between two sentences."""
_TIMES = frozenset(
    {
        Figure.LATENCY,
        Figure.IDLE_LATENCY,
        Figure.CPU_TIME,
        Figure.LOAD_TIME,
        Figure.FIRST_INFERENCE,
        Figure.TOKENIZER,
        Figure.POST_PROCESSING,
        Figure.OPERATORS,
        Figure.NPU_TIME,
    }
)
_PROVENANCES_WITHOUT_TIME = frozenset({Provenance.EMULATED, Provenance.COMPILED_ONLY})


@dataclass(frozen=True)
class DeviceInfo:
    """A kind of device that files can be measured on, and the quantities that it measures.

    Attributes:
        name: Name in a recipe's ``benchmark.devices`` and after ``--device``, without an argument.
        figures: The quantities that the device measures, each with its provenance (measured, estimated, emulated,
            compiled-only); times are measured or estimated.
        reached: How the device is reached, in words.
        argument: Name of the argument after the colon, e.g. ``HOST`` for ``ssh:HOST``; empty if there is none.
        optional: Whether the argument may be left out.
        instead: How to use a device that cannot be named in a recipe; empty for devices that can.
        pattern: Regular expression of the whole argument, ASCII only; empty if any text without a comma is allowed (a
            comma separates devices).
        most_threads: Largest number of threads within an operator that the device can measure; 0 for any number.
    """

    name: str
    figures: Mapping[Figure, Provenance]
    reached: str
    argument: str = ""
    optional: bool = False
    instead: str = ""
    pattern: str = ""
    most_threads: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError if the device measures nothing, or has times that are neither measured nor estimated."""
        if not self.figures:
            raise ValueError(f"device '{self.name}' gives no figure.")
        wrong = [f for f, p in self.figures.items() if f in _TIMES and p in _PROVENANCES_WITHOUT_TIME]
        if wrong:
            raise ValueError(
                f"device '{self.name}': {', '.join(wrong)} cannot be {self.figures[wrong[0]]}: a time is measured or "
                f"estimated. Give {Figure.GUEST_INSTRUCTIONS} instead."
            )

    @property
    def spelled(self) -> str:
        """The syntax of the device's name with its argument, e.g. ``ssh:HOST`` or ``qemu-arm64[:CPU]``."""
        if not self.argument:
            return self.name
        return f"{self.name}[:{self.argument}]" if self.optional else f"{self.name}:{self.argument}"

    @property
    def provenance(self) -> Provenance:
        """Provenance (such as measured or emulated) of the first quantity in `figures`, the device's main one."""
        return next(iter(self.figures.values()))

    @property
    def yields(self) -> str:
        """The quantities that the device measures, in words and grouped by provenance: ``measured: latency, placement``."""
        groups: dict[Provenance, list[str]] = {}
        for figure, provenance in self.figures.items():
            groups.setdefault(provenance, []).append(figure)
        return "; ".join(f"{provenance}: {', '.join(figures)}" for provenance, figures in groups.items())


LOCAL = "local"
SSH = "ssh"
ADB = "adb"
QEMU = "qemu-arm64"
QNN = "qnn-host"
LITERT_NPU = "litert-npu"
VELA = "vela"
QAI_HUB = "qai-hub"
BROWSER = "browser"
COREML = "coreml"
ANDROID = "android"

_MACHINE = (
    Figure.LATENCY,
    Figure.IDLE_LATENCY,
    Figure.CPU_TIME,
    Figure.LOAD_TIME,
    Figure.FIRST_INFERENCE,
    Figure.MEMORY,
    Figure.OPERATORS,
    Figure.PLACEMENT,
)
"""Figures of every computer that runs PocketBERT's own code."""

_BUILT_IN = (
    DeviceInfo(
        LOCAL,
        dict.fromkeys((*_MACHINE, Figure.TOKENIZER, Figure.POST_PROCESSING), Provenance.MEASURED),
        "this machine's CPU, in this process and in fresh child processes",
    ),
    DeviceInfo(
        SSH,
        dict.fromkeys(_MACHINE, Provenance.MEASURED),
        "a Linux machine with python3 and an SSH server, by a worker in a temporary folder there",
        argument="[USER@]HOST[:PORT]",
        pattern=r"(?:(?P<user>[\w.][\w.-]*)@)?(?P<host>\[[\da-fA-F:.]+(?:%\w+)?\]|[\w.][\w.-]*)"
        r"(?::(?P<port>[1-9]\d{0,4}))?",
    ),
    DeviceInfo(
        ADB,
        dict.fromkeys((f for f in _MACHINE if f is not Figure.CPU_TIME), Provenance.MEASURED),
        "an Android phone with USB debugging, by executables of LiteRT and ONNX Runtime that you supply",
        argument="[SERIAL][@CORES]",
        optional=True,
        pattern=r"(?P<serial>[A-Za-z0-9][\w.:-]*)?(?:@(?P<cores>little|big|prime))?",
    ),
    DeviceInfo(
        QEMU,
        dict.fromkeys((Figure.GUEST_INSTRUCTIONS, Figure.ANSWERS), Provenance.EMULATED),
        "an Arm processor that QEMU emulates here, with the engines' wheels for it",
        argument="CPU",
        optional=True,
        pattern=r"[\w.=-]+",
        most_threads=1,
    ),
    DeviceInfo(
        QNN,
        {Figure.ANSWERS: Provenance.EMULATED}
        | dict.fromkeys((Figure.PLACEMENT, Figure.COMPILED), Provenance.COMPILED_ONLY),
        "Qualcomm's NPU without a phone: the vendor's compiler and emulator, on x86-64 Linux",
        argument="SOC",
        pattern=r"[A-Za-z0-9-]+",
    ),
    DeviceInfo(
        LITERT_NPU,
        dict.fromkeys((Figure.PLACEMENT, Figure.COMPILED), Provenance.COMPILED_ONLY),
        "a phone's NPU without a phone: LiteRT's compilers of Qualcomm and MediaTek, on x86-64 Linux",
        argument="SOC",
        pattern=r"[A-Za-z0-9-]+",
    ),
    DeviceInfo(
        VELA,
        dict.fromkeys((Figure.NPU_TIME, Figure.NPU_CYCLES, Figure.SRAM), Provenance.ESTIMATED)
        | dict.fromkeys((Figure.PLACEMENT, Figure.COMPILED), Provenance.COMPILED_ONLY),
        "an Arm Ethos-U without a board: Arm's compiler vela and its model of the NPU",
        argument="CONFIG[@SYSTEM+MEMORY]",
        pattern=r"(?P<npu>[A-Za-z0-9-]+)(?:@(?P<system>\w+)\+(?P<memory>\w+))?",
    ),
    DeviceInfo(
        QAI_HUB,
        dict.fromkeys((Figure.LATENCY, Figure.PLACEMENT), Provenance.MEASURED),
        "a phone of Qualcomm AI Hub, a service in the cloud that takes the file and needs an account",
        argument="PHONE",
        pattern=r"[\w][\w .()+-]{0,99}",
    ),
    DeviceInfo(
        BROWSER,
        dict.fromkeys(
            (Figure.LATENCY, Figure.IDLE_LATENCY, Figure.LOAD_TIME, Figure.FIRST_INFERENCE, Figure.ANSWERS),
            Provenance.MEASURED,
        ),
        "any browser that opens a page of this machine, such as a phone's, by LiteRT.js and onnxruntime-web",
    ),
    DeviceInfo(
        COREML,
        {
            **dict.fromkeys(
                (
                    Figure.LATENCY,
                    Figure.CPU_TIME,
                    Figure.LOAD_TIME,
                    Figure.FIRST_INFERENCE,
                    Figure.MEMORY,
                    Figure.ANSWERS,
                ),
                Provenance.MEASURED,
            ),
            Figure.PLACEMENT: Provenance.ESTIMATED,
        },
        "a Mac, by a script in the artefact folder; its figures are imported",
        instead="run coreml/benchmark_on_mac.py of the artefact folder on a Mac, then "
        "'pocketbert benchmark -m FOLDER --import FILE'",
    ),
    DeviceInfo(
        ANDROID,
        dict.fromkeys(
            (Figure.LATENCY, Figure.LOAD_TIME, Figure.FIRST_INFERENCE, Figure.MEMORY, Figure.ANSWERS),
            Provenance.MEASURED,
        ),
        "an Android phone, by the app android_demo; its figures are imported",
        instead="run the benchmark of android_demo on a phone and share its file, then "
        "'pocketbert benchmark -m FOLDER --import FILE'",
    ),
)
_table: dict[str, DeviceInfo] = {info.name: info for info in _BUILT_IN}
DEVICES: Mapping[str, DeviceInfo] = MappingProxyType(_table)
"""All devices by name; those of plug-ins once these are loaded."""


@dataclass(frozen=True)
class DeviceName:
    """A device as a user wrote it: its entry in the table, and the text after the colon.

    Attributes:
        info: The device.
        argument: The text after the colon; empty if there is none.
    """

    info: DeviceInfo
    argument: str = ""

    def __str__(self) -> str:
        """Return the name as the user wrote it."""
        return f"{self.info.name}:{self.argument}" if self.argument else self.info.name


def add_device(info: DeviceInfo) -> None:
    """Add a device to the table of devices; `pocketbert.benchmarks.devices.register_device` calls this.

    Raises:
        ValueError: If the name is taken or empty, or has a colon, a comma or a space.
    """
    if re.fullmatch(r"[^\s:,]+", info.name) is None:
        raise ValueError(f"device name '{info.name}': a name has no colon, no comma and no space.")
    record_registration("device", info.name, info.name in _table)
    if info.name in _table:
        raise ValueError(f"device '{info.name}' is registered already.")
    _table[info.name] = info


def remove_device(name: str) -> None:
    """Remove a device from the table, e.g. at the end of a test."""
    del _table[name]


def parse_device(text: str) -> DeviceName:
    """Parse a device's name and argument, e.g. ``local`` or ``ssh:HOST``, to a `DeviceName`.

    Raises:
        ValueError: If the device is unknown, its argument is missing, invalid or not allowed, or there is a comma.
    """
    if "," in text:
        raise ValueError(f"device {shorten_repr(text)}: no name has a comma; give each device by itself")
    load_plugins()
    name, colon, argument = text.partition(":")
    if name not in DEVICES:
        raise ValueError(f"unknown device '{text}'; {suggest_allowed(name, list(DEVICES))}")
    info = DEVICES[name]
    if colon and not info.argument:
        raise ValueError(f"device '{text}': '{name}' takes no argument; write {info.spelled}")
    if info.argument and not argument and (colon or not info.optional):
        raise ValueError(f"device '{text}': {info.argument} is missing; write {info.spelled}")
    if argument and info.pattern and not re.fullmatch(info.pattern, argument, re.ASCII):
        raise ValueError(
            f"device {shorten_repr(text)}: {shorten_repr(argument)} is no {info.argument}; write {info.spelled}"
        )
    return DeviceName(info, argument)


def parse_measuring_device(text: str) -> DeviceName:
    """Parse the name of a device that commands can measure on.

    Raises:
        ValueError: If `parse_device` raises it, or if results of the device can only be imported.
    """
    device = parse_device(text)
    if device.info.instead:
        raise ValueError(f"device '{text}' cannot be named here: {device.info.instead}")
    return device


def check_device(text: str) -> str:
    """Return the name of a measuring device unchanged, for fields of recipes; raise ValueError if it is none."""
    parse_measuring_device(text)
    return text


def parse_measuring_devices(texts: list[str], where: str) -> list[DeviceName]:
    """Parse a command's list of measuring devices, without duplicates.

    Raises:
        InputError: Listing every name that is wrong.
    """
    devices, problems = [], []
    for text in dict.fromkeys(texts):
        try:
            devices.append(parse_measuring_device(text))
        except ValueError as error:
            problems.append(Problem(where, f"{error}.", "List them: pocketbert devices"))
    if problems:
        raise InputError(problems)
    return devices
