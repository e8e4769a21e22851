"""The device ``local``: this machine's CPU, in this process; cold starts are measured in fresh child processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pocketbert.benchmarks.cold_start import ColdRun, cold_start
from pocketbert.benchmarks.devices.protocol import Burst, Device, Reachable, Sample
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.load import Heat, LoadWatch, read_local_heat
from pocketbert.core.devices import DEVICES, LOCAL
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import Machine, describe_machine
from pocketbert.core.host.system import installed_versions, version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile

_DECIMALS = 4
"""Raw samples are kept to 0.1 µs, finer than any clock here; the statistics are made from these."""
_LIBRARIES = ("pocketbert", "onnxruntime", "ai-edge-litert", "numpy", "tokenizers", "psutil")


class _LocalFile:
    """A model file that is open in this process."""

    def __init__(self, file: EngineFile, threads: int) -> None:
        self._predictor = file.open(threads)
        self.engine, self.engine_version = self._predictor.engine, self._predictor.engine_version

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Return a function that times one inference for each given number, on the input with that number."""
        run, cpu_clock, clock = self._predictor.run, time.process_time_ns, time.perf_counter_ns
        count = len(feeds)

        def burst(numbers: Sequence[int]) -> list[Sample]:
            """Time one inference for each number."""
            times = []
            for number in numbers:
                feed = feeds[number % count]
                # The CPU clock is a slow system call, so it stays outside the wall clock's interval.
                cpu = cpu_clock()
                wall = clock()
                run(feed)
                wall = clock() - wall
                cpu = cpu_clock() - cpu
                times.append((wall, cpu))
            return [Sample(round(wall / 1e6, _DECIMALS), round(cpu / 1e6, _DECIMALS)) for wall, cpu in times]

        return burst


class _LocalConnection:
    """The connection to this machine, for which nothing has to be set up."""

    method = (
        "Wall time by the monotonic clock, CPU time of the whole process, garbage collector off. Load time, first "
        "inference and peak memory come from one fresh process each, on the longest input, with the file in the page cache."
    )

    def machine(self) -> Machine:
        """Return CPU, ISA and system of this machine."""
        return describe_machine()

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that run files, by name."""
        return installed_versions(_LIBRARIES)

    def lengths(self, file: EngineFile) -> tuple[int, ...]:
        """Return the fixed input lengths in tokens that a file takes; empty if it takes any length."""
        return file.lengths

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> ColdRun:
        """Load a file in a fresh process; return load time, first inference, memory and profile."""
        return cold_start(file, ids, threads, profile_runs)

    def open(self, file: EngineFile, threads: int) -> _LocalFile:
        """Open a file in this process."""
        return _LocalFile(file, threads)

    def watch(self) -> LoadWatch:
        """Start recording this machine's load."""
        return LoadWatch()

    def heat(self) -> Heat:
        """Return how hot this machine is now."""
        return read_local_heat()

    def close(self) -> None:
        """Do nothing: no connection is held."""


def connect_local(argument: str) -> _LocalConnection:
    """Return the connection to this machine; `local` takes no argument."""
    return _LocalConnection()


def _local_now() -> list[Reachable]:
    """Return this machine as a device that can always be used."""
    return [Reachable(LOCAL, describe_machine().summary)]


def _local_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format and runtime cannot be timed on this machine; empty if they can.

    Outside macOS, Core ML files are computed by this project's own evaluator, whose time is not a phone's latency.
    """
    if not FORMATS[format].timed:
        return f"{FORMATS[format].title} is timed by its own engine only, which does not run on this machine"
    if runtime is not None and runtime.accelerator:
        return f"it is made for {runtime}, and this machine would compute it on the CPU"
    engine = runtime.own_engine if runtime is not None else None
    if engine is not None and version_of(engine) is None:
        return f"{engine} is not installed (pip install 'pocketbert[{engine}]')"
    return ""


DEVICE = Device(DEVICES[LOCAL], connect_local, _local_refusal, look=_local_now)
"""The row of the table of devices; the probe is added there."""
