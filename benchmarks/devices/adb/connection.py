"""Measure on an Android device through `adb` with the runners that the user supplies."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.devices.adb.client import Adb
from pocketbert.benchmarks.devices.adb.facts import PROPERTIES, read_machine
from pocketbert.benchmarks.devices.adb.litert_file import LitertFile
from pocketbert.benchmarks.devices.adb.onnx_file import OnnxFile
from pocketbert.benchmarks.devices.adb.place import RUNNERS, Place, cores_of
from pocketbert.benchmarks.devices.adb.watch import AdbWatch
from pocketbert.benchmarks.devices.runners.benchmark_model import LITERT
from pocketbert.benchmarks.devices.runners.perf_test import ONNX
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.operators.times import OpTimes
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.errors import InputError, PocketBertError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile


class AdbConnection:
    """An Android device.

    Args:
        adb: The device.
        kind: Kind of cores to run on: ``little``, ``big``, ``prime``, or empty for all.
    """

    method = (
        f"Wall time as the runners tell it: {ONNX} (-m times, -Z) on the inputs of this benchmark, one process per burst; "
        f"{LITERT} on random inputs of the same length, one process per inference, and after idle times that it keeps itself "
        "(--run_delay). Load time, first inference and memory are the runners' own figures. The engine's version is the "
        "digest of the runner."
    )

    def __init__(self, adb: Adb, kind: str = "") -> None:
        self.adb, self.where = adb, adb.where
        self.place = Place(adb, cores_of(adb, kind, self.where))

    def machine(self) -> Machine:
        """Model, chip, cores and system of the device."""
        properties = [self.adb.told("getprop", name).strip() for name in PROPERTIES]
        return read_machine(
            self.adb.told("cat", "/proc/cpuinfo"), properties, self.adb.shell("uname", "-srm"), self.place.cpus
        )

    def versions(self) -> dict[str, str]:
        """Digests of the runners that were used."""
        return {RUNNERS[format]: version for format, version in self.place.versions.items()}

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """The only lengths that a file takes; empty where it takes any."""
        return file.lengths

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun | None:
        """Start a runner with a file; the figures are the runner's own. It profiles later: see `profile`."""
        row = np.array([ids], np.int64)
        feed = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        start = self.open(file, threads).start(feed)
        return None if start is None else ColdRun(start=start)

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Send the runners of some files."""
        for format in dict.fromkeys(file.format for file in files):
            self.place.runner(format)

    def open(self, file: EngineFile, threads: int) -> LitertFile | OnnxFile:
        """Send a file and its runner."""
        return (LitertFile if file.format is Format.TFLITE else OnnxFile)(self.place, file, threads)

    def profile(self, file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes:
        """Profile a file in a run of its runner that times nothing else; a runner without a profiler is told in the note."""
        try:
            return self.open(file, threads).profile(feed, runs)
        except (PocketBertError, ValueError) as error:  # the latencies are measured already, and stay
            return OpTimes(runs=0, ops=[], placement=[], note=f"No time per operator: {str(error).rstrip('.')}.")

    def watch(self) -> AdbWatch:
        """Begin to note load, clock, temperature and battery."""
        return AdbWatch(self.adb, self.place.cpus)

    def close(self) -> None:
        """Remove everything from the device."""
        self.adb.close()


def connect_adb(argument: str) -> AdbConnection:
    """Reach an Android device.

    Args:
        argument: ``[SERIAL][@CORES]``; without a serial number the only device that is connected.

    Raises:
        InputError: If it cannot be used, or none is named and there are several.
        MissingBackendError: If there is no `adb` client.
        MachineError: If there is no space on it.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None:
        raise InputError(Problem(f"adb:{argument}", f"is no {DEVICES[ADB].argument}.", "For example adb:SERIAL@big"))
    adb = Adb(parts["serial"] or "")
    try:
        return AdbConnection(adb, parts["cores"] or "")
    except BaseException:
        adb.close()
        raise


def adb_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why files of a format, made for a runtime, are not run; empty where they are."""
    if format not in RUNNERS:
        return "the runners take ONNX and TFLite files only"
    if runtime is not None and runtime.own_engine is not None:
        return f"there is no runner of {runtime.own_engine}"
    if runtime is not None and runtime.accelerator:
        return f"the runners compute on the CPU; the file is made for {runtime}"
    return ""


def adb_idle_refusal(format: Format) -> str:
    """Why files of a format are not timed after idle times; empty where they are."""
    if format is Format.ONNX:
        return f"{ONNX} cannot wait between inferences, and a new process is no idle one"
    return ""


def adb_sustained_refusal(format: Format) -> str:
    """Why files of a format are not run for minutes; empty where they are."""
    if format is Format.TFLITE:
        return (
            f"{LITERT} tells no single times of a run, and a process for each inference would pause between them; the demo app "
            "runs such files for minutes (--app)"
        )
    return ""
