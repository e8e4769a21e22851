"""Where the time of a file goes: what the engine of each format tells, added up by operator type."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.records import OpShare, Placement, Profile
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import Coverage, TflitePredictor

# --- times ---
# The profile of some inferences of one file.


WARMUP = 3
"""Inferences that a profile leaves out."""


class OpTimes(BaseModel):
    """The profile of some inferences.

    Attributes:
        runs: Inferences that were averaged.
        ops: Time per operator type, largest first; empty where the engine has no profile.
        placement: Nodes per execution provider.
        note: What a reader should know of the times, or why there are none.
    """

    runs: int
    ops: list[OpShare]
    placement: list[Placement]
    note: str = ""

    def profile(self, variant: str, threads: int, length: int) -> Profile:
        """Return the record of a profile that was measured.

        Args:
            variant: Name of the file.
            threads: Threads within an operator.
            length: Tokens.
        """
        return Profile(
            variant=variant,
            threads=threads,
            length=length,
            runs=self.runs,
            ops=self.ops,
            placement=self.placement,
            note=self.note,
            provenance=Provenance.MEASURED,
        )


# --- litert ---
# Time per operator of a TFLite file: start the program that profiles it, and check what it tells.


TIMEOUT_S = 300.0
"""A program that takes longer hangs."""
PROGRAM = "litert_profiler.py"
_PROGRAM_PACKAGE = "pocketbert.benchmarks.devices.on_target"


class _Operator(BaseModel):
    name: str
    owner: str
    nodes: int = Field(ge=1)
    us: float = Field(ge=0, allow_inf_nan=False)


class LitertTimes(BaseModel):
    """What the program tells.

    Attributes:
        error: Why there are no times.
        runs: Inferences with the profiler on.
        plain_us: Mean wall time of the inferences without the profiler, between those with it.
        invoke_us: Mean time of an inference with the profiler on.
        operators: Operators of XNNPACK and built-in kernels, by name.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    error: str = ""
    runs: int = Field(default=0, ge=0)
    plain_us: float = Field(default=0, ge=0, allow_inf_nan=False)
    invoke_us: float = Field(default=0, ge=0, allow_inf_nan=False)
    operators: list[_Operator] = Field(default_factory=list)

    def profile(self, found: Coverage | None) -> OpTimes | None:
        """The profile, with the placement that the interpreter tells; None where there is neither."""
        placement = xnnpack_placement(found)
        if self.error or not self.operators:
            note = f"No time per operator: {self.error or 'the profiler tells nothing'}."
            return OpTimes(runs=0, ops=[], placement=placement, note=note) if placement else None
        total = sum(o.us for o in self.operators) or 1.0
        ops = [
            OpShare(op_type=o.name, nodes=o.nodes, share=o.us / total, ms=o.us / 1e3)
            for o in sorted(self.operators, key=lambda o: -o.us)
        ]
        note = (
            "LiteRT's own profiler, which counts each operator in whole µs; "
            f"together {total / 1e3:.3g} of {self.invoke_us / 1e3:.3g} ms per inference, "
            f"which takes {self.plain_us / 1e3:.3g} ms without the profiler."
        )
        return OpTimes(runs=self.runs, ops=ops, placement=placement, note=note)


class LitertRequest(BaseModel):
    """What the program is asked for.

    Attributes:
        path: The TFLite file.
        threads: Threads within an operator.
        warmup: Inferences that are left out.
        runs: Inferences with the profiler on, and as many without it.
        inputs: One row of integers per input.
    """

    path: str
    threads: int
    warmup: int
    runs: int
    inputs: dict[str, list[int]]

    @classmethod
    def of(cls, path: str, threads: int, runs: int, feed: Feed) -> LitertRequest:
        """Ask for the profile of a file on a row that has the length of one of its signatures."""
        inputs = {name: [int(v) for v in rows[0]] for name, rows in feed.items() if rows.ndim == 2}
        return cls(path=path, threads=threads, warmup=WARMUP, runs=runs, inputs=inputs)


def litert_times(request: LitertRequest) -> LitertTimes:
    """Run the program in a process of this Python; an error of any kind is part of the answer."""
    command = [sys.executable, "-P", "-m", f"{_PROGRAM_PACKAGE}.litert_profiler"]
    text = request.model_dump_json()
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return LitertTimes.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        return LitertTimes(error=f"the profiler took more than {TIMEOUT_S:.0f} s")
    except ValidationError:
        return LitertTimes(error=f"the process of the profiler ended with exit status {done.returncode}")


def program_source() -> bytes:
    """Source of the program, which also runs on another machine."""
    return resources.files(_PROGRAM_PACKAGE).joinpath(PROGRAM).read_bytes()


def xnnpack_placement(found: Coverage | None) -> list[Placement]:
    """What XNNPACK runs and what is left to the built-in kernels."""
    if found is None:
        return []
    title = f"XNNPACK, {found.partitions} {'partition' if found.partitions == 1 else 'partitions'}"
    parts = ((title, found.inside), ("built-in kernels", found.outside))
    return [Placement(provider=name, nodes=sum(ops.values()), op_types=ops) for name, ops in parts if ops]


# --- trace ---
# Read the trace of ONNX Runtime's profiler: time per operator type, and which provider runs what.


_SUFFIX = "_kernel_time"


def read_profile(path: Path, skip: int = 0) -> OpTimes:
    """Add up a profile.

    Source: the trace that ONNX Runtime writes with ``enable_profiling``: one ``Node`` event per executed
    node (duration in µs, operator type and provider in its arguments) and one ``model_run`` event around
    each inference. Nodes of subgraphs (If, Loop) would count twice, once in their parent; encoders have
    none.

    Args:
        path: The JSON file.
        skip: Inferences at the start to leave out.

    Returns:
        The sums, per inference.

    Raises:
        InputError: If the file holds no inference after those left out.
    """
    events = [e for e in read_json(path, limit_mib=512) if isinstance(e, dict)]
    inferences = sorted((e for e in events if e.get("name") == "model_run"), key=lambda e: int(e["ts"]))[skip:]
    nodes = [e for e in events if e.get("cat") == "Node" and str(e.get("name", "")).endswith(_SUFFIX)]
    if not inferences or not nodes:
        raise InputError(Problem(str(path), "holds no profiled inference."))
    begin = int(inferences[0]["ts"])
    nodes = [e for e in nodes if int(e["ts"]) >= begin]

    spent: defaultdict[str, float] = defaultdict(float)
    kinds: dict[tuple[str, str], tuple[str, str]] = {}
    for event in nodes:
        op, provider = _kind(event)
        spent[op] += float(event["dur"])
        kinds[str(event["name"]), str(event["args"].get("node_index"))] = (op, provider)
    total = sum(spent.values()) or 1.0
    count = Counter(op for op, _ in kinds.values())
    ops = [
        OpShare(op_type=op, nodes=count[op], share=us / total, ms=us / 1000 / len(inferences))
        for op, us in sorted(spent.items(), key=lambda item: -item[1])
    ]
    return OpTimes(runs=len(inferences), ops=ops, placement=_placement(list(kinds.values())))


def _kind(event: dict[str, Any]) -> tuple[str, str]:
    args = event["args"]
    return str(args["op_name"]), str(args.get("provider", "unknown"))


def _placement(kinds: list[tuple[str, str]]) -> list[Placement]:
    by_provider: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for op, provider in kinds:
        by_provider[provider][op] += 1
    return [
        Placement(provider=provider, nodes=ops.total(), op_types=dict(ops.most_common()))
        for provider, ops in sorted(by_provider.items())
    ]


Profiler = Callable[[EngineFile, Feed, int, int], OpTimes | None]
"""Profiles a file on one input, with a number of threads, over a number of inferences; None where it cannot."""


def profile(file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes | None:
    """Profile a file by the means of the engine that runs it.

    Args:
        file: The model file.
        feed: The input.
        threads: Threads within an operator.
        runs: Inferences to average.

    Returns:
        The profile; None where the engine of this format or runtime has none.
    """
    profiler = (
        _RUNTIME_PROFILERS.get(file.runtime) if file.runtime in _RUNTIME_PROFILERS else _PROFILERS.get(file.format)
    )
    return profiler(file, feed, threads, runs) if profiler else None


def _onnx(file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes:
    with tempfile.TemporaryDirectory(prefix="pocketbert-profile-") as folder:
        predictor = OnnxPredictor(file.path, threads, profile=Path(folder) / "ops")
        for _ in range(WARMUP + runs):
            predictor.run(feed)
        return read_profile(predictor.end_profile(), skip=WARMUP)


def _litert(file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes | None:
    predictor = TflitePredictor(file.path, threads)
    if predictor.engine != "litert":
        return LitertTimes(error=f"{predictor.engine} has no profiler, ai-edge-litert has one").profile(
            predictor.coverage
        )
    return litert_times(LitertRequest.of(str(file.path), threads, runs, feed)).profile(predictor.coverage)


_PROFILERS: dict[Format, Profiler] = {Format.ONNX: _onnx, Format.TFLITE: _litert}
"""Formats whose usual engine has a profile."""
_RUNTIME_PROFILERS: dict[Runtime | None, Profiler | None] = {Runtime.OPENVINO: None}
"""Runtimes that are another engine than their format's usual one."""
