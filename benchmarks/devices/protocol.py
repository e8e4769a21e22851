"""What a device must do so that the latency protocol can measure on it.

The protocol (`pocketbert.benchmarks.latency`) decides what is run and in which order: rounds in which the files take
turns in bursts. A device does the rest: it opens files, runs bursts by its own clock, and tells what it is and what
else it was doing. A burst is one call, so a device behind a connection pays for the connection outside of its clock.
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
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, FilePredictor


class Sample(NamedTuple):
    """The figures of one inference.

    Attributes:
        wall_ms: Wall time by the device's clock; of an emulator the emulator's own, which is kept out of the result.
        cpu_ms: CPU time of the process that ran it; None where the device does not tell.
        guest_instructions: Instructions that an emulated processor executed; None where none is emulated.
    """

    wall_ms: float
    cpu_ms: float | None = None
    guest_instructions: float | None = None


Burst = Callable[[Sequence[int]], list[Sample]]
"""Runs one inference per number, on the input of that number (modulo their count), and returns their samples in order."""


class OpenedFile(Protocol):
    """A model file that a device has opened.

    Attributes:
        engine: Engine name, e.g. ``onnxruntime``.
        engine_version: Its version.
    """

    engine: str
    engine_version: str

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Hand the inputs over once and return what times them; the timed path contains nothing else."""
        ...


@runtime_checkable
class Idling(Protocol):
    """An opened file with an engine that keeps idle times itself, since every burst is a new process.

    Attributes:
        pauses: Idle times that pass for one timed inference.
    """

    pauses: int

    def prepare_idle(self, feeds: Sequence[Feed], gap_ms: float) -> Burst:
        """Hand the inputs over, and return what times single inferences, each after an idle time.

        Args:
            feeds: The inputs.
            gap_ms: Idle time between the inference before and the timed one, in ms.
        """
        ...


@runtime_checkable
class Sustaining(Protocol):
    """An opened file that runs for minutes in one call, since every burst is a new process."""

    def run_for(self, feeds: Sequence[Feed], seconds: int) -> list[Sample]:
        """Run without a pause; the samples in order.

        Args:
            feeds: The inputs, which the engine may take in its own order.
            seconds: How long, at least.
        """
        ...


class Watch(Protocol):
    """Notes what else a device does while something is measured."""

    def stop(self) -> Load:
        """The load and the thermal facts since the watch was made."""
        ...


class Connection(Protocol):
    """A device that was reached and is ready to run files.

    Attributes:
        method: How it takes its figures, in words, for the description of the result.
    """

    method: str

    def machine(self) -> Machine:
        """CPU, ISA and system of the device."""
        ...

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that take part."""
        ...

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """The only lengths that a file takes; empty where it takes any."""
        ...

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun | None:
        """Start a file in a fresh process.

        Args:
            file: The model file.
            ids: Token ids of the one input.
            threads: Threads within an operator.
            profile_runs: Inferences to profile per operator afterwards; 0 for no profile.

        Returns:
            Load time, first inference, memory and profile; None where the device cannot tell.
        """
        ...

    def open(self, file: EngineFile, threads: int) -> OpenedFile:
        """Open a file with a number of threads."""
        ...

    def watch(self) -> Watch:
        """Begin to note what else the device does."""
        ...

    def close(self) -> None:
        """Give back what the connection holds."""
        ...


@runtime_checkable
class Thermal(Protocol):
    """A connection that tells how hot the device is, so that measurements wait until it has cooled down."""

    def heat(self) -> Heat:
        """How hot the device is now."""
        ...


@runtime_checkable
class Restarting(Connection, Protocol):
    """A connection that can open files in a fresh process, so that intervals hold how processes differ."""

    def restart(self) -> None:
        """End the process that has files open; the next file is opened by a new one."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A connection whose answers are compared with those of this machine."""

    def answers(self, file: EngineFile, feeds: Sequence[Feed]) -> list[dict[str, NDArray[Any]]]:
        """Run every input once and return the outputs by name."""
        ...


@runtime_checkable
class Profiling(Protocol):
    """A connection that profiles files after all is timed, since its profiles come from separate runs."""

    def profile(self, file: EngineFile, feed: Feed, threads: int, runs: int) -> OpTimes:
        """Profile a file on one input; where there is no profile, its note tells why.

        Args:
            file: The model file.
            feed: The input.
            threads: Threads within an operator.
            runs: Inferences to average.
        """
        ...


@runtime_checkable
class Bringing(Protocol):
    """A connection that brings something to the device before files are opened there, such as engines."""

    def bring(self, files: Sequence[EngineFile]) -> None:
        """Bring what some files need, so that what is missing is noticed before anything is measured anywhere."""
        ...


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of one file; fields as in `Compilation`.

    Attributes:
        op_types: Nodes on the NPU per operator type.
        partitions: Pieces that they are in.
        left: Nodes that stay on the CPU.
        bytes: Size of the compiled program.
        compile_s: Wall time of the compilation, in seconds.
        answers: Emulated outputs by name, of the first rows.
        failed: Why there is no compiled program; empty where there is one.
        stopped: Why the emulator stopped early; empty where it did not.
        estimate: What the compiler expects of the NPU's time and memory.
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
    """A device that files are compiled for, and that may be emulated; nothing is timed on it.

    Attributes:
        method: How it takes its figures, in words, for the description of the result.
        target: The chip in words.
        engine: What compiles.
        engine_version: Its version.
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
        """Compile a file for one length and compute rows with the emulator.

        Args:
            predictor: The file as this machine opens it.
            path: The file.
            length: Tokens of the fixed shape.
            feeds: Inputs by name, each [1, length]; at least one.
            budget_s: Seconds that the rows may take; one is always computed.

        Returns:
            What was made; a compiler that fails, crashes or hangs is told in it.
        """
        ...


class Service(Protocol):
    """A service that measures files on devices by itself, without bursts and turns."""

    def measure(self, variants: Sequence[Variant], options: BenchmarkOptions) -> BenchmarkResult:
        """Measure every file at every length.

        Args:
            variants: The files.
            options: What was asked for; a service may take the lengths only.

        Returns:
            One session; files that were not measured are named in its notes.

        Raises:
            InputError: If nothing was measured; lists why.
        """
        ...


@dataclass(frozen=True)
class Allowed:
    """The values that a part of a device's argument may have.

    Attributes:
        part: The part, as `DeviceInfo.argument` calls it, e.g. ``SOC``.
        values: All of them.
    """

    part: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Reachable:
    """Something that a device finds when it is asked what is there now.

    Attributes:
        name: What is written after ``--device``, e.g. ``adb:SERIAL``.
        what: What it is, in words.
        problem: Why it cannot be used as it is; empty where it can.
    """

    name: str
    what: str = ""
    problem: str = ""

    @property
    def words(self) -> str:
        """For a cell of a table."""
        told = f"{self.name} ({self.what})" if self.what else self.name
        return f"{told}: {self.problem}" if self.problem else told


def takes_everything(format: Format, runtime: Runtime | None = None) -> str:
    """Refuse no file."""
    return ""


@dataclass(frozen=True)
class Device:
    """A place where model files run, with the code that reaches it.

    Attributes:
        info: Its facts.
        connect: Reaches it, given the argument of its name; None for a device that is compiled for or only imported.
        refusal: Why it cannot run files of a format that are made for a runtime; empty where it can.
        idle_refusal: Why it cannot time single inferences after an idle time in files of a format; empty where it can.
        sustained_refusal: Why it cannot run files of a format for minutes without a pause; empty where it can.
        service: Prepares a service that measures by itself, given the argument of its name.
        compiler: Prepares the compiler of a device on which nothing is timed, given the argument of its name.
        missing: Tells what keeps this machine from using it; empty where nothing is known to.
        probe: Runs the probe on it, given the argument of its name; None where it has no processor to run it on.
        look: Looks for what can be used now, within seconds and without a network; None where only a try would tell.
        allowed: The parts of its argument with a fixed list of values.
    """

    info: DeviceInfo
    connect: Callable[[str], Connection] | None = None
    refusal: Callable[[Format, Runtime | None], str] = takes_everything
    idle_refusal: Callable[[Format], str] = takes_everything
    sustained_refusal: Callable[[Format], str] = takes_everything
    compiler: Callable[[str], Compiler] | None = None
    service: Callable[[str], Service] | None = None
    missing: Callable[[], str] = str
    probe: Callable[[str], Probe] | None = None
    look: Callable[[], Sequence[Reachable]] | None = None
    allowed: tuple[Allowed, ...] = ()
