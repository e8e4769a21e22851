"""Time per operator of a TFLite file: start the program that profiles it, and check what it tells."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.operators.times import WARMUP, OpTimes
from pocketbert.benchmarks.records import OpShare, Placement
from pocketbert.runtime.coverage import Coverage

TIMEOUT_S = 300.0
"""A program that takes longer hangs."""
PROGRAM = "program.py"


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
    command = [sys.executable, "-P", "-m", f"{__package__}.program"]
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
    return resources.files(__package__).joinpath(PROGRAM).read_bytes()


def xnnpack_placement(found: Coverage | None) -> list[Placement]:
    """What XNNPACK runs and what is left to the built-in kernels."""
    if found is None:
        return []
    title = f"XNNPACK, {found.partitions} {'partition' if found.partitions == 1 else 'partitions'}"
    parts = ((title, found.inside), ("built-in kernels", found.outside))
    return [Placement(provider=name, nodes=sum(ops.values()), op_types=ops) for name, ops in parts if ops]
