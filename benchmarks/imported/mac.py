"""Figures of a Mac or an iPhone: the script that artefact folders carry, and the import of the files that it writes.

`mac_script` is the text of coreml/benchmark_on_mac.py. `read_mac_record` reads and checks a file of that script;
`import_mac` makes benchmark results of such files. The records below are the file's JSON format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from pocketbert.benchmarks.imported.validation import (
    UNCHECKED,
    Count,
    ForeignRecord,
    Length,
    Milliseconds,
    Samples,
    ShortText,
    check_listed,
    read_records,
    validate_record,
)
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, ColdStart, Placement, Profile, Protocol
from pocketbert.benchmarks.statistics import Statistics, burst_medians, paired_ratio, repeat_interval
from pocketbert.benchmarks.wording import milliseconds
from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.disk.files import check_schema, read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Provenance, Scheme

MAC_SCRIPT_NAME = "benchmark_on_mac.py"
KIND = "pocketbert-mac-benchmark"
SCHEMA_VERSION = "1.1"
ENGINE = "Core ML"
ENGINE_THREADS = 0
"""Core ML takes no thread count."""
_CLOCK_STEP_MS = 1e-3

_CpuMilliseconds = Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)]  # may be below the clock's step
_CpuSamples = Annotated[
    list[Annotated[list[_CpuMilliseconds], Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=1000)
]


class _Record(ForeignRecord):
    model_config = ConfigDict(strict=True)


class _Machine(_Record):
    """The Mac or iPhone that the script measured; facts that it does not report are empty or 0.

    Attributes:
        model: Apple's identifier of the model, e.g. ``Mac14,2``.
        chip: Name of the processor.
        arch: ``arm64`` or ``x86_64``.
        isa: Instruction-set extensions that matter for encoders.
        cores: CPU cores.
        memory_bytes: Main memory.
        macos: Version of macOS.
        build: Build number of macOS.
        python: Version of Python.
        power: ``AC Power`` or ``Battery Power``.
        thermal: Output of ``pmset -g therm``.
        system: Name and version of the system, if it is not macOS.
    """

    model: ShortText
    chip: ShortText
    arch: ShortText
    isa: list[ShortText] = Field(max_length=64)
    cores: int = Field(ge=0, le=4096)
    memory_bytes: Count
    macos: ShortText
    build: ShortText
    python: ShortText
    power: ShortText
    thermal: ShortText
    system: ShortText = ""

    @property
    def system_name(self) -> str:
        """Name and version of the system."""
        return self.system or f"macOS {self.macos}"


class _Protocol(_Record):
    """How the script measured.

    Attributes:
        runs: Number of timed inferences for each package, compute unit, length and repeat.
        repeats: How often all files and lengths are timed again, one pass after the other.
        burst: Number of timed inferences of one package before it is the turn of the next.
        inputs: Where the token ids came from.
        took_s: Seconds that the measurement took.
        iphone: Whether an iPhone was measured, connected to the Mac that ran the script.
    """

    runs: int = Field(ge=1, le=1000)
    repeats: int = Field(ge=1, le=1000)
    burst: int = Field(ge=1, le=1000)
    inputs: ShortText
    took_s: float = Field(ge=0, le=1e7, allow_inf_nan=False)
    iphone: bool = False


class _LoadAverage(_Record):
    """The Mac's load average over a minute, at the start and at the end."""

    before: float = Field(ge=0, le=1e6, allow_inf_nan=False)
    after: float = Field(ge=0, le=1e6, allow_inf_nan=False)


class _Answers(_Record):
    """How far the outputs were from those of the golden rows (recorded inputs with the model's expected outputs).

    Attributes:
        rows: Number of rows that were compared.
        skipped: Rows left out: too long, or a pair without segment ids.
        largest: Largest difference among finite outputs.
        tolerance: Largest difference that is allowed.
        finite: Whether all outputs were finite.
    """

    rows: int = Field(ge=1, le=1_000_000)
    skipped: Count
    largest: float = Field(ge=0, allow_inf_nan=False)
    tolerance: float = Field(gt=0, allow_inf_nan=False)
    finite: bool


class _PlannedDevice(_Record):
    """The operators that Core ML expects to run on one processor.

    Attributes:
        device: ``CPU``, ``GPU``, ``Neural Engine``, or ``undecided``.
        cost: Share of the cost that Core ML estimates for these operators.
        op_types: Number of operators by type.
    """

    device: ShortText
    cost: float = Field(ge=0, le=1.001, allow_inf_nan=False)
    op_types: dict[ShortText, Count] = Field(max_length=1000)


class _Plan(_Record):
    """Core ML's compute plan: which processor is expected to run which operators.

    Attributes:
        devices: One entry per processor.
        constants: Number of operators that only hold data.
        absent: Why there is no plan.
    """

    devices: list[_PlannedDevice] = Field([], max_length=8)
    constants: Count = 0
    absent: ShortText = ""


class _Cell(_Record):
    """The timings of one package on one compute unit at one input length.

    Attributes:
        length: Input length in tokens.
        warmup_runs: Number of untimed inferences before the timed ones.
        warmup_stable: Whether the times became stable during the warm-up.
        wall_ms: Wall times, [repeats][runs].
        cpu_ms: CPU times of the process, [repeats][runs]; None for an iPhone.
        engine_ms: Times by Core ML's own clock, [repeats][runs]; None if this version of coremltools has none.
    """

    length: Length
    warmup_runs: Count
    warmup_stable: bool
    wall_ms: Samples
    cpu_ms: _CpuSamples | None
    engine_ms: Samples | None

    @model_validator(mode="after")
    def _same_shape(self) -> _Cell:
        """Raise ValueError if the CPU times or engine times have another number of runs than the wall times."""
        shape = [len(r) for r in self.wall_ms]
        for name, other in (("cpu_ms", self.cpu_ms), ("engine_ms", self.engine_ms)):
            if other is not None and [len(r) for r in other] != shape:
                raise ValueError(f"{name} has another shape than wall_ms")
        return self

    def cpu_medians(self, burst: int) -> list[float] | None:
        """Return the median CPU time of each burst, at least one clock step so that ratios exist; None without CPU times."""
        if self.cpu_ms is None:
            return None
        return [max(x, _CLOCK_STEP_MS) for x in burst_medians(self.cpu_ms, burst)]


class _Unit(_Record):
    """The measurements of one package on one compute unit.

    Attributes:
        unit: The processors that Core ML was allowed to use.
        failed: Why the package could not be measured; the other fields are then empty.
        specialize_ms: Time of the first load after compilation, in which Core ML prepares the package for the unit.
        load_ms: Time of a later load, in a new process.
        first_ms: Time of the first inference in that process, at the longest length.
        peak_memory_bytes: Peak resident memory above what the process had before loading.
        peak_rss_bytes: Peak resident memory of the process, memory before loading included.
        answers: How far the outputs were from the golden rows; None if the folder has none for the package.
        plan: Core ML's plan, which says what processor runs which operators.
        cells: The timings at each length.
    """

    unit: Literal["all", "cpu-only", "cpu-and-gpu", "cpu-and-ne"]
    failed: ShortText = ""
    specialize_ms: Milliseconds = math.inf
    load_ms: Milliseconds = math.inf
    first_ms: Milliseconds = math.inf
    peak_memory_bytes: Count = 0
    peak_rss_bytes: Count = 0
    answers: _Answers | None = None
    plan: _Plan = _Plan()
    cells: list[_Cell] = Field([], max_length=64)

    @model_validator(mode="after")
    def _complete(self) -> _Unit:
        """Raise ValueError if a record lacks measurements without giving a reason, or lists a length twice."""
        if not self.failed:
            required = {"specialize_ms", "load_ms", "first_ms", "answers", "plan", "cells"}
            if missing := required - self.model_fields_set:
                raise ValueError(f"no {', '.join(sorted(missing))}, though it did not fail")
            if not self.cells:
                raise ValueError("no length was measured, though it did not fail")
        _refuse_duplicates("length", [c.length for c in self.cells])
        return self


class _Package(_Record):
    """The measurements of one Core ML package.

    Attributes:
        path: Path in the artefact folder.
        sha256: Digest of the package.
        bytes: Size of the package.
        compile_ms: Time to compile the package; None if that failed.
        lengths: Input lengths that were measured.
        default_length: The length for which the plans are made.
        units: The measurements on each compute unit that was asked for.
    """

    path: str = Field(max_length=400, pattern=r"^[\w. -]+(/[\w. -]+)*\.mlpackage$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: Count
    compile_ms: Milliseconds | None
    lengths: list[Length] = Field(min_length=1, max_length=64)
    default_length: Length
    units: list[_Unit] = Field(min_length=1, max_length=4)

    @model_validator(mode="after")
    def _units_differ(self) -> _Package:
        _refuse_duplicates("unit", [u.unit for u in self.units])
        return self


class MacRecord(_Record):
    """The content of the JSON file that ``benchmark_on_mac.py`` writes.

    Attributes:
        kind: Text that marks such files.
        schema_version: Version of the format; it can be read if its major part is that of `SCHEMA_VERSION`.
        made: Time of the measurement, UTC.
        machine: The Mac or iPhone.
        versions: Versions of libraries.
        protocol: How the script measured.
        load: The Mac's load average before and after.
        packages: The measurements of each Core ML package.
    """

    kind: Literal["pocketbert-mac-benchmark"]
    schema_version: ShortText
    made: ShortText
    machine: _Machine
    versions: dict[ShortText, ShortText] = Field(max_length=32)
    protocol: _Protocol
    load: _LoadAverage
    packages: list[_Package] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _something_measured(self) -> MacRecord:
        """Raise ValueError if nothing was measured, a package occurs twice, or runs are not those of the protocol."""
        _refuse_duplicates("package", [p.path for p in self.packages])
        shape = [self.protocol.runs] * self.protocol.repeats
        for cell in (c for p in self.packages for u in p.units for c in u.cells):
            if [len(r) for r in cell.wall_ms] != shape:
                raise ValueError(f"protocol says {shape[0]} runs in {len(shape)} repeats, and a length has others")
        if not any(u.cells for p in self.packages for u in p.units):
            raise ValueError("nothing could be measured there: " + self.packages[0].units[0].failed)
        return self


def _refuse_duplicates(what: str, values: list[Any]) -> None:
    """Raise ValueError if a value is in a list twice."""
    twice = sorted({str(v) for v in values if values.count(v) > 1})
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} is there twice")


def mac_script() -> str:
    """Return the text of ``coreml/benchmark_on_mac.py``, which artefact folders with Core ML packages carry."""
    source = resources.files("pocketbert.benchmarks.devices.on_target").joinpath("on_mac.py")
    return "#!/usr/bin/env python3\n" + source.read_text(encoding="utf-8")


def import_mac(paths: Sequence[Path], listed: Mapping[Path, Sequence[ModelRecord]]) -> list[BenchmarkResult]:
    """Import result files (JSON) of ``benchmark_on_mac.py``, after comparing the packages with artefact folders.

    Args:
        paths: The result files to import.
        listed: Records of the model files of each artefact folder. If it is empty, nothing is compared, and the result
            says so.

    Returns:
        One result per file, with the provenance `measured` and the Mac or iPhone as device.

    Raises:
        InputError: Listing every problem of all files, including packages that are in none of the folders.
    """
    fix = "Run the script on the Mac in a copy of this folder."

    def check(path: Path, record: MacRecord) -> list[Problem]:
        checks = (check_listed(path, p.path, p.sha256, listed, fix, name_same_path=True) for p in record.packages)
        return [problem for problems in checks for problem in problems]

    records = read_records(paths, read_mac_record, check)
    schemes = {f.sha256: f.scheme for files in listed.values() for f in files}
    return [_result(record, path.name, schemes, checked=bool(listed)) for path, record in records.items()]


def read_mac_record(path: Path) -> MacRecord:
    """Read and check a JSON file of ``benchmark_on_mac.py``.

    Raises:
        InputError: If the file is missing, too large, of another kind or major schema, or invalid; the message lists
            every problem.
    """
    content: Any = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        fix = "Run coreml/benchmark_on_mac.py of the artefact folder on a Mac."
        raise InputError(Problem(str(path), "not a file of benchmark_on_mac.py.", fix))
    again = "Measure again with the script of a folder that this version packed, or update PocketBERT."
    check_schema(path, content, SCHEMA_VERSION, again)
    return validate_record(path, content, MacRecord)


_DESCRIPTION = (
    "By coreml/benchmark_on_mac.py: batch 1, every length filled with {inputs}. Packages and compute units take turns in bursts "
    "of {burst} timed inferences, in a new order each round, after one untimed inference each; a repeat visits every length. "
    "Wall time of coremltools' predict call in Python; CPU time of that process, without what GPU and Neural Engine do. Load "
    "time and first inference come from one fresh process each, after a first load in which Core ML makes the package ready "
    "for the compute unit. The compute plan is Core ML's own expectation."
)
_DESCRIPTION_ON_IPHONE = (
    "By coreml/benchmark_on_mac.py --iphone: batch 1, every length filled with {inputs}. Packages and compute units take turns in "
    "bursts of {burst} timed inferences, in a new order each round, after one untimed inference each; a repeat visits every length. "
    "Time by the iPhone's clock around Core ML's prediction, in the runner app of coremltools. Each input is sent to the app as a "
    "file, so that every inference comes after an idle time of about a second: these are single calls, not inferences in a row. The "
    "compute plan is Core ML's own expectation."
)


def _result(record: MacRecord, source: str, schemes: Mapping[str, Scheme | None], *, checked: bool) -> BenchmarkResult:
    """Convert a result file of the Mac script to a benchmark result; each package on a compute unit is a variant.

    Args:
        record: The file's content.
        source: Name of the imported file, for the notes.
        schemes: Scheme (how numbers are stored) of each package, by its digest.
        checked: Whether the packages were compared with an artefact folder's.
    """
    protocol, mac = record.protocol, record.machine
    measured = [(_variant(p, u, schemes), p, u) for p in record.packages for u in p.units if not u.failed]
    machine = Machine(
        cpu=mac.chip or mac.model or "a Mac",
        arch=mac.arch,
        isa=list(mac.isa),
        cores=mac.cores,
        system=mac.system_name + (f" ({mac.build})" if mac.build else ""),
        python=mac.python,
    )
    description = _DESCRIPTION_ON_IPHONE if protocol.iphone else _DESCRIPTION
    return BenchmarkResult(
        machine=machine,
        versions=dict(record.versions),
        variants=[variant for variant, _, _ in measured],
        protocol=Protocol(
            description=description.format(inputs=protocol.inputs, burst=protocol.burst),
            baseline=measured[0][0].name,
            threads=[ENGINE_THREADS],
            lengths=sorted({c.length for _, _, u in measured for c in u.cells}),
            texts=1,
            runs_asked=protocol.runs,
            runs_made=(protocol.runs, protocol.runs),
            repeats=protocol.repeats,
            burst=protocol.burst,
            budget_s=0,
            took_s=protocol.took_s,
            shortened=False,
            notes=list(_notes(record, source, checked)),
        ),
        measurements=[_measurement(record, machine, v, u, c) for v, _, u in measured for c in u.cells],
        comparisons=_comparisons([(v.name, u.cells) for v, _, u in measured], protocol.burst),
        tokenizers=[],
        profiles=[_profile(v.name, p.default_length, u.plan) for v, p, u in measured if not u.plan.absent],
        answers=[
            AnswerCheck(
                variant=variant.name, provenance=Provenance.MEASURED, **unit.answers.model_dump(exclude={"skipped"})
            )
            for variant, _, unit in measured
            if unit.answers is not None
        ],
    )


def _variant(package: _Package, unit: _Unit, schemes: Mapping[str, Scheme | None]) -> Variant:
    """Build the variant record (name, path, scheme, digest) of a package on a compute unit."""
    return Variant(
        name=f"{package.path} {unit.unit}",
        path=Path(package.path),
        format=Format.COREML,
        scheme=schemes.get(package.sha256),
        tokenizer=Path("tokenizer.json"),
        max_length=max(package.lengths),
        sha256=package.sha256,
        bytes=package.bytes,
    )


def _measurement(record: MacRecord, machine: Machine, variant: Variant, unit: _Unit, cell: _Cell) -> Measurement:
    """Build the measurement record of one package on one compute unit at one length."""

    def statistics(samples: Sequence[Sequence[float]]) -> Statistics:
        return Statistics.of([x for repeat in samples for x in repeat])

    mac, load, cold = record.machine, Load(before=None, after=None, others=None), None
    if not record.protocol.iphone:  # the Mac's load says nothing about the iPhone, where no process was fresh
        load = Load(before=record.load.before, after=record.load.after, others=None, thermal=mac.thermal)
        cold = ColdStart(
            load_ms=unit.load_ms,
            first_ms=unit.first_ms,
            length=variant.max_length,
            peak_memory_bytes=unit.peak_memory_bytes,
            peak_rss_bytes=unit.peak_rss_bytes,
        )
    return Measurement(
        variant=variant.name,
        sha256=variant.sha256,
        bytes=variant.bytes,
        device=", ".join(name for name in (mac.chip, mac.model) if name) or "a Mac",
        unit=unit.unit,
        engine=ENGINE,
        engine_version=machine.system,
        provenance=Provenance.MEASURED,
        machine=machine,
        threads=ENGINE_THREADS,
        length=cell.length,
        tokens_mean=cell.length,
        load=load,
        wall=statistics(cell.wall_ms),
        wall_interval=repeat_interval(burst_medians(cell.wall_ms, record.protocol.runs)),
        cpu=statistics(cell.cpu_ms) if cell.cpu_ms is not None else None,
        cold=cold,
        warmup_runs=cell.warmup_runs,
        warmup_stable=cell.warmup_stable,
        wall_ms=cell.wall_ms,
        cpu_ms=cell.cpu_ms or [],
        engine_wall=statistics(cell.engine_ms) if cell.engine_ms is not None else None,
        engine_ms=cell.engine_ms,
    )


def _comparisons(cells_by_variant: Sequence[tuple[str, list[_Cell]]], burst: int) -> list[Comparison]:
    """Return each further variant's time relative to the first one, for each length that both have.

    They can be compared because the script ran all variants in turns. `burst` is the number of inferences in a turn.
    """
    (baseline, first_cells), *others = cells_by_variant
    first = {cell.length: cell for cell in first_cells}
    comparisons = []
    for name, cells in others:
        for cell in (cell for cell in cells if cell.length in first):
            reference = first[cell.length]
            cpu, reference_cpu = cell.cpu_medians(burst), reference.cpu_medians(burst)
            comparisons.append(
                Comparison(
                    variant=name,
                    baseline=baseline,
                    threads=ENGINE_THREADS,
                    length=cell.length,
                    wall=paired_ratio(burst_medians(cell.wall_ms, burst), burst_medians(reference.wall_ms, burst)),
                    cpu=None if cpu is None or reference_cpu is None else paired_ratio(cpu, reference_cpu),
                    provenance=Provenance.MEASURED,
                )
            )
    return comparisons


def _profile(variant: str, length: int, plan: _Plan) -> Profile:
    """Build a profile record from Core ML's compute plan: on which processor operators run, without times."""
    return Profile(
        variant=variant,
        threads=ENGINE_THREADS,
        length=length,
        runs=0,
        ops=[],
        placement=[
            Placement(provider=d.device, nodes=sum(d.op_types.values()), op_types=dict(d.op_types), cost=d.cost)
            for d in plan.devices
        ],
        provenance=Provenance.ESTIMATED,
    )


def _notes(record: MacRecord, source: str, checked: bool) -> Iterator[str]:
    """Yield notes for the result: origin, compile and load times, failures, warnings."""
    mac, iphone = record.machine, record.protocol.iphone
    where = f"{mac.power or 'power source unknown'}; {mac.thermal or 'thermal state unknown'}"
    if iphone:
        yield f"Imported from {source}, measured {record.made} on {mac.system_name}, on an iPhone connected to a Mac."
    else:
        yield f"Imported from {source}, measured {record.made} on macOS {mac.macos}: {where}."
    if not checked:
        yield UNCHECKED
    for package in record.packages:
        loads = ", ".join(f"{u.unit} {milliseconds(u.specialize_ms)} ms" for u in package.units if not u.failed)
        if package.compile_ms is not None and loads:
            yield f"{package.path}: compiled in {milliseconds(package.compile_ms)} ms; first load after that: {loads}."
        for unit in package.units:
            name = f"{package.path} {unit.unit}"
            if unit.failed:
                yield f"{name} could not be measured: {unit.failed}"
                continue
            if iphone:
                times = f"loaded in {milliseconds(unit.load_ms)} ms, first inference {milliseconds(unit.first_ms)} ms"
                yield f"{name}: {times}, in the runner app's process."
            if unit.answers is None:
                yield f"{name}: answers were not checked, golden.jsonl had no answers of this file."
            elif unit.answers.skipped:
                skipped = f"{unit.answers.skipped} golden rows left out of the check"
                yield f"{name}: {skipped}: too long, or pairs without segment ids."
            if unit.plan.absent:
                yield f"{name}: no compute plan: {unit.plan.absent}"
    restless = sum(not c.warmup_stable for p in record.packages for u in p.units for c in u.cells)
    if restless:
        yield f"{restless} warm-ups ended while the times still changed. Compare the time ratios rather than single times."
