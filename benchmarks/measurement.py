"""What is measured, how, and the result: `Variant`, `BenchmarkOptions`, and `BenchmarkResult`, the content of ``benchmark.json``.

A result is the session of one device: a `Measurement` for each file, thread count, length and idle time, and a `Comparison` with
the baseline. It holds the sessions of other devices. The remaining records are in `pocketbert.benchmarks.records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.records import (
    TEXT,
    AnswerCheck,
    ColdStart,
    Compilation,
    Length,
    PostProcessingTime,
    Profile,
    Protocol,
    Record,
    Reported,
    Sustained,
    TokenizerTime,
)
from pocketbert.benchmarks.statistics import Interval, Ratio, Statistics
from pocketbert.core.data.source import DataSource
from pocketbert.core.devices import LOCAL, MAX_GAP_MS, parse_measuring_device
from pocketbert.core.disk.files import check_schema, path_bytes, read_json, sha256_path, write_atomic
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.terminal import html_table
from pocketbert.core.recipe.presets import PRESETS, Preset
from pocketbert.core.types import Format, Provenance, Runtime, Scheme
from pocketbert.runtime.engines import EngineFile

FILE_NAME = "benchmark.json"
SCHEMA_VERSION = "2.1"


class Variant(Record):
    """A model file to measure.

    Attributes:
        name: Name of the file in tables and plots; unique in a benchmark.
        path: The model file.
        format: Format of the file.
        scheme: How the file stores the model's numbers; None if that is unknown.
        tokenizer: Folder of the tokenizer, or its ``tokenizer.json``.
        max_length: Longest input in tokens.
        sha256: Hex digest of the model file.
        bytes: Size of the model file.
        runtime: The runtime that the file was made for; None for any.
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
        """The file's path with its format and runtime, by which it can be opened."""
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
        """Build the record of an existing model file; its digest and size are read from the file.

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


class Measurement(Record):
    """The times of one file at one thread count, one length and one idle time. The batch size is 1, as on a phone.

    Attributes:
        variant: Name of the file in the benchmark.
        sha256: Digest of the measured file.
        bytes: Size of the file.
        device: The device that ran it, by the name that the user gave; for a Mac, its chip and model.
        unit: The part of the device that was allowed to compute (``cpu-and-ne``); empty if nobody chose one.
        engine: Name of the engine that ran the file.
        engine_version: Version of the engine.
        provenance: How the times were obtained. It has no default, so that every caller states it.
        machine: CPU and ISA.
        threads: Number of threads within an operator; 0 if the engine decides (Core ML).
        length: Length in tokens, or ``"text"``.
        gap_ms: Idle time before each inference in ms; 0 if one inference follows the other.
        tokens_mean: Mean length in tokens of the inputs that were used.
        batch: Rows per inference.
        load: Other load, heat and clock rate of the machine during the measurement.
        wall: Wall time per inference over all repeats; None for a device whose times are not latencies (an emulator).
        wall_interval: Interval of the typical wall time, from the repeats; None with fewer than three.
        cpu: CPU time of the process per inference, summed over its threads; None if `wall` is None, and on a phone.
        cold: Load time, first inference and memory in a new process; None if the device does not measure them.
        warmup_runs: Number of untimed inferences before the first timed one, in the measuring process.
        warmup_stable: Whether the times became stable before the warm-up ended.
        wall_ms: All wall times in ms, [repeats][runs], in the order in which they were taken.
        cpu_ms: All CPU times in ms, [repeats][runs]; empty if `cpu` is None.
        engine_wall: Wall time by the engine's own clock, without the Python binding; None if the engine has none.
        engine_ms: All times by the engine's own clock in ms.
        guest_instructions: Instructions per inference that an emulated processor executed; None for other devices.
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
    gap_ms: float = 0.0
    tokens_mean: float
    batch: int = 1
    load: Load
    wall: Statistics | None
    wall_interval: Interval | None
    cpu: Statistics | None
    cold: ColdStart | None
    warmup_runs: int
    warmup_stable: bool
    wall_ms: list[list[float]]
    cpu_ms: list[list[float]]
    engine_wall: Statistics | None = None
    engine_ms: list[list[float]] | None = None
    guest_instructions: Statistics | None = None

    @property
    def place(self) -> str:
        """Name of the device and its computing unit: ``mac cpu-and-ne``."""
        return f"{self.device} {self.unit}".strip()


class Comparison(Record):
    """Times of a file relative to the baseline's, on the same machine, with the same threads and length.

    Attributes:
        variant: Name of the variant.
        baseline: Name of the variant it is compared with.
        threads: Number of threads of both files.
        length: Length of the inputs of both files.
        gap_ms: Idle time in ms before each inference of both files.
        wall: Ratio of wall times, file / baseline, paired by round: below 1 the file is faster.
        cpu: Ratio of CPU times; None if the device does not measure them.
        provenance: How the compared times were obtained: measured, emulated, estimated.
    """

    variant: str
    baseline: str
    threads: int
    length: Length
    gap_ms: float = 0.0
    wall: Ratio
    cpu: Ratio | None = None
    provenance: Provenance


_RAW: Any = {"__all__": {"wall_ms", "cpu_ms", "engine_ms"}}
_SESSION_RAW: Any = dict.fromkeys(("measurements", "sustained", "reported", "tokenizers", "post_processing"), _RAW)
"""Raw samples of measurements."""


class BenchmarkResult(Record):
    """The content of ``benchmark.json``: the measurements on one device, with the results of other devices in it.

    Times are never compared between devices, since the files were not measured in turns there.

    Attributes:
        schema_version: Version of the format; versions with the same major part can be read.
        machine: CPU and ISA.
        versions: Versions of the libraries that were used.
        protocol: How the times were taken.
        variants: The measured model files.
        measurements: One for each file, thread count, length and idle time.
        comparisons: One for each file but the baseline, for each thread count, length and idle time; empty if files did
            not take turns, or their times are not latencies.
        tokenizers: Time from text to ids.
        post_processing: Time from the outputs of an engine to the answer.
        profiles: Time per operator type, and placement, of each file.
        answers: Comparisons of outputs, if the device that measured made them (a Mac).
        others: Results of other devices, measured after this one or imported.
        compilations: Files compiled for devices on which nothing is timed.
        sustained: Files that ran for minutes without a pause.
        reported: Numbers from users' saved outputs of measuring programs; only in the first result.
        failed: Devices that were lost while others were measured, with the error; only in the first result.
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
    answers: list[AnswerCheck] = Field(default_factory=list)
    others: list[BenchmarkResult] = Field(default_factory=list)
    compilations: list[Compilation] = Field(default_factory=list)
    sustained: list[Sustained] = Field(default_factory=list)
    post_processing: list[PostProcessingTime] = Field(default_factory=list)
    reported: list[Reported] = Field(default_factory=list)
    failed: dict[str, str] = Field(default_factory=dict)

    def __repr__(self) -> str:
        untimed = [*(c.device for c in self.compilations), *(r.device for r in self.reported)]
        devices = ", ".join(dict.fromkeys([*(s.device for s in self.sessions), *untimed]))
        files = len({v.name for s in (self, *self.others) for v in s.variants})
        compiled = f", {len(self.compilations)} compilations" if self.compilations else ""
        compiled += f", {len(self.reported)} text{'s' * (len(self.reported) > 1)}" if self.reported else ""
        made = sum(len(s.measurements) for s in self.sessions)
        return f"<BenchmarkResult {files} files, {made} measurements{compiled} on {devices}>"

    def _repr_html_(self) -> str:
        """Return the latencies as a table for notebooks."""
        rows = [
            (m.variant, m.device, m.threads, wording.pace(m.length, m.gap_ms), f"{m.wall.p50:.3g}", f"{m.wall.p90:.3g}")
            for session in self.sessions
            for m in session.measurements
            if m.wall is not None
        ]
        return html_table(("file", "device", "threads", "length", "p50 ms", "p90 ms"), rows, repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object without the single times, which `write` keeps."""
        return self.model_dump(mode="json", exclude={**_SESSION_RAW, "others": {"__all__": _SESSION_RAW}})

    @property
    def sessions(self) -> list[BenchmarkResult]:
        """This result and those of other devices, as far as they have measurements."""
        return [s for s in (self, *self.others) if s.measurements]

    @property
    def device(self) -> str:
        """Name of the device of this result, which must have measurements."""
        return self.measurements[0].device

    @property
    def timed(self) -> bool:
        """Whether this result has latencies."""
        return any(m.wall is not None for m in self.measurements)

    @property
    def headline(self) -> BenchmarkResult:
        """The result whose latencies tables show first: the first one that has latencies, else measurements, else this one."""
        return next((s for s in self.sessions if s.timed), next(iter(self.sessions), self))

    def find(self, variant: str, threads: int, length: Length) -> Measurement | None:
        """Return the measurement of a variant at a thread count and length, without idle time; None if missing."""
        for m in self.measurements:
            if (m.variant, m.threads, m.length, m.gap_ms) == (variant, threads, length, 0):
                return m
        return None

    def compare(self, variant: str, threads: int, length: Length, gap_ms: float = 0.0) -> Comparison | None:
        """Return the comparison of a variant with the baseline under these conditions; None if there is none."""
        for c in self.comparisons:
            if (c.variant, c.threads, c.length, c.gap_ms) == (variant, threads, length, gap_ms):
                return c
        return None

    def write(self, path: Path) -> None:
        """Write ``benchmark.json`` atomically."""
        write_atomic(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> BenchmarkResult:
        """Read a ``benchmark.json`` of this schema or of another one with the same major version.

        Raises:
            InputError: If the file is missing, of another major schema, or invalid.
        """
        content: Any = read_json(path)
        check_schema(path, content, SCHEMA_VERSION, "Measure again with: pocketbert benchmark")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InputError(
                [Problem(f"{path} {'.'.join(map(str, e['loc']))}", f"{e['msg']}.") for e in error.errors()]
            ) from error


# --- options ---------------------------------------------------------------------------------------------------------------------

_MOST_SUSTAINED_MIN = 240.0
"""Longest sustained measurement of a file, in minutes."""


@dataclass(frozen=True)
class PageOptions:
    """How the page of the device ``browser`` is served.

    Attributes:
        host: Address of this machine to listen on; ``lan`` for its address in the local network.
        https: Whether to serve over TLS with a certificate made for the run, without which browsers on other machines
            have neither threads nor WebGPU.
        count: Number of browsers to wait for.
    """

    host: str = "127.0.0.1"
    https: bool = False
    count: int = 1


@dataclass(frozen=True)
class BenchmarkOptions:
    """Settings of a benchmark.

    Attributes:
        devices: Devices to measure on, one after the other.
        threads: Thread counts.
        lengths: Lengths in tokens, or ``"text"`` for the real texts at their own length. Lengths above the smallest
            `max_length` are reduced to it, and `protocol.notes` says so.
        runs: Number of timed inferences for each file, thread count, length and repeat.
        repeats: How often all files and lengths are timed again, one pass after the other.
        gaps_ms: Idle times in ms. For each, single inferences after this time are measured too, since an app that calls
            once per sentence finds caches, clock rate and threads as the idle time leaves them. They are always made at
            the first length, and at other lengths if they fit into half of the budget or `least_s` is set. Devices and
            files that cannot be timed so are left out.
        baseline: Name of the file to compare with; by default the first one.
        budget_s: Seconds that everything may take, shared by the devices. If `runs` do not fit, fewer are made, and the
            result says how many. There is at least one burst of 5, so that a tiny budget is exceeded.
        seed: Decides the order of turns and of texts.
        profile: Whether to measure the time per operator, at the first thread count.
        label: Text of the progress bar; empty for none.
        app: Whether phones behind adb are measured by the demo app on them instead of the measuring programs.
        data: Labelled rows on which emulated files are scored instead of golden rows and texts; only if all files have
            the same task.
        sustained_min: Minutes that each file runs without a pause at the end, at the first thread count and length; 0
            for no such run. They do not count for the budget.
        fresh: Whether every repeat runs in a new process, so that intervals include the differences between processes.
            Only on this machine and on those reached by SSH.
        least_s: Smallest number of seconds of timed inferences for each result without idle time, over all repeats. If
            it is set, `runs` are always made, whatever the budget. 0 for none.
        pages: How the page of the device ``browser`` is served.
    """

    devices: Sequence[str] = (LOCAL,)
    threads: Sequence[int] = (1,)
    lengths: Sequence[Length] = (TEXT,)
    runs: int = 50
    repeats: int = 5
    gaps_ms: Sequence[float] = ()
    baseline: str | None = None
    budget_s: float = 60.0
    seed: int = 0
    profile: bool = True
    label: str = "benchmark"
    data: DataSource | None = None
    app: bool = False
    fresh: bool = False
    least_s: float = 0.0
    sustained_min: float = 0.0
    pages: PageOptions = PageOptions()

    def check(self, names: Sequence[str]) -> None:
        """Raise InputError if the options do not fit a benchmark of files with these names.

        Raises:
            InputError: Listing every problem.
        """
        bad = self._problems()
        if not names:
            bad.append(Problem("variants", "none given.", "Name at least one model file."))
        if len(set(names)) < len(names):
            bad.append(Problem("variants", f"names must differ, got {', '.join(names)}."))
        if self.baseline is not None and self.baseline not in names:
            bad.append(Problem("baseline", f"no variant '{self.baseline}'; {suggest_allowed(self.baseline, names)}."))
        if bad:
            raise InputError(bad)

    def _problems(self) -> list[Problem]:
        """Return the problems of the options that do not depend on the files."""
        bad = []
        if not self.devices:
            bad.append(Problem("devices", "none given.", "Name at least one: pocketbert devices"))
        for device in self.devices:
            try:
                parse_measuring_device(device)
            except ValueError as error:
                bad.append(Problem("devices", f"{error}."))
        if not self.threads or min(self.threads) < 1:
            bad.append(Problem("threads", f"{list(self.threads)}; allowed: one or more whole numbers from 1."))
        if not self.lengths or any(x != TEXT and (not isinstance(x, int) or x < 3) for x in self.lengths):
            bad.append(Problem("lengths", f"{list(self.lengths)}; allowed: whole numbers from 3, and 'text'."))
        if any(not 0 < gap <= MAX_GAP_MS for gap in self.gaps_ms):
            bad.append(Problem("gaps", f"{list(self.gaps_ms)}; allowed: milliseconds above 0, up to {MAX_GAP_MS:g}."))
        if not 0 <= self.sustained_min <= _MOST_SUSTAINED_MIN:
            allowed = f"allowed: minutes from 0 to {_MOST_SUSTAINED_MIN:g}."
            bad.append(Problem("sustained", f"{self.sustained_min:g}; {allowed}"))
        numbers = {"runs": self.runs, "repeats": self.repeats, "budget_s": self.budget_s}
        return [*bad, *(Problem(k, f"{n}; allowed: above 0.") for k, n in numbers.items() if n <= 0)]


def preset_options(name: str) -> BenchmarkOptions:
    """Return the benchmark options of a preset.

    Args:
        name: ``quick``, ``standard`` or ``mlperf``.

    Raises:
        InputError: If there is no such preset.
    """
    known = [p.value for p in Preset]
    if name not in known:
        raise InputError(Problem("--preset", f"'{name}' is unknown; {suggest_allowed(name, known)}."))
    preset = PRESETS[Preset(name)]
    return BenchmarkOptions(
        threads=(1, 2),
        lengths=(TEXT, *preset.lengths),
        runs=preset.runs,
        repeats=preset.repeats,
        gaps_ms=preset.gaps_ms,
        budget_s=preset.budget_s,
        least_s=preset.least_s,
        profile=preset.profile,
        fresh=preset.fresh,
    )


FOLDER_OPTIONS = preset_options(Preset.STANDARD)
"""Options of `pocketbert benchmark` where none are given."""
