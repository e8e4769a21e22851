"""Measure on an Android device through `adb` with the runners that the user supplies."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pocketbert.benchmarks.devices.adb.client import RUN_S, Adb
from pocketbert.benchmarks.devices.adb.facts import PROPERTIES, choose, mask, read_clusters, read_machine, read_thermal
from pocketbert.benchmarks.devices.adb.runners import (
    litert_command,
    litert_profile_command,
    perf_test_command,
    tensor_proto,
)
from pocketbert.benchmarks.devices.protocol import Burst, Sample
from pocketbert.benchmarks.devices.runners.benchmark_model import LITERT, read_litert, read_operators
from pocketbert.benchmarks.devices.runners.perf_test import ONNX, read_perf_test
from pocketbert.benchmarks.energy import battery_between
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.operators.times import WARMUP as LEFT_OUT
from pocketbert.benchmarks.operators.times import OpTimes
from pocketbert.benchmarks.operators.trace import read_profile
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.disk.files import sha256_file, sha256_path
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, filled
from pocketbert.runtime.tflite import TflitePredictor

FOLDER = "POCKETBERT_ADB_RUNNERS"
"""Environment variable: the folder with the runners, built for the phone, and the libraries that they load."""
RUNNERS = {Format.TFLITE: LITERT, Format.ONNX: ONNX}
POLICIES = (
    "for p in /sys/devices/system/cpu/cpufreq/policy*; do "
    'echo "$(cat $p/cpuinfo_max_freq) $(cat $p/related_cpus)"; done 2>/dev/null || true'
)


class LitertFile:
    """A TFLite file that ``benchmark_model`` times: a fresh process for each inference."""

    engine = LITERT

    def __init__(self, connection: AdbConnection, file: EngineFile, threads: int) -> None:
        self._connection, self._threads = connection, threads
        self.engine_version, self._name = connection.runner(Format.TFLITE), connection.send(file)
        self._keys = TflitePredictor(file.path, 1).signature_keys

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Choose the signatures once; the runner makes its own random inputs of these lengths."""
        keys = [self._keys[feed["input_ids"].shape[1]] for feed in feeds]

        def burst(numbers: Sequence[int]) -> list[Sample]:
            return [self._one(keys[number % len(keys)]) for number in numbers]

        return burst

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Have the runner profile the operators at the length of an input.

        Raises:
            ValueError: If it prints no table of operators.
        """
        key = self._keys[feed["input_ids"].shape[1]]
        return read_operators(self._connection.run(litert_profile_command(self._name, self._threads, key, runs)))

    def _one(self, key: str) -> Sample:
        said = self._connection.run(litert_command(self._name, self._threads, key))
        try:
            found = read_litert(said)
        except ValueError as error:
            raise InputError(Problem(self._connection.where, f"{error}.")) from error
        if found.count != 1:
            raise MachineError(f"{self._connection.where}: {LITERT} timed {found.count} inferences instead of 1.")
        return Sample(round(found.last_us / 1e3, 4))


class OnnxFile:
    """An ONNX file that ``onnxruntime_perf_test`` times: one process for consecutive inferences on the same input."""

    engine = ONNX

    def __init__(self, connection: AdbConnection, file: EngineFile, threads: int) -> None:
        self._connection, self._threads = connection, threads
        self.engine_version, self._name = connection.runner(Format.ONNX), connection.send(file)
        self._predictor = file.open(1)

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Send the inputs once; see `_send`."""
        series = self._send(feeds)

        def burst(numbers: Sequence[int]) -> list[Sample]:
            chosen = [number % len(feeds) for number in numbers]
            return [sample for one, all in groupby(chosen) for sample in self._some(f"{series}/{one}", len(list(all)))]

        return burst

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Have the runner write a trace of the operators, and read it here."""
        folder, before, result = f"{self._send([feed])}/0", "rm -f trace*.json profiled.csv", "profiled.csv"
        untimed = 1  # the runner makes one by itself, and it is in the trace
        runs += LEFT_OUT - untimed
        command = perf_test_command(f"{folder}/model.onnx", self._threads, runs, result, trace="trace")
        self._connection.run(command, before=before, after="mv trace*.json trace.json")
        with tempfile.TemporaryDirectory(prefix="pocketbert-trace-") as name:
            self._connection.adb.pull("trace.json", Path(name) / "trace.json")
            return read_profile(Path(name) / "trace.json", skip=LEFT_OUT)

    def _send(self, feeds: Sequence[Feed]) -> str:
        """Send inputs as files of the form that the runner reads, next to links to the model; the folder with one folder each."""
        adb, series = self._connection.adb, self._connection.next_series()
        with tempfile.TemporaryDirectory(prefix="pocketbert-inputs-") as name:
            for number, feed in enumerate(feeds):
                folder = Path(name) / series / str(number) / "test_data_set_0"
                folder.mkdir(parents=True)
                given = filled(self._predictor, feed)
                for place, key in enumerate(self._predictor.inputs):
                    (folder / f"input_{place}.pb").write_bytes(tensor_proto(key, given[key]))
            adb.push(Path(name) / series, series)
        adb.script(f"for d in {series}/*; do ln -s ../../{shlex.quote(self._name)} $d/model.onnx || exit 1; done")
        return series

    def _some(self, folder: str, runs: int) -> list[Sample]:
        command = perf_test_command(f"{folder}/model.onnx", self._threads, runs, "result.csv")
        said = self._connection.run(command, before="rm -f result.csv", after="cat result.csv")
        try:
            times = read_perf_test(said)
        except ValueError as error:
            raise InputError(Problem(self._connection.where, f"{error}.")) from error
        if len(times) != runs:
            raise MachineError(f"{self._connection.where}: {ONNX} timed {len(times)} inferences instead of {runs}.")
        return [Sample(round(time, 4)) for time in times]


class AdbWatch:
    """Notes load, thermal state and battery when it is made, and again when it is stopped."""

    def __init__(self, adb: Adb) -> None:
        self._adb, self._load, self._battery, self._began = adb, _load(adb), _battery(adb), time.monotonic()
        self._thermal = _thermal(adb, self._battery)

    def stop(self) -> Load:
        """The load and the thermal facts since this object was made."""
        battery, seconds = _battery(self._adb), time.monotonic() - self._began
        thermal = _thermal(self._adb, battery)
        return Load(
            before=self._load,
            after=_load(self._adb),
            others=None,
            thermal=f"{self._thermal} → {thermal}" if thermal and self._thermal else "",
            energy=battery_between(self._battery, battery, seconds),
        )


class AdbConnection:
    """An Android device.

    Args:
        adb: The device.
        kind: Kind of cores to run on: ``little``, ``big``, ``prime``, or empty for all.
    """

    method = (
        f"Wall time as the runners tell it: {ONNX} (-m times, -Z) on the inputs of this benchmark, one process per burst; "
        f"{LITERT} on random inputs of the same length, one process per inference. The engine's version is the digest of the runner."
    )

    def __init__(self, adb: Adb, kind: str = "") -> None:
        self.adb, self.where = adb, adb.where
        self._runners, self._sent, self._series = dict[Format, str](), dict[Path, str](), 0
        try:
            self._cpus = choose(read_clusters(adb.script(POLICIES)), kind) if kind else ()
        except ValueError as error:
            raise InputError(Problem(self.where, f"{error}.", f"Leave '@{kind}' away.")) from error

    def machine(self) -> Machine:
        """Model, chip, cores and system of the device."""
        properties = [self.adb.told("getprop", name).strip() for name in PROPERTIES]
        return read_machine(
            self.adb.told("cat", "/proc/cpuinfo"), properties, self.adb.shell("uname", "-srm"), self._cpus
        )

    def versions(self) -> dict[str, str]:
        """Digests of the runners that were used."""
        return {RUNNERS[format]: version for format, version in self._runners.items()}

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """The only lengths that a file takes; empty where it takes any."""
        return file.open(1).lengths if file.format is Format.TFLITE else ()

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> None:
        """Tell nothing: the runners' figures of a start contain their own."""
        return

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Send the runners of some files."""
        for format in dict.fromkeys(file.format for file in files):
            self.runner(format)

    def open(self, file: EngineFile, threads: int) -> LitertFile | OnnxFile:
        """Send a file and its runner."""
        return (LitertFile if file.format is Format.TFLITE else OnnxFile)(self, file, threads)

    def profile(self, file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes:
        """Profile a file in a run of its runner that times nothing else; a runner without a profiler is told in the note."""
        try:
            return self.open(file, threads).profile(feed, runs)
        except (PocketBertError, ValueError) as error:  # the latencies are measured already, and stay
            return OpTimes(runs=0, ops=[], placement=[], note=f"No time per operator: {str(error).rstrip('.')}.")

    def watch(self) -> AdbWatch:
        """Begin to note load, temperature and battery."""
        return AdbWatch(self.adb)

    def close(self) -> None:
        """Remove everything from the device."""
        self.adb.close()

    def runner(self, format: Format) -> str:
        """Send the runner of a format and its libraries; returns what tells its version."""
        if format not in self._runners:
            folder = Path(os.environ.get(FOLDER) or "/nonexistent")
            name = RUNNERS[format]
            if not (folder / name).is_file():
                raise MissingBackendError(
                    f"{name} for the device", f"export {FOLDER}=FOLDER (with {name}, built for the device, in it)"
                )
            for file in [folder / name, *sorted(folder.glob("*.so*"))]:
                self.adb.push(file, file.name)
            self.adb.shell("chmod", "755", name)
            self._runners[format] = f"sha256 {sha256_file(folder / name)[:12]}"
        return self._runners[format]

    def send(self, file: EngineFile) -> str:
        """Send a model file once; its name on the device."""
        if file.path not in self._sent:
            name = f"{sha256_path(file.path)}.{file.format.value}"
            self.adb.push(file.path, name)
            self._sent[file.path] = name
        return self._sent[file.path]

    def next_series(self) -> str:
        """A new name for the folder of a series of inputs."""
        self._series += 1
        return f"series-{self._series}"

    def run(self, command: Sequence[str], before: str = "true", after: str = "cat runner.log") -> str:
        """Start a runner on the chosen cores; what `after` prints, by default what the runner has printed."""
        pinned = ["taskset", mask(self._cpus), *command] if self._cpus else list(command)
        failed = "{ cat runner.log; exit 1; }"
        return self.adb.script(
            f"{before}; LD_LIBRARY_PATH=. {shlex.join(pinned)} > runner.log 2>&1 || {failed}; {after}", RUN_S
        )


def _load(adb: Adb) -> float | None:
    told = re.match(r"\d+\.\d+", adb.told("cat", "/proc/loadavg"))
    return float(told[0]) if told else None


def _battery(adb: Adb) -> str:
    return adb.told("dumpsys", "battery")


def _thermal(adb: Adb, battery: str) -> str:
    return read_thermal(adb.told("dumpsys", "thermalservice"), battery)


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
