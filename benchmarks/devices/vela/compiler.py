"""Compile TFLite files for Arm's Ethos-U by Arm's compiler vela, in a separate process, and read what it expects."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pocketbert.benchmarks.compilation import LeftNodes
from pocketbert.benchmarks.devices.litert.graphs import PRODUCTS, GraphOperators, only_signature, operators_of
from pocketbert.benchmarks.devices.processes import Ended, run_separately
from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Reachable
from pocketbert.benchmarks.devices.vela.configurations import MEMORY_MODES, NPUS, SYSTEMS, VelaTarget, vela_target
from pocketbert.benchmarks.devices.vela.refusals import UNTOLD, last_error, vela_reasons
from pocketbert.benchmarks.devices.vela.summary import read_estimate
from pocketbert.core.devices import VELA
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import FilePredictor
from pocketbert.runtime.tflite import TflitePredictor

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
