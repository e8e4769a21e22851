"""Compile files for Qualcomm's NPU and emulate it, through the process that runs the vendor's library."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Reachable
from pocketbert.benchmarks.devices.qnn_worker import FEEDS_FILE, JOB_FILE, TOLD_FILE, Job, Told, answer_file
from pocketbert.benchmarks.devices.vendor_tools import run_separately
from pocketbert.benchmarks.records import LeftNodes
from pocketbert.core.devices import QNN
from pocketbert.core.errors import InputError, MissingBackendError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import FilePredictor, filled

# --- chips ---
# The chips that files are compiled for, by the names that Android and data sheets give.


@dataclass(frozen=True)
class Chip:
    """A Snapdragon with a Hexagon Tensor Processor.

    Attributes:
        name: As ``getprop ro.soc.model`` of a phone tells it.
        title: As it is sold.
        model: Its number in the vendor's ``Qnn_SocModel_t``. It must be given: with 0 the compiler fails on some chips.
        architecture: Version of the Hexagon processor.
    """

    name: str
    title: str
    model: int
    architecture: int

    @property
    def words(self) -> str:
        """The chip for tables, e.g. ``Snapdragon 8 Gen 3 (SM8650), Hexagon v75``."""
        return f"{self.title} ({self.name}), Hexagon v{self.architecture}"


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("SM8450", "Snapdragon 8 Gen 1", 36, 69),
        Chip("SM8475", "Snapdragon 8+ Gen 1", 42, 69),
        Chip("SM8550", "Snapdragon 8 Gen 2", 43, 73),
        Chip("SM8650", "Snapdragon 8 Gen 3", 57, 75),
        Chip("SM8750", "Snapdragon 8 Elite", 69, 79),
        Chip("SM8850", "Snapdragon 8 Elite Gen 5", 87, 81),
    )
}
"""Chips for which a BERT was compiled here in fp16. Older ones (SM8350, Hexagon v68) compute no floats."""


def chip_of(name: str) -> Chip:
    """Look a chip up.

    Raises:
        ValueError: If it is not in the table; the message lists what is.
    """
    if name.upper() not in CHIPS:
        raise ValueError(f"unknown SoC '{name}'; {nearest(name.upper(), list(CHIPS))}")
    return CHIPS[name.upper()]


# --- refusals ---
# Read from ONNX Runtime's verbose log why the NPU's provider refused nodes.


_REFUSED = re.compile(
    r"Operator type: (?P<type>\S+) Node name: (?P<name>.*?) Node index: \d+\s*\n\s*REASON : (?P<why>.*)"
)
_BACKEND = re.compile(
    r"backendValidateOpConfig\(\) failed for node `.*?` of type `(?P<type>\w+)` with error code (?P<code>\d+)"
)
_NOTHING = "Failed to add node."
"""What the log says where the reason is the line before."""
_UNSUPPORTED = re.compile(r"Operators of type `\S+` are not supported")
UNKNOWN_TYPE = "the provider does not know this operator"
UNTOLD = "the log gives no reason"


def reasons(log: str) -> dict[str, str]:
    """Why nodes were refused.

    Args:
        log: The log of the session at its most verbose level.

    Returns:
        A reason by name of the node; the last one where the log has several.
    """
    found, before = dict[str, str](), 0
    for refused in _REFUSED.finditer(log):
        why = refused["why"].strip()
        if why.startswith(_NOTHING):
            backend = list(_BACKEND.finditer(log, before, refused.start()))
            why = (
                f"refused by the validation of the compiler: error {backend[-1]['code']} of {backend[-1]['type']}"
                if backend
                else UNTOLD
            )
        elif _UNSUPPORTED.search(why):
            why = UNKNOWN_TYPE
        found[refused["name"]] = why
        before = refused.end()
    return found


PACKAGE = "onnxruntime-qnn"
COMMAND = "pip install 'pocketbert[qnn]'"
ALLOWED = (Allowed("SOC", tuple(CHIPS)),)
COMPILE_S = 600.0
"""A compilation that takes longer hangs; a DistilBERT takes 13 s."""
ROW_S = 120.0
"""Time that the last row may take beyond the budget."""
WORKER = ("-P", "-m", "pocketbert.benchmarks.devices.qnn_worker")
"""How Python is started for a job; the folder of the job follows."""
_PROVIDER = "QNNExecutionProvider"


class QnnCompiler:
    """The compiler and the emulator of one chip.

    Args:
        chip: The chip.
    """

    method = (
        "Compiled for the NPU at fixed shapes by ONNX Runtime's QNN provider; floats are computed in fp16. Answers come from "
        "the vendor's emulator and are compared with this machine's CPU on the same inputs. Nothing tells how long the NPU takes."
    )

    def __init__(self, chip: Chip) -> None:
        self.target = chip.words
        self.engine, self.engine_version = PACKAGE, version_of(PACKAGE) or ""
        self._chip = chip

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile a file for one length; see `Compiler.compile`."""
        rows = [filled(predictor, feed) for feed in feeds]
        with tempfile.TemporaryDirectory(prefix="pocketbert-qnn-") as name:
            folder = Path(name)
            columns: dict[str, Any] = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
            np.savez(folder / FEEDS_FILE, **columns)
            job = Job(
                model=str(path.resolve()),
                soc_model=self._chip.model,
                architecture=self._chip.architecture,
                dimensions=_dimensions(predictor, length),
                rows=len(rows),
                budget_s=budget_s,
            )
            (folder / JOB_FILE).write_text(job.model_dump_json(), encoding="utf-8")
            command = [sys.executable, *WORKER, str(folder)]
            ended = run_separately(command, folder, COMPILE_S + budget_s + ROW_S)
            told = _told(folder)
            if told is None or told.failed:
                return Compiled(failed=told.failed if told else ended.how)
            answers = _answers(folder, len(rows))
            return Compiled(
                op_types=dict(Counter(kind for g in told.groups if g.provider == _PROVIDER for _, kind in g.nodes)),
                partitions=sum(g.provider == _PROVIDER for g in told.groups),
                left=_left(told, reasons(ended.log)),
                bytes=told.bytes,
                compile_s=told.compile_s,
                answers=answers,
                stopped=""
                if answers and not ended.how
                else f"the emulator stopped after {len(answers)} rows: {ended.how}",
            )


def connect_qnn(argument: str) -> QnnCompiler:
    """Prepare the compiler of a chip.

    Args:
        argument: Name of the chip, such as ``SM8650``.

    Raises:
        InputError: If the chip is unknown, or this machine is none that the emulator runs on.
        MissingBackendError: If the vendor's package is not installed.
    """
    where = f"{QNN}:{argument}"
    try:
        chip = chip_of(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    if why := qnn_missing():
        if version_of(PACKAGE) is None and _emulates():
            raise MissingBackendError(f"{where}: {PACKAGE}", COMMAND)
        raise InputError(Problem(where, f"{why}.", "Use an x86-64 machine with Linux."))
    return QnnCompiler(chip)


def qnn_missing() -> str:
    """What keeps this machine from compiling and emulating; empty where nothing does."""
    if not _emulates():
        return f"the emulator needs Linux on x86-64, and this machine is {platform.system()} on {platform.machine()}"
    return "" if version_of(PACKAGE) else f"{PACKAGE} is not installed ({COMMAND})"


def qnn_now() -> list[Reachable]:
    """The compiler and the emulator, where they are there."""
    return [] if qnn_missing() else [Reachable(f"{QNN}:SOC", f"{PACKAGE} {version_of(PACKAGE)}")]


def _emulates() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def qnn_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why files of a format, made for a runtime, are not compiled for the NPU; empty where they are."""
    if format is not Format.ONNX:
        return f"{FORMATS[format].title} does not go through ONNX Runtime's QNN provider"
    return f"it is made for {runtime.value}" if runtime not in (None, Runtime.QNN) else ""


def _dimensions(predictor: FilePredictor, length: int) -> dict[str, int]:
    """Sizes of a file's free dimensions by name: one row of `length` tokens."""
    out: dict[str, int] = {}
    for tensor in predictor.signature.inputs:
        for axis, size in enumerate(tensor.shape[:2]):
            if isinstance(size, str):
                out[size] = 1 if axis == 0 else length
    return out


def _told(folder: Path) -> Told | None:
    try:
        return Told.model_validate_json((folder / TOLD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _answers(folder: Path, rows: int) -> list[dict[str, NDArray[Any]]]:
    out = []
    for row in range(rows):
        file = answer_file(folder, row)
        if not file.is_file():
            break
        with np.load(file) as arrays:
            out.append({name: arrays[name] for name in arrays.files})
    return out


def _left(told: Told, why: Mapping[str, str]) -> list[LeftNodes]:
    """Nodes on the CPU by operator type and reason, most first."""
    counts = Counter(
        (kind, why.get(name, UNTOLD)) for g in told.groups if g.provider != _PROVIDER for name, kind in g.nodes
    )
    return [LeftNodes(op_type=kind, nodes=n, reason=reason) for (kind, reason), n in counts.most_common()]
