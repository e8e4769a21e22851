"""What the compilers of vendors share: running them in a separate process, and counting operators in TFLite files.

`run_separately` runs a program with a time limit, as a vendor's code may crash or hang. `only_signature` reduces a
TFLite file to the length that is compiled, and `operators_of` counts the operators of a graph and its compiled
pieces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.benchmarks.records import LeftNodes
from pocketbert.core.model_files import dump_model, load_model, tflite_schema

PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D")
"""Operators that nearly all of an encoder's arithmetic is in."""
_LOG_FILE = "log"
_MAX_LOG = 64 << 20
"""Most bytes of a log that are read."""
_CUSTOM = 32
"""``BuiltinOperator.CUSTOM`` of the TFLite schema: LiteRT writes each compiled piece as one such operator."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a program ended, and what it printed.

    Attributes:
        problem: What went wrong; empty if the program succeeded.
        log: What the program printed.
    """

    problem: str
    log: str


def run_separately(
    command: Sequence[str], folder: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> ProcessEnd:
    """Run a program in a process group of its own, and return how it ended.

    The group is killed at the time limit, or if this process is stopped.

    Args:
        command: The program and its arguments; no shell interprets them.
        folder: Working directory of the program, to which its log is written.
        limit_s: Largest number of seconds that the program may take.
        environment: Environment variables that are set in addition to those of this process.

    Returns:
        How the program ended; if it fails, no error is raised.
    """
    path = folder / _LOG_FILE
    with path.open("wb") as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            problem = _status_in_words(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            _kill_group(process)
            problem = f"the process did not end within {limit_s:.0f} s"
        except BaseException:  # this process is stopped, too
            _kill_group(process)
            raise
    with path.open("rb") as log:
        return ProcessEnd(problem, log.read(_MAX_LOG).decode(errors="replace"))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and all processes of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _status_in_words(status: int) -> str:
    """Return an exit status in words, such as "the process ended with status 1"; empty for success."""
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}" if status else ""


def only_signature(file: bytes, key: str) -> tuple[bytes | bytearray, int]:
    """Reduce a TFLite file to one signature, because an NPU takes one length and compiles all signatures.

    Args:
        file: Content of the .tflite file.
        key: Name of the signature to keep.

    Returns:
        (smaller file, index of the signature's graph in it). A file with one signature, or with graphs that are no
        signatures, is returned unchanged.
    """
    model = load_model(file)
    chosen = next(s for s in model.signatureDefs if _decoded(s.signatureKey) == key)
    if len(model.subgraphs) == 1 or len(model.subgraphs) != len(model.signatureDefs):
        return file, chosen.subgraphIndex
    model.subgraphs, model.signatureDefs = [model.subgraphs[chosen.subgraphIndex]], [chosen]
    chosen.subgraphIndex = 0
    return dump_model(model), 0


@dataclass(frozen=True)
class GraphOperators:
    """The operators of one graph of a TFLite file.

    Attributes:
        counts: Number of operators by type, by the types' names in the TFLite schema.
        compiled: Number of pieces of the graph that are compiled for an NPU.
    """

    counts: Counter[str]
    compiled: int

    def left_nodes(self, reasons: Mapping[str, str], unknown: str) -> list[LeftNodes]:
        """Return the operators as records of nodes that stay on the CPU, with reasons; the most frequent come first.

        Args:
            reasons: Why operators of a type stay on the CPU, by type.
            unknown: The reason for types that are not in `reasons`.
        """
        return [
            LeftNodes(op_type=op_type, nodes=count, reason=reasons.get(op_type, unknown))
            for op_type, count in self.counts.most_common()
        ]


def operators_of(file: bytes | bytearray, graph: int, compiled_code: str = "DISPATCH_OP") -> GraphOperators:
    """Count the operators of a graph by type, and the pieces that were compiled for an NPU.

    Args:
        file: Content of the .tflite file.
        graph: Index of the graph in the file.
        compiled_code: Name of the custom operator that stands for a compiled piece of the graph.
    """
    schema = tflite_schema()
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    model: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAs(file, 0))
    counts, compiled = Counter[str](), 0
    for operator in model.subgraphs[graph].operators or []:
        code = model.operatorCodes[operator.opcodeIndex]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        if number == _CUSTOM and _decoded(code.customCode) == compiled_code:
            compiled += 1
        else:
            counts[names[number]] += 1
    return GraphOperators(counts, compiled)


def operator_name(number: int) -> str:
    """Return the name of an operator type by its number in the TFLite schema; ``operator NUMBER`` if it has none."""
    operators = vars(tflite_schema().BuiltinOperator).items()
    return next((name for name, value in operators if value == number), f"operator {number}")


def _decoded(value: bytes | str | None) -> str:
    """Decode a text of a TFLite file if its reader returned it as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
