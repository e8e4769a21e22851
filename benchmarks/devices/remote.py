"""Measure on another machine through the agent and the worker there."""

from __future__ import annotations

import base64
import binascii
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.devices.machine_facts import Facts
from pocketbert.benchmarks.devices.protocol import Burst, Sample
from pocketbert.benchmarks.devices.remote_agent import Channel, install, source
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.load import (
    Counter,
    Heat,
    Load,
    Packages,
    Unread,
    clock_share,
    clock_words,
    hottest_words,
    packages_between,
)
from pocketbert.benchmarks.operators import (
    PROGRAM,
    WARMUP,
    LitertRequest,
    LitertTimes,
    OpTimes,
    program_source,
    read_profile,
)
from pocketbert.benchmarks.records import ColdStart
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import MachineError
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.quiet import SWITCHES
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import session_entries
from pocketbert.runtime.tflite import coverage

# --- state ---
# What a target does while something is measured: load, CPU time of others, temperatures, clock rates, energy.


_UNREAD = {"root-only": Unread.ROOT_ONLY, "absent": Unread.ABSENT, "content": Unread.CONTENT}


class State(BaseModel):
    """What an agent tells of a moment.

    Attributes:
        load: Load average over the last minute.
        busy_s: CPU seconds of the machine since it was started, stolen ones included.
        own_s: CPU seconds of the agent and its workers.
        wall_s: The target's monotonic clock.
        cpus: Its CPUs.
        celsius: Temperatures of its thermal zones.
        governors: What chooses the clock rates.
        mhz: Clock rate of each group of cores.
        mhz_allowed: Highest rate that each may take now.
        mhz_most: Highest rate that each has.
        packages: Counter of energy of each processor package in µJ, and its range; empty where they cannot be read.
        unread: Why not.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    load: float
    busy_s: float
    own_s: float
    wall_s: float
    cpus: int = Field(ge=1)
    celsius: list[float]
    governors: list[str]
    mhz: list[float]
    mhz_allowed: list[float] = Field(default_factory=list)
    mhz_most: list[float] = Field(default_factory=list)
    packages: dict[str, tuple[int, int]] = Field(default_factory=dict)
    unread: Literal["root-only", "absent", "content"] = "absent"

    @property
    def energy(self) -> Packages:
        """Counters of the processor packages."""
        if not self.packages:
            return Packages(unread=_UNREAD[self.unread])
        return Packages({name: Counter(*values) for name, values in self.packages.items()})

    @property
    def heat(self) -> Heat:
        """How hot the target is."""
        return Heat(tuple(self.celsius), clock_share(self.mhz_allowed, self.mhz_most))


class RemoteWatch:
    """Notes the load of the target when it is made, and compares when it is stopped.

    Args:
        read: Asks the target.
        real: Whether its counters are those of the device; an emulator's are of the machine that it runs on.
    """

    def __init__(self, read: Callable[[], State], real: bool = True) -> None:
        self._read, self._real, self._before = read, real, read()

    def stop(self) -> Load:
        """The load since this object was made."""
        before, after = self._before, self._read()
        others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
        seconds = after.wall_s - before.wall_s
        wall = seconds * after.cpus
        return Load(
            before=before.load,
            after=after.load,
            others=min(1.0, max(0.0, others / wall)) if wall > 0 else None,
            thermal=hottest_words(before.celsius, after.celsius),
            clock=clock_words(after.governors, before.mhz, after.mhz),
            energy=packages_between(before.energy, after.energy, seconds) if self._real else None,
        )


ENGINES = {Format.ONNX: "onnxruntime", Format.TFLITE: "ai-edge-litert"}
"""The distribution that runs the files of a format on a target."""
_MAIN = "main"
T = TypeVar("T", bound=BaseModel)
_PROFILE_BYTES = 1 << 29


class _Told(BaseModel):
    """An answer of the other machine: anything else than what is asked for is an error."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Opened(_Told):
    file: int
    engine: str
    version: str
    numpy: str
    lengths: list[int]


class _Prepared(_Told):
    series: int


class _Times(_Told):
    wall_ns: list[int] = Field(default_factory=list)
    cpu_ns: list[int] = Field(default_factory=list)
    instructions: list[int] = Field(default_factory=list)

    def samples(self) -> list[Sample]:
        if self.instructions:
            return [Sample(math.nan, None, float(count)) for count in self.instructions]
        return [Sample(round(w / 1e6, 4), round(c / 1e6, 4)) for w, c in zip(self.wall_ns, self.cpu_ns, strict=False)]


class _Node(_Told):
    op_name: str
    inputs: list[int]
    outputs: list[int]


class _Start(_Told):
    load_ns: int
    first_ns: int
    before: int
    peak: int
    profile: str = ""
    operators: list[_Node] = Field(default_factory=list)
    times: LitertTimes | None = None


class _Tensor(_Told):
    dtype: Literal["float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    shape: list[int]
    data: bytes

    def array(self) -> NDArray[Any]:
        return np.frombuffer(base64.b64decode(self.data), self.dtype).reshape(self.shape)


class _Answers(_Told):
    answers: list[dict[str, _Tensor]]


@dataclass(frozen=True)
class _Graph:
    """The operators of a TFLite graph, in the way an interpreter tells them."""

    nodes: list[dict[str, Any]]

    def allocate_tensors(self) -> None:
        """Do nothing: the graph was prepared on the target."""

    def _get_ops_details(self) -> list[dict[str, Any]]:
        return self.nodes


class RemoteFile:
    """A file that a worker has opened."""

    def __init__(self, connection: RemoteConnection, file: EngineFile, threads: int) -> None:
        self._connection = connection
        opened = connection.work(_MAIN, _Opened, do="open", **connection.opening(file, threads))
        self._number, self.lengths = opened.file, tuple(opened.lengths)
        self.engine, self.engine_version = opened.engine, opened.version
        connection.used |= {opened.engine: opened.version, "numpy": opened.numpy}

    def series(self, feeds: Sequence[Feed]) -> int:
        """Send inputs; the number by which the worker knows them."""
        sent = [_lists(feed) for feed in feeds]
        return self._connection.work(_MAIN, _Prepared, do="prepare", file=self._number, feeds=sent).series

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Send the inputs once; see `OpenedFile.prepare`."""
        connection, series = self._connection, self.series(feeds)

        def burst(numbers: Sequence[int]) -> list[Sample]:
            wanted = [int(n) for n in numbers]
            samples = connection.work(_MAIN, _Times, do="burst", series=series, numbers=wanted).samples()
            if len(samples) != len(wanted):
                raise MachineError(f"{connection.where}: the worker returned another number of figures than asked for.")
            return samples

        return burst


class RemoteConnection:
    """Another machine with an agent.

    The environment is made when the first file of a format is used: a target that runs ONNX files gets no LiteRT.

    Args:
        channel: The open channel to the agent.

    Attributes:
        where: The device, for errors.
        facts: What the target is.
        used: Versions of the libraries that opened files.
        installed: Distributions in the environment on the target.
    """

    method = (
        "Wall time by the target's monotonic clock, CPU time of the whole process, garbage collector off; the connection "
        "is used between bursts only. Load time, first inference and peak memory come from one fresh process each on the "
        "target, on the longest input, with the file in the page cache."
    )

    own_pip = True
    """Whether the target's own pip may install what this machine cannot fetch."""
    real = True
    """Whether the counters of the machine are those of the device; an emulator's are of the machine that it runs on."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self.where = channel, channel.where
        self.facts = self._parse(Facts, channel.ask("facts"))
        channel.ask("environment", values={name: os.environ.get(name) or off for name, off in SWITCHES.items()})
        channel.ask("put", source("worker"), name="worker.py")
        self.used: dict[str, str] = {}
        self.installed: set[str] = set()
        self._sent: dict[Path, str] = {}
        self._profiler = False
        self._threads: int | None = None

    def machine(self) -> Machine:
        """CPU, ISA and system of the target."""
        return self.facts.machine

    def versions(self) -> dict[str, str]:
        """Versions of the libraries on the target that were used so far."""
        return dict(self.used)

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """The only lengths that a file takes; empty where it takes any."""
        if not file.lists_lengths:
            return ()
        self._release(0)
        return RemoteFile(self, file, 1).lengths

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun | None:
        """Start a file in a fresh process on the target; see `Connection.cold_start`."""
        feed = {"input_ids": [list(ids)], "attention_mask": [[1] * len(ids)], "token_type_ids": [[0] * len(ids)]}
        opening = self.opening(file, threads)
        request = self._litert(opening["path"], threads, profile_runs, feed) if file.format is Format.TFLITE else None
        try:
            asked = {"feed": feed, "profile_runs": profile_runs, "litert": request}
            told = self.work("start", _Start, do="start", **opening, **asked)
        finally:
            self._stop("start")
        start = ColdStart(
            load_ms=told.load_ns / 1e6,
            first_ms=told.first_ns / 1e6,
            length=len(ids),
            peak_memory_bytes=max(0, told.peak - told.before),
            peak_rss_bytes=told.peak,
        )
        return ColdRun(start=start, ops=self._profile(told))

    def open(self, file: EngineFile, threads: int) -> RemoteFile:
        """Open a file on the target; files that were opened for another number of threads are closed."""
        self._release(threads)
        return RemoteFile(self, file, threads)

    def watch(self) -> RemoteWatch:
        """Begin to note the load of the target."""
        return RemoteWatch(self.state, self.real)

    def heat(self) -> Heat:
        """How hot the target is now."""
        return self.state().heat

    def restart(self) -> None:
        """End the worker that has files open; the next file is opened by a new one."""
        self._stop(_MAIN)

    def close(self) -> None:
        """Remove everything from the target."""
        self._channel.close()

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Install the engines of some files there, one after the other, with NumPy."""
        for format in dict.fromkeys(file.format for file in files):
            lacking = [name for name in (ENGINES[format], "numpy") if name not in self.installed]
            if lacking:
                install(self._channel, self.facts, lacking, self.own_pip)
                self.installed.update(lacking)

    def opening(self, file: EngineFile, threads: int) -> dict[str, Any]:
        """The arguments that open a file there; the file and its engine are brought first."""
        self.bring([file])
        if file.path not in self._sent:
            name = f"{sha256_path(file.path)}.{file.format.value}"
            self._channel.ask("put", file.path, name=name)
            self._sent[file.path] = name
        return {
            "path": self._sent[file.path],
            "format": file.format.value,
            "threads": threads,
            "entries": session_entries(self.facts.machine.saturates),
        }

    def ask(self, worker: str, **request: Any) -> Any:
        """Ask a worker, which is started if it does not run."""
        return self._channel.ask("ask", worker=worker, request=request)

    def work(self, worker: str, kind: type[T], **request: Any) -> T:
        """Ask a worker and check its answer."""
        return self._parse(kind, self.ask(worker, **request))

    def answers(self, file: EngineFile, feeds: Sequence[Feed]) -> list[dict[str, NDArray[Any]]]:
        """Run every input once, with one thread, and return the outputs by name."""
        series = RemoteFile(self, file, 1).series(feeds)
        told = self.work(_MAIN, _Answers, do="answers", series=series)
        return [{name: tensor.array() for name, tensor in outputs.items()} for outputs in told.answers]

    def state(self) -> State:
        """What the target does at the moment."""
        return self._parse(State, self._channel.ask("state"))

    def _release(self, threads: int) -> None:
        """End the worker, which never closes a file, where it has files opened for another number of threads; 0: for none."""
        if self._threads not in (None, threads):
            self._stop(_MAIN)
        self._threads = threads

    def _stop(self, worker: str) -> None:
        self._channel.ask("stop", worker=worker)

    def _parse(self, kind: type[T], told: Any) -> T:
        try:
            return kind.model_validate(told)
        except ValidationError as error:
            first = error.errors()[0]
            raise MachineError(
                f"{self.where}: an answer of the target is wrong: {'.'.join(map(str, first['loc']))}: {first['msg']}."
            ) from error

    def _litert(self, path: str, threads: int, runs: int, feed: dict[str, list[list[int]]]) -> dict[str, Any] | None:
        """What the program that profiles a TFLite file is asked for there; it is brought first."""
        if not runs:
            return None
        if not self._profiler:
            self._channel.ask("put", program_source(), name=PROGRAM)
            self._profiler = True
        arrays = {name: np.array(rows) for name, rows in feed.items()}
        return LitertRequest.of(path, threads, runs, arrays).model_dump()

    def _profile(self, told: _Start) -> OpTimes | None:
        if told.times:
            nodes = [node.model_dump() for node in told.operators]
            return told.times.profile(coverage(_Graph(nodes)) if nodes else None)
        if not told.profile:
            return None
        try:
            events = zlib.decompressobj().decompress(base64.b64decode(told.profile, validate=True), _PROFILE_BYTES)
        except (zlib.error, binascii.Error) as error:
            raise MachineError(f"{self.where}: the profile cannot be read: {error}.") from error
        with tempfile.TemporaryDirectory(prefix="pocketbert-profile-") as folder:
            path = Path(folder) / "ops.json"
            path.write_bytes(events)
            return read_profile(path, skip=WARMUP)


def _lists(feed: Feed) -> dict[str, list[list[int]]]:
    return {name: rows.tolist() for name, rows in feed.items()}


def engine_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why the worker's engines do not open files of a format that are made for a runtime; empty where they do."""
    if format not in ENGINES:
        return "it runs ONNX and TFLite files only"
    if runtime is not None and runtime.own_engine is not None:
        return f"it has ONNX Runtime and LiteRT only; the file is made for {runtime.own_engine}"
    return ""


def remote_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why files of a format, made for a runtime, are not measured by the worker; empty where they are."""
    if runtime is not None and runtime.accelerator:
        return f"it computes on the CPU; the file is made for {runtime}"
    return engine_refusal(format, runtime)
