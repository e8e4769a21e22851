"""Read the files that a Mac's script wrote, as benchmark results like any other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, ColdStart, Placement, Profile, Protocol
from pocketbert.benchmarks.statistics import Ratio, Statistics, burst_medians, paired_ratio, repeat_interval
from pocketbert.benchmarks.wording import milliseconds
from pocketbert.core.artefacts import FileRecord, read_artefacts
from pocketbert.core.disk.files import check_schema, read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Provenance, Scheme

# --- record ---
# What the script on the Mac writes. It comes from another machine, so nothing in it is believed unchecked.


KIND = "pocketbert-mac-benchmark"
SCHEMA_VERSION = "1.1"
MOST_PROBLEMS = 20

# No control characters: these texts reach a terminal.
Words = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Ms = Annotated[float, Field(gt=0, le=1e8, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1.001, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**48)]
Length = Annotated[int, Field(ge=1, le=65536)]
Samples = Annotated[
    list[Annotated[list[Ms], Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=1000)
]
# CPU time of one inference may be below the clock's step
CpuSamples = Annotated[
    list[
        Annotated[
            list[Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)]],
            Field(min_length=1, max_length=1000),
        ]
    ],
    Field(min_length=1, max_length=1000),
]


class _Record(BaseModel):
    """Unknown keys are ignored, so that this version reads newer files of the same major schema."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class MacMachine(_Record):
    """The Mac or the iPhone. What it did not tell is empty or 0.

    Attributes:
        model: As Apple counts models, e.g. ``Mac14,2``.
        chip: Its processor.
        arch: ``arm64`` or ``x86_64``.
        isa: Instruction-set extensions that matter for encoders.
        cores: CPU cores.
        memory_bytes: Main memory.
        macos: Version of the system.
        build: Its build.
        python: Version of Python.
        power: ``AC Power`` or ``Battery Power``.
        thermal: What ``pmset -g therm`` said.
        system: Name and version of a system other than macOS.
    """

    model: Words
    chip: Words
    arch: Words
    isa: list[Words] = Field(max_length=64)
    cores: int = Field(ge=0, le=4096)
    memory_bytes: Count
    macos: Words
    build: Words
    python: Words
    power: Words
    thermal: Words
    system: Words = ""


class MacProtocol(_Record):
    """How the script measured.

    Attributes:
        runs: Timed inferences per package, unit, length and repeat.
        repeats: Passes over everything.
        burst: Timed inferences before the next one has its turn.
        inputs: Where the token ids came from.
        took_s: Seconds it took.
        iphone: Whether an iPhone was measured, connected to the Mac that ran the script.
    """

    runs: int = Field(ge=1, le=1000)
    repeats: int = Field(ge=1, le=1000)
    burst: int = Field(ge=1, le=1000)
    inputs: Words
    took_s: float = Field(ge=0, le=1e7, allow_inf_nan=False)
    iphone: bool = False


class MacLoad(_Record):
    """Load average over a minute at the start and at the end."""

    before: float = Field(ge=0, le=1e6, allow_inf_nan=False)
    after: float = Field(ge=0, le=1e6, allow_inf_nan=False)


class MacAnswers(_Record):
    """How far the answers were from those recorded in the folder's golden rows.

    Attributes:
        rows: Rows compared.
        skipped: Rows left out: too long, or a pair without segment ids.
        largest: Largest difference among finite answers.
        tolerance: Largest one that is allowed.
        finite: Whether all answers were numbers.
    """

    rows: int = Field(ge=1, le=1_000_000)
    skipped: Count
    largest: float = Field(ge=0, allow_inf_nan=False)
    tolerance: float = Field(gt=0, allow_inf_nan=False)
    finite: bool


class MacDevice(_Record):
    """What Core ML expects one of the Mac's processors to run.

    Attributes:
        device: ``CPU``, ``GPU``, ``Neural Engine``, or ``undecided``.
        cost: Its share of the cost as Core ML estimates it.
        op_types: Operators per type.
    """

    device: Words
    cost: Share
    op_types: dict[Words, Count] = Field(max_length=1000)


class MacPlan(_Record):
    """Core ML's compute plan.

    Attributes:
        devices: One entry per processor.
        constants: Operators that are only data.
        absent: Why there is no plan.
    """

    devices: list[MacDevice] = Field([], max_length=8)
    constants: Count = 0
    absent: Words = ""


class MacCell(_Record):
    """One length.

    Attributes:
        length: Tokens.
        warmup_runs: Untimed inferences before.
        warmup_stable: Whether they became stable.
        wall_ms: Wall times, [repeats][runs].
        cpu_ms: CPU times of the process, same shape; None of an iPhone.
        engine_ms: Core ML's own times, same shape; None where this coremltools does not tell.
    """

    length: Length
    warmup_runs: Count
    warmup_stable: bool
    wall_ms: Samples
    cpu_ms: CpuSamples | None
    engine_ms: Samples | None

    @model_validator(mode="after")
    def _same_shape(self) -> MacCell:
        shape = [len(r) for r in self.wall_ms]
        for name, other in (("cpu_ms", self.cpu_ms), ("engine_ms", self.engine_ms)):
            if other is not None and [len(r) for r in other] != shape:
                raise ValueError(f"{name} has another shape than wall_ms")
        return self


class MacUnit(_Record):
    """One package on one compute unit.

    Attributes:
        unit: What was allowed to compute.
        failed: Why it could not be measured; then nothing else is there.
        specialize_ms: First load after compilation: Core ML makes the package ready for the unit.
        load_ms: Load after that, in a fresh process.
        first_ms: First inference in that process, at the longest length.
        peak_memory_bytes: Peak resident memory above what the process had before loading.
        peak_rss_bytes: The same peak, absolute.
        answers: How right the answers were; None where the folder recorded none.
        plan: What is expected to run where.
        cells: One per length.
    """

    unit: Literal["all", "cpu-only", "cpu-and-gpu", "cpu-and-ne"]
    failed: Words = ""
    specialize_ms: Ms = math.inf
    load_ms: Ms = math.inf
    first_ms: Ms = math.inf
    peak_memory_bytes: Count = 0
    peak_rss_bytes: Count = 0
    answers: MacAnswers | None = None
    plan: MacPlan = MacPlan()
    cells: list[MacCell] = Field([], max_length=64)

    @model_validator(mode="after")
    def _whole(self) -> MacUnit:
        if not self.failed:
            missing = {
                "specialize_ms",
                "load_ms",
                "first_ms",
                "answers",
                "plan",
                "cells",
            } - self.model_fields_set
            if missing:
                raise ValueError(f"no {', '.join(sorted(missing))}, though it did not fail")
            if not self.cells:
                raise ValueError("no length was measured, though it did not fail")
        _differ("length", [c.length for c in self.cells])
        return self


class MacPackage(_Record):
    """One package.

    Attributes:
        path: Path in the artefact folder.
        sha256: Digest of the package.
        bytes: Its size.
        compile_ms: What compiling took; None where it failed.
        lengths: Lengths measured.
        default_length: The length that the plan is made for.
        units: One entry per compute unit asked for.
    """

    path: str = Field(max_length=400, pattern=r"^[\w. -]+(/[\w. -]+)*\.mlpackage$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: Count
    compile_ms: Ms | None
    lengths: list[Length] = Field(min_length=1, max_length=64)
    default_length: Length
    units: list[MacUnit] = Field(min_length=1, max_length=4)

    @model_validator(mode="after")
    def _units_differ(self) -> MacPackage:
        _differ("unit", [u.unit for u in self.units])
        return self


class MacRecord(_Record):
    """The whole file.

    Attributes:
        kind: Says that it is such a file.
        schema_version: Major part equal means readable.
        made: When, UTC.
        machine: The Mac.
        versions: Libraries.
        protocol: How it was measured.
        load: What else the Mac did.
        packages: What was measured.
    """

    kind: Literal["pocketbert-mac-benchmark"]
    schema_version: Words
    made: Words
    machine: MacMachine
    versions: dict[Words, Words] = Field(max_length=32)
    protocol: MacProtocol
    load: MacLoad
    packages: list[MacPackage] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _something_measured(self) -> MacRecord:
        _differ("package", [p.path for p in self.packages])
        shape = [self.protocol.runs] * self.protocol.repeats
        for cell in (c for p in self.packages for u in p.units for c in u.cells):
            if [len(r) for r in cell.wall_ms] != shape:
                raise ValueError(f"protocol says {shape[0]} runs in {len(shape)} repeats, and a length has others")
        if not any(u.cells for p in self.packages for u in p.units):
            raise ValueError("nothing could be measured there: " + self.packages[0].units[0].failed)
        return self


def read_mac_record(path: Path) -> MacRecord:
    """Read and check such a file.

    Raises:
        InputError: Listing what is wrong with it: missing, too large, of another kind or major schema, or wrong.
    """
    content: Any = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(
            Problem(
                str(path),
                "not a file of benchmark_on_mac.py.",
                "Run coreml/benchmark_on_mac.py of the artefact folder on a Mac.",
            )
        )
    again = "Measure again with the script of a folder that this version packed, or update PocketBERT."
    check_schema(path, content, SCHEMA_VERSION, again)
    try:
        return MacRecord.model_validate(content)
    except ValidationError as error:
        problems = [
            Problem(f"{path} {'.'.join(map(str, e['loc']))}".strip(), f"{e['msg'].removeprefix('Value error, ')}.")
            for e in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        more = len(problems) - MOST_PROBLEMS
        rest = [Problem(str(path), f"and {more} problems more.")] if more > 0 else []
        raise InputError([*problems[:MOST_PROBLEMS], *rest]) from error


def _differ(what: str, values: list[Any]) -> None:
    twice = sorted({str(v) for v in values if values.count(v) > 1})
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} is there twice")


ENGINE = "Core ML"
ENGINE_THREADS = 0
"""Core ML takes no thread count."""
UNCHECKED = "No artefact folder was given (-m): it was not checked which files these figures belong to."
_DESCRIPTION = (
    "By coreml/benchmark_on_mac.py: batch 1, every length filled with {inputs}. Packages and compute units take turns in bursts "
    "of {burst} timed inferences, in a new order each round, after one untimed inference each; a repeat visits every length. "
    "Wall time of coremltools' predict call in Python; CPU time of that process, without what GPU and Neural Engine do. Load "
    "time and first inference come from one fresh process each, after a first load in which Core ML makes the package ready "
    "for the compute unit. The compute plan is Core ML's own expectation."
)

_ON_PHONE = (
    "By coreml/benchmark_on_mac.py --iphone: batch 1, every length filled with {inputs}. Packages and compute units take turns in "
    "bursts of {burst} timed inferences, in a new order each round, after one untimed inference each; a repeat visits every length. "
    "Time by the iPhone's clock around Core ML's prediction, in the runner app of coremltools. Each input is sent to the app as a "
    "file, so that every inference comes after an idle time of about a second: these are single calls, not inferences in a row. The "
    "compute plan is Core ML's own expectation."
)


def import_mac(paths: Sequence[Path], folders: Sequence[Path]) -> list[BenchmarkResult]:
    """Read files of ``benchmark_on_mac.py``.

    Args:
        paths: The files.
        folders: Artefact folders that hold the measured packages; with none, nothing is checked and the result says so.

    Returns:
        One result per file, its provenance `measured`, its device the Mac.

    Raises:
        InputError: Listing every problem of all files; also where a package is not the one in a folder.
    """
    listed = {folder: read_artefacts(folder).models() for folder in folders}
    problems: list[Problem] = []
    records: dict[Path, MacRecord] = {}
    for path in paths:
        try:
            record = read_mac_record(path)
        except InputError as error:
            problems += error.problems
            continue
        if record in records.values():
            problems.append(Problem(str(path), "these figures are imported already."))
        records[path] = record
        if folders:
            problems += [p for package in record.packages for p in _strange(path, package, listed)]
    if problems:
        raise InputError(problems)
    schemes = {f.sha256: f.scheme for files in listed.values() for f in files}
    return [mac_result(r, p.name, schemes, checked=bool(folders)) for p, r in records.items()]


def mac_result(
    record: MacRecord, source: str, schemes: Mapping[str, Scheme | None] | None = None, *, checked: bool
) -> BenchmarkResult:
    """One file as a result: a variant per package and compute unit, compared with the first one measured.

    Args:
        record: The file's content.
        source: Its name.
        schemes: How numbers are stored, by the package's digest.
        checked: Whether the packages are known to be those of an artefact folder.
    """
    machine = _machine(record)
    measured = [(p, u) for p in record.packages for u in p.units if not u.failed]
    return BenchmarkResult(
        machine=machine,
        versions=dict(record.versions),
        variants=[_variant(p, u, schemes or {}) for p, u in measured],
        protocol=_protocol(record, measured, list(_notes(record, source, checked))),
        measurements=[_measurement(record, machine, p, u, c) for p, u in measured for c in u.cells],
        comparisons=_comparisons(measured, record.protocol.burst),
        tokenizers=[],
        profiles=[_profile(p, u) for p, u in measured if not u.plan.absent],
        answers=[_answers(p, u, u.answers) for p, u in measured if u.answers is not None],
    )


def _machine(record: MacRecord) -> Machine:
    mac = record.machine
    return Machine(
        cpu=mac.chip or mac.model or "a Mac",
        arch=mac.arch,
        isa=list(mac.isa),
        cores=mac.cores,
        system=_system(record) + (f" ({mac.build})" if mac.build else ""),
        python=mac.python,
    )


def _system(record: MacRecord) -> str:
    return record.machine.system or f"macOS {record.machine.macos}"


def _load(record: MacRecord) -> Load:
    if record.protocol.iphone:  # what the Mac does is nothing to the iPhone
        return Load(before=None, after=None, others=None)
    return Load(before=record.load.before, after=record.load.after, others=None, thermal=record.machine.thermal)


def _cold(package: MacPackage, unit: MacUnit) -> ColdStart:
    return ColdStart(
        load_ms=unit.load_ms,
        first_ms=unit.first_ms,
        length=max(package.lengths),
        peak_memory_bytes=unit.peak_memory_bytes,
        peak_rss_bytes=unit.peak_rss_bytes,
    )


def _variant(package: MacPackage, unit: MacUnit, schemes: Mapping[str, Scheme | None]) -> Variant:
    return Variant(
        name=_name(package, unit),
        path=Path(package.path),
        format=Format.COREML,
        scheme=schemes.get(package.sha256),
        tokenizer=Path("tokenizer.json"),
        max_length=max(package.lengths),
        sha256=package.sha256,
        bytes=package.bytes,
    )


def _protocol(record: MacRecord, measured: Sequence[tuple[MacPackage, MacUnit]], notes: list[str]) -> Protocol:
    protocol = record.protocol
    return Protocol(
        description=(_ON_PHONE if protocol.iphone else _DESCRIPTION).format(
            inputs=protocol.inputs, burst=protocol.burst
        ),
        baseline=_name(*measured[0]),
        threads=[ENGINE_THREADS],
        lengths=sorted({c.length for _, u in measured for c in u.cells}),
        texts=1,
        runs_asked=protocol.runs,
        runs_made=(protocol.runs, protocol.runs),
        repeats=protocol.repeats,
        burst=protocol.burst,
        budget_s=0,
        took_s=protocol.took_s,
        shortened=False,
        notes=notes,
    )


def _answers(package: MacPackage, unit: MacUnit, answers: MacAnswers) -> AnswerCheck:
    return AnswerCheck(
        variant=_name(package, unit),
        rows=answers.rows,
        largest=answers.largest,
        tolerance=answers.tolerance,
        finite=answers.finite,
        provenance=Provenance.MEASURED,
    )


def _strange(path: Path, package: MacPackage, listed: Mapping[Path, Sequence[FileRecord]]) -> Iterator[Problem]:
    """Figures belong to the files they were measured on."""
    here = [f for files in listed.values() for f in files]
    if any(f.sha256 == package.sha256 for f in here):
        return
    same = next((f for f in here if f.path == package.path), None)
    folders = ", ".join(map(str, listed))
    what = f"in {folders} that file has sha256 {same.sha256}" if same is not None else f"{folders} lists no such file"
    yield Problem(
        f"{path} {package.path}",
        f"measured was a file with sha256 {package.sha256}; {what}. Figures belong to the files they were measured on.",
        "Run the script on the Mac in a copy of this folder.",
    )


def _name(package: MacPackage, unit: MacUnit) -> str:
    return f"{package.path} {unit.unit}"


def _measurement(record: MacRecord, machine: Machine, package: MacPackage, unit: MacUnit, cell: MacCell) -> Measurement:
    def flat(samples: Sequence[Sequence[float]]) -> Statistics:
        return Statistics.of([x for repeat in samples for x in repeat])

    names = [n for n in (record.machine.chip, record.machine.model) if n]
    return Measurement(
        variant=_name(package, unit),
        sha256=package.sha256,
        bytes=package.bytes,
        device=", ".join(names) or "a Mac",
        unit=unit.unit,
        engine=ENGINE,
        engine_version=machine.system,
        provenance=Provenance.MEASURED,
        machine=machine,
        threads=ENGINE_THREADS,
        length=cell.length,
        tokens_mean=cell.length,
        load=_load(record),
        wall=flat(cell.wall_ms),
        wall_interval=repeat_interval(burst_medians(cell.wall_ms, record.protocol.runs)),
        cpu=flat(cell.cpu_ms) if cell.cpu_ms is not None else None,
        cold=None if record.protocol.iphone else _cold(package, unit),
        warmup_runs=cell.warmup_runs,
        warmup_stable=cell.warmup_stable,
        wall_ms=cell.wall_ms,
        cpu_ms=cell.cpu_ms or [],
        engine_wall=flat(cell.engine_ms) if cell.engine_ms is not None else None,
        engine_ms=cell.engine_ms,
    )


def _comparisons(measured: Sequence[tuple[MacPackage, MacUnit]], burst: int) -> list[Comparison]:
    """Within the Mac only: all that was measured took turns there, round by round."""
    baseline, first = _name(*measured[0]), {c.length: c for c in measured[0][1].cells}
    return [
        Comparison(
            variant=_name(p, u),
            baseline=baseline,
            threads=ENGINE_THREADS,
            length=c.length,
            wall=paired_ratio(burst_medians(c.wall_ms, burst), burst_medians(first[c.length].wall_ms, burst)),
            cpu=_cpu_ratio(c, first[c.length], burst),
            provenance=Provenance.MEASURED,
        )
        for p, u in measured[1:]
        for c in u.cells
        if c.length in first
    ]


def _cpu_ratio(cell: MacCell, baseline: MacCell, burst: int) -> Ratio | None:
    if cell.cpu_ms is None or baseline.cpu_ms is None:
        return None
    return paired_ratio(_positive(cell.cpu_ms, burst), _positive(baseline.cpu_ms, burst))


def _positive(cpu_ms: Sequence[Sequence[float]], burst: int) -> list[float]:
    """CPU medians of the rounds, at least the clock's step of 1 µs, so that a ratio of them exists."""
    return [max(x, 1e-3) for x in burst_medians(cpu_ms, burst)]


def _profile(package: MacPackage, unit: MacUnit) -> Profile:
    return Profile(
        variant=_name(package, unit),
        threads=ENGINE_THREADS,
        length=package.default_length,
        runs=0,
        ops=[],
        placement=[
            Placement(provider=d.device, nodes=sum(d.op_types.values()), op_types=dict(d.op_types), cost=d.cost)
            for d in unit.plan.devices
        ],
        provenance=Provenance.ESTIMATED,
    )


def _notes(record: MacRecord, source: str, checked: bool) -> Iterator[str]:
    mac = record.machine
    where = f"{mac.power or 'power source unknown'}; {mac.thermal or 'thermal state unknown'}"
    if record.protocol.iphone:
        yield f"Imported from {source}, measured {record.made} on {_system(record)}, on an iPhone connected to a Mac."
    else:
        yield f"Imported from {source}, measured {record.made} on macOS {mac.macos}: {where}."
    if not checked:
        yield UNCHECKED
    for package in record.packages:
        loads = ", ".join(f"{u.unit} {milliseconds(u.specialize_ms)} ms" for u in package.units if not u.failed)
        if package.compile_ms is not None and loads:
            yield f"{package.path}: compiled in {milliseconds(package.compile_ms)} ms; first load after that: {loads}."
        for unit in package.units:
            name = _name(package, unit)
            if record.protocol.iphone and not unit.failed:
                times = f"loaded in {milliseconds(unit.load_ms)} ms, first inference {milliseconds(unit.first_ms)} ms"
                yield f"{name}: {times}, in the runner app's process."
            if unit.failed:
                yield f"{name} could not be measured: {unit.failed}"
                continue
            if unit.answers is None:
                yield f"{name}: answers were not checked, golden.jsonl had no answers of this file."
            elif unit.answers.skipped:
                yield f"{name}: {unit.answers.skipped} golden rows left out of the check: too long, or pairs without segment ids."
            if unit.plan.absent:
                yield f"{name}: no compute plan: {unit.plan.absent}"
    restless = sum(not c.warmup_stable for p in record.packages for u in p.units for c in u.cells)
    if restless:
        yield f"{restless} warm-ups ended while the times still changed. Compare the time ratios rather than single times."


# --- script ---

FILE_NAME = "benchmark_on_mac.py"


def mac_script() -> str:
    """Return the text of ``coreml/benchmark_on_mac.py``, which artefact folders with Core ML packages carry."""
    source = resources.files("pocketbert.benchmarks.devices.on_target").joinpath("on_mac.py")
    return "#!/usr/bin/env python3\n" + source.read_text(encoding="utf-8")
