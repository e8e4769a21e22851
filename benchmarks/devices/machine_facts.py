"""Facts about the processor and the system of a target, as programs on it print them.

`Probe` is what the C program of `hardware_probe` finds out about a device, with a table for people; `read_facts`
reads the program's output. `AgentFacts` is what the agent on a remote machine reports. `core_names` translates part
numbers of Arm cores. All of it comes from another machine, so every field is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbert.core.errors import MachineError, shorten_repr
from pocketbert.core.host.hardware import Machine, select_extensions
from pocketbert.core.types import Provenance

_ShortText = Annotated[str, Field(max_length=400)]
_Count = Annotated[int, Field(ge=0, le=1 << 60)]
_Speed = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
_ARM = "0x41"
_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73",
    "0xd0a": "Cortex-A75",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd0d": "Cortex-A77",
    "0xd40": "Neoverse-V1",
    "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE",
    "0xd44": "Cortex-X1",
    "0xd46": "Cortex-A510",
    "0xd47": "Cortex-A710",
    "0xd48": "Cortex-X2",
    "0xd49": "Neoverse-N2",
    "0xd4d": "Cortex-A715",
    "0xd4e": "Cortex-X3",
    "0xd4f": "Neoverse-V2",
    "0xd80": "Cortex-A520",
    "0xd81": "Cortex-A720",
    "0xd82": "Cortex-X4",
}
"""Part numbers of Arm's own cores (field PartNum of MIDR_EL1 in their reference manuals), as ``/proc/cpuinfo`` prints them."""


def core_names(parts: Sequence[str]) -> str:
    """Return the kinds of cores as text: ``4 × Cortex-A55, 4 × Cortex-A76``.

    Args:
        parts: Implementer and part number of each core, e.g. ``0x41:0xd0b``. Unknown ones are shown as these numbers.
    """

    def name(part: str) -> str:
        implementer, _, number = part.partition(":")
        return _PARTS.get(number, part) if implementer == _ARM else part

    return ", ".join(f"{count} × {name(part)}" for part, count in Counter(parts).items())


class _Record(BaseModel):
    """Base of the records below; unknown keys are ignored, so that output of newer programs can be read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AgentFacts(_Record):
    """What the agent (the program on a remote machine) reports about that machine.

    Attributes:
        python: Python version.
        arch: ``x86_64``, ``aarch64``, ...
        system: Kernel and release.
        libc: C library and version, e.g. ``glibc 2.36``; empty if it is not glibc.
        cores: Number of CPUs that a process may use.
        cpu: Name of the CPU; empty on Arm, where the kernel only reports part numbers.
        board: Name of the board; empty if the firmware reports none.
        parts: Implementer and part number of every core, e.g. ``0x41:0xd0b``; empty on x86.
        flags: Instruction-set extensions, by the kernel's names.
        free_bytes: Free disk space for temporary files.
    """

    python: str = Field(max_length=40, pattern=r"^\d+\.\d+\.\d")
    arch: str = Field(max_length=40)
    system: str = Field(max_length=200)
    libc: str = Field(max_length=40)
    cores: int = Field(ge=1)
    cpu: str = Field(max_length=200)
    board: str = Field(max_length=200)
    parts: list[str] = Field(max_length=4096)
    flags: list[str] = Field(max_length=1000)
    free_bytes: int

    @property
    def machine(self) -> Machine:
        """The machine record made from these facts, which is stored with every measurement."""
        cores = core_names(self.parts)
        name = f"{self.board} ({cores})" if self.board and cores else self.cpu or self.board or cores or self.arch
        return Machine(
            cpu=name,
            arch=self.arch,
            isa=select_extensions(self.arch, self.flags),
            cores=self.cores,
            system=self.system,
            python=self.python,
        )


class _Core(_Record):
    """One CPU core. Facts that the system does not report are empty or None.

    Attributes:
        number: Number of the core.
        part: Implementer and part number, e.g. ``0x41:0xd0b``; empty on x86.
        model: Name of the processor; empty on Arm.
        least_khz: Lowest clock rate.
        most_khz: Highest clock rate.
        now_khz: Clock rate just before the measurement.
        governor: The kernel's policy for the clock rate, e.g. ``schedutil``.
    """

    number: _Count
    part: _ShortText
    model: _ShortText
    least_khz: _Count | None = None
    most_khz: _Count | None = None
    now_khz: _Count | None = None
    governor: _ShortText = ""


class _Zone(_Record):
    """The temperature of a thermal zone, named by its type."""

    name: _ShortText
    celsius: float = Field(ge=-273.15, le=2e6, allow_inf_nan=False)


class _Rate(_Record):
    """A rate in 10⁹ per second, measured in five time slices: the rate in the fastest slice and in the middle one."""

    best: _Speed
    median: _Speed

    def in_words(self, unit: str) -> str:
        """Format both values for a table."""
        return f"{self.best:.3g} {unit} (median {self.median:.3g})"


class _MemoryRates(_Record):
    """Memory bandwidth of one thread, in GB/s.

    Attributes:
        buffer_bytes: Size of the buffer that is read and copied.
        read: Bytes read per second.
        copy_rate: Bytes read and written per second by a copy.
    """

    buffer_bytes: _Count
    read: _Rate
    copy_rate: _Rate = Field(alias="copy")


class _ProductRate(_Record):
    """Matrix product speed of one thread, in 10⁹ operations per second (a multiply-add counts two).

    Attributes:
        kernel: The instructions that were used.
        rate: The measured rate.
    """

    kernel: _ShortText
    rate: _Rate


class _Rates(_Record):
    """Measured rates of one thread: memory, fp32 and int8 matrix products."""

    memory: _MemoryRates
    fp32: _ProductRate
    int8: _ProductRate


class _ProbeFacts(_Record):
    """What the probe (a C program) prints about a machine's processor and memory.

    Attributes:
        probe: Version of the output's form.
        arch: Name of the architecture.
        page_bytes: Size of a page of memory.
        features: Instruction-set extensions, by the kernel's names.
        hwcap: The kernel's bits that `features` were read from; empty on x86.
        cores: The cores that a program may use.
        system: Name of the kernel. This and all following fields are empty if only features were asked for.
        release: Release of the kernel.
        board: Name of the board.
        load: Load average over the last minute, before the measurement.
        memory_bytes: Main memory.
        available_bytes: Part of the main memory that is available.
        thermal: Temperatures before the measurement.
        rates: Measured rates; None if nothing was measured.
    """

    probe: Literal[1]
    arch: _ShortText
    page_bytes: _Count
    features: list[_ShortText] = Field(max_length=256)
    hwcap: list[int] = Field(max_length=4)
    cores: list[_Core] = Field(min_length=1, max_length=4096)
    system: _ShortText = ""
    release: _ShortText = ""
    board: _ShortText = ""
    load: float | None = Field(None, ge=0, allow_inf_nan=False)
    memory_bytes: _Count | None = None
    available_bytes: _Count | None = None
    thermal: list[_Zone] = Field([], max_length=256)
    rates: _Rates | None = None

    @property
    def processor(self) -> str:
        """The kinds of cores as text: ``4 × Cortex-A55, 4 × Cortex-A76``."""
        if all(core.part for core in self.cores):
            return core_names([core.part for core in self.cores])
        models = Counter(core.model or self.arch for core in self.cores)
        return ", ".join(f"{count} × {model}" for model, count in models.items())


class ProbeProgram(_Record):
    """The build of the probe that was run.

    Attributes:
        arch: The architecture that the program was built for.
        compiler: First line of the compiler's version.
        sha256: Digest of the program.
    """

    arch: str
    compiler: str
    sha256: str


class Probe(_Record):
    """The facts about one device, as ``pocketbert devices --probe`` shows them.

    Attributes:
        device: Name of the device as the user wrote it.
        name: Maker and model of the device; empty if they are unknown.
        provenance: `measured`, or `emulated`, for which there are no rates.
        program: The program that printed the facts.
        facts: What the program printed.
    """

    device: str
    name: str
    provenance: Provenance
    program: ProbeProgram
    facts: _ProbeFacts

    @model_validator(mode="after")
    def _emulators_have_no_rates(self) -> Probe:
        if self.facts.rates is not None and self.provenance is not Provenance.MEASURED:
            raise ValueError(f"rates are measured or there are none; these are {self.provenance}")
        return self

    @property
    def rows(self) -> list[list[str]]:
        """Rows (fact, value) for a table."""
        return [list(row) for row in self._rows()]

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yield (fact, value) rows of the table; unknown facts are left out."""
        facts, rates = self.facts, self.facts.rates
        yield "device", f"{self.device} ({self.provenance})"
        if self.name:
            yield "name", self.name
        yield "processor", facts.processor
        yield from _clock_rows(facts.cores)
        yield "extensions", " ".join(select_extensions(facts.arch, facts.features)) or "none that matters for encoders"
        yield "page size", f"{facts.page_bytes} bytes"
        if facts.memory_bytes is not None:
            free = f", {facts.available_bytes / 1e9:.1f} GB available" if facts.available_bytes is not None else ""
            yield "memory", f"{facts.memory_bytes / 1e9:.1f} GB{free}"
        if facts.thermal:
            hottest = max(facts.thermal, key=lambda zone: zone.celsius)
            yield "hottest thermal zone", f"{hottest.celsius:.1f} °C ({hottest.name or 'without a name'})"
        if facts.load is not None:
            yield "load average", f"{facts.load:.2f}"
        if rates is None:
            yield "rates", "none: those of an emulator tell nothing about the processor"
        else:
            yield "memory, read by one thread", rates.memory.read.in_words("GB/s")
            yield "memory, copied by one thread", f"{rates.memory.copy_rate.in_words('GB/s')}, read and written"
            yield "fp32 matrix product, one thread", f"{rates.fp32.rate.in_words('GFLOP/s')}, {rates.fp32.kernel}"
            yield "int8 matrix product, one thread", f"{rates.int8.rate.in_words('GOP/s')}, {rates.int8.kernel}"
        yield "probe", f"sha256 {self.program.sha256[:12]}, {self.program.compiler}"


def _clock_rows(cores: Sequence[_Core]) -> Iterator[tuple[str, str]]:
    """Yield a row (cores, clock rates) for each group of cores with equal clock rates; cores of unknown rate are left out."""
    numbers_by_clock: dict[str, list[int]] = {}
    for core in cores:
        if core.most_khz is not None:
            least = f"{core.least_khz / 1000:.0f} to " if core.least_khz is not None else ""
            governor = f", {core.governor}" if core.governor else ""
            clock = f"{least}{core.most_khz / 1000:.0f} MHz{governor}"
            numbers_by_clock.setdefault(clock, []).append(core.number)
    for clock, numbers in numbers_by_clock.items():
        consecutive = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
        words = f"{numbers[0]} to {numbers[-1]}" if consecutive else ", ".join(map(str, numbers))
        yield f"clock of cores {words}", clock


def read_facts(text: str, where: str) -> _ProbeFacts:
    """Parse the output of the hardware probe; lines that a login shell adds are skipped.

    Args:
        text: What the probe printed.
        where: Name of the device in errors.

    Raises:
        MachineError: If there is no line with facts, or it is malformed.
    """
    lines = [line for line in text.splitlines() if line.startswith('{"probe"')]
    if not lines:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise MachineError(f"{where}: the probe printed {shorten_repr(last)} instead of its facts.")
    try:
        return _ProbeFacts.model_validate_json(lines[-1])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MachineError(f"{where}: what the probe printed is wrong: {place}: {first['msg']}.") from error
