"""Compile TFLite files for Arm's Ethos-U by Arm's compiler vela, in a separate process, and read what it expects."""

from __future__ import annotations

import csv
import importlib.util
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Reachable
from pocketbert.benchmarks.devices.vendor_tools import (
    PRODUCTS,
    Ended,
    GraphOperators,
    only_signature,
    operators_of,
    run_separately,
)
from pocketbert.benchmarks.records import Estimate, LeftNodes, OperatorCycles
from pocketbert.core.devices import DEVICES, VELA
from pocketbert.core.errors import InputError, MissingBackendError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.engines import FilePredictor
from pocketbert.runtime.tflite import TflitePredictor

# --- configurations ---
# The forms of Ethos-U that Arm's compiler knows, and the clock rates and memories that it assumes around them.


NPUS = {
    **{f"ethos-u55-{macs}": ("Ethos_U55_High_End_Embedded", "Shared_Sram") for macs in (32, 64, 128, 256)},
    **{f"ethos-u65-{macs}": ("Ethos_U65_High_End", "Dedicated_Sram_384KB") for macs in (256, 512)},
    **{f"ethos-u85-{macs}": ("Ethos_U85_SYS_DRAM_Low", "Dedicated_Sram_384KB") for macs in (128, 256)},
    **{f"ethos-u85-{macs}": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB") for macs in (512, 1024)},
    "ethos-u85-2048": ("Ethos_U85_SYS_DRAM_High", "Dedicated_Sram_384KB"),
}
"""System and memory mode that each is estimated with where none are named. The systems are those of Arm's ML Embedded Evaluation
Kit. It lets a dedicated SRAM have any size; 384 kB is what vela takes by default."""
SYSTEMS = {
    "Ethos_U55_Deep_Embedded": False,
    "Ethos_U55_High_End_Embedded": False,
    "Ethos_U65_Embedded": False,
    "Ethos_U65_Mid_End": True,
    "Ethos_U65_High_End": True,
    "Ethos_U65_Client_Server": True,
    "Ethos_U85_SYS_Flash_Low": False,
    "Ethos_U85_SYS_Flash_High": False,
    "Ethos_U85_SYS_DRAM_Low": True,
    "Ethos_U85_SYS_DRAM_Mid": True,
    "Ethos_U85_SYS_DRAM_High": True,
}
"""Systems of vela's ``Arm/vela.ini``, and whether they have DRAM; the others have flash, which nothing is written to."""
DEDICATED = "Dedicated_Sram"
MEMORY_MODES = (
    "Sram_Only",
    "Shared_Sram",
    DEDICATED,
    f"{DEDICATED}_256KB",
    f"{DEDICATED}_384KB",
    f"{DEDICATED}_512KB",
)
"""Memory modes of the same file."""


@dataclass(frozen=True)
class VelaTarget:
    """What is compiled for.

    Attributes:
        npu: The NPU, as vela calls it.
        system: Its system configuration.
        memory: Its memory mode.
    """

    npu: str
    system: str
    memory: str

    @property
    def words(self) -> str:
        """For tables."""
        return f"Arm {self.npu.replace('ethos-u', 'Ethos-U')} with {self.system}, {self.memory}"


def vela_target(argument: str) -> VelaTarget:
    """Read what follows ``vela:``, such as ``ethos-u55-128`` or ``ethos-u85-256@Ethos_U85_SYS_Flash_High+Sram_Only``.

    Raises:
        ValueError: If vela knows no such NPU, system or memory mode, or they do not go together.
    """
    given = re.fullmatch(DEVICES[VELA].pattern, argument, re.ASCII)
    assert given is not None  # names of devices are checked when they are read
    npu, system, memory = given["npu"], given["system"], given["memory"]
    if npu not in NPUS:
        raise ValueError(f"unknown configuration '{npu}'; {nearest(npu, list(NPUS))}")
    if system is None:
        return VelaTarget(npu, *NPUS[npu])
    fitting = [name for name in SYSTEMS if name.startswith(f"Ethos_{npu.split('-')[1].upper()}_")]
    if system not in fitting:
        raise ValueError(f"'{system}' is no system of {npu}; {nearest(system, fitting)}")
    if memory not in MEMORY_MODES:
        raise ValueError(f"unknown memory mode '{memory}'; {nearest(memory, list(MEMORY_MODES))}")
    if memory.startswith(DEDICATED) and not SYSTEMS[system]:
        raise ValueError(
            f"'{memory}' keeps activations outside of the SRAM, and {system} has nothing to write to there; "
            "allowed: Sram_Only, Shared_Sram"
        )
    return VelaTarget(npu, system, memory)


# --- refusals ---
# Read from vela's log why operators stay on the CPU.


_REFUSED = re.compile(
    r"^Warning \([\w ]+\) operator: (?P<type>\w+), .*\n(?P<why>Reason: (?:.+\n?)+)",
    re.MULTILINE,
)
_TENSOR = re.compile(r" \([^()]*\)$", re.MULTILINE)
_LIST = "Feature-map dataTypes must be one of"
"""A list that follows a refused type and differs by NPU."""
UNTOLD = "the log of the compiler gives no reason"


def vela_reasons(log: str) -> dict[str, str]:
    """Why operators were refused, by their type; several reasons of one type are joined.

    Args:
        log: What vela printed.
    """
    found: dict[str, dict[str, None]] = {}
    for refused in _REFUSED.finditer(log):
        lines = _TENSOR.sub("", refused["why"].removeprefix("Reason: ").strip()).splitlines()
        told = [line.strip() for line in lines if not line.startswith(_LIST)]
        found.setdefault(refused["type"], {})[": ".join(told)] = None
    return {kind: "; ".join(why) for kind, why in found.items()}


def last_error(log: str) -> str:
    """The line that tells why vela failed: its own error, else the last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(Error\b|[\w.]*(?:Error|Exception)\b)", line)]
    return (told or lines or ["no output"])[-1][:300]


# --- summary ---
# Read the tables that vela writes: the estimate of a whole network, and the cycles of each operator.


MOST_BYTES = 32 << 20
"""Largest table that is read; that of a BERT-base has less than 1 MB."""
_KIB = 1024


def read_estimate(folder: Path, operators: Iterable[str], products_left: int) -> Estimate:
    """Read what vela wrote into a folder.

    Args:
        folder: Its output folder, with the tables of one network.
        operators: Operator types of the network, by their names in the TFLite schema: vela writes them in another way.
        products_left: Matrix products that stay on the CPU.

    Raises:
        ValueError: If a table is missing, too large or of another form; the message says what is wrong.
    """
    rows = _rows(_only(folder, "*_summary_*.csv"))
    if len(rows) != 1:
        raise ValueError(f"its summary has {len(rows)} rows instead of 1")
    row = rows[0]
    return Estimate(
        system=_text(row, "system_config"),
        memory=_text(row, "memory_mode"),
        clock_mhz=_number(row, "core_clock") / 1e6,
        time_ms=_number(row, "inference_time") * 1000,
        cycles=round(_number(row, "cycles_total")),
        npu_cycles=round(_number(row, "cycles_npu")),
        sram_bytes=round(_number(row, "sram_memory_used") * _KIB),
        dram_bytes=round(_number(row, "dram_memory_used") * _KIB),
        flash_bytes=round(_flash(row, "memory_used") * _KIB),
        sram_traffic=round(_number(row, "sram_total_bytes")),
        dram_traffic=round(_number(row, "dram_total_bytes")),
        flash_traffic=round(_flash(row, "total_bytes")),
        operators=_operators(_rows(_only(folder, "*_per-layer.csv")), {_plain(name): name for name in operators}),
        products_left=products_left,
        provenance=Provenance.ESTIMATED,
    )


def _operators(rows: list[dict[str, str]], names: Mapping[str, str]) -> list[OperatorCycles]:
    """Cycles on the NPU by the operator of the file that they come from: vela splits some operators."""
    cycles = Counter[str]()
    for row in rows:
        if _text(row, "Target") == "NPU":
            kind = _text(row, "Original Operator")
            cycles[names.get(_plain(kind), kind)] += round(_number(row, "Op Cycles"))
    return [OperatorCycles(op_type=kind, cycles=number) for kind, number in cycles.most_common()]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ValueError(f"it wrote {len(found)} files {pattern} instead of 1")
    return found[0]


def _rows(path: Path) -> list[dict[str, str]]:
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"its table {path.name} has {size:,} bytes, more than {MOST_BYTES:,}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"its table {path.name} is wrong: {error}") from error


def _flash(row: Mapping[str, str], end: str) -> float:
    return _number(row, f"on_chip_flash_{end}") + _number(row, f"off_chip_flash_{end}")


def _text(row: Mapping[str, str | None], name: str) -> str:
    value = row.get(name)
    if not value:
        raise ValueError(f"its table has no {name}")
    return value


def _number(row: Mapping[str, str | None], name: str) -> float:
    text = _text(row, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"its table has {text!r} as {name}")
    return value


PACKAGE, MODULE = "ethos-u-vela", "ethosu"
COMMAND = "pip install 'pocketbert[vela]'"
ALLOWED = (Allowed("CONFIG", tuple(NPUS)), Allowed("SYSTEM", tuple(SYSTEMS)), Allowed("MEMORY", MEMORY_MODES))
PROGRAM = (sys.executable, "-P", "-m", "ethosu.vela")
COMPILE_S = 600.0
"""A compilation that takes longer hangs; the demo's student takes 1.2 s."""
SYSTEMS_FILE = "Arm/vela.ini"
"""File of the package with the system configurations and memory modes."""
PIECE = "ethos-u"
"""Custom operator as which vela writes each compiled piece."""


class VelaCompiler:
    """Arm's compiler for one configuration.

    Args:
        target: What is compiled for.
    """

    engine = PACKAGE
    method = (
        "Compiled for Ethos-U by Arm's compiler vela. Operators are counted in the compiled file. Time, cycles and memory are what "
        "vela's model of the NPU expects of the operators on it; nothing was run, and operators on the CPU are not in them."
    )

    def __init__(self, target: VelaTarget) -> None:
        self.target, self.engine_version = target.words, version_of(PACKAGE) or ""
        self._target = target

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile a file for one length; see `Compiler.compile`. There is no emulator, so that nothing is answered."""
        assert isinstance(predictor, TflitePredictor)
        with tempfile.TemporaryDirectory(prefix="pocketbert-vela-") as name:
            folder = Path(name)
            given, graph = only_signature(path.read_bytes(), predictor.signature_keys[length])
            (folder / "given.tflite").write_bytes(given)
            begin = time.monotonic()
            ended = self._run(folder)
            seconds = time.monotonic() - begin
            made = folder / "made" / "given_vela.tflite"
            if ended.how or not made.is_file() or not made.stat().st_size:
                return Compiled(failed="; ".join(part for part in (ended.how, last_error(ended.log)) if part))
            file = made.read_bytes()
            before, after = operators_of(given, graph), operators_of(file, graph, PIECE)
            return _compiled(before, after, made, ended.log, seconds)

    def _run(self, folder: Path) -> Ended:
        command = [
            *PROGRAM,
            str(folder / "given.tflite"),
            f"--accelerator-config={self._target.npu}",
            f"--config={SYSTEMS_FILE}",
            f"--system-config={self._target.system}",
            f"--memory-mode={self._target.memory}",
            f"--output-dir={folder / 'made'}",
            "--verbose-performance",  # writes the table of operators
        ]
        return run_separately(command, folder, COMPILE_S)


def _compiled(before: GraphOperators, after: GraphOperators, made: Path, log: str, seconds: float) -> Compiled:
    """What became of the operators. A file without a matrix product on the NPU is no compiled file, whatever is expected of it."""
    reasons, on_npu = vela_reasons(log), Counter(before.counts) - Counter(after.counts)
    left = [
        LeftNodes(op_type=kind, nodes=count, reason=reasons.get(kind, UNTOLD))
        for kind, count in after.counts.most_common()
    ]
    products = [one for one in left if one.op_type in PRODUCTS]
    if not any(on_npu[kind] for kind in PRODUCTS):
        told = "; ".join(one.words for one in products) or "the file has none"
        return Compiled(failed=f"no matrix product goes on the NPU: {told}")
    try:
        estimate = read_estimate(made.parent, before.counts, sum(one.nodes for one in products))
    except ValueError as error:
        return Compiled(failed=f"what vela expects cannot be read: {error}")
    return Compiled(
        op_types=dict(on_npu),
        partitions=after.compiled,
        left=left,
        bytes=made.stat().st_size,
        compile_s=seconds,
        estimate=estimate,
    )


def connect_vela(argument: str) -> VelaCompiler:
    """Prepare the compiler of a configuration.

    Args:
        argument: The NPU, such as ``ethos-u55-128``, with its system and memory mode where they are chosen.

    Raises:
        InputError: If vela knows no such configuration.
        MissingBackendError: If vela is not installed.
    """
    where = f"{VELA}:{argument}"
    try:
        target = vela_target(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    if vela_missing():
        raise MissingBackendError(f"{where}: {PACKAGE}", COMMAND)
    return VelaCompiler(target)


def vela_missing() -> str:
    """What keeps this machine from compiling; empty where nothing does."""
    there = importlib.util.find_spec(MODULE) is not None and version_of(PACKAGE) is not None
    return "" if there else f"{PACKAGE} is not installed ({COMMAND})"


def vela_now() -> list[Reachable]:
    """The compiler, where it is there."""
    return [] if vela_missing() else [Reachable(f"{VELA}:CONFIG", f"{PACKAGE} {version_of(PACKAGE)}")]


def vela_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why files of a format, made for a runtime, are not compiled; empty where they are."""
    if format is not Format.TFLITE:
        return f"{FORMATS[format].title} does not go through vela"
    if runtime is not Runtime.NPU:
        return (
            "it computes in floats, everywhere or between its products, and Ethos-U takes integers only; "
            "make one with: pocketbert quantize --scheme a8w8 --runtime npu --calibrate ROWS"
        )
    return ""
