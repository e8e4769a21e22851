"""Measuring on another machine: a connection to its agent, whose worker opens files and times them.

`RemoteConnection` implements `protocol.Connection` for every device with an agent (ssh, and qemu as a subclass). It
sends files and engines, checks each answer against a record, and turns times, profiles and outputs into those of
this machine. `engine_refusal` and `remote_refusal` explain which files the worker does not run.
"""

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
from pocketbert.benchmarks.devices.machine_facts import AgentFacts
from pocketbert.benchmarks.devices.protocol import Burst, Sample
from pocketbert.benchmarks.devices.remote_agent import AgentChannel, install, read_program
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.load import (
    Counter,
    Heat,
    Load,
    Packages,
    Unread,
    describe_clock,
    describe_hottest,
    energy_of_packages,
    lowest_clock_share,
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
from pocketbert.core.host.quiet import TELEMETRY_SWITCHES
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import convert_shared_weights_to_uint8, session_settings
from pocketbert.runtime.tflite import count_xnnpack_operators

_ENGINES = {Format.ONNX: "onnxruntime", Format.TFLITE: "ai-edge-litert"}
"""The distribution that runs the files of a format on a target."""
_MAIN, _START = "main", "start"
"""Names of the workers on the target: one that keeps files open, and one for each cold start."""
_MAX_PROFILE_BYTES = 1 << 29
_UNREAD = {"root-only": Unread.ROOT_ONLY, "absent": Unread.ABSENT, "content": Unread.CONTENT}


def engine_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why ONNX Runtime and LiteRT cannot open files of this format and runtime; empty if they can."""
    if format not in _ENGINES:
        return "it runs ONNX and TFLite files only"
    if runtime is not None and runtime.own_engine is not None:
        return f"it has ONNX Runtime and LiteRT only; the file is made for {runtime.own_engine}"
    return ""


def remote_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format and runtime cannot be timed on another machine; empty if they can."""
    if runtime is not None and runtime.accelerator:
        return f"it computes on the CPU; the file is made for {runtime}"
    return engine_refusal(format, runtime)


class _Answer(BaseModel):
    """Base of the answers of the program on the other machine; a missing field or one of another type is an error."""

    model_config = ConfigDict(extra="ignore", frozen=True)


AnswerT = TypeVar("AnswerT", bound=BaseModel)


class _AgentState(_Answer):
    """Load, CPU time, heat, clock rates and energy counters of the other machine at one moment.

    Attributes:
        load: Load average over the last minute.
        busy_s: CPU seconds of the machine since it was started, including time stolen by other guests.
        own_s: CPU seconds that the agent and its workers used.
        wall_s: Time of the machine's monotonic clock.
        cpus: Number of CPUs.
        celsius: Temperatures of the thermal zones in °C.
        governors: The kernel's policies for the clock rates.
        mhz: Clock rate of each group of cores.
        mhz_allowed: Highest clock rate that each group may have now.
        mhz_most: Highest clock rate that each group can have.
        packages: Energy counter of each processor package in µJ, and its range; empty if they cannot be read.
        unread: Why the energy counters cannot be read.
    """

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
        """Energy counters of the processor packages."""
        if not self.packages:
            return Packages(unread=_UNREAD[self.unread])
        return Packages({name: Counter(*values) for name, values in self.packages.items()})

    @property
    def heat(self) -> Heat:
        """Heat of the machine: the temperatures, and the share of the highest clock rate that is allowed now."""
        return Heat(tuple(self.celsius), lowest_clock_share(self.mhz_allowed, self.mhz_most))


class _Opened(_Answer):
    """The worker's answer to opening a file: number of the file, engine, versions, and the only lengths it takes."""

    file: int
    engine: str
    version: str
    numpy: str
    lengths: list[int]


class _Prepared(_Answer):
    """The worker's answer to a series of inputs: the number under which it keeps them."""

    series: int


class _Times(_Answer):
    """The worker's answer to a burst: times per inference, or instruction counts of an emulator."""

    wall_ns: list[int] = Field(default_factory=list)
    cpu_ns: list[int] = Field(default_factory=list)
    instructions: list[int] = Field(default_factory=list)

    def samples(self) -> list[Sample]:
        """Return the times (or instruction counts) as one sample per inference, in order."""
        if self.instructions:
            return [Sample(math.nan, None, float(count)) for count in self.instructions]
        return [Sample(round(w / 1e6, 4), round(c / 1e6, 4)) for w, c in zip(self.wall_ns, self.cpu_ns, strict=False)]


class _Node(_Answer):
    """An operator of a TFLite graph, with the indices of its tensors."""

    op_name: str
    inputs: list[int]
    outputs: list[int]


class _ColdStart(_Answer):
    """The worker's answer to a cold start: times, resident memory before and at its peak in bytes, and a profile.

    The profile of ONNX Runtime is a compressed trace in base64; that of LiteRT consists of times and the graph's
    operators.
    """

    load_ns: int
    first_ns: int
    before: int
    peak: int
    profile: str = ""
    operators: list[_Node] = Field(default_factory=list)
    times: LitertTimes | None = None


class _Tensor(_Answer):
    """One output of a model, with its values in base64."""

    dtype: Literal["float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    shape: list[int]
    data: bytes


class _Answers(_Answer):
    """The worker's answer to running inputs: the outputs for each input, by name."""

    answers: list[dict[str, _Tensor]]


class _RemoteWatch:
    """Records the load of the other machine from its creation until `stop`.

    Args:
        read: Function that reads the state of the other machine.
        real: Whether the energy counters belong to the device. In an emulator they are those of the machine that runs
            it, and are ignored.
    """

    def __init__(self, read: Callable[[], _AgentState], real: bool = True) -> None:
        self._read, self._real, self._before = read, real, read()

    def stop(self) -> Load:
        """Return load, temperature, clock rate and energy since this object was created."""
        before, after = self._before, self._read()
        others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
        seconds = after.wall_s - before.wall_s
        wall = seconds * after.cpus
        return Load(
            before=before.load,
            after=after.load,
            others=min(1.0, max(0.0, others / wall)) if wall > 0 else None,
            thermal=describe_hottest(before.celsius, after.celsius),
            clock=describe_clock(after.governors, before.mhz, after.mhz),
            energy=energy_of_packages(before.energy, after.energy, seconds) if self._real else None,
        )


class RemoteFile:
    """A file that a worker on the other machine has opened."""

    def __init__(self, connection: RemoteConnection, file: EngineFile, threads: int) -> None:
        self._connection = connection
        opened = connection.ask_worker(_MAIN, _Opened, do="open", **connection.send_file(file, threads))
        self._number, self.lengths = opened.file, tuple(opened.lengths)
        self.engine, self.engine_version = opened.engine, opened.version
        connection.used |= {opened.engine: opened.version, "numpy": opened.numpy}

    def send_inputs(self, feeds: Sequence[Feed]) -> int:
        """Send inputs to the worker; return the number under which it keeps them."""
        lists = [{name: rows.tolist() for name, rows in feed.items()} for feed in feeds]
        return self._connection.ask_worker(_MAIN, _Prepared, do="prepare", file=self._number, feeds=lists).series

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Send the inputs to the other machine once; return a function that times inferences, a request per burst."""
        connection, series = self._connection, self.send_inputs(feeds)

        def burst(numbers: Sequence[int]) -> list[Sample]:
            """Time one inference for each number on the other machine, in one request."""
            requested = [int(n) for n in numbers]
            times = connection.ask_worker(_MAIN, _Times, do="burst", series=series, numbers=requested)
            samples = times.samples()
            if len(samples) != len(requested):
                raise MachineError(f"{connection.where}: the worker returned another number of figures than asked for.")
            return samples

        return burst


class RemoteConnection:
    """A connection to another machine, on which an agent starts workers that time files.

    An engine is installed there when the first file of its format is used, so that a machine that only runs ONNX files
    does not get LiteRT.

    Args:
        channel: The open channel to the agent, which starts the workers.

    Attributes:
        where: Name of the device in errors.
        facts: Python, CPU and system of the other machine.
        used: Versions of the libraries that have opened files.
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

    def __init__(self, channel: AgentChannel) -> None:
        self._channel, self.where = channel, channel.where
        self.facts = self._check(AgentFacts, channel.ask("facts"))
        channel.ask(
            "environment", values={name: os.environ.get(name) or off for name, off in TELEMETRY_SWITCHES.items()}
        )
        channel.ask("put", read_program("worker"), name="worker.py")
        self.used: dict[str, str] = {}
        self._installed: set[str] = set()
        self._sent: dict[Path, str] = {}
        self._profiler_sent = False
        self._threads: int | None = None

    def machine(self) -> Machine:
        """Return CPU, ISA and system of the target."""
        return self.facts.machine

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries used on the target so far, by name."""
        return dict(self.used)

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """Return the fixed input lengths in tokens that a file takes; empty if it takes any length."""
        if not file.lists_lengths:
            return ()
        self._release(0)
        return RemoteFile(self, file, 1).lengths

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Install the engines that these files need on the target, with NumPy."""
        for format in dict.fromkeys(file.format for file in files):
            missing = [name for name in (_ENGINES[format], "numpy") if name not in self._installed]
            if missing:
                install(self._channel, self.facts, missing, self.own_pip)
                self._installed.update(missing)

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun | None:
        """Load a file in a fresh process on the target; return load time, first inference, memory and profile."""
        feed = {"input_ids": [list(ids)], "attention_mask": [[1] * len(ids)], "token_type_ids": [[0] * len(ids)]}
        opening, litert = self.send_file(file, threads), None
        if file.format is Format.TFLITE and profile_runs:
            if not self._profiler_sent:
                self._channel.ask("put", program_source(), name=PROGRAM)
                self._profiler_sent = True
            arrays = {name: np.array(rows) for name, rows in feed.items()}
            litert = LitertRequest.of(opening["path"], threads, profile_runs, arrays).model_dump()
        request = {**opening, "feed": feed, "profile_runs": profile_runs, "litert": litert}
        try:
            measured = self.ask_worker(_START, _ColdStart, do="start", **request)
        finally:
            self._stop(_START)
        start = ColdStart(
            load_ms=measured.load_ns / 1e6,
            first_ms=measured.first_ns / 1e6,
            length=len(ids),
            peak_memory_bytes=max(0, measured.peak - measured.before),
            peak_rss_bytes=measured.peak,
        )
        return ColdRun(start=start, ops=self._read_profile(measured))

    def open(self, file: EngineFile, threads: int) -> RemoteFile:
        """Open a file on the other machine; files that are open with another number of threads are closed first."""
        self._release(threads)
        return RemoteFile(self, file, threads)

    def answers(self, file: EngineFile, feeds: Sequence[Feed]) -> list[dict[str, NDArray[Any]]]:
        """Run every input once with one thread on the other machine; return the outputs by name for each input."""
        series = RemoteFile(self, file, 1).send_inputs(feeds)
        outputs = self.ask_worker(_MAIN, _Answers, do="answers", series=series).answers
        return [
            {
                name: np.frombuffer(base64.b64decode(tensor.data), tensor.dtype).reshape(tensor.shape)
                for name, tensor in tensors.items()
            }
            for tensors in outputs
        ]

    def state(self) -> _AgentState:
        """Return load, heat, clock rates and energy counters of the target now."""
        return self._check(_AgentState, self._channel.ask("state"))

    def heat(self) -> Heat:
        """Return how hot the target is now."""
        return self.state().heat

    def watch(self) -> _RemoteWatch:
        """Start recording the load of the target."""
        return _RemoteWatch(self.state, self.real)

    def restart(self) -> None:
        """End the worker that has files open; the next file is opened by a new one."""
        self._stop(_MAIN)

    def close(self) -> None:
        """End the agent, which removes all its files from the target."""
        self._channel.close()

    def send_file(self, file: EngineFile, threads: int) -> dict[str, Any]:
        """Copy a file and its engine to the other machine once; return the arguments of the opening request.

        For a processor without VNNI, int8 weights that several products share are sent as uint8.
        """
        self.bring([file])
        saturates = self.facts.machine.saturates
        if file.path not in self._sent:
            name = f"{sha256_path(file.path)}.{file.format.value}"
            changed = saturates and file.format is Format.ONNX and convert_shared_weights_to_uint8(file.path)
            self._channel.ask("put", changed or file.path, name=name)
            self._sent[file.path] = name
        return {
            "path": self._sent[file.path],
            "format": file.format.value,
            "threads": threads,
            "entries": session_settings(saturates),
        }

    def ask_worker(self, worker: str, kind: type[AnswerT], **request: Any) -> AnswerT:
        """Send a request to a worker, which is started if needed; return the answer as a record of the class `kind`."""
        return self._check(kind, self._channel.ask("ask", worker=worker, request=request))

    def _check(self, kind: type[AnswerT], answer: Any) -> AnswerT:
        """Parse an answer of the target as a record of the class `kind`; raise MachineError if it has another form."""
        try:
            return kind.model_validate(answer)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise MachineError(f"{self.where}: an answer of the target is wrong: {place}: {first['msg']}.") from error

    def _release(self, threads: int) -> None:
        """End the worker if its files are open with another number of threads, since it cannot close single files.

        `threads` is 0 for a file that is opened only to read its lengths.
        """
        if self._threads not in (None, threads):
            self._stop(_MAIN)
        self._threads = threads

    def _stop(self, worker: str) -> None:
        """End the worker process of this name on the target."""
        self._channel.ask("stop", worker=worker)

    def _read_profile(self, measured: _ColdStart) -> OpTimes | None:
        """Return the time per operator of a cold start; None if the worker made no profile."""
        if measured.times:
            nodes = [node.model_dump() for node in measured.operators]
            return measured.times.profile(count_xnnpack_operators(_ListedGraph(nodes)) if nodes else None)
        if not measured.profile:
            return None
        try:
            trace = base64.b64decode(measured.profile, validate=True)
            events = zlib.decompressobj().decompress(trace, _MAX_PROFILE_BYTES)
        except (zlib.error, binascii.Error) as error:
            raise MachineError(f"{self.where}: the profile cannot be read: {error}.") from error
        with tempfile.TemporaryDirectory(prefix="pocketbert-profile-") as folder:
            path = Path(folder) / "ops.json"
            path.write_bytes(events)
            return read_profile(path, skip=WARMUP)


@dataclass(frozen=True)
class _ListedGraph:
    """A list of TFLite operators that `count_xnnpack_operators` reads as if it were an interpreter."""

    nodes: list[dict[str, Any]]

    def allocate_tensors(self) -> None:
        """Do nothing: the graph was prepared on the target."""

    def _get_ops_details(self) -> list[dict[str, Any]]:
        return self.nodes
