"""The interface of a device: what it implements so that the latency protocol can measure on it.

The protocol (`pocketbert.benchmarks.latency`) decides what is run and in which order: rounds in which the files
take turns in bursts. A device does the rest: a `Connection` opens files, an `OpenedFile` runs bursts by the
device's own clock, and a `Watch` notes what else the device does. A burst is one call, so a device behind a
connection pays for the connection outside of its clock.

What only some devices can do is a protocol of its own (`Idling`, `Thermal`, ...), which is checked with isinstance.
A device that files are only compiled for has a `Compiler`, and a measuring service a `Service`. `Device` is a row
of the table of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.devices.machine_facts import Probe
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.load import Heat, Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.operators import OpTimes
from pocketbert.benchmarks.records import Estimate, LeftNodes
from pocketbert.core.devices import DeviceInfo
from pocketbert.core.host.hardware import Machine
from pocketbert.core.predict.inputs import Text
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, FilePredictor


class Sample(NamedTuple):
    """The times of one inference.

    Attributes:
        wall_ms: Wall time by the device's clock; not a number if an emulator counts instructions instead.
        cpu_ms: CPU time of the process that ran the inference; None if the device does not report it.
        guest_instructions: Instructions that an emulated processor executed; None on real processors.
    """

    wall_ms: float
    cpu_ms: float | None = None
    guest_instructions: float | None = None


Burst = Callable[[Sequence[int]], list[Sample]]
"""Runs one inference per number, on the input of that number (modulo their count); returns the samples in order."""


class OpenedFile(Protocol):
    """A model file that a device has opened.

    Attributes:
        engine: Engine name, e.g. ``onnxruntime``.
        engine_version: Version of the engine.
    """

    engine: str
    engine_version: str

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Give the file its inputs once; return a function that times inferences on inputs given by their index."""
        ...


@runtime_checkable
class Idling(Protocol):
    """An opened file that can be timed after idle times by a program of its own on the device, which waits.

    Attributes:
        pauses: Number of idle times that pass for one timed inference, those before untimed inferences included.
    """

    pauses: int

    def prepare_idle(self, feeds: Sequence[Feed], gap_ms: float) -> Burst:
        """Give the file its inputs; return a function that times single inferences, each after an idle time.

        Args:
            feeds: The inputs.
            gap_ms: Idle time before the timed inference in ms.
        """
        ...


@runtime_checkable
class Sustaining(Protocol):
    """An opened file that can run for minutes in one call, for devices where each burst is a new process."""

    def run_for(self, feeds: Sequence[Feed], seconds: int) -> list[Sample]:
        """Run inferences without a pause for some seconds; return their times in order.

        Args:
            feeds: The inputs; the engine may use them in an order of its own.
            seconds: Smallest duration in seconds.
        """
        ...


class Watch(Protocol):
    """Records what else a device does, from its creation until `stop`."""

    def stop(self) -> Load:
        """Return load, heat, clock and energy since the watch was made."""
        ...


class Connection(Protocol):
    """A device that is connected and ready to run files.

    Attributes:
        method: Sentences on how the device measures, for the description of the result.
    """

    method: str

    def machine(self) -> Machine:
        """Return CPU, ISA and system of the device."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that run files, by name."""
        ...

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """Return the fixed input lengths in tokens that a file takes; empty if it takes any length."""
        ...

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun | None:
        """Load a file in a fresh process and run one input.

        Args:
            file: The model file.
            ids: Token ids of the one input.
            threads: Number of threads within an operator.
            profile_runs: Number of inferences in which operators are then profiled; 0 for none.

        Returns:
            Load time, first inference, memory and profile; None if the device cannot report them.
        """
        ...

    def open(self, file: EngineFile, threads: int) -> OpenedFile:
        """Open a file with `threads` threads within an operator."""
        ...

    def watch(self) -> Watch:
        """Start recording what else the device does."""
        ...

    def close(self) -> None:
        """Disconnect and release what the connection holds."""
        ...


@runtime_checkable
class Thermal(Protocol):
    """A connection that reports how hot the device is, so that measurements wait until it has cooled down."""

    def heat(self) -> Heat:
        """Return how hot the device is now."""
        ...


@runtime_checkable
class Restarting(Connection, Protocol):
    """A connection that can open files in a new process, so that intervals include differences between processes."""

    def restart(self) -> None:
        """End the process that has files open; the next file is opened by a new one."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A connection that returns model outputs, which are compared with those of this machine."""

    def answers(self, file: EngineFile, feeds: Sequence[Feed]) -> list[dict[str, NDArray[Any]]]:
        """Run every input once; return the outputs by name, one mapping per input."""
        ...


@runtime_checkable
class Profiling(Protocol):
    """A connection that measures the time per operator in separate runs, after all latencies were measured."""

    def profile(self, file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes:
        """Measure the time per operator on one input; if that fails, the record's note has the reason.

        Args:
            file: The model file.
            feed: The input.
            threads: Threads within an operator.
            runs: Inferences to average.
        """
        ...


@runtime_checkable
class Bringing(Protocol):
    """A connection that copies something to the device, such as engines, before files can be opened."""

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Copy what these files need to the device, so that a missing part is noticed before anything is measured."""
        ...


@dataclass(frozen=True)
class Compiled:
    """The result of compiling one file for an NPU; most fields are those of `Compilation`.

    Attributes:
        op_types: Number of nodes on the NPU by operator type.
        partitions: Number of pieces in which the NPU runs these nodes.
        left: Nodes that stay on the CPU.
        bytes: Size of the compiled program.
        compile_s: Wall time of the compilation, in seconds.
        answers: Outputs that the emulator computed for the first rows, by name.
        failed: Why there is no compiled program; empty if there is one.
        stopped: Why the emulator stopped early; empty if it did not.
        estimate: The compiler's estimate of the NPU's time and memory.
    """

    op_types: dict[str, int] = field(default_factory=dict)
    partitions: int = 0
    left: list[LeftNodes] = field(default_factory=list)
    bytes: int = 0
    compile_s: float = 0.0
    answers: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    failed: str = ""
    stopped: str = ""
    estimate: Estimate | None = None


class Compiler(Protocol):
    """A device that files are compiled for, perhaps with an emulator; nothing is timed on it.

    Attributes:
        method: Sentences on how compiling and emulating work, for the description of the result.
        target: Name of the chip in words.
        engine: Name of the compiler.
        engine_version: Version of the compiler.
    """

    method: str
    target: str
    engine: str
    engine_version: str

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile a file for one length, and run the inputs in the emulator, if there is one.

        Args:
            predictor: The file opened on this machine.
            path: Path of the file.
            length: Length in tokens of the fixed input shape.
            feeds: Inputs by name, each [1, length]; at least one row.
            budget_s: Seconds that the emulator may take for the rows; one row is always computed.

        Returns:
            The result, which also says if the compiler failed, crashed or hung.
        """
        ...


class Service(Protocol):
    """A service that times files on its own devices by its own protocol: one in the cloud, or the page of a browser."""

    def measure(
        self, variants: Sequence[Variant], texts: Sequence[Text], options: BenchmarkOptions
    ) -> list[BenchmarkResult]:
        """Measure every file at every length on devices of the service.

        Args:
            variants: The files.
            texts: Real texts, in the order in which they are used; a service may use inputs of its own.
            options: Settings of the benchmark; a service may use the lengths only.

        Returns:
            One result for each device, at least one; its notes name files that were not measured.

        Raises:
            InputError: If nothing was measured, with the reasons.
        """
        ...


@dataclass(frozen=True)
class Allowed:
    """The values that a part of a device's name may have, if the list is fixed.

    Attributes:
        part: The part, as `DeviceInfo.argument` calls it, e.g. ``SOC``.
        values: All of them.
    """

    part: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Reachable:
    """A device that is there now, as far as is known without connecting to it.

    Attributes:
        name: What is written after ``--device``, e.g. ``adb:SERIAL``.
        what: Description, such as the phone's model.
        problem: Why the device cannot be used as it is; empty if it can.
    """

    name: str
    what: str = ""
    problem: str = ""

    @property
    def words(self) -> str:
        """Name, description and problem as the text of a table cell."""
        described = f"{self.name} ({self.what})" if self.what else self.name
        return f"{described}: {self.problem}" if self.problem else described


def _refuse_nothing(format: Format, runtime: Runtime | None = None) -> str:
    """Return an empty reason for refusal: files of every format are accepted."""
    return ""


@dataclass(frozen=True)
class Device:
    """A row of the table of devices: its facts, and the functions that connect to it and check files.

    Attributes:
        info: The device's entry in the table of devices: name, argument, and what it measures.
        connect: Function that connects to the device, given the argument of its name; None if files are only compiled
            for it or results imported.
        refusal: Function that returns why the device cannot run files of a format made for a runtime; empty if it can.
        idle_refusal: Function that returns why the device cannot time single inferences of a format after idle times;
            empty if it can.
        sustained_refusal: Function that returns why the device cannot run files of a format without a pause for
            minutes; empty if it can.
        service: Function that prepares a service that measures by itself, given the argument of the name; None for
            other devices.
        compiler: Function that prepares the compiler of a device on which nothing is timed, given the argument of the
            name; None for others.
        missing: Function that returns what this machine lacks to use the device; empty if nothing is known to be
            missing.
        probe: Function that runs the hardware probe on the device, given the argument of the name; None if it has no
            processor to run it on.
        look: Function that lists what can be used now, within seconds and without a network; None if only a connection
            would show it.
        allowed: Parts of the argument that have a fixed list of values.
    """

    info: DeviceInfo
    connect: Callable[[str], Connection] | None = None
    refusal: Callable[[Format, Runtime | None], str] = _refuse_nothing
    idle_refusal: Callable[[Format], str] = _refuse_nothing
    sustained_refusal: Callable[[Format], str] = _refuse_nothing
    compiler: Callable[[str], Compiler] | None = None
    service: Callable[[str], Service] | None = None
    missing: Callable[[], str] = str
    probe: Callable[[str], Probe] | None = None
    look: Callable[[], Sequence[Reachable]] | None = None
    allowed: tuple[Allowed, ...] = ()
