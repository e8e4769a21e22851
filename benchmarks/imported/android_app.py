"""Measure with the Android demo app: start its benchmark by intents over adb, and collect what it writes."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbert.benchmarks.devices.adb_phone import Adb
from pocketbert.benchmarks.imported.mac import MOST_PROBLEMS, Count, Length, Ms, Samples, Words
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, Protocol
from pocketbert.benchmarks.statistics import Statistics, burst_medians, repeat_interval
from pocketbert.benchmarks.wording import milliseconds
from pocketbert.core.artefacts import FileRecord
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.disk.files import check_schema, read_json
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.progress import Meter, say
from pocketbert.core.types import Format, Provenance, Scheme

# --- record ---
# What the Android demo app writes. It comes from another machine, so nothing in it is believed unchecked.


KIND = "pocketbert-android-benchmark"
SCHEMA_VERSION = "1.0"
Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class _Record(BaseModel):
    """Unknown keys are ignored, so that this version reads newer files of the same major schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Phone(_Record):
    """The phone. What it did not tell is empty or 0.

    Attributes:
        maker: Manufacturer.
        model: Model.
        soc: Name of the chip.
        android: Version of Android.
        api: API level.
        abi: Processor interface, e.g. ``arm64-v8a``.
        cores: CPU cores.
        memory_bytes: Main memory.
        emulated: Whether it is an emulator.
    """

    maker: Words
    model: Words
    soc: Words
    android: Words
    api: int = Field(ge=0, le=10_000)
    abi: Words
    cores: int = Field(ge=1, le=4096)
    memory_bytes: Count
    emulated: bool

    @property
    def title(self) -> str:
        """What people call it."""
        return " ".join(part for part in (self.maker, self.model) if part) or "a phone"


class PhoneProtocol(_Record):
    """How the app measured.

    Attributes:
        runs: Timed inferences per file, length and repeat that were asked for.
        repeats: Repeats that were asked for.
        inputs: Where the texts came from.
        took_s: Seconds it took.
    """

    runs: int = Field(ge=1, le=1000)
    repeats: int = Field(ge=1, le=1000)
    inputs: Words
    took_s: Seconds


class Thermal(_Record):
    """Thermal status at the start and at the end, in the phone's words."""

    before: Words
    after: Words


class PhoneAnswers(_Record):
    """How far the answers were from the recorded golden rows.

    Attributes:
        rows: Rows compared.
        largest: Largest difference.
        tolerance: Largest one that is allowed.
    """

    rows: int = Field(ge=1, le=1_000_000)
    largest: float = Field(ge=0, allow_inf_nan=False)
    tolerance: float = Field(ge=0, allow_inf_nan=False)


class PhoneCell(_Record):
    """One length.

    Attributes:
        length: Tokens.
        warmup_runs: Untimed inferences before.
        warmup_stable: Whether they became stable.
        wall_ms: Wall times, one list for each repeat; shorter where the measurement was ended.
    """

    length: Length
    warmup_runs: Count
    warmup_stable: bool
    wall_ms: Samples


class SustainedPoint(_Record):
    """About one second of a run without a pause.

    Attributes:
        after_s: Seconds since its start.
        p50_ms: Median time of an inference.
        thermal: Thermal status in the phone's words.
    """

    after_s: Seconds
    p50_ms: Ms
    thermal: Words


class PhoneFile(_Record):
    """One file in one engine.

    Attributes:
        path: Path in the artefact folder.
        sha256: Digest of the file.
        bytes: Its size.
        format: Its format.
        scheme: How its numbers are stored.
        engine: Name of the engine.
        engine_version: Its version.
        processor: Part of the phone that computed.
        threads: CPU threads.
        load_ms: From the bytes to a session that can run; None where the app did not tell.
        first_ms: First inference.
        memory_bytes: Growth of resident memory while loading and at the first inference.
        answers: What the self-test found.
        cells: One entry for each length.
        sustained: A run without a pause; empty where none was made.
    """

    path: str = Field(max_length=400, pattern=r"^[\w-][\w .-]*(/[\w-][\w .-]*)*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: Count
    format: Literal["onnx", "tflite"]
    scheme: Scheme
    engine: Words = Field(min_length=1)
    engine_version: Words
    processor: Literal["cpu", "gpu", "npu"]
    threads: int = Field(ge=1, le=4096)
    load_ms: Ms | None
    first_ms: Ms | None
    memory_bytes: Count | None
    answers: PhoneAnswers
    cells: list[PhoneCell] = Field(min_length=1, max_length=64)
    sustained: list[SustainedPoint] = Field([], max_length=100_000)

    @property
    def name(self) -> str:
        """How tables call it: the file, its engine and where it ran."""
        return f"{self.path} {self.engine} {self.processor.upper()}"

    @property
    def known_format(self) -> Format:
        """Its format as the toolkit names it."""
        return Format.ONNX if self.format == "onnx" else Format.TFLITE

    @model_validator(mode="after")
    def _lengths_differ(self) -> PhoneFile:
        lengths = [c.length for c in self.cells]
        if len(set(lengths)) < len(lengths):
            raise ValueError("a length is there twice")
        return self


class PhoneRecord(_Record):
    """The whole file.

    Attributes:
        kind: Says that it is such a file.
        schema_version: Major part equal means readable.
        made: When, UTC.
        app: Version of the app.
        phone: The phone.
        protocol: How it was measured.
        thermal: How warm the phone was.
        power: Battery or charger.
        files: What was measured.
    """

    kind: Literal["pocketbert-android-benchmark"]
    schema_version: Words
    made: Words
    app: Words
    phone: Phone
    protocol: PhoneProtocol
    thermal: Thermal
    power: Words
    files: list[PhoneFile] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _makes_sense(self) -> PhoneRecord:
        if self.phone.emulated:
            raise ValueError("measured on an emulator, whose times are no latencies; measure on a phone")
        measured = [(f.name, f.threads) for f in self.files]
        if len(set(measured)) < len(measured):
            raise ValueError("the same file, engine, processor and number of threads is there twice")
        protocol = self.protocol
        for cell in (c for f in self.files for c in f.cells):
            if len(cell.wall_ms) > protocol.repeats or any(len(r) > protocol.runs for r in cell.wall_ms):
                raise ValueError(f"more than the {protocol.runs} runs in {protocol.repeats} repeats of the protocol")
        return self


def read_phone_record(path: Path) -> PhoneRecord:
    """Read and check such a file.

    Raises:
        InputError: Listing what is wrong with it: missing, too large, of another major schema, or wrong.
    """
    content: Any = read_json(path)
    check_schema(path, content, SCHEMA_VERSION, "Measure again with an app of this version, or update PocketBERT.")
    try:
        return PhoneRecord.model_validate(content)
    except ValidationError as error:
        problems = [
            Problem(f"{path} {'.'.join(map(str, e['loc']))}".strip(), f"{e['msg'].removeprefix('Value error, ')}.")
            for e in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        more = len(problems) - MOST_PROBLEMS
        rest = [Problem(str(path), f"and {more} problems more.")] if more > 0 else []
        raise InputError([*problems[:MOST_PROBLEMS], *rest]) from error


# --- importing ---
# Make benchmark results of the files that the Android demo app wrote.


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


PACKAGE = "org.pocketbert.demo"
RECORD = f"/sdcard/Android/data/{PACKAGE}/files/benchmark.json"
"""Where the app writes what it measured, or an object with the key ``error``."""
KEPT = f"{RECORD}.before-pocketbert"
"""Where a record that was there before is kept meanwhile."""
REPEATS, MOST_RUNS, MOST_SECONDS = 3, 1000, 3600
"""Repeats that the app makes, most runs of each that a record holds, and its longest run without a pause."""
RUN_S, POLL_S = 900.0, 1.0
"""Longest time of one measurement without its run without a pause, and how often its end is looked for."""


@dataclass(frozen=True)
class AppPlan:
    """What the app shall measure; every combination is one start of its benchmark.

    Attributes:
        paths: Model files, by their paths in the artefact folder that the app carries.
        threads: Numbers of threads.
        lengths: Lengths in tokens; 0 for the longest that a file takes.
        runs: Timed inferences of each repeat.
        seconds: Seconds that each file runs without a pause, at the first number of threads and length; 0 for none.
    """

    paths: Sequence[str]
    threads: Sequence[int]
    lengths: Sequence[int]
    runs: int
    seconds: int = 0


def app_problems(options: BenchmarkOptions, texts: bool) -> list[Problem]:
    """What is asked for that the app cannot do.

    Args:
        options: What is asked for.
        texts: Whether texts are given.
    """
    fix = "Leave it out, or measure without --app"
    told = {
        "gaps": "the demo app times no single calls after idle times." if options.gaps_ms else "",
        "repeats": f"{options.repeats}; the demo app makes {REPEATS}." if options.repeats != REPEATS else "",
        "preset": f"the demo app cannot go on until {options.least_s:g} s are timed." if options.least_s else "",
        "runs": f"{options.runs}; a record of the demo app holds {MOST_RUNS} at most."
        if options.runs > MOST_RUNS
        else "",
        "sustained": f"{options.sustained_min:g}; the demo app runs for {MOST_SECONDS // 60} minutes at most."
        if options.sustained_min * 60 > MOST_SECONDS
        else "",
        "file": "the demo app measures its own sentence." if texts else "",
    }
    return [Problem(f"--{name}", f"with --app: {why}", fix) for name, why in told.items() if why]


def measure_by_app(argument: str, plan: AppPlan, destination: Path) -> None:
    """Let the demo app of a phone measure, and write one record, as the app's own are.

    Args:
        argument: Serial number of the phone, or nothing for the only one; cores cannot be chosen for an app.
        plan: What to measure.
        destination: The file to write.

    Raises:
        InputError: If the phone cannot be used, or the app measured nothing; lists why.
        MissingBackendError: If there is no `adb` client, or no demo app on the phone.
        MachineError: If the phone is lost, or the app does not end.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None or parts["cores"]:
        what = "with --app is a phone without @CORES: Android chooses the cores of an app."
        raise InputError(Problem(f"adb:{argument}", what, "For example adb:SERIAL"))
    adb = Adb(parts["serial"] or "", f"am force-stop {PACKAGE}; rm -f {RECORD}; mv {KEPT} {RECORD}")
    try:
        # a record that an earlier run kept aside and could not give back is still the one to keep
        adb.script(f"if [ -e {KEPT} ]; then rm -f {RECORD}; elif [ -e {RECORD} ]; then mv {RECORD} {KEPT}; fi")
        records, problems = _measure_all(adb, plan)
    finally:
        adb.close()
    if not records:
        raise InputError(problems)
    for problem in problems:
        say(f"  {problem.where}: {problem.what}")
    destination.write_text(merged(records).model_dump_json(), encoding="utf-8")


def _measure_all(adb: Adb, plan: AppPlan) -> tuple[list[PhoneRecord], list[Problem]]:
    cases = [(path, threads, length) for path in plan.paths for threads in plan.threads for length in plan.lengths]
    records, problems = list[PhoneRecord](), list[Problem]()
    with Meter(f"{adb.where}: demo app", len(cases)) as meter:
        for path, threads, length in cases:
            first = (threads, length) == (plan.threads[0], plan.lengths[0])
            told = _measure(adb, path, threads, length, replace(plan, seconds=plan.seconds if first else 0))
            where = f"{adb.where} {path}, {threads} threads, {length or 'most'} tokens"
            if isinstance(told, str):
                problems.append(Problem(where, f"the app did not measure: {told}"))
            else:
                records.append(told)
            meter.advance(note=path)
    return records, problems


def _measure(adb: Adb, path: str, threads: int, length: int, plan: AppPlan) -> PhoneRecord | str:
    """One start of the app's benchmark; its record, or why there is none."""
    adb.told("am", "force-stop", PACKAGE)
    adb.told("rm", "-f", RECORD)
    numbers = {"runs": plan.runs, "threads": threads, "length": length, "seconds": plan.seconds}
    extras = [word for name, number in numbers.items() for word in ("--ei", name, str(number))]
    command = ["am", "start", "-n", f"{PACKAGE}/.BenchmarkActivity", "--es", "model", path, *extras]
    said = adb.script(f"{shlex.join(command)} || true")
    if re.search(r"does not exist|Error type 3|Unable to resolve|not found", said):
        raise MissingBackendError(
            f"{adb.where}: the demo app {PACKAGE}", "adb install app.apk (android_demo/README.md tells how it is built)"
        )
    longest_s = RUN_S + plan.seconds
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        text = adb.told("cat", RECORD)
        try:
            content = json.loads(text)
        except ValueError:  # not there yet, or half written
            time.sleep(POLL_S)
            continue
        if isinstance(content, dict) and "error" in content:
            return str(content["error"])[:300]
        with tempfile.TemporaryDirectory(prefix="pocketbert-app-") as folder:
            file = Path(folder) / "benchmark.json"
            file.write_text(text, encoding="utf-8")
            return read_phone_record(file)
    raise MachineError(f"{adb.where}: the demo app wrote nothing within {longest_s:.0f} s. Look at the phone's screen.")


def merged(records: Sequence[PhoneRecord]) -> PhoneRecord:
    """Records of one phone, one after the other, as one: the lengths of a file, its engine and threads come together."""
    files: dict[tuple[str, int], PhoneFile] = {}
    for file in (file for record in records for file in record.files):
        before = files.get((file.name, file.threads))
        known = [] if before is None else before.cells
        cells = [*known, *(c for c in file.cells if c.length not in {k.length for k in known})]
        files[file.name, file.threads] = (before or file).model_copy(update={"cells": cells})
    protocol = records[0].protocol.model_copy(update={"took_s": sum(r.protocol.took_s for r in records)})
    thermal = Thermal(before=records[0].thermal.before, after=records[-1].thermal.after)
    return records[0].model_copy(update={"files": list(files.values()), "protocol": protocol, "thermal": thermal})
