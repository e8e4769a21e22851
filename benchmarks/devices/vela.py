"""The devices ``vela:CONFIG``: TFLite files compiled for Arm's Ethos-U by Arm's compiler vela, with its estimates.

`DEVICE` is their row of the table of devices. `vela_target` reads the configuration of NPU, system and memory. The
compiler runs vela in a separate process, reads the tables that it writes with its estimate of time and memory, and
reads from its log why operators stay on the CPU.
"""

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

from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Device, Reachable
from pocketbert.benchmarks.devices.vendor_tools import (
    PRODUCTS,
    GraphOperators,
    ProcessEnd,
    only_signature,
    operators_of,
    run_separately,
)
from pocketbert.benchmarks.records import Estimate, OperatorCycles
from pocketbert.core.devices import DEVICES, VELA
from pocketbert.core.errors import InputError, MissingBackendError, Problem, suggest_allowed
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.engines import FilePredictor
from pocketbert.runtime.tflite import TflitePredictor

_PACKAGE = "ethos-u-vela"
_INSTALL = "pip install 'pocketbert[vela]'"
_PROGRAM = (sys.executable, "-P", "-m", "ethosu.vela")
_COMPILE_S = 600.0
"""A compilation that takes longer hangs; the demo's student takes 1.2 s."""
SYSTEMS_FILE = "Arm/vela.ini"
"""File of the package with the system configurations and memory modes."""
_COMPILED_CODE = "ethos-u"
"""Custom operator as which vela writes each compiled piece."""
NPUS = {
    **{f"ethos-u55-{macs}": ("Ethos_U55_High_End_Embedded", "Shared_Sram") for macs in (32, 64, 128, 256)},
    **{f"ethos-u65-{macs}": ("Ethos_U65_High_End", "Dedicated_Sram_384KB") for macs in (256, 512)},
    **{f"ethos-u85-{macs}": ("Ethos_U85_SYS_DRAM_Low", "Dedicated_Sram_384KB") for macs in (128, 256)},
    **{f"ethos-u85-{macs}": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB") for macs in (512, 1024)},
    "ethos-u85-2048": ("Ethos_U85_SYS_DRAM_High", "Dedicated_Sram_384KB"),
}
"""System and memory mode that each is estimated with if none are named. The systems are those of Arm's ML Embedded
Evaluation Kit. It lets a dedicated SRAM have any size; 384 kB is what vela takes by default."""
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
"""Systems of vela's ``Arm/vela.ini``, and whether they have DRAM; the others have flash, which is only read."""
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
class _VelaTarget:
    """NPU, system configuration and memory mode to compile for.

    Attributes:
        npu: Name of the NPU in vela.
        system: Name of the NPU's system configuration (clock rates and memories).
        memory: Name of the memory mode (where weights and activations are kept).
    """

    npu: str
    system: str
    memory: str


def vela_target(argument: str) -> _VelaTarget:
    """Parse the text after ``vela:`` in a device's name, such as ``ethos-u55-128`` or ``ethos-u85-256@SYSTEM+MEMORY``.

    Raises:
        ValueError: If vela has no such NPU, system or memory mode, or they do not go together.
    """
    parts = re.fullmatch(DEVICES[VELA].pattern, argument, re.ASCII)
    assert parts is not None  # names of devices are checked when they are read
    npu, system, memory = parts["npu"], parts["system"], parts["memory"]
    if npu not in NPUS:
        raise ValueError(f"unknown configuration '{npu}'; {suggest_allowed(npu, list(NPUS))}")
    if system is None:
        return _VelaTarget(npu, *NPUS[npu])
    fitting = [name for name in SYSTEMS if name.startswith(f"Ethos_{npu.split('-')[1].upper()}_")]
    if system not in fitting:
        raise ValueError(f"'{system}' is no system of {npu}; {suggest_allowed(system, fitting)}")
    if memory not in MEMORY_MODES:
        raise ValueError(f"unknown memory mode '{memory}'; {suggest_allowed(memory, list(MEMORY_MODES))}")
    if memory.startswith(DEDICATED) and not SYSTEMS[system]:
        raise ValueError(
            f"'{memory}' keeps activations outside of the SRAM, and {system} has nothing to write to there; "
            "allowed: Sram_Only, Shared_Sram"
        )
    return _VelaTarget(npu, system, memory)


def _vela_missing() -> str:
    """Return what this machine lacks to compile; empty if nothing."""
    installed = importlib.util.find_spec("ethosu") is not None and version_of(_PACKAGE) is not None
    return "" if installed else f"{_PACKAGE} is not installed ({_INSTALL})"


def _vela_now() -> list[Reachable]:
    """Return vela as a usable device, if it is installed."""
    return [] if _vela_missing() else [Reachable(f"{VELA}:CONFIG", f"{_PACKAGE} {version_of(_PACKAGE)}")]


def _vela_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format and runtime cannot be compiled by vela; empty if they can."""
    if format is not Format.TFLITE:
        return f"{FORMATS[format].title} does not go through vela"
    if runtime is not Runtime.NPU:
        return (
            "it computes in floats, everywhere or between its products, and Ethos-U takes integers only; "
            "make one with: pocketbert quantize --scheme a8w8 --runtime npu --calibrate ROWS"
        )
    return ""


def _connect_vela(argument: str) -> _VelaCompiler:
    """Return Arm's NPU compiler (vela) for a configuration.

    Args:
        argument: The NPU, such as ``ethos-u55-128``, with its system and memory mode if they are chosen.

    Raises:
        InputError: If vela has no such configuration.
        MissingBackendError: If vela is not installed.
    """
    where = f"{VELA}:{argument}"
    try:
        target = vela_target(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    if _vela_missing():
        raise MissingBackendError(f"{where}: {_PACKAGE}", _INSTALL)
    return _VelaCompiler(target)


class _VelaCompiler:
    """Arm's compiler vela for one configuration."""

    engine = _PACKAGE
    method = (
        "Compiled for Ethos-U by Arm's compiler vela. Operators are counted in the compiled file. Time, cycles and memory are what "
        "vela's model of the NPU expects of the operators on it; nothing was run, and operators on the CPU are not in them."
    )

    def __init__(self, target: _VelaTarget) -> None:
        self.target = f"Arm {target.npu.replace('ethos-u', 'Ethos-U')} with {target.system}, {target.memory}"
        self.engine_version = version_of(_PACKAGE) or ""
        self._target = target

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile the signature of `length` tokens of a TFLite file with vela; nothing is run, as there is no emulator."""
        assert isinstance(predictor, TflitePredictor)
        with tempfile.TemporaryDirectory(prefix="pocketbert-vela-") as name:
            folder = Path(name)
            single, graph = only_signature(path.read_bytes(), predictor.signature_keys[length])
            (folder / "given.tflite").write_bytes(single)
            begin = time.monotonic()
            end = self._run_vela(folder)
            seconds = time.monotonic() - begin
            output = folder / "made" / "given_vela.tflite"
            if end.problem or not output.is_file() or not output.stat().st_size:
                return Compiled(failed="; ".join(part for part in (end.problem, _last_error(end.log)) if part))
            before, after = operators_of(single, graph), operators_of(output.read_bytes(), graph, _COMPILED_CODE)
            return _count_compiled(before, after, output, end.log, seconds)

    def _run_vela(self, folder: Path) -> ProcessEnd:
        """Run vela on the file ``given.tflite`` in a folder; vela writes its output into the subfolder ``made``."""
        command = [
            *_PROGRAM,
            str(folder / "given.tflite"),
            f"--accelerator-config={self._target.npu}",
            f"--config={SYSTEMS_FILE}",
            f"--system-config={self._target.system}",
            f"--memory-mode={self._target.memory}",
            f"--output-dir={folder / 'made'}",
            "--verbose-performance",  # writes the table of operators
        ]
        return run_separately(command, folder, _COMPILE_S)


def _count_compiled(before: GraphOperators, after: GraphOperators, output: Path, log: str, seconds: float) -> Compiled:
    """Count the operators on the NPU and on the CPU in a compiled file, read vela's estimate, and build the record.

    If no matrix product is on the NPU, or the estimate cannot be read, the record says that the compilation failed.
    """
    on_npu = Counter(before.counts) - Counter(after.counts)
    left = after.left_nodes(_vela_reasons(log), "the log of the compiler gives no reason")
    products_left = [nodes for nodes in left if nodes.op_type in PRODUCTS]
    if not any(on_npu[op_type] for op_type in PRODUCTS):
        reasons = "; ".join(nodes.words for nodes in products_left) or "the file has none"
        return Compiled(failed=f"no matrix product goes on the NPU: {reasons}")
    try:
        estimate = _read_estimate(output.parent, before.counts, sum(nodes.nodes for nodes in products_left))
    except ValueError as error:
        return Compiled(failed=f"what vela expects cannot be read: {error}")
    return Compiled(
        op_types=dict(on_npu),
        partitions=after.compiled,
        left=left,
        bytes=output.stat().st_size,
        compile_s=seconds,
        estimate=estimate,
    )


_REFUSED_OPERATOR = re.compile(
    r"^Warning \([\w ]+\) operator: (?P<type>\w+), .*\n(?P<why>Reason: (?:.+\n?)+)",
    re.MULTILINE,
)
_TENSOR = re.compile(r" \([^()]*\)$", re.MULTILINE)
_TYPE_LIST = "Feature-map dataTypes must be one of"
"""A list that follows a refused type and differs by NPU."""


def _vela_reasons(log: str) -> dict[str, str]:
    """Return the reasons for which vela refused each type of operator, from its log, joined by semicolons."""
    reasons: dict[str, dict[str, None]] = {}
    for refused in _REFUSED_OPERATOR.finditer(log):
        lines = _TENSOR.sub("", refused["why"].removeprefix("Reason: ").strip()).splitlines()
        parts = [line.strip() for line in lines if not line.startswith(_TYPE_LIST)]
        reasons.setdefault(refused["type"], {})[": ".join(parts)] = None
    return {op_type: "; ".join(different) for op_type, different in reasons.items()}


def _last_error(log: str) -> str:
    """Return the last line of vela's log that looks like an error, else its last line, cut to 300 characters."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(Error\b|[\w.]*(?:Error|Exception)\b)", line)]
    return (errors or lines or ["no output"])[-1][:300]


_MAX_TABLE_BYTES = 32 << 20
"""Largest table that is read; that of a BERT-base has less than 1 MB."""
_KIB = 1024


def _read_estimate(folder: Path, operators: Iterable[str], products_left: int) -> Estimate:
    """Read vela's CSV tables in a folder: estimated time and memory, and the cycles per operator type.

    Args:
        folder: The output folder of vela, with the tables of one network.
        operators: Operator types of the network, by their names in the TFLite schema; vela spells them in another way.
        products_left: Number of matrix products that stay on the CPU.

    Raises:
        ValueError: If a table is missing, too large or of another form; the message says what is wrong.
    """
    rows = _read_table(folder, "*_summary_*.csv")
    if len(rows) != 1:
        raise ValueError(f"its summary has {len(rows)} rows instead of 1")
    row = rows[0]

    def flash(end: str) -> float:
        return _number(row, f"on_chip_flash_{end}") + _number(row, f"off_chip_flash_{end}")

    return Estimate(
        system=_text(row, "system_config"),
        memory=_text(row, "memory_mode"),
        clock_mhz=_number(row, "core_clock") / 1e6,
        time_ms=_number(row, "inference_time") * 1000,
        cycles=round(_number(row, "cycles_total")),
        npu_cycles=round(_number(row, "cycles_npu")),
        sram_bytes=round(_number(row, "sram_memory_used") * _KIB),
        dram_bytes=round(_number(row, "dram_memory_used") * _KIB),
        flash_bytes=round(flash("memory_used") * _KIB),
        sram_traffic=round(_number(row, "sram_total_bytes")),
        dram_traffic=round(_number(row, "dram_total_bytes")),
        flash_traffic=round(flash("total_bytes")),
        operators=_operator_cycles(_read_table(folder, "*_per-layer.csv"), operators),
        products_left=products_left,
        provenance=Provenance.ESTIMATED,
    )


def _operator_cycles(rows: list[dict[str, str]], operators: Iterable[str]) -> list[OperatorCycles]:
    """Add up the NPU's cycles for each operator type of the original file; vela splits some operators."""

    def simplified(name: str) -> str:
        return name.replace("_", "").lower()

    schema_names = {simplified(name): name for name in operators}
    cycles = Counter[str]()
    for row in rows:
        if _text(row, "Target") == "NPU":
            op_type = _text(row, "Original Operator")
            cycles[schema_names.get(simplified(op_type), op_type)] += round(_number(row, "Op Cycles"))
    return [OperatorCycles(op_type=op_type, cycles=number) for op_type, number in cycles.most_common()]


def _read_table(folder: Path, pattern: str) -> list[dict[str, str]]:
    """Read the rows of the only CSV file whose name matches the pattern; raise ValueError if there is not exactly one."""
    paths = list(folder.glob(pattern))
    if len(paths) != 1:
        raise ValueError(f"it wrote {len(paths)} files {pattern} instead of 1")
    path = paths[0]
    if (size := path.stat().st_size) > _MAX_TABLE_BYTES:
        raise ValueError(f"its table {path.name} has {size:,} bytes, more than {_MAX_TABLE_BYTES:,}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"its table {path.name} is wrong: {error}") from error


def _text(row: Mapping[str, str | None], name: str) -> str:
    """Return the text in column `name` of a CSV row; ValueError if it is empty or missing."""
    value = row.get(name)
    if not value:
        raise ValueError(f"its table has no {name}")
    return value


def _number(row: Mapping[str, str | None], name: str) -> float:
    """Return the number in column `name` of a CSV row; ValueError if it is missing, negative or infinite."""
    text = _text(row, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"its table has {text!r} as {name}")
    return value


DEVICE = Device(
    DEVICES[VELA],
    compiler=_connect_vela,
    missing=_vela_missing,
    refusal=_vela_refusal,
    look=_vela_now,
    allowed=(Allowed("CONFIG", tuple(NPUS)), Allowed("SYSTEM", tuple(SYSTEMS)), Allowed("MEMORY", MEMORY_MODES)),
)
"""The row of the table of devices."""
