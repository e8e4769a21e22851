"""What the script on the Mac writes. It comes from another machine, so nothing in it is believed unchecked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbert.core.disk.files import check_schema, read_json
from pocketbert.core.errors import InputError, Problem

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
