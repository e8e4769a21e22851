"""Where the time of a file goes: what the engine of each format tells, added up by operator type."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.records import OpShare, Placement
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.coverage import Coverage
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor

WARMUP = 3
"""Inferences that a profile leaves out."""
_SUFFIX = "_kernel_time"


class OpTimes(BaseModel):
    """The profile of some inferences.

    Attributes:
        runs: Inferences that were averaged.
        ops: Time per operator type, largest first; empty where the engine has no profile.
        placement: Nodes per execution provider.
    """

    runs: int
    ops: list[OpShare]
    placement: list[Placement]


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


def _xnnpack(file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes | None:
    found = TflitePredictor(file.path, threads).coverage
    return xnnpack_placement(found) if found else None


_PROFILERS: dict[Format, Profiler] = {Format.ONNX: _onnx, Format.TFLITE: _xnnpack}
"""Formats whose usual engine has a profile."""
_RUNTIME_PROFILERS: dict[Runtime | None, Profiler | None] = {Runtime.OPENVINO: None}
"""Runtimes that are another engine than their format's usual one."""


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


def xnnpack_placement(found: Coverage) -> OpTimes:
    """What XNNPACK runs and what is left to the built-in kernels; no times, the interpreter has no profile."""
    title = f"XNNPACK, {found.partitions} {'partition' if found.partitions == 1 else 'partitions'}"
    parts = ((title, found.inside), ("built-in kernels", found.outside))
    placement = [Placement(provider=name, nodes=sum(ops.values()), op_types=ops) for name, ops in parts if ops]
    return OpTimes(runs=0, ops=[], placement=placement)


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
