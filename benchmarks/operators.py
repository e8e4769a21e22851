"""Time per operator type: the profile that the engine of each format makes, added up.

`profile_operators` profiles a file in this process by the means of its engine: ONNX Runtime writes a trace, which `read_profile` adds up;
for TFLite files `_litert_times` starts a program that uses LiteRT's profiler. `program_source` returns the source of that program,
which also runs on another machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.records import OpShare, Placement, Profile
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor, XnnpackCoverage

WARMUP = 3
"""Inferences that a profile leaves out."""


class OpTimes(BaseModel):
    """Time per operator type and placement, averaged over some inferences.

    Attributes:
        runs: Number of inferences that were averaged.
        ops: Time per operator type, the largest first; empty if the engine cannot profile.
        placement: Number of nodes per execution provider.
        note: Remarks on the times, or why there are none.
    """

    runs: int
    ops: list[OpShare]
    placement: list[Placement]
    note: str = ""

    def profile(self, variant: str, threads: int, length: int) -> Profile:
        """Build the record of these times for ``benchmark.json``, with the file's name, threads and length.

        Args:
            variant: Name of the file.
            threads: Number of threads within an operator.
            length: Input length in tokens.
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


def profile_operators(file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes | None:
    """Measure a file's time per operator with the profiler of its engine (ONNX Runtime or LiteRT).

    Args:
        file: The model file.
        feed: The input to run.
        threads: Number of threads within an operator.
        runs: Number of inferences to average.

    Returns:
        The times. A TFLite file that cannot be profiled may have its placement and a note instead. None if the engine of
        this format or runtime has no profiler, or nothing was found out.
    """
    if file.runtime is Runtime.OPENVINO:  # another engine than the usual one of its format
        return None
    if file.format is Format.ONNX:
        with tempfile.TemporaryDirectory(prefix="pocketbert-profile-") as folder:
            predictor = OnnxPredictor(file.path, threads, profile=Path(folder) / "ops")
            for _ in range(WARMUP + runs):
                predictor.run(feed)
            return read_profile(predictor.end_profile(), skip=WARMUP)
    if file.format is Format.TFLITE:
        tflite = TflitePredictor(file.path, threads)
        if tflite.engine == "litert":
            times = _litert_times(LitertRequest.of(str(file.path), threads, runs, feed))
        else:
            times = LitertTimes(error=f"{tflite.engine} has no profiler, ai-edge-litert has one")
        return times.profile(tflite.coverage)
    return None


# --- ONNX Runtime ----------------------------------------------------------------------------------------------------------------


def read_profile(path: Path, skip: int = 0) -> OpTimes:
    """Add up a trace file of ONNX Runtime's profiler: time per operator type, and nodes per execution provider.

    Source: the trace that ONNX Runtime writes with ``enable_profiling``. It has one ``Node`` event per executed node
    (duration in µs; operator type and provider in its arguments) and one ``model_run`` event around each inference.
    Nodes of subgraphs (If, Loop) would be counted twice, once in their parent node; encoders have none.

    Args:
        path: The JSON file.
        skip: Number of inferences at the start that are left out.

    Returns:
        The sums, divided by the number of inferences.

    Raises:
        InputError: If the file has no inference after the skipped ones, or no node.
    """
    events = [e for e in read_json(path, limit_mib=512) if isinstance(e, dict)]
    inferences = sorted((e for e in events if e.get("name") == "model_run"), key=lambda e: int(e["ts"]))[skip:]
    nodes = [e for e in events if e.get("cat") == "Node" and str(e.get("name", "")).endswith("_kernel_time")]
    if not inferences or not nodes:
        raise InputError(Problem(str(path), "holds no profiled inference."))
    begin = int(inferences[0]["ts"])
    spent_us: defaultdict[str, float] = defaultdict(float)
    kinds: dict[tuple[str, str], tuple[str, str]] = {}  # operator type and provider of each node
    for event in nodes:
        if int(event["ts"]) < begin:
            continue
        arguments = event["args"]
        op_type, provider = str(arguments["op_name"]), str(arguments.get("provider", "unknown"))
        spent_us[op_type] += float(event["dur"])
        kinds[str(event["name"]), str(arguments.get("node_index"))] = (op_type, provider)
    total = sum(spent_us.values()) or 1.0
    counts = Counter(op_type for op_type, _ in kinds.values())
    ops = [
        OpShare(op_type=op_type, nodes=counts[op_type], share=us / total, ms=us / 1000 / len(inferences))
        for op_type, us in sorted(spent_us.items(), key=lambda item: -item[1])
    ]
    by_provider: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for op_type, provider in kinds.values():
        by_provider[provider][op_type] += 1
    placement = [
        Placement(provider=provider, nodes=op_types.total(), op_types=dict(op_types.most_common()))
        for provider, op_types in sorted(by_provider.items())
    ]
    return OpTimes(runs=len(inferences), ops=ops, placement=placement)


# --- LiteRT ----------------------------------------------------------------------------------------------------------------------

PROGRAM = "litert_profiler.py"
_PROGRAM_PACKAGE = "pocketbert.benchmarks.devices.on_target"
_TIMEOUT_S = 300.0
"""A program that takes longer hangs."""


class LitertRequest(BaseModel):
    """The request that the LiteRT profiling program reads on stdin: a file, an input row and numbers of inferences.

    Attributes:
        path: The TFLite file.
        threads: Number of threads within an operator.
        warmup: Number of inferences that are left out at the start.
        runs: Number of inferences with the profiler on; the same number is timed without it.
        inputs: One row of integers per input.
    """

    path: str
    threads: int
    warmup: int
    runs: int
    inputs: dict[str, list[int]]

    @classmethod
    def of(cls, path: str, threads: int, runs: int, feed: Feed) -> LitertRequest:
        """Build the request for a file and one input row, whose length must be that of one of the file's signatures."""
        inputs = {name: [int(v) for v in rows[0]] for name, rows in feed.items() if rows.ndim == 2}
        return cls(path=path, threads=threads, warmup=WARMUP, runs=runs, inputs=inputs)


def _litert_times(request: LitertRequest) -> LitertTimes:
    """Run the LiteRT profiling program in a new process; errors come back in the `error` field."""
    command = [sys.executable, "-P", "-m", f"{_PROGRAM_PACKAGE}.litert_profiler"]
    text = request.model_dump_json()
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        return LitertTimes.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        return LitertTimes(error=f"the profiler took more than {_TIMEOUT_S:.0f} s")
    except ValidationError:
        return LitertTimes(error=f"the process of the profiler ended with exit status {done.returncode}")


def program_source() -> bytes:
    """Return the source code of the LiteRT profiling program, to be copied to another machine."""
    return resources.files(_PROGRAM_PACKAGE).joinpath(PROGRAM).read_bytes()


class _Operator(BaseModel):
    """Time of all nodes of one operator type, in µs per inference."""

    name: str
    owner: str
    nodes: int = Field(ge=1)
    us: float = Field(ge=0, allow_inf_nan=False)


class LitertTimes(BaseModel):
    """The times that the LiteRT profiling program returns.

    Attributes:
        error: Why there are no times.
        runs: Number of inferences with the profiler on.
        plain_us: Mean wall time of the inferences without the profiler, which alternate with the others.
        invoke_us: Mean time of an inference with the profiler on.
        operators: Operators of XNNPACK and built-in kernels, by name.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    error: str = ""
    runs: int = Field(default=0, ge=0)
    plain_us: float = Field(default=0, ge=0, allow_inf_nan=False)
    invoke_us: float = Field(default=0, ge=0, allow_inf_nan=False)
    operators: list[_Operator] = Field(default_factory=list)

    def profile(self, coverage: XnnpackCoverage | None) -> OpTimes | None:
        """Return the times, with the share of the graph that XNNPACK runs as placement; None if both are missing."""
        placement = _xnnpack_placement(coverage)
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


def _xnnpack_placement(coverage: XnnpackCoverage | None) -> list[Placement]:
    """Return how many nodes XNNPACK and built-in kernels run; empty if the interpreter does not report it."""
    if coverage is None:
        return []
    title = f"XNNPACK, {coverage.partitions} {'partition' if coverage.partitions == 1 else 'partitions'}"
    parts = ((title, coverage.inside), ("built-in kernels", coverage.outside))
    return [Placement(provider=name, nodes=sum(ops.values()), op_types=ops) for name, ops in parts if ops]
