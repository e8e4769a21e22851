"""Read the files that a Mac's script wrote, as benchmark results like any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pocketbert.benchmarks.devices.mac.record import (
    MacAnswers,
    MacCell,
    MacPackage,
    MacRecord,
    MacUnit,
    read_mac_record,
)
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, ColdStart, Placement, Profile, Protocol
from pocketbert.benchmarks.statistics import Ratio, Statistics, burst_medians, paired_ratio, repeat_interval
from pocketbert.benchmarks.wording import milliseconds
from pocketbert.core.artefacts import FileRecord, read_artefacts
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Provenance, Scheme

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
