"""The devices ``qnn-host:SOC``: ONNX files compiled for Qualcomm's NPU, with answers from the vendor's emulator.

`DEVICE` is their row of the table of devices. The compiler runs `qnn_worker` in a separate process, and reads from
its outcome which nodes the NPU takes, from its log why it rejects others, and the outputs of the emulated rows.
"""

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

from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Device, Reachable
from pocketbert.benchmarks.devices.qnn_worker import (
    FEEDS_FILE,
    JOB_FILE,
    OUTCOME_FILE,
    PROVIDER,
    Job,
    Outcome,
    answer_file,
)
from pocketbert.benchmarks.devices.vendor_tools import run_separately
from pocketbert.benchmarks.records import LeftNodes
from pocketbert.core.devices import DEVICES, QNN
from pocketbert.core.errors import InputError, MissingBackendError, Problem, suggest_allowed
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import FilePredictor, add_missing_inputs

_PACKAGE = "onnxruntime-qnn"
_INSTALL = "pip install 'pocketbert[qnn]'"
_COMPILE_S = 600.0
"""A compilation that takes longer hangs; a DistilBERT takes 13 s."""
_ROW_S = 120.0
"""Time that the last row may take beyond the budget."""
_WORKER = ("-P", "-m", "pocketbert.benchmarks.devices.qnn_worker")
"""How Python is started for a job; the folder of the job follows."""
UNKNOWN_TYPE = "the provider does not know this operator"
UNKNOWN_REASON = "the log gives no reason"


@dataclass(frozen=True)
class _Chip:
    """A Snapdragon chip with a Hexagon NPU.

    Attributes:
        name: Name of the chip as ``getprop ro.soc.model`` prints it on a phone.
        title: Name under which the chip is sold.
        model: Number of the chip in the vendor's ``Qnn_SocModel_t``. It must be given: with 0 the compiler fails for
            some chips.
        architecture: Version of the chip's Hexagon processor.
    """

    name: str
    title: str
    model: int
    architecture: int


CHIPS = {
    chip.name: chip
    for chip in (
        _Chip("SM8450", "Snapdragon 8 Gen 1", 36, 69),
        _Chip("SM8475", "Snapdragon 8+ Gen 1", 42, 69),
        _Chip("SM8550", "Snapdragon 8 Gen 2", 43, 73),
        _Chip("SM8650", "Snapdragon 8 Gen 3", 57, 75),
        _Chip("SM8750", "Snapdragon 8 Elite", 69, 79),
        _Chip("SM8850", "Snapdragon 8 Elite Gen 5", 87, 81),
    )
}
"""Chips for which a BERT was compiled here in fp16. Older ones (SM8350, Hexagon v68) compute no floats."""


def find_qnn_chip(name: str) -> _Chip:
    """Return a chip of the table by its name.

    Raises:
        ValueError: If the chip is not in the table; the message lists those that are.
    """
    if name.upper() not in CHIPS:
        raise ValueError(f"unknown SoC '{name}'; {suggest_allowed(name.upper(), list(CHIPS))}")
    return CHIPS[name.upper()]


def _qnn_missing() -> str:
    """Return what this machine lacks to compile and emulate; empty if nothing."""
    if problem := _unsupported_system():
        return problem
    return "" if version_of(_PACKAGE) else f"{_PACKAGE} is not installed ({_INSTALL})"


def _unsupported_system() -> str:
    """Return why QNN's emulator does not run on this machine; empty if it does."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return ""
    return f"the emulator needs Linux on x86-64, and this machine is {platform.system()} on {platform.machine()}"


def _qnn_now() -> list[Reachable]:
    """Return the compiler with emulator as a usable device, if it is installed."""
    return [] if _qnn_missing() else [Reachable(f"{QNN}:SOC", f"{_PACKAGE} {version_of(_PACKAGE)}")]


def _qnn_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format and runtime cannot be compiled for the NPU; empty if they can."""
    if format is not Format.ONNX:
        return f"{FORMATS[format].title} does not go through ONNX Runtime's QNN provider"
    return f"it is made for {runtime.value}" if runtime not in (None, Runtime.QNN) else ""


def _connect_qnn(argument: str) -> _QnnCompiler:
    """Return Qualcomm's NPU compiler (QNN) for a chip.

    Args:
        argument: Name of the chip, such as ``SM8650``.

    Raises:
        InputError: If the chip is unknown, or the emulator does not run on this machine.
        MissingBackendError: If the vendor's package is not installed.
    """
    where = f"{QNN}:{argument}"
    try:
        chip = find_qnn_chip(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    if problem := _unsupported_system():
        raise InputError(Problem(where, f"{problem}.", "Use an x86-64 machine with Linux."))
    if version_of(_PACKAGE) is None:
        raise MissingBackendError(f"{where}: {_PACKAGE}", _INSTALL)
    return _QnnCompiler(chip)


class _QnnCompiler:
    """QNN's compiler and emulator for one chip."""

    method = (
        "Compiled for the NPU at fixed shapes by ONNX Runtime's QNN provider; floats are computed in fp16. Answers come from "
        "the vendor's emulator and are compared with this machine's CPU on the same inputs. Nothing tells how long the NPU takes."
    )

    def __init__(self, chip: _Chip) -> None:
        self.target = f"{chip.title} ({chip.name}), Hexagon v{chip.architecture}"
        self.engine, self.engine_version = _PACKAGE, version_of(_PACKAGE) or ""
        self._chip = chip

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile a file for one length and run the inputs in the emulator, both in a process of its own."""
        rows = [add_missing_inputs(predictor, feed) for feed in feeds]
        job = Job(
            model=str(path.resolve()),
            soc_model=self._chip.model,
            architecture=self._chip.architecture,
            # the sizes of the free dimensions: one row of `length` tokens
            dimensions={
                size: 1 if axis == 0 else length
                for tensor in predictor.signature.inputs
                for axis, size in enumerate(tensor.shape[:2])
                if isinstance(size, str)
            },
            rows=len(rows),
            budget_s=budget_s,
        )
        with tempfile.TemporaryDirectory(prefix="pocketbert-qnn-") as name:
            folder = Path(name)
            columns: dict[str, Any] = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
            np.savez(folder / FEEDS_FILE, **columns)
            (folder / JOB_FILE).write_text(job.model_dump_json(), encoding="utf-8")
            command = [sys.executable, *_WORKER, str(folder)]
            end = run_separately(command, folder, _COMPILE_S + budget_s + _ROW_S)
            try:
                outcome = Outcome.model_validate_json((folder / OUTCOME_FILE).read_text(encoding="utf-8"))
            except (OSError, ValidationError):
                return Compiled(failed=end.problem or "the compiler ended without an outcome that can be read")
            if outcome.failed:
                return Compiled(failed=outcome.failed)
            answers = _read_answers(folder, len(rows))
        on_npu = [group.nodes for group in outcome.groups if group.provider == PROVIDER]
        complete = answers and not end.problem
        return Compiled(
            op_types=dict(Counter(op_type for nodes in on_npu for _, op_type in nodes)),
            partitions=len(on_npu),
            left=_left_nodes(outcome, rejection_reasons(end.log)),
            bytes=outcome.bytes,
            compile_s=outcome.compile_s,
            answers=answers,
            stopped="" if complete else f"the emulator stopped after {len(answers)} rows: {end.problem}",
        )


def _read_answers(folder: Path, rows: int) -> list[dict[str, NDArray[Any]]]:
    """Read the emulator's outputs by name for each row, up to the first row that was not computed."""
    answers = []
    for row in range(rows):
        file = answer_file(folder, row)
        if not file.is_file():
            break
        with np.load(file) as arrays:
            answers.append({name: arrays[name] for name in arrays.files})
    return answers


def _left_nodes(outcome: Outcome, reasons: Mapping[str, str]) -> list[LeftNodes]:
    """Count the nodes that stay on the CPU, for each operator type and reason; the most frequent come first."""
    counts = Counter(
        (op_type, reasons.get(name, UNKNOWN_REASON))
        for group in outcome.groups
        if group.provider != PROVIDER
        for name, op_type in group.nodes
    )
    return [LeftNodes(op_type=op_type, nodes=n, reason=reason) for (op_type, reason), n in counts.most_common()]


_REJECTED = re.compile(
    r"Operator type: (?P<type>\S+) Node name: (?P<name>.*?) Node index: \d+\s*\n\s*REASON : (?P<why>.*)"
)
_BACKEND = re.compile(
    r"backendValidateOpConfig\(\) failed for node `.*?` of type `(?P<type>\w+)` with error code (?P<code>\d+)"
)
_NO_REASON = "Failed to add node."
"""Reason in the log if the real one is in the line before."""
_UNSUPPORTED = re.compile(r"Operators of type `\S+` are not supported")


def rejection_reasons(log: str) -> dict[str, str]:
    """Return why the QNN provider rejected nodes, by node name: the last reason in the session's verbose log."""
    reasons, searched = dict[str, str](), 0
    for rejected in _REJECTED.finditer(log):
        reason = rejected["why"].strip()
        if reason.startswith(_NO_REASON):
            backend = list(_BACKEND.finditer(log, searched, rejected.start()))
            reason = UNKNOWN_REASON
            if backend:
                error = f"error {backend[-1]['code']} of {backend[-1]['type']}"
                reason = f"refused by the validation of the compiler: {error}"
        elif _UNSUPPORTED.search(reason):
            reason = UNKNOWN_TYPE
        reasons[rejected["name"]] = reason
        searched = rejected.end()
    return reasons


DEVICE = Device(
    DEVICES[QNN],
    compiler=_connect_qnn,
    missing=_qnn_missing,
    refusal=_qnn_refusal,
    look=_qnn_now,
    allowed=(Allowed("SOC", tuple(CHIPS)),),
)
"""The row of the table of devices."""
