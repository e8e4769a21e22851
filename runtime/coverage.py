"""How much of a TFLite graph XNNPACK took over, and what it left to the slower built-in kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import BaseModel

_DELEGATE = "DELEGATE"


class Coverage(BaseModel):
    """What runs where.

    Attributes:
        partitions: Pieces that XNNPACK runs; every further piece costs a hand-over.
        inside: Operators in them.
        outside: Operators left to the built-in kernels, by name.
    """

    partitions: int
    inside: dict[str, int]
    outside: dict[str, int]

    @property
    def summary(self) -> str:
        """One line for people."""
        left = ", ".join(f"{n} {name}" for name, n in self.outside.items()) or "none"
        noun = "partition" if self.partitions == 1 else "partitions"
        return f"{self.partitions} XNNPACK {noun} with {sum(self.inside.values())} operators; outside: {left}"


def coverage(interpreter: Any) -> Coverage | None:
    """Ask an interpreter's first subgraph.

    The interpreter lists the original operators and, after them, one DELEGATE node per partition with the tensors it
    reads and writes. What lies between those tensors is inside.

    Args:
        interpreter: A new one, of ai-edge-litert, tflite_runtime or tensorflow.lite.

    Returns:
        The coverage, or None where that version has no such list (it is not a public interface).
    """
    try:
        interpreter.allocate_tensors()
        nodes = interpreter._get_ops_details()
    except (AttributeError, ValueError, RuntimeError):
        return None
    plain = [n for n in nodes if n["op_name"] != _DELEGATE]
    delegates = [n for n in nodes if n["op_name"] == _DELEGATE]
    producer = {int(t): i for i, n in enumerate(plain) for t in n["outputs"]}
    inside: set[int] = set()
    for node in delegates:
        stop, todo = {int(t) for t in node["inputs"]}, [int(t) for t in node["outputs"]]
        while todo:
            tensor = todo.pop()
            made_by = producer.get(tensor)
            if tensor in stop or made_by is None or made_by in inside:
                continue
            inside.add(made_by)
            todo += [int(t) for t in plain[made_by]["inputs"] if t >= 0]
    names = [n["op_name"] for n in plain]
    return Coverage(
        partitions=len(delegates),
        inside=dict(Counter(n for i, n in enumerate(names) if i in inside).most_common()),
        outside=dict(Counter(n for i, n in enumerate(names) if i not in inside).most_common()),
    )
