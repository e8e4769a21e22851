"""Make benchmark results of the files that the Android demo app wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pocketbert.benchmarks.devices.android.record import PhoneCell, PhoneFile, PhoneRecord, read_phone_record
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, Protocol
from pocketbert.benchmarks.statistics import Statistics, burst_medians, repeat_interval
from pocketbert.benchmarks.wording import milliseconds
from pocketbert.core.artefacts import FileRecord
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Provenance

UNCHECKED = "No artefact folder was given (-m): it was not checked which files these figures belong to."
_DESCRIPTION = (
    "By the Android demo app, version {app}: batch 1, {inputs}. One file after the other, each warmed up until stable, "
    "then repeats of timed inferences; wall time of the engine's call in Java. Figures of two files were not taken in "
    "turns, so that no ratio is formed."
)


def import_phone(paths: Sequence[Path], listed: Mapping[Path, Sequence[FileRecord]]) -> list[BenchmarkResult]:
    """Read files of the Android demo app.

    Args:
        paths: The files.
        listed: Model files of artefact folders, by folder; with none, nothing is checked and the result says so.

    Returns:
        One result per file, its provenance `measured`, its device the phone.

    Raises:
        InputError: Listing every problem of all files; also where a measured file is not the one in a folder.
    """
    problems: list[Problem] = []
    records: dict[Path, PhoneRecord] = {}
    for path in paths:
        try:
            record = read_phone_record(path)
        except InputError as error:
            problems += error.problems
            continue
        if record in records.values():
            problems.append(Problem(str(path), "these figures are imported already."))
        records[path] = record
        if listed:
            problems += [p for file in record.files for p in _strange(path, file, listed)]
    if problems:
        raise InputError(problems)
    return [phone_result(record, path.name, checked=bool(listed)) for path, record in records.items()]


def phone_result(record: PhoneRecord, source: str, *, checked: bool) -> BenchmarkResult:
    """One file as a result: a variant for each model file, engine and processor.

    Args:
        record: The file's content.
        source: Its name.
        checked: Whether the model files are known to be those of an artefact folder.
    """
    machine = _machine(record)
    made = [len(repeat) for f in record.files for c in f.cells for repeat in c.wall_ms]
    protocol = Protocol(
        description=_DESCRIPTION.format(app=record.app, inputs=record.protocol.inputs),
        baseline=record.files[0].name,
        threads=sorted({f.threads for f in record.files}),
        lengths=sorted({c.length for f in record.files for c in f.cells}),
        texts=1,
        runs_asked=record.protocol.runs,
        runs_made=(min(made), max(made)),
        repeats=record.protocol.repeats,
        burst=record.protocol.runs,
        budget_s=0,
        took_s=record.protocol.took_s,
        shortened=min(made) < record.protocol.runs,
        notes=list(_notes(record, source, checked)),
    )
    return BenchmarkResult(
        machine=machine,
        versions={f.engine: f.engine_version for f in record.files},
        protocol=protocol,
        variants=list({f.name: _variant(f) for f in record.files}.values()),
        measurements=[_measurement(record, machine, f, c) for f in record.files for c in f.cells],
        comparisons=[],
        tokenizers=[],
        profiles=[],
        answers=list({f.name: _answers(f) for f in record.files}.values()),
    )


def _machine(record: PhoneRecord) -> Machine:
    phone = record.phone
    return Machine(
        cpu=phone.soc or phone.title,
        arch=phone.abi,
        isa=[],
        cores=phone.cores,
        system=f"Android {phone.android} (API {phone.api})",
        python="",
    )


def _variant(file: PhoneFile) -> Variant:
    return Variant(
        name=file.name,
        path=Path(file.path),
        format=file.known_format,
        scheme=file.scheme,
        tokenizer=Path("tokenizer.json"),
        max_length=max(c.length for c in file.cells),
        sha256=file.sha256,
        bytes=file.bytes,
    )


def _measurement(record: PhoneRecord, machine: Machine, file: PhoneFile, cell: PhoneCell) -> Measurement:
    thermal = " → ".join(part for part in (record.thermal.before, record.thermal.after) if part)
    return Measurement(
        variant=file.name,
        sha256=file.sha256,
        bytes=file.bytes,
        device=record.phone.title,
        unit=file.processor,
        engine=file.engine,
        engine_version=file.engine_version,
        provenance=Provenance.MEASURED,
        machine=machine,
        threads=file.threads,
        length=cell.length,
        tokens_mean=cell.length,
        load=Load(before=None, after=None, others=None, thermal=f"thermal status {thermal}" if thermal else ""),
        wall=Statistics.of([x for repeat in cell.wall_ms for x in repeat]),
        wall_interval=repeat_interval(burst_medians(cell.wall_ms, record.protocol.runs)),
        cpu=None,
        cold=None,
        warmup_runs=cell.warmup_runs,
        warmup_stable=cell.warmup_stable,
        wall_ms=cell.wall_ms,
        cpu_ms=[],
    )


def _answers(file: PhoneFile) -> AnswerCheck:
    return AnswerCheck(
        variant=file.name,
        rows=file.answers.rows,
        largest=file.answers.largest,
        tolerance=file.answers.tolerance,
        finite=True,
        provenance=Provenance.MEASURED,
    )


def _strange(path: Path, file: PhoneFile, listed: Mapping[Path, Sequence[FileRecord]]) -> Iterator[Problem]:
    """Figures belong to the files they were measured on."""
    if any(f.sha256 == file.sha256 for files in listed.values() for f in files):
        return
    yield Problem(
        f"{path} {file.path}",
        f"measured was a file with sha256 {file.sha256}; {', '.join(map(str, listed))} lists no such file. Figures belong "
        "to the files they were measured on.",
        "Pack this folder for the app, and measure again.",
    )


def _notes(record: PhoneRecord, source: str, checked: bool) -> Iterator[str]:
    phone, power = record.phone, record.power or "power source unknown"
    thermal = f"thermal status {record.thermal.before or 'unknown'}, at the end {record.thermal.after or 'unknown'}"
    yield f"Imported from {source}, measured {record.made} on {phone.title}, Android {phone.android}: {power}; {thermal}."
    if not checked:
        yield UNCHECKED
    for file in record.files:
        told = {"loaded in": file.load_ms, "first inference": file.first_ms}
        times = [f"{what} {milliseconds(ms)} ms" for what, ms in told.items() if ms is not None]
        memory = [] if file.memory_bytes is None else [f"{file.memory_bytes / 2**20:.0f} MiB of memory"]
        if times or memory:
            yield f"{file.name}, {file.threads} threads: {', '.join([*times, *memory])}."
        if file.sustained:
            first, last = file.sustained[0], file.sustained[-1]
            yield (
                f"{file.name}, {file.threads} threads, {last.after_s:.0f} s without a pause: median {milliseconds(first.p50_ms)} ms "
                f"in the first second, {milliseconds(last.p50_ms)} ms in the last one"
                + (f", thermal status {last.thermal}." if last.thermal else ".")
            )
    restless = sum(not c.warmup_stable for f in record.files for c in f.cells)
    if restless:
        yield f"{restless} warm-ups ended while the times still changed."
