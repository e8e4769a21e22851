"""What the probe tells. It comes from another machine, so nothing in it is believed unchecked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbert.core.errors import MachineError, shown
from pocketbert.core.host.hardware import Machine, extensions
from pocketbert.core.types import Provenance

# --- arm_cores ---
# Names of Arm cores by the numbers that they give.


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
    """Kinds of cores in words: ``4 × Cortex-A55, 4 × Cortex-A76``; cores of other makers by their numbers."""
    counted = Counter(parts)
    return ", ".join(f"{count} × {_core(part)}" for part, count in counted.items())


def _core(part: str) -> str:
    implementer, _, number = part.partition(":")
    return _PARTS.get(number, part) if implementer == _ARM else part


Words = Annotated[str, Field(max_length=400)]
Count = Annotated[int, Field(ge=0, le=1 << 60)]
Speed = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _Record(BaseModel):
    """Unknown keys are ignored, so that this version reads what newer programs print."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Core(_Record):
    """One core; what the system does not tell is empty or None.

    Attributes:
        number: Its number.
        part: Implementer and part number, e.g. ``0x41:0xd0b``; empty on x86.
        model: Name of the processor; empty on Arm.
        least_khz: Lowest clock rate.
        most_khz: Highest clock rate.
        now_khz: Clock rate before the measurement.
        governor: What decides the clock rate.
    """

    number: Count
    part: Words
    model: Words
    least_khz: Count | None = None
    most_khz: Count | None = None
    now_khz: Count | None = None
    governor: Words = ""


class Zone(_Record):
    """A temperature.

    Attributes:
        name: Type of the thermal zone.
        celsius: Degrees.
    """

    name: Words
    celsius: float = Field(ge=-273.15, le=2e6, allow_inf_nan=False)


class Rate(_Record):
    """A rate in 10⁹ per second: of the fastest and of the middle one of five slices."""

    best: Speed
    median: Speed


class MemoryRates(_Record):
    """What one thread moves, in GB/s.

    Attributes:
        buffer_bytes: Size of the buffer.
        read: Bytes read.
        copy_rate: Bytes read plus bytes written by a copy.
    """

    buffer_bytes: Count
    read: Rate
    copy_rate: Rate = Field(alias="copy")


class ProductRate(_Record):
    """What one thread multiplies and adds, in 10⁹ operations per second; a multiplication with its addition counts two.

    Attributes:
        kernel: The instructions that were used.
        rate: How fast.
    """

    kernel: Words
    rate: Rate


class Rates(_Record):
    """What was measured, on one thread."""

    memory: MemoryRates
    fp32: ProductRate
    int8: ProductRate


class ProbeFacts(_Record):
    """What the program printed.

    Attributes:
        probe: Version of its output.
        arch: Machine name.
        page_bytes: Size of a page of memory.
        features: Extensions of the instruction set by the kernel's names.
        hwcap: The bits that they were read from; empty on x86.
        cores: The cores that a program may use.
        system: Name of the kernel; this and what follows is empty where only features were asked for.
        release: Its release.
        board: Name of the board.
        load: Load average over the last minute, before the measurement.
        memory_bytes: Main memory.
        available_bytes: What of it is available.
        thermal: Temperatures before the measurement.
        rates: What was measured; None where nothing was.
    """

    probe: Literal[1]
    arch: Words
    page_bytes: Count
    features: list[Words] = Field(max_length=256)
    hwcap: list[int] = Field(max_length=4)
    cores: list[Core] = Field(min_length=1, max_length=4096)
    system: Words = ""
    release: Words = ""
    board: Words = ""
    load: float | None = Field(None, ge=0, allow_inf_nan=False)
    memory_bytes: Count | None = None
    available_bytes: Count | None = None
    thermal: list[Zone] = Field([], max_length=256)
    rates: Rates | None = None

    @property
    def processor(self) -> str:
        """The kinds of cores in words, e.g. ``4 × Cortex-A55, 4 × Cortex-A76``."""
        if all(core.part for core in self.cores):
            return core_names([core.part for core in self.cores])
        models = Counter(core.model or self.arch for core in self.cores)
        return ", ".join(f"{count} × {model}" for model, count in models.items())


class ProbeProgram(_Record):
    """The program that was run.

    Attributes:
        arch: What it was built for.
        compiler: First line of the compiler's version.
        sha256: Digest of the program.
    """

    arch: str
    compiler: str
    sha256: str


class Probe(_Record):
    """What is known of one device.

    Attributes:
        device: The device as it was named.
        name: What people call it; empty where nothing tells.
        provenance: `measured`, or `emulated`, which gives no rates.
        program: What told it.
        facts: What it told.
    """

    device: str
    name: str
    provenance: Provenance
    program: ProbeProgram
    facts: ProbeFacts

    @model_validator(mode="after")
    def _emulators_have_no_rates(self) -> Probe:
        if self.facts.rates is not None and self.provenance is not Provenance.MEASURED:
            raise ValueError(f"rates are measured or there are none; these are {self.provenance}")
        return self

    @property
    def rows(self) -> list[list[str]]:
        """Facts and values for a table."""
        return [list(row) for row in self._rows()]

    def _rows(self) -> Iterator[tuple[str, str]]:
        facts = self.facts
        yield "device", f"{self.device} ({self.provenance})"
        if self.name:
            yield "name", self.name
        yield "processor", facts.processor
        for clock, numbers in _clocks(facts.cores).items():
            yield f"clock of {_listed(numbers)}", clock
        yield "extensions", " ".join(extensions(facts.arch, facts.features)) or "none that matters for encoders"
        yield "page size", f"{facts.page_bytes} bytes"
        if facts.memory_bytes is not None:
            free = f", {facts.available_bytes / 1e9:.1f} GB available" if facts.available_bytes is not None else ""
            yield "memory", f"{facts.memory_bytes / 1e9:.1f} GB{free}"
        if facts.thermal:
            hottest = max(facts.thermal, key=lambda zone: zone.celsius)
            yield "hottest thermal zone", f"{hottest.celsius:.1f} °C ({hottest.name or 'without a name'})"
        if facts.load is not None:
            yield "load average", f"{facts.load:.2f}"
        yield from self._rate_rows()
        yield "probe", f"sha256 {self.program.sha256[:12]}, {self.program.compiler}"

    def _rate_rows(self) -> Iterator[tuple[str, str]]:
        rates = self.facts.rates
        if rates is None:
            yield "rates", "none: those of an emulator tell nothing about the processor"
            return
        yield "memory, read by one thread", _words(rates.memory.read, "GB/s")
        yield "memory, copied by one thread", f"{_words(rates.memory.copy_rate, 'GB/s')}, read and written"
        yield "fp32 matrix product, one thread", f"{_words(rates.fp32.rate, 'GFLOP/s')}, {rates.fp32.kernel}"
        yield "int8 matrix product, one thread", f"{_words(rates.int8.rate, 'GOP/s')}, {rates.int8.kernel}"


def _words(rate: Rate, unit: str) -> str:
    return f"{rate.best:.3g} {unit} (median {rate.median:.3g})"


def _clocks(cores: list[Core]) -> dict[str, list[int]]:
    """Numbers of the cores by their clock rates in words; cores of which nothing is told are left out."""
    out: dict[str, list[int]] = {}
    for core in cores:
        if core.most_khz is None:
            continue
        least = f"{core.least_khz / 1000:.0f} to " if core.least_khz is not None else ""
        governor = f", {core.governor}" if core.governor else ""
        out.setdefault(f"{least}{core.most_khz / 1000:.0f} MHz{governor}", []).append(core.number)
    return out


def _listed(numbers: list[int]) -> str:
    whole = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"cores {numbers[0]} to {numbers[-1]}" if whole else f"cores {', '.join(map(str, numbers))}"


def read_facts(text: str, where: str) -> ProbeFacts:
    """Read what the program printed; lines that the target's login or a shell adds are passed over.

    Raises:
        MachineError: If there is no such line, or it is wrong.
    """
    lines = [line for line in text.splitlines() if line.startswith('{"probe"')]
    if not lines:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise MachineError(f"{where}: the probe printed {shown(last)} instead of its facts.")
    try:
        return ProbeFacts.model_validate_json(lines[-1])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MachineError(f"{where}: what the probe printed is wrong: {place}: {first['msg']}.") from error


# --- cpus ---
# Describe a machine from what its system files say, where they were read by somebody else.


class Facts(BaseModel):
    """What an agent tells of its machine.

    Attributes:
        python: Python version.
        arch: ``x86_64``, ``aarch64``, ...
        system: Kernel and release.
        libc: C library and version, e.g. ``glibc 2.36``; empty where it is another one.
        cores: CPUs that a process may use.
        cpu: Name of the CPU; empty on Arm, where the kernel knows part numbers only.
        board: Name of the board; empty where the firmware gives none.
        parts: Implementer and part number of every core, e.g. ``0x41:0xd0b``; empty on x86.
        flags: Instruction-set extensions by the kernel's names.
        free_bytes: Space that is left for temporary files.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

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
        """As every figure carries it."""
        cores = core_names(self.parts)
        name = f"{self.board} ({cores})" if self.board and cores else self.cpu or self.board or cores or self.arch
        return Machine(
            cpu=name,
            arch=self.arch,
            isa=extensions(self.arch, self.flags),
            cores=self.cores,
            system=self.system,
            python=self.python,
        )
