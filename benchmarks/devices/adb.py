"""Measure on an Android device through `adb` with the runners that the user supplies."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.devices.adb_phone import (
    FOLDER,
    PROPERTIES,
    RUNNERS,
    Adb,
    AdbWatch,
    Place,
    cores_of,
    read_machine,
    state_problem,
)
from pocketbert.benchmarks.devices.protocol import Allowed, Burst, Reachable, Sample
from pocketbert.benchmarks.devices.runners import (
    LITERT,
    ONNX,
    WARMUP,
    LitertTimes,
    litert_command,
    litert_profile_command,
    perf_test_command,
    read_delay,
    read_litert,
    read_operators,
    read_perf_test,
    read_printed,
    tensor_proto,
)
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.operators import WARMUP as LEFT_OUT
from pocketbert.benchmarks.operators import OpTimes, read_profile
from pocketbert.benchmarks.records import ColdStart
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.errors import InputError, MachineError, PocketBertError, Problem, one_line
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, filled
from pocketbert.runtime.tflite import TflitePredictor

# --- attached ---
# Which phones are connected at this moment, and what is missing to measure on one.


LOOK_S = 8.0
"""Most seconds that the client may take to list phones; it starts its server first, which takes about three."""
CORES = (Allowed("CORES", ("little", "big", "prime")),)
_ROW = re.compile(r"(?P<serial>\S+)\s+(?P<state>no permissions|[a-z]+)\b(?P<more>.*)")


def adb_missing() -> str:
    """What keeps this machine from measuring on a phone: the client, and the runners; empty where nothing does."""
    lacking = [] if shutil.which("adb") else ["adb is not installed (sudo apt-get install adb)"]
    runners = _runners_missing()
    return "; ".join([*lacking, *([f"{runners}; --app needs none"] if runners else [])])


def _runners_missing() -> str:
    folder, names = os.environ.get(FOLDER, ""), list(RUNNERS.values())
    if not folder:
        return f"no runners are named (export {FOLDER}=FOLDER, with {' and '.join(names)} built for the phone)"
    absent = [name for name in names if not (Path(folder) / name).is_file()]
    return f"{FOLDER}={one_line(folder)} lacks {' and '.join(absent)}" if absent else ""


def attached() -> list[Reachable]:
    """The phones that ``adb devices -l`` lists, with what keeps one from being used. Nothing is changed on them."""
    client = shutil.which("adb")
    if client is None:
        return []
    # a file, not a pipe: a server that is started meanwhile could keep a pipe open for ever
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen([client, "devices", "-l"], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            code = running.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            return [Reachable(ADB, problem=f"the client does not answer within {LOOK_S:g} s")]
        said.seek(0)
        text = said.read(1 << 20).decode(errors="replace")
    if code:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"exit status {code}")
        return [Reachable(ADB, problem=one_line(last.strip())[:200])]
    return read_attached(text)


def read_attached(text: str) -> list[Reachable]:
    """Read the output of ``adb devices -l``, which may hold messages of the server in front.

    Args:
        text: The output.
    """
    rows = text.partition("List of devices attached")[2].splitlines()
    found = [match for row in rows if (match := _ROW.fullmatch(one_line(" ".join(row.split()))))]
    return [
        Reachable(
            f"{ADB}:{row['serial']}",
            model[1].replace("_", " ") if (model := re.search(r"\bmodel:(\S+)", row["more"])) else "",
            "" if row["state"] == "device" else state_problem(row["state"]),
        )
        for row in found
    ]


# --- litert_file ---
# A TFLite file on an Android device, timed by LiteRT's ``benchmark_model``.


class LitertFile:
    """A TFLite file that ``benchmark_model`` times: a fresh process for each inference.

    The runner tells single times of no more than one inference: of several only the first, the last and statistics.
    """

    engine = LITERT
    pauses = WARMUP + 1
    """The runner waits after each of its inferences, the timed one included."""

    def __init__(self, place: Place, file: EngineFile, threads: int) -> None:
        self._place, self._threads = place, threads
        self.engine_version, self._name = place.runner(Format.TFLITE), place.send(file)
        predictor = place.opened(file)
        assert isinstance(predictor, TflitePredictor)
        self._keys = predictor.signature_keys

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Choose the signatures once; the runner makes its own random inputs of these lengths."""
        return self.prepare_idle(feeds, 0.0)

    def prepare_idle(self, feeds: Sequence[Feed], gap_ms: float) -> Burst:
        """As `prepare`, with an idle time that the runner keeps after each untimed inference."""
        keys = [self._key(feed) for feed in feeds]

        def burst(numbers: Sequence[int]) -> list[Sample]:
            return [self._one(keys[number % len(keys)], gap_ms) for number in numbers]

        return burst

    def start(self, feed: Feed) -> ColdStart:
        """Start a process that runs an input of this length; the figures are the runner's own."""
        found = self._run(self._key(feed))
        return ColdStart(
            load_ms=found.init_us / 1e3,
            first_ms=found.first_us / 1e3,
            length=feed["input_ids"].shape[1],
            peak_memory_bytes=found.memory_bytes,
            peak_rss_bytes=None,
            told_by=LITERT,
        )

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Have the runner profile the operators at the length of an input.

        Raises:
            ValueError: If it prints no table of operators.
        """
        command = litert_profile_command(self._name, self._threads, self._key(feed), runs)
        return read_operators(self._place.run(command))

    def _key(self, feed: Feed) -> str:
        return self._keys[feed["input_ids"].shape[1]]

    def _one(self, key: str, gap_ms: float) -> Sample:
        found = self._run(key, gap_ms)
        if found.count != 1:
            raise MachineError(f"{self._place.where}: {LITERT} timed {found.count} inferences instead of 1.")
        return Sample(round(found.last_us / 1e3, 4))

    def _run(self, key: str, gap_ms: float = 0.0) -> LitertTimes:
        said = self._place.run(litert_command(self._name, self._threads, key, delay_s=gap_ms / 1000))
        try:
            if gap_ms and not math.isclose(read_delay(said) or 0.0, gap_ms / 1000, rel_tol=1e-4):
                raise ValueError(f"{LITERT} does not tell that it waits between inferences; --run_delay was asked for")
            return read_litert(said)
        except ValueError as error:
            raise InputError(Problem(self._place.where, f"{error}.")) from error


# --- onnx_file ---
# An ONNX file on an Android device, timed by ONNX Runtime's ``onnxruntime_perf_test``.


class OnnxFile:
    """An ONNX file that ``onnxruntime_perf_test`` times: one process for consecutive inferences on the same input."""

    engine = ONNX

    def __init__(self, place: Place, file: EngineFile, threads: int) -> None:
        self._place, self._threads = place, threads
        self.engine_version, self._name = place.runner(Format.ONNX), place.send(file)
        self._predictor = place.opened(file)

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Send the inputs once; see `_send`."""
        series = self._send([[feed] for feed in feeds])

        def burst(numbers: Sequence[int]) -> list[Sample]:
            chosen = [number % len(feeds) for number in numbers]
            return [sample for one, all in groupby(chosen) for sample in self._some(f"{series}/{one}", len(list(all)))]

        return burst

    def run_for(self, feeds: Sequence[Feed], seconds: int) -> list[Sample]:
        """Run in one process for some seconds; of several inputs the runner draws one each time."""
        folder, result = f"{self._send([feeds])}/0", "sustained.csv"
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, seconds=seconds)
        self._place.run(command, before=f"rm -f {result}", after="true", seconds=seconds)
        with tempfile.TemporaryDirectory(prefix="pocketbert-times-") as name:
            self._place.adb.pull(result, Path(name) / result)
            return self._samples((Path(name) / result).read_text(encoding="utf-8", errors="replace"))

    def start(self, feed: Feed) -> ColdStart | None:
        """Start a process that runs an input; the figures are the runner's own, and None where it prints none."""
        folder, result = f"{self._send([[feed]])}/0", "start.csv"
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, runs=1)
        try:
            told = read_printed(self._place.run(command, before=f"rm -f {result}"))
        except ValueError:  # another version; what is measured does not depend on these words
            return None
        if told.session_s is None:
            return None
        return ColdStart(
            load_ms=told.session_s * 1000,
            first_ms=told.first_ms or None,  # whole ms: 0 tells nothing
            length=feed["input_ids"].shape[1],
            peak_memory_bytes=None,
            peak_rss_bytes=told.peak_rss_bytes,
            told_by=ONNX,
        )

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Have the runner write a trace of the operators, and read it here."""
        folder, before, result = f"{self._send([[feed]])}/0", "rm -f trace*.json profiled.csv", "profiled.csv"
        untimed = 1  # the runner makes one by itself, and it is in the trace
        runs += LEFT_OUT - untimed
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, runs=runs, trace="trace")
        self._place.run(command, before=before, after="mv trace*.json trace.json")
        with tempfile.TemporaryDirectory(prefix="pocketbert-trace-") as name:
            self._place.adb.pull("trace.json", Path(name) / "trace.json")
            return read_profile(Path(name) / "trace.json", skip=LEFT_OUT)

    def _send(self, groups: Sequence[Sequence[Feed]]) -> str:
        """Send inputs as files of the form that the runner reads: a folder for each group with a link to the model."""
        adb, series = self._place.adb, self._place.next_series()
        with tempfile.TemporaryDirectory(prefix="pocketbert-inputs-") as name:
            for number, feeds in enumerate(groups):
                for place, feed in enumerate(feeds):
                    self._write(Path(name) / series / str(number) / f"test_data_set_{place}", feed)
            adb.push(Path(name) / series, series)
        adb.script(f"for d in {series}/*; do ln -s ../../{shlex.quote(self._name)} $d/model.onnx || exit 1; done")
        return series

    def _write(self, folder: Path, feed: Feed) -> None:
        folder.mkdir(parents=True)
        given = filled(self._predictor, feed)
        for place, key in enumerate(self._predictor.inputs):
            (folder / f"input_{place}.pb").write_bytes(tensor_proto(key, given[key]))

    def _some(self, folder: str, runs: int) -> list[Sample]:
        command = perf_test_command(f"{folder}/model.onnx", self._threads, "result.csv", runs=runs)
        samples = self._samples(self._place.run(command, before="rm -f result.csv", after="cat result.csv"))
        if len(samples) != runs:
            raise MachineError(f"{self._place.where}: {ONNX} timed {len(samples)} inferences instead of {runs}.")
        return samples

    def _samples(self, results: str) -> list[Sample]:
        """The times of a file of results."""
        try:
            return [Sample(round(time, 4)) for time in read_perf_test(results)]
        except ValueError as error:
            raise InputError(Problem(self._place.where, f"{error}.")) from error


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
