"""Start one file in a fresh process: load time, first inference, peak memory, time per operator.

In the measuring process these would be meaningless: libraries are warm, allocators hold memory of other
models. ``python -m pocketbert.benchmarks.cold_start FILE`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from pydantic import BaseModel

from pocketbert.benchmarks.operators import OpTimes, profile_operators
from pocketbert.benchmarks.records import ColdStart
from pocketbert.core.errors import ExitCode, InputError, MachineError, PocketBertError, Problem
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, add_missing_inputs

_TIMEOUT_S = 600.0
"""A child that takes longer hangs."""


class ColdRun(BaseModel):
    """Load time, memory and profile that a fresh process measured of one file.

    Attributes:
        start: Load time, first inference and memory.
        ops: Time per operator; None if it was not asked for, or if the engine cannot measure it. A TFLite file that
            cannot be profiled may have a placement without times.
    """

    start: ColdStart
    ops: OpTimes | None = None


def cold_start(file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int = 0) -> ColdRun:
    """Load and run a file in a fresh process; return load time, first inference, memory and profile.

    Args:
        file: The model file.
        ids: Token ids of the input row, length L.
        threads: Number of threads within an operator.
        profile_runs: Number of inferences in which operators are then profiled; 0 for none.

    Raises:
        InputError: If the engine refuses the file.
        MachineError: If the child process fails in another way, or hangs.
    """
    # -P: a folder named like one of our imports in the user's working directory must not be picked up.
    command = [
        sys.executable,
        "-P",
        "-m",
        "pocketbert.benchmarks.cold_start",
        str(file.path),
        "--threads",
        str(threads),
        "--format",
        file.format.value,
        *(("--runtime", file.runtime.value) if file.runtime else ()),
        "--ids",
        ",".join(map(str, ids)),
        "--profile-runs",
        str(profile_runs),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{file.path}: opening and running it once took more than {_TIMEOUT_S:.0f} s.") from error
    if done.returncode == ExitCode.OK:
        return ColdRun.model_validate_json(done.stdout)
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    if done.returncode == ExitCode.INPUT:
        raise InputError(Problem(str(file.path), last[0]))
    raise MachineError(f"{file.path}: the process that measures load time and memory failed: {last[0]}")


def _measure_start(file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun:
    """Load and run a file in this process; return load time, first inference, memory and profile as `cold_start` does."""
    row = np.array([ids], np.int64)
    inputs = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
    file.import_engine()  # takes time and memory that are not the file's
    before = psutil.Process().memory_info().rss
    _reset_peak()
    begin = time.perf_counter_ns()
    predictor = file.open(threads)
    loaded = time.perf_counter_ns()
    feed = add_missing_inputs(predictor, inputs)
    ready = time.perf_counter_ns()
    predictor.run(feed)
    first = time.perf_counter_ns()
    predictor.run(feed)  # the second run may allocate what the memory planner has learnt
    peak = _peak_rss()
    del predictor
    start = ColdStart(
        load_ms=(loaded - begin) / 1e6,
        first_ms=(first - ready) / 1e6,
        length=len(ids),
        peak_memory_bytes=max(0, peak - before),
        peak_rss_bytes=peak,
    )
    return ColdRun(start=start, ops=profile_operators(file, feed, threads, profile_runs) if profile_runs else None)


def _reset_peak() -> None:
    """Reset the peak of resident memory on Linux, because importing libraries may already have raised it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_rss() -> int:
    """Return the largest resident memory of this process so far, in bytes.

    On Linux VmHWM is used if there is one. ru_maxrss is inherited by child processes, so that a child of a training
    process would report its parent's gigabytes.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows keeps the peak elsewhere
        info = psutil.Process().memory_info()
        return int(getattr(info, "peak_wset", info.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one file's start in the child process: parse the command line, and print the record as JSON.

    Returns:
        The exit status: 0, or that of the error, whose text is then the last line on stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m pocketbert.benchmarks.cold_start", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--format", type=Format, choices=list(Format), default=Format.ONNX)
    parser.add_argument("--runtime", type=Runtime, choices=list(Runtime))
    parser.add_argument("--ids", default=",".join(["1"] * 128), help="token ids, comma-separated")
    parser.add_argument("--profile-runs", type=int, default=0)
    arguments = parser.parse_args(argv)
    ids = [int(i) for i in arguments.ids.split(",")]
    try:
        file = EngineFile(arguments.file, arguments.format, arguments.runtime)
        run = _measure_start(file, ids, arguments.threads, arguments.profile_runs)
    except PocketBertError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(run.model_dump_json())
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
