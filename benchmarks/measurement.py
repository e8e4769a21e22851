"""What a benchmark says, from one timing up to the whole ``benchmark.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.statistics import Interval, Ratio, Statistics
from pocketbert.core.disk.files import path_bytes, read_json, sha256_path, write_atomic
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Provenance, Runtime, Scheme
from pocketbert.runtime.engines import EngineFile

FILE_NAME = "benchmark.json"
SCHEMA_VERSION = "1.1"

TEXT: Literal["text"] = "text"
Length = int | Literal["text"]
"""Tokens of an input, or ``"text"``: real texts at the length they have."""


class _Record(BaseModel):
    """Unknown keys are ignored, so that older readers open newer files of the same major schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Variant(_Record):
    """A model file to measure.

    Attributes:
        name: How tables and plots call it; unique in a benchmark.
        path: The model file.
        format: Its format.
        scheme: How its numbers are stored; None when unknown.
        tokenizer: Folder (or ``tokenizer.json``) of its tokenizer.
        max_length: Longest input in tokens.
        sha256: Hex digest of the model file.
        bytes: Size of the model file.
        runtime: The runtime it was made for, if it was made for one.
    """

    name: str
    path: Path
    format: Format = Format.ONNX
    scheme: Scheme | None = None
    tokenizer: Path
    max_length: int
    sha256: str
    bytes: int
    runtime: Runtime | None = None

    @property
    def file(self) -> EngineFile:
        """What opens it."""
        return EngineFile(self.path, self.format, self.runtime)

    @classmethod
    def of(
        cls,
        name: str,
        path: Path,
        tokenizer: Path,
        max_length: int,
        scheme: Scheme | None = None,
        format: Format = Format.ONNX,
        runtime: Runtime | None = None,
    ) -> Variant:
        """Describe a file that is there, filling in its digest and size.

        Raises:
            InputError: If the file is missing.
        """
        if not path.exists():
            raise InputError(Problem(str(path), "file not found."))
        return cls(
            name=name,
            path=path,
            format=format,
            scheme=scheme,
            tokenizer=tokenizer,
            max_length=max_length,
            sha256=sha256_path(path),
            bytes=path_bytes(path),
            runtime=runtime,
        )


class Measurement(_Record):
    """One variant at one thread count and one length. Batch is 1, as on a phone.

    Attributes:
        variant: Name of the variant.
        sha256: Digest of the measured file.
        bytes: Its size.
        device: Where it ran.
        unit: The part of the device that was allowed to compute (``cpu-and-ne``); empty where nobody chose one.
        engine: What ran it.
        engine_version: Version of that.
        provenance: How the figures came about. No default: whoever makes a measurement must say it.
        machine: CPU and ISA.
        threads: Threads within an operator; 0 where the engine decides (Core ML).
        length: Tokens, or ``"text"``.
        tokens_mean: Mean length in tokens of the inputs really used.
        batch: Rows per inference.
        load: What else the machine did.
        wall: Wall time per inference, all repeats together.
        wall_interval: Interval of the typical wall time from the repeats; None for fewer than three.
        cpu: CPU time of the process per inference, all its threads added up.
        load_ms: Opening the file in a fresh process (file in the page cache).
        first_ms: First inference in that process.
        peak_memory_bytes: Peak resident memory in that process above what it had before opening the file.
        peak_rss_bytes: The same peak, absolute, interpreter and libraries included.
        probe_length: Length in tokens of that first inference.
        warmup_runs: Untimed inferences before the first timed one, in the measuring process.
        warmup_stable: Whether they became stable within the bound.
        wall_ms: Raw wall times in ms, [repeats][runs], in the order they were taken.
        cpu_ms: Raw CPU times in ms, same shape.
        engine_wall: Wall time by the engine's own clock, without the Python binding; None where it has none.
        engine_ms: Raw times by that clock.
    """

    variant: str
    sha256: str
    bytes: int
    device: str = "local"
    unit: str = ""
    engine: str
    engine_version: str
    provenance: Provenance
    machine: Machine
    threads: int
    length: Length
    tokens_mean: float
    batch: int = 1
    load: Load
    wall: Statistics
    wall_interval: Interval | None
    cpu: Statistics
    load_ms: float
    first_ms: float
    peak_memory_bytes: int
    peak_rss_bytes: int
    probe_length: int
    warmup_runs: int
    warmup_stable: bool
    wall_ms: list[list[float]]
    cpu_ms: list[list[float]]
    engine_wall: Statistics | None = None
    engine_ms: list[list[float]] | None = None

    @property
    def place(self) -> str:
        """Device and the unit of it that computed."""
        return f"{self.device} {self.unit}".strip()


class Comparison(_Record):
    """A variant against the baseline, on the same machine, at the same threads and length.

    Attributes:
        variant: Name of the variant.
        baseline: Name of the variant it is compared with.
        threads: Threads of both.
        length: Length of both.
        wall: Ratio of wall times, variant / baseline, paired by round: below 1 the variant is faster.
        cpu: Ratio of CPU times.
        provenance: As of the measurements it is made from.
    """

    variant: str
    baseline: str
    threads: int
    length: Length
    wall: Ratio
    cpu: Ratio
    provenance: Provenance


class TokenizerTime(_Record):
    """Time from text to ids, one text at a time.

    Attributes:
        variants: Names of the variants that use this tokenizer.
        sha256: Digest of ``tokenizer.json``.
        texts: Number of different texts.
        tokens_mean: Mean tokens per text.
        per_text: Wall time per text.
        provenance: How the figures came about.
    """

    variants: list[str]
    sha256: str
    texts: int
    tokens_mean: float
    per_text: Statistics
    provenance: Provenance


class OpShare(_Record):
    """Time that operators of one type take.

    Attributes:
        op_type: Operator type in the graph that really runs, after the engine's fusions.
        nodes: How many there are.
        share: Share of the time of all nodes, a fraction.
        ms: Time per inference.
    """

    op_type: str
    nodes: int
    share: float
    ms: float


class Placement(_Record):
    """Which execution provider, or processor, runs how much.

    Attributes:
        provider: Name of the execution provider or processor.
        nodes: Nodes it runs.
        op_types: Nodes per operator type.
        cost: Share of the cost as the engine itself estimates it; None where it does not.
    """

    provider: str
    nodes: int
    op_types: dict[str, int]
    cost: float | None = None


class Profile(_Record):
    """Where the time of one variant goes.

    Attributes:
        variant: Name of the variant.
        threads: Threads within an operator.
        length: Tokens of the input.
        runs: Inferences that were averaged.
        ops: Time per operator type, largest first.
        placement: Nodes per execution provider.
        provenance: How the figures came about.
    """

    variant: str
    threads: int
    length: int
    runs: int
    ops: list[OpShare]
    placement: list[Placement]
    provenance: Provenance


class Protocol(_Record):
    """How the timings were taken.

    Attributes:
        description: In words.
        baseline: Variant that the others are compared with.
        threads: Thread counts, in the order measured.
        lengths: Lengths, in the order measured.
        texts: Number of different real texts used.
        runs_asked: Timed inferences per variant and repeat that were asked for.
        runs_made: Fewest and most timed inferences per variant and repeat that were really made.
        repeats: Passes over everything.
        burst: Timed inferences of one variant before the next one has its turn.
        budget_s: Time allowed; 0 where there was no limit.
        took_s: Time taken.
        shortened: Whether the budget made it fewer runs than asked for.
        notes: What the reader should know.
    """

    description: str
    baseline: str
    threads: list[int]
    lengths: list[Length]
    texts: int
    runs_asked: int
    runs_made: tuple[int, int]
    repeats: int
    burst: int
    budget_s: float
    took_s: float
    shortened: bool
    notes: list[str] = []


class AnswerCheck(_Record):
    """Answers on the measured device compared with those recorded in the folder's golden rows.

    Attributes:
        variant: Name of the variant.
        rows: Rows compared.
        largest: Largest difference among finite answers.
        tolerance: Largest one that is allowed.
        finite: Whether all answers were numbers.
        provenance: How the answers came about.
    """

    variant: str
    rows: int
    largest: float
    tolerance: float
    finite: bool
    provenance: Provenance

    @property
    def passed(self) -> bool:
        """Whether the device computes the file right."""
        return self.finite and self.largest <= self.tolerance

    @property
    def words(self) -> str:
        """What was found."""
        found = f"largest difference {self.largest:.3g}" if self.finite else "answers that are no numbers"
        return f"{self.rows} golden rows: {found}, allowed {self.tolerance:.3g}"


class BenchmarkResult(_Record):
    """The content of ``benchmark.json``: one session on one machine, and imported ones from others.

    Nothing is compared across sessions: times of two machines have no common ratio.

    Attributes:
        schema_version: Major part equal means readable.
        machine: CPU and ISA.
        versions: Libraries that took part.
        protocol: How the timings were taken.
        variants: What was measured.
        measurements: One per variant, thread count and length.
        comparisons: Every variant but the baseline, per thread count and length.
        tokenizers: Time from text to ids.
        profiles: Time per operator type, and placement, per variant.
        answers: Checks of the answers where the measuring device made them (a Mac).
        imported: Sessions on other machines.
    """

    schema_version: str = SCHEMA_VERSION
    machine: Machine
    versions: dict[str, str]
    protocol: Protocol
    variants: list[Variant]
    measurements: list[Measurement]
    comparisons: list[Comparison]
    tokenizers: list[TokenizerTime]
    profiles: list[Profile]
    answers: list[AnswerCheck] = []
    imported: list[BenchmarkResult] = []

    @property
    def sessions(self) -> list[BenchmarkResult]:
        """This session and the imported ones."""
        return [self, *self.imported]

    def find(self, variant: str, threads: int, length: Length) -> Measurement | None:
        """The measurement of one variant at one thread count and length, if it was made."""
        for m in self.measurements:
            if (m.variant, m.threads, m.length) == (variant, threads, length):
                return m
        return None

    def compare(self, variant: str, threads: int, length: Length) -> Comparison | None:
        """The comparison of one variant with the baseline, if there is one."""
        for c in self.comparisons:
            if (c.variant, c.threads, c.length) == (variant, threads, length):
                return c
        return None

    def write(self, path: Path) -> None:
        """Write ``benchmark.json`` atomically."""
        write_atomic(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> BenchmarkResult:
        """Read what `write` wrote, by this version or another one of the same major schema.

        Raises:
            InputError: If the file is missing, of another major schema, or wrong.
        """
        content: Any = read_json(path)
        version = str(content.get("schema_version", "")) if isinstance(content, dict) else ""
        if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
            raise InputError(
                Problem(
                    str(path),
                    f"schema version '{version}' cannot be read; this version reads {SCHEMA_VERSION}.",
                    "Measure again with: pocketbert benchmark",
                )
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InputError(
                [Problem(f"{path} {'.'.join(map(str, e['loc']))}", f"{e['msg']}.") for e in error.errors()]
            ) from error
