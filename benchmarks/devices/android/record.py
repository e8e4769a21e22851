"""What the Android demo app writes. It comes from another machine, so nothing in it is believed unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbert.benchmarks.devices.mac.record import MOST_PROBLEMS, Count, Length, Ms, Samples, Words
from pocketbert.core.disk.files import check_schema, read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Scheme

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
