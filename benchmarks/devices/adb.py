"""The device ``adb:[SERIAL][@CORES]``: an Android phone, measured with the runners that the user supplies.

`DEVICE` is its row of the table of devices. Files are timed by programs that run on the phone: TFLite files by
LiteRT's ``benchmark_model`` (`_LitertFile`), ONNX files by ONNX Runtime's ``onnxruntime_perf_test`` (`_OnnxFile`).
First come the checks of what can be used now, then the connection, then the two kinds of files.
"""

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
    RUNNERS,
    RUNNERS_FOLDER,
    Adb,
    AdbWatch,
    RunnerFolder,
    read_machine,
    select_cores,
    state_problem,
)
from pocketbert.benchmarks.devices.protocol import Allowed, Burst, Device, Reachable, Sample
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
from pocketbert.benchmarks.operators import WARMUP as UNPROFILED_RUNS
from pocketbert.benchmarks.operators import OpTimes, read_profile
from pocketbert.benchmarks.records import ColdStart
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.errors import InputError, MachineError, PocketBertError, Problem, escape_line
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, add_missing_inputs
from pocketbert.runtime.tflite import TflitePredictor

_CORES = (Allowed("CORES", ("little", "big", "prime")),)
_LIST_S = 8.0
"""Most seconds that the client may take to list phones; it starts its server first, which takes about three."""
_LISTED_PHONE = re.compile(r"(?P<serial>\S+)\s+(?P<state>no permissions|[a-z]+)\b(?P<more>.*)")


def _attached() -> list[Reachable]:
    """List the phones that ``adb devices -l`` shows, each with the reason why it cannot be used, if any.

    Without adb the list is empty. If the client fails, the only entry is ``adb`` with the reason.
    """
    client = shutil.which("adb")
    if client is None:
        return []
    # a file, not a pipe: a server that is started meanwhile could keep a pipe open for ever
    with tempfile.TemporaryFile() as output:
        running = subprocess.Popen([client, "devices", "-l"], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            status = running.wait(_LIST_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            return [Reachable(ADB, problem=f"the client does not answer within {_LIST_S:g} s")]
        output.seek(0)
        text = output.read(1 << 20).decode(errors="replace")
    if status:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"exit status {status}")
        return [Reachable(ADB, problem=escape_line(last.strip())[:200])]
    return _read_attached(text)


def _read_attached(text: str) -> list[Reachable]:
    """Parse the output of ``adb devices -l``; messages of the adb server in front are skipped."""
    rows = text.partition("List of devices attached")[2].splitlines()
    phones = []
    for row in rows:
        if phone := _LISTED_PHONE.fullmatch(escape_line(" ".join(row.split()))):
            model = re.search(r"\bmodel:(\S+)", phone["more"])
            problem = "" if phone["state"] == "device" else state_problem(phone["state"])
            what = model[1].replace("_", " ") if model else ""
            phones.append(Reachable(f"{ADB}:{phone['serial']}", what, problem))
    return phones


def _adb_missing() -> str:
    """Return what this machine lacks to measure on a phone, such as adb or the measuring programs; empty if nothing."""
    missing = [] if shutil.which("adb") else ["adb is not installed (sudo apt-get install adb)"]
    folder, names = os.environ.get(RUNNERS_FOLDER, ""), list(RUNNERS.values())
    if not folder:
        runners = (
            f"no runners are named (export {RUNNERS_FOLDER}=FOLDER, with {' and '.join(names)} built for the phone)"
        )
        missing.append(f"{runners}; --app needs none")
    elif absent := [name for name in names if not (Path(folder) / name).is_file()]:
        missing.append(f"{RUNNERS_FOLDER}={escape_line(folder)} lacks {' and '.join(absent)}; --app needs none")
    return "; ".join(missing)


def _adb_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format and runtime cannot be run on a phone; empty if they can."""
    if format not in RUNNERS:
        return "the runners take ONNX and TFLite files only"
    if runtime is not None and runtime.own_engine is not None:
        return f"there is no runner of {runtime.own_engine}"
    if runtime is not None and runtime.accelerator:
        return f"the runners compute on the CPU; the file is made for {runtime}"
    return ""


def _adb_idle_refusal(format: Format) -> str:
    """Return why single inferences of this format cannot be timed after idle times; empty if they can."""
    if format is Format.ONNX:
        return f"{ONNX} cannot wait between inferences, and a new process is no idle one"
    return ""


def _adb_sustained_refusal(format: Format) -> str:
    """Return why files of this format cannot be run on a phone without a pause for minutes; empty if they can."""
    if format is Format.TFLITE:
        return (
            f"{LITERT} tells no single times of a run, and a process for each inference would pause between them; the demo app "
            "runs such files for minutes (--app)"
        )
    return ""


def _connect_adb(argument: str) -> _AdbConnection:
    """Connect to an Android device over adb.

    Args:
        argument: ``[SERIAL][@CORES]``; without a serial number the only device that is connected.

    Raises:
        InputError: If the device cannot be used, or if none is named and several are connected.
        MissingBackendError: If there is no `adb` client.
        MachineError: If there is no free space on the device.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None:
        raise InputError(Problem(f"adb:{argument}", f"is no {DEVICES[ADB].argument}.", "For example adb:SERIAL@big"))
    adb = Adb(parts["serial"] or "")
    try:
        return _AdbConnection(adb, parts["cores"] or "")
    except BaseException:
        adb.close()
        raise


class _AdbConnection:
    """An Android device on which measuring programs ("runners") are started over adb.

    Args:
        adb: The connection to the device.
        kind: Kind of CPU cores to run on: ``little``, ``big`` or ``prime``; empty for all cores.
    """

    method = (
        f"Wall time as the runners tell it: {ONNX} (-m times, -Z) on the inputs of this benchmark, one process per burst; "
        f"{LITERT} on random inputs of the same length, one process per inference, and after idle times that it keeps itself "
        "(--run_delay). Load time, first inference and memory are the runners' own figures. The engine's version is the "
        "digest of the runner."
    )

    def __init__(self, adb: Adb, kind: str = "") -> None:
        self.adb, self.where = adb, adb.where
        self.runners = RunnerFolder(adb, select_cores(adb, kind, self.where))

    def machine(self) -> Machine:
        """Return model, chip, cores and system of the device."""
        cpuinfo, properties = self.adb.try_shell("cat", "/proc/cpuinfo"), self.adb.properties()
        return read_machine(cpuinfo, properties, self.adb.shell("uname", "-srm"), self.runners.cpus)

    def versions(self) -> dict[str, str]:
        """Return the digests of the measuring programs that were used, by name."""
        return {RUNNERS[format]: version for format, version in self.runners.versions.items()}

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """Return the fixed input lengths in tokens that a file takes; empty if it takes any length."""
        return file.lengths

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun | None:
        """Run a measuring program on a file; return load time and memory that it prints, None if it prints none."""
        row = np.array([ids], np.int64)
        feed = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        start = self.open(file, threads).start(feed)
        return None if start is None else ColdRun(start=start)

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Copy the measuring programs that these files need to the device."""
        for format in dict.fromkeys(file.format for file in files):
            self.runners.send_runner(format)

    def open(self, file: EngineFile, threads: int) -> _LitertFile | _OnnxFile:
        """Copy a file and its measuring program to the device; return the object that times it."""
        return (_LitertFile if file.format is Format.TFLITE else _OnnxFile)(self.runners, file, threads)

    def profile(self, file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes:
        """Measure the time per operator in a separate run; if that fails, the record has a note with the reason."""
        try:
            return self.open(file, threads).profile(feed, runs)
        except (PocketBertError, ValueError) as error:  # the latencies are measured already, and stay
            return OpTimes(runs=0, ops=[], placement=[], note=f"No time per operator: {str(error).rstrip('.')}.")

    def watch(self) -> AdbWatch:
        """Start recording load, clock rate, temperature and battery."""
        return AdbWatch(self.adb, self.runners.cpus)

    def close(self) -> None:
        """Remove all files from the device and disconnect."""
        self.adb.close()


class _LitertFile:
    """A TFLite file on a phone that ``benchmark_model`` times, in a new process for each inference.

    For several inferences, the program prints statistics and no single times; so each process times one inference.
    """

    engine = LITERT
    pauses = WARMUP + 1
    """The runner waits after each of its inferences, the timed one included."""

    def __init__(self, runners: RunnerFolder, file: EngineFile, threads: int) -> None:
        self._runners, self._threads = runners, threads
        self.engine_version, self._name = runners.send_runner(Format.TFLITE), runners.send_model(file)
        predictor = runners.open_here(file)
        assert isinstance(predictor, TflitePredictor)
        self._keys = predictor.signature_keys

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Return a function that times inferences; the program makes random inputs with the lengths of `feeds`."""
        return self.prepare_idle(feeds, 0.0)

    def prepare_idle(self, feeds: Sequence[Feed], gap_ms: float) -> Burst:
        """Return a function that times single inferences, each after the program has waited for `gap_ms`."""
        keys = [self._key(feed) for feed in feeds]

        def burst(numbers: Sequence[int]) -> list[Sample]:
            """Time one inference for each number, in a process of its own, at the length of that input."""
            samples = []
            for number in numbers:
                times = self._run(keys[number % len(keys)], gap_ms)
                if times.count != 1:
                    raise MachineError(f"{self._runners.where}: {LITERT} timed {times.count} inferences instead of 1.")
                samples.append(Sample(round(times.last_us / 1e3, 4)))
            return samples

        return burst

    def start(self, feed: Feed) -> ColdStart:
        """Run a signature in a new process on the phone; return the load time, first inference and memory.

        The program makes a random input itself, and prints what is returned.

        Args:
            feed: Inputs of a row. Only their length is used; it decides which signature of the file runs.

        Returns:
            Load time, time of the first inference, and peak memory without that of the program itself.
        """
        times = self._run(self._key(feed))
        return ColdStart(
            load_ms=times.init_us / 1e3,
            first_ms=times.first_us / 1e3,
            length=feed["input_ids"].shape[1],
            peak_memory_bytes=times.memory_bytes,
            peak_rss_bytes=None,
            told_by=LITERT,
        )

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Return the time per operator that the program prints; raise ValueError if it prints no operator table."""
        command = litert_profile_command(self._name, self._threads, self._key(feed), runs)
        return read_operators(self._runners.run(command))

    def _key(self, feed: Feed) -> str:
        """Return the name of the file's signature that takes inputs of this length."""
        return self._keys[feed["input_ids"].shape[1]]

    def _run(self, key: str, gap_ms: float = 0.0) -> LitertTimes:
        """Run one inference of a signature in a fresh process; return the times that the program prints."""
        output = self._runners.run(litert_command(self._name, self._threads, key, delay_s=gap_ms / 1000))
        try:
            if gap_ms and not math.isclose(read_delay(output) or 0.0, gap_ms / 1000, rel_tol=1e-4):
                raise ValueError(f"{LITERT} does not tell that it waits between inferences; --run_delay was asked for")
            return read_litert(output)
        except ValueError as error:
            raise InputError(Problem(self._runners.where, f"{error}.")) from error


class _OnnxFile:
    """An ONNX file on a phone that ``onnxruntime_perf_test`` times; each process runs the same input several times."""

    engine = ONNX

    def __init__(self, runners: RunnerFolder, file: EngineFile, threads: int) -> None:
        self._runners, self._threads = runners, threads
        self.engine_version, self._name = runners.send_runner(Format.ONNX), runners.send_model(file)
        self._predictor = runners.open_here(file)

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Copy the inputs to the device, a folder for each; return a function that times inferences on them."""
        series = self._send([[feed] for feed in feeds])

        def burst(numbers: Sequence[int]) -> list[Sample]:
            samples = []
            for number, equal in groupby(number % len(feeds) for number in numbers):
                samples += self._time(f"{series}/{number}", len(list(equal)))
            return samples

        return burst

    def run_for(self, feeds: Sequence[Feed], seconds: int) -> list[Sample]:
        """Run inferences in one process for `seconds`; of several inputs the program draws one at random each time."""
        folder, result = f"{self._send([feeds])}/0", "sustained.csv"
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, seconds=seconds)
        self._runners.run(command, before=f"rm -f {result}", after="true", seconds=seconds)
        with tempfile.TemporaryDirectory(prefix="pocketbert-times-") as name:
            self._runners.adb.pull(result, Path(name) / result)
            return self._read_samples((Path(name) / result).read_text(encoding="utf-8", errors="replace"))

    def start(self, feed: Feed) -> ColdStart | None:
        """Run one input in a new process; return the load time and memory that it prints, None if it prints none."""
        folder, result = f"{self._send([[feed]])}/0", "start.csv"
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, runs=1)
        try:
            figures = read_printed(self._runners.run(command, before=f"rm -f {result}"))
        except ValueError:  # another version; what is measured does not depend on these words
            return None
        if figures.session_s is None:
            return None
        return ColdStart(
            load_ms=figures.session_s * 1000,
            first_ms=figures.first_ms or None,  # in whole ms, so that 0 is no figure
            length=feed["input_ids"].shape[1],
            peak_memory_bytes=None,
            peak_rss_bytes=figures.peak_rss_bytes,
            told_by=ONNX,
        )

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Run the file with the program's operator trace on, copy the trace here, and return the time per operator."""
        folder, before, result = f"{self._send([[feed]])}/0", "rm -f trace*.json profiled.csv", "profiled.csv"
        untimed = 1  # the runner makes one by itself, and it is in the trace
        runs += UNPROFILED_RUNS - untimed
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, runs=runs, trace="trace")
        self._runners.run(command, before=before, after="mv trace*.json trace.json")
        with tempfile.TemporaryDirectory(prefix="pocketbert-trace-") as name:
            self._runners.adb.pull("trace.json", Path(name) / "trace.json")
            return read_profile(Path(name) / "trace.json", skip=UNPROFILED_RUNS)

    def _send(self, groups: Sequence[Sequence[Feed]]) -> str:
        """Copy inputs to the device as protobuf files: a folder for each group, in which a link leads to the model.

        Returns:
            The folder on the device that has the subfolders ``0``, ``1`` and so on.
        """
        adb, series = self._runners.adb, self._runners.new_series()
        with tempfile.TemporaryDirectory(prefix="pocketbert-inputs-") as name:
            for number, feeds in enumerate(groups):
                for data_set, feed in enumerate(feeds):
                    folder = Path(name) / series / str(number) / f"test_data_set_{data_set}"
                    folder.mkdir(parents=True)
                    arrays = add_missing_inputs(self._predictor, feed)
                    for position, key in enumerate(self._predictor.inputs):
                        (folder / f"input_{position}.pb").write_bytes(tensor_proto(key, arrays[key]))
            adb.push(Path(name) / series, series)
        adb.script(f"for d in {series}/*; do ln -s ../../{shlex.quote(self._name)} $d/model.onnx || exit 1; done")
        return series

    def _time(self, folder: str, runs: int) -> list[Sample]:
        """Time `runs` inferences on the input in a folder on the device, in one process."""
        command = perf_test_command(f"{folder}/model.onnx", self._threads, "result.csv", runs=runs)
        samples = self._read_samples(self._runners.run(command, before="rm -f result.csv", after="cat result.csv"))
        if len(samples) != runs:
            raise MachineError(f"{self._runners.where}: {ONNX} timed {len(samples)} inferences instead of {runs}.")
        return samples

    def _read_samples(self, results: str) -> list[Sample]:
        """Parse the program's file of results into one time per inference."""
        try:
            return [Sample(round(time, 4)) for time in read_perf_test(results)]
        except ValueError as error:
            raise InputError(Problem(self._runners.where, f"{error}.")) from error


DEVICE = Device(
    DEVICES[ADB],
    _connect_adb,
    _adb_refusal,
    idle_refusal=_adb_idle_refusal,
    sustained_refusal=_adb_sustained_refusal,
    missing=_adb_missing,
    look=_attached,
    allowed=_CORES,
)
"""The row of the table of devices; the probe is added there."""
