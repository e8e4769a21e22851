"""Where the time of a file goes: what the engine of each format tells, added up by operator type."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.operators.litert import LitertRequest, LitertTimes, litert_times
from pocketbert.benchmarks.operators.times import WARMUP, OpTimes
from pocketbert.benchmarks.operators.trace import read_profile
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor

__all__ = ["Profiler", "profile"]

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
