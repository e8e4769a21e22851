"""Figures of an Android phone: start the benchmark of the demo app over adb, and import the files that the app writes.

`measure_by_app` lets the app of a connected phone measure, and writes one file; `app_problems` lists what the app
cannot do. `import_phone` makes benchmark results of such files, which `read_phone_record` reads and checks. The
records below are the file's JSON format.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pocketbert.benchmarks.devices.adb_phone import Adb
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
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, Protocol
from pocketbert.benchmarks.statistics import Statistics, burst_medians, repeat_interval
from pocketbert.benchmarks.wording import milliseconds
from pocketbert.core.artefacts import FileRecord
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.disk.files import check_schema, read_json
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.types import Format, Provenance, Scheme

KIND = "pocketbert-android-benchmark"
SCHEMA_VERSION = "1.0"
REPEATS, MAX_RUNS, MAX_SECONDS = 3, 1000, 3600
"""Repeats that the app makes, most runs of each that a record holds, and its longest run without a pause."""
_PACKAGE = "org.pocketbert.demo"
_RECORD = f"/sdcard/Android/data/{_PACKAGE}/files/benchmark.json"
"""Where the app writes its figures, or an object with the key ``error``."""
_KEPT_RECORD = f"{_RECORD}.before-pocketbert"
"""Where a record that was there before is kept meanwhile."""
_MEASUREMENT_S, _POLL_S = 900.0, 1.0
"""Longest time of one measurement without its run without a pause, and how often its end is looked for."""
_Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class _Phone(ForeignRecord):
    """The phone that the demo app measured; facts that the app does not report are empty or 0.

    Attributes:
        maker: Manufacturer.
        model: Model.
        soc: Name of the chip.
        android: Version of Android.
        api: API level.
        abi: Binary interface of the processor, e.g. ``arm64-v8a``.
        cores: CPU cores.
        memory_bytes: Main memory.
        emulated: Whether the phone is an emulator.
    """

    maker: ShortText
    model: ShortText
    soc: ShortText
    android: ShortText
    api: int = Field(ge=0, le=10_000)
    abi: ShortText
    cores: int = Field(ge=1, le=4096)
    memory_bytes: Count
    emulated: bool

    @property
    def title(self) -> str:
        """Maker and model, for tables."""
        return " ".join(part for part in (self.maker, self.model) if part) or "a phone"


class _Protocol(ForeignRecord):
    """How the demo app measured.

    Attributes:
        runs: Requested number of timed inferences for each file, length and repeat.
        repeats: Requested number of repeats.
        inputs: Where the texts came from.
        took_s: Seconds that the measurement took.
    """

    runs: int = Field(ge=1, le=1000)
    repeats: int = Field(ge=1, le=1000)
    inputs: ShortText
    took_s: _Seconds


class _Thermal(ForeignRecord):
    """The phone's thermal status at the start and at the end, in Android's words."""

    before: ShortText
    after: ShortText


class _Answers(ForeignRecord):
    """How far the outputs were from those of the golden rows (recorded inputs with the model's expected outputs).

    Attributes:
        rows: Number of rows that were compared.
        largest: Largest difference.
        tolerance: Largest difference that is allowed.
    """

    rows: int = Field(ge=1, le=1_000_000)
    largest: float = Field(ge=0, allow_inf_nan=False)
    tolerance: float = Field(ge=0, allow_inf_nan=False)


class _Cell(ForeignRecord):
    """The timings of one file at one input length.

    Attributes:
        length: Input length in tokens.
        warmup_runs: Number of untimed inferences before the timed ones.
        warmup_stable: Whether the times became stable during the warm-up.
        wall_ms: Wall times, one list for each repeat; fewer if the measurement was ended early.
    """

    length: Length
    warmup_runs: Count
    warmup_stable: bool
    wall_ms: Samples


class _SustainedPoint(ForeignRecord):
    """About one second of a run without pauses.

    Attributes:
        after_s: Seconds since the start of the run.
        p50_ms: Median time of an inference.
        thermal: Thermal status as Android names it.
    """

    after_s: _Seconds
    p50_ms: Milliseconds
    thermal: ShortText


class _File(ForeignRecord):
    """The measurements of one model file, run by one engine on one processor of the phone.

    Attributes:
        path: Path in the artefact folder.
        sha256: Digest of the file.
        bytes: Size of the file.
        format: Format of the file.
        scheme: How the file stores the model's numbers.
        engine: Name of the engine.
        engine_version: Version of the engine.
        processor: The part of the phone that ran the file, such as its CPU.
        threads: Number of CPU threads.
        load_ms: Time from the file's bytes to a session that can run; None if the app did not report it.
        first_ms: Time of the first inference.
        memory_bytes: Growth of resident memory while loading and at the first inference.
        answers: How far the outputs of the app's self-test were from the expected ones.
        cells: One entry for each length.
        sustained: Points of a run without a pause; empty if there was none.
    """

    path: str = Field(max_length=400, pattern=r"^[\w-][\w .-]*(/[\w-][\w .-]*)*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: Count
    format: Literal["onnx", "tflite"]
    scheme: Scheme
    engine: ShortText = Field(min_length=1)
    engine_version: ShortText
    processor: Literal["cpu", "gpu", "npu"]
    threads: int = Field(ge=1, le=4096)
    load_ms: Milliseconds | None
    first_ms: Milliseconds | None
    memory_bytes: Count | None
    answers: _Answers
    cells: list[_Cell] = Field(min_length=1, max_length=64)
    sustained: list[_SustainedPoint] = Field([], max_length=100_000)

    @property
    def name(self) -> str:
        """Name of the file, its engine and its processor, for tables."""
        return f"{self.path} {self.engine} {self.processor.upper()}"

    @model_validator(mode="after")
    def _lengths_differ(self) -> _File:
        lengths = [c.length for c in self.cells]
        if len(set(lengths)) < len(lengths):
            raise ValueError("a length is there twice")
        return self


class PhoneRecord(ForeignRecord):
    """The content of the JSON file that the demo app writes.

    Attributes:
        kind: Text that marks such files.
        schema_version: Version of the format; it can be read if its major part is that of `SCHEMA_VERSION`.
        made: Time of the measurement, UTC.
        app: Version of the app.
        phone: The phone.
        protocol: How the app measured.
        thermal: The phone's thermal status before and after.
        power: Whether the phone ran on battery or on a charger.
        files: The measurements of each model file.
    """

    kind: Literal["pocketbert-android-benchmark"]
    schema_version: ShortText
    made: ShortText
    app: ShortText
    phone: _Phone
    protocol: _Protocol
    thermal: _Thermal
    power: ShortText
    files: list[_File] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _makes_sense(self) -> PhoneRecord:
        """Raise ValueError for an emulator's results, repeated measurements, or more runs than the protocol says."""
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


@dataclass(frozen=True)
class AppPlan:
    """What the demo app is to measure; its benchmark is started once for each file, thread count and length.

    Attributes:
        paths: Paths of the model files in the artefact folder that the app contains.
        threads: Numbers of threads.
        lengths: Lengths in tokens; 0 for the longest that a file takes.
        runs: Number of timed inferences in each repeat.
        seconds: Seconds that each file runs without a pause, at the first number of threads and length; 0 for no such
            run.
    """

    paths: Sequence[str]
    threads: Sequence[int]
    lengths: Sequence[int]
    runs: int
    seconds: int = 0


def app_problems(options: BenchmarkOptions, texts: bool) -> list[Problem]:
    """Return a problem for each benchmark option that the demo app cannot follow.

    Args:
        options: The requested settings of the benchmark.
        texts: Whether the user gave texts to measure.
    """
    reasons = {
        "gaps": "the demo app times no single calls after idle times." if options.gaps_ms else "",
        "repeats": f"{options.repeats}; the demo app makes {REPEATS}." if options.repeats != REPEATS else "",
        "preset": f"the demo app cannot go on until {options.least_s:g} s are timed." if options.least_s else "",
        "runs": f"{options.runs}; a record of the demo app holds {MAX_RUNS} at most."
        if options.runs > MAX_RUNS
        else "",
        "sustained": f"{options.sustained_min:g}; the demo app runs for {MAX_SECONDS // 60} minutes at most."
        if options.sustained_min * 60 > MAX_SECONDS
        else "",
        "file": "the demo app measures its own sentence." if texts else "",
    }
    fix = "Leave it out, or measure without --app"
    return [Problem(f"--{name}", f"with --app: {reason}", fix) for name, reason in reasons.items() if reason]


def measure_by_app(argument: str, plan: AppPlan, destination: Path) -> None:
    """Measure model files with the demo app on a phone over adb, and write all its records into one JSON file.

    Args:
        argument: Serial number of the phone; empty if only one is connected. ``@CORES`` is refused, since an app's CPU
            cores cannot be chosen.
        plan: Files, threads and lengths to measure.
        destination: The file to write. Measurements that the app refuses are printed and left out.

    Raises:
        InputError: If the phone cannot be used, or the app measured nothing; the message lists the reasons.
        MissingBackendError: If there is no `adb` client, or no demo app on the phone.
        MachineError: If the phone is lost, or the app does not end.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None or parts["cores"]:
        what = "with --app is a phone without @CORES: Android chooses the cores of an app."
        raise InputError(Problem(f"adb:{argument}", what, "For example adb:SERIAL"))
    adb = Adb(parts["serial"] or "", f"am force-stop {_PACKAGE}; rm -f {_RECORD}; mv {_KEPT_RECORD} {_RECORD}")
    cases = [(path, threads, length) for path in plan.paths for threads in plan.threads for length in plan.lengths]
    records, problems = list[PhoneRecord](), list[Problem]()
    try:
        # a record that an earlier run kept aside and could not give back is still the one to keep
        move = f"if [ -e {_RECORD} ]; then mv {_RECORD} {_KEPT_RECORD}; fi"
        adb.script(f"if [ -e {_KEPT_RECORD} ]; then rm -f {_RECORD}; else {move}; fi")
        with Meter(f"{adb.where}: demo app", len(cases)) as meter:
            for path, threads, length in cases:
                first = (threads, length) == (plan.threads[0], plan.lengths[0])
                numbers = {"runs": plan.runs, "threads": threads, "length": length}
                measured = _measure_case(adb, path, {**numbers, "seconds": plan.seconds if first else 0})
                if isinstance(measured, str):
                    where = f"{adb.where} {path}, {threads} threads, {length or 'most'} tokens"
                    problems.append(Problem(where, f"the app did not measure: {measured}"))
                else:
                    records.append(measured)
                meter.advance(note=path)
    finally:
        adb.close()
    if not records:
        raise InputError(problems)
    for problem in problems:
        print_note(f"  {problem.where}: {problem.what}")
    destination.write_text(_merge_records(records).model_dump_json(), encoding="utf-8")


def _measure_case(adb: Adb, path: str, numbers: Mapping[str, int]) -> PhoneRecord | str:
    """Start the app's benchmark of one file and wait for it; return its record, or the app's error text.

    Args:
        adb: The phone.
        path: The model file.
        numbers: Integer extras of the intent; ``seconds`` is how long the file runs without a pause.
    """
    adb.try_shell("am", "force-stop", _PACKAGE)
    adb.try_shell("rm", "-f", _RECORD)
    extras = [word for name, number in numbers.items() for word in ("--ei", name, str(number))]
    command = ["am", "start", "-n", f"{_PACKAGE}/.BenchmarkActivity", "--es", "model", path, *extras]
    output = adb.script(f"{shlex.join(command)} || true")
    if re.search(r"does not exist|Error type 3|Unable to resolve|not found", output):
        install = "adb install app.apk (android_demo/README.md tells how it is built)"
        raise MissingBackendError(f"{adb.where}: the demo app {_PACKAGE}", install)
    longest_s = _MEASUREMENT_S + numbers["seconds"]
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        text = adb.try_shell("cat", _RECORD)
        try:
            content = json.loads(text)
        except ValueError:  # not there yet, or half written
            time.sleep(_POLL_S)
            continue
        if isinstance(content, dict) and "error" in content:
            return str(content["error"])[:300]
        with tempfile.TemporaryDirectory(prefix="pocketbert-app-") as folder:
            file = Path(folder) / "benchmark.json"
            file.write_text(text, encoding="utf-8")
            return read_phone_record(file)
    raise MachineError(f"{adb.where}: the demo app wrote nothing within {longest_s:.0f} s. Look at the phone's screen.")


def _merge_records(records: Sequence[PhoneRecord]) -> PhoneRecord:
    """Merge records of one phone into one, in the order of their times; each file has all its lengths in it."""
    files: dict[tuple[str, int], _File] = {}
    for file in (file for record in records for file in record.files):
        earlier = files.get((file.name, file.threads))
        cells = [] if earlier is None else earlier.cells
        lengths = {cell.length for cell in cells}
        cells = [*cells, *(cell for cell in file.cells if cell.length not in lengths)]
        files[file.name, file.threads] = (earlier or file).model_copy(update={"cells": cells})
    protocol = records[0].protocol.model_copy(update={"took_s": sum(r.protocol.took_s for r in records)})
    thermal = _Thermal(before=records[0].thermal.before, after=records[-1].thermal.after)
    return records[0].model_copy(update={"files": list(files.values()), "protocol": protocol, "thermal": thermal})


def import_phone(paths: Sequence[Path], listed: Mapping[Path, Sequence[FileRecord]]) -> list[BenchmarkResult]:
    """Import result files (JSON) of the Android demo app, after comparing the measured files with artefact folders.

    Args:
        paths: The result files to import.
        listed: Records of the model files of each artefact folder. If it is empty, nothing is compared, and the result
            says so.

    Returns:
        One result per file, with the provenance `measured` and the phone as device.

    Raises:
        InputError: Listing every problem of all files, including measured model files that are in none of the folders.
    """
    fix = "Pack this folder for the app, and measure again."

    def check(path: Path, record: PhoneRecord) -> list[Problem]:
        checks = (check_listed(path, f.path, f.sha256, listed, fix, name_same_path=False) for f in record.files)
        return [problem for problems in checks for problem in problems]

    records = read_records(paths, read_phone_record, check)
    return [_result(record, path.name, checked=bool(listed)) for path, record in records.items()]


def read_phone_record(path: Path) -> PhoneRecord:
    """Read and check a JSON file of the Android demo app.

    Raises:
        InputError: Listing what is wrong with it: missing, too large, of another major schema, or wrong.
    """
    content: Any = read_json(path)
    check_schema(path, content, SCHEMA_VERSION, "Measure again with an app of this version, or update PocketBERT.")
    return validate_record(path, content, PhoneRecord)


_DESCRIPTION = (
    "By the Android demo app, version {app}: batch 1, {inputs}. One file after the other, each warmed up until stable, "
    "then repeats of timed inferences; wall time of the engine's call in Java. Figures of two files were not taken in "
    "turns, so that no ratio is formed."
)


def _result(record: PhoneRecord, source: str, *, checked: bool) -> BenchmarkResult:
    """Convert a result file of the demo app to a benchmark result.

    Each model file, with the engine and processor that ran it, is a variant.

    Args:
        record: The file's content.
        source: Name of the imported file, for the notes.
        checked: Whether the model files were compared with an artefact folder's.
    """
    phone, protocol = record.phone, record.protocol
    machine = Machine(
        cpu=phone.soc or phone.title,
        arch=phone.abi,
        isa=[],
        cores=phone.cores,
        system=f"Android {phone.android} (API {phone.api})",
        python="",
    )
    runs_made = [len(repeat) for f in record.files for c in f.cells for repeat in c.wall_ms]
    answers = {
        file.name: AnswerCheck(
            variant=file.name, finite=True, provenance=Provenance.MEASURED, **file.answers.model_dump()
        )
        for file in record.files
    }
    return BenchmarkResult(
        machine=machine,
        versions={f.engine: f.engine_version for f in record.files},
        protocol=Protocol(
            description=_DESCRIPTION.format(app=record.app, inputs=protocol.inputs),
            baseline=record.files[0].name,
            threads=sorted({f.threads for f in record.files}),
            lengths=sorted({c.length for f in record.files for c in f.cells}),
            texts=1,
            runs_asked=protocol.runs,
            runs_made=(min(runs_made), max(runs_made)),
            repeats=protocol.repeats,
            burst=protocol.runs,
            budget_s=0,
            took_s=protocol.took_s,
            shortened=min(runs_made) < protocol.runs,
            notes=list(_notes(record, source, checked)),
        ),
        variants=list({f.name: _variant(f) for f in record.files}.values()),
        measurements=[_measurement(record, machine, f, c) for f in record.files for c in f.cells],
        comparisons=[],
        tokenizers=[],
        profiles=[],
        answers=list(answers.values()),
    )


def _variant(file: _File) -> Variant:
    """Build the variant record (name, path, scheme, digest) of a measured file."""
    return Variant(
        name=file.name,
        path=Path(file.path),
        format=Format.ONNX if file.format == "onnx" else Format.TFLITE,
        scheme=file.scheme,
        tokenizer=Path("tokenizer.json"),
        max_length=max(c.length for c in file.cells),
        sha256=file.sha256,
        bytes=file.bytes,
    )


def _measurement(record: PhoneRecord, machine: Machine, file: _File, cell: _Cell) -> Measurement:
    """Build the measurement record of one file at one length."""
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


def _notes(record: PhoneRecord, source: str, checked: bool) -> Iterator[str]:
    """Yield notes for the result: origin, power supply, load times, and how times changed in runs without pauses."""
    phone, power = record.phone, record.power or "power source unknown"
    thermal = f"thermal status {record.thermal.before or 'unknown'}, at the end {record.thermal.after or 'unknown'}"
    yield f"Imported from {source}, measured {record.made} on {phone.title}, Android {phone.android}: {power}; {thermal}."
    if not checked:
        yield UNCHECKED
    for file in record.files:
        times = {"loaded in": file.load_ms, "first inference": file.first_ms}
        facts = [f"{what} {milliseconds(ms)} ms" for what, ms in times.items() if ms is not None]
        facts += [] if file.memory_bytes is None else [f"{file.memory_bytes / 2**20:.0f} MiB of memory"]
        if facts:
            yield f"{file.name}, {file.threads} threads: {', '.join(facts)}."
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
