"""Read the trace of ONNX Runtime's profiler: time per operator type, and which provider runs what."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from pocketbert.benchmarks.operators.times import OpTimes
from pocketbert.benchmarks.records import OpShare, Placement
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem

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
