"""Records of ``benchmark.json`` in addition to its measurements.

In the order of a session: `ColdStart`, the times of text steps (`TokenizerTime`, `PostProcessingTime`), profiles per operator
(`Profile`), the `Protocol` of how timings were taken, files that ran for minutes (`Sustained`), and checks of answers
(`AnswerCheck`). Beside a session: `Reported`, the figures of a text that a user saved, and `Compilation`, a file that was compiled for
an NPU.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pocketbert.benchmarks.statistics import Ratio, Statistics
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.scores import Score
from pocketbert.core.types import Provenance

TEXT: Literal["text"] = "text"
Length = int | Literal["text"]
"""Tokens of an input, or ``"text"``: real texts at the length they have."""
_Milliseconds = Annotated[float, Field(gt=0, le=1e8, allow_inf_nan=False)]


class Record(BaseModel):
    """Base of all records: they cannot be changed, and unknown keys are ignored so that newer files can be read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ColdStart(Record):
    """Load time, first inference and memory of one file in a fresh process.

    Attributes:
        load_ms: Time to open the file (already in the page cache), including graph optimization.
        first_ms: Time of the first inference; None if the measuring program does not report it.
        length: Length of that inference in tokens.
        peak_memory_bytes: Peak resident memory above that before the file was opened; None if it is not reported.
        peak_rss_bytes: Peak resident memory of the whole process, with interpreter and libraries; None if it is not
            reported.
        told_by: The program that measured these values; empty if this benchmark did.
    """

    load_ms: float
    first_ms: float | None
    length: int
    peak_memory_bytes: int | None
    peak_rss_bytes: int | None
    told_by: str = ""


class TokenizerTime(Record):
    """Time from text to ids, one text at a time.

    Attributes:
        variants: Names of the files that use this tokenizer.
        sha256: Digest of ``tokenizer.json``.
        texts: Number of different texts.
        tokens_mean: Mean number of tokens per text.
        per_text: Wall time per text.
        wall_ms: All wall times in ms, in the order in which they were taken; empty in results before version 2.1.
        provenance: How the times were obtained.
    """

    variants: list[str]
    sha256: str
    texts: int
    tokens_mean: float
    per_text: Statistics
    wall_ms: list[float] = []
    provenance: Provenance


class PostProcessingTime(Record):
    """Time from an engine's outputs to the answer, for one text at a time right after its inference.

    Attributes:
        variants: Names of the files that share this step (same task and longest input).
        task: Task of the model, such as ``text-classification``.
        outputs_of: Name of the file whose outputs were used.
        texts: Number of different texts.
        tokens_mean: Mean number of tokens per text.
        per_text: Wall time per text.
        wall_ms: All wall times in ms, in the order of the texts.
        provenance: How the times were obtained.
    """

    variants: list[str]
    task: str
    outputs_of: str
    texts: int
    tokens_mean: float
    per_text: Statistics
    wall_ms: list[float]
    provenance: Provenance


class OpShare(Record):
    """Time that all operators of one type take together.

    Attributes:
        op_type: Operator type in the graph that is run, after the engine's fusions.
        nodes: Number of operators of this type.
        share: Share of the time of all nodes, a fraction.
        ms: Time per inference.
    """

    op_type: str
    nodes: int
    share: float
    ms: float


class Placement(Record):
    """How many nodes one execution provider, or processor, runs.

    Attributes:
        provider: Name of the execution provider or processor.
        nodes: Number of nodes that it runs.
        op_types: Number of nodes per operator type.
        cost: Share of the cost that the engine estimates for them; None if it estimates none.
    """

    provider: str
    nodes: int
    op_types: dict[str, int]
    cost: float | None = None


class Profile(Record):
    """Time per operator type of one file, and the processors that its operators run on.

    Attributes:
        variant: Name of the file in the benchmark.
        threads: Number of threads within an operator.
        length: Length of the input in tokens.
        runs: Number of inferences that were averaged.
        ops: Time per operator type, largest first.
        placement: Number of nodes per execution provider.
        provenance: How the times were obtained.
        note: Remarks on the times, or why there are none.
    """

    variant: str
    threads: int
    length: int
    runs: int
    ops: list[OpShare]
    placement: list[Placement]
    provenance: Provenance
    note: str = ""


class CoolDown(Record):
    """A wait until a device was about as cool as at the beginning of the benchmark.

    Attributes:
        before: Name of the measurement that followed the wait.
        seconds: Duration of the wait.
        rise_before: Largest rise of a sensor's temperature since the beginning, in °C, when the wait began; 0 if none
            rose.
        rise_after: The same rise when the wait ended.
        slowed_before: By how much more than at the beginning the system limited the clock rate when the wait began, as
            a share; 0 if not.
        slowed_after: The same share when the wait ended.
        cool: Whether the device had cooled down; if not, the wait was ended by its limit.
    """

    before: str
    seconds: float
    rise_before: float
    rise_after: float
    slowed_before: float
    slowed_after: float
    cool: bool

    @property
    def words(self) -> str:
        """How warm the device still was when the wait ended, as text for a note."""
        slower = f", clock limited by {self.slowed_after * 100:.0f} %" if self.slowed_after else ""
        return f"{self.rise_after:g} °C above the beginning{slower}"


class Protocol(Record):
    """How the times of a benchmark were taken.

    Attributes:
        description: How the times were taken, as a paragraph for the report.
        baseline: Name of the file that the others are compared with.
        threads: Thread counts in the order in which they were measured.
        lengths: Lengths in the order in which they were measured.
        texts: Number of different real texts that were used.
        runs_asked: Requested number of timed inferences for each file and repeat.
        runs_made: Smallest and largest number of timed inferences that were made for a file and repeat.
        repeats: How often all files and lengths were timed again, one pass after the other.
        fresh: Whether every repeat ran in a new process; intervals of ratios are then computed from the repeats.
        burst: Number of timed inferences of one file before it is the turn of the next.
        budget_s: Seconds that were allowed; 0 if there was no limit.
        took_s: Seconds that the measurement took.
        shortened: Whether fewer runs than requested were made because of the budget.
        cooling: Waits until the device had cooled down; they do not count for the budget.
        notes: Remarks for the reader of the result.
    """

    description: str
    baseline: str
    threads: list[int]
    lengths: list[Length]
    texts: int
    runs_asked: int
    runs_made: tuple[int, int]
    repeats: int
    fresh: bool = False
    burst: int
    budget_s: float
    took_s: float
    shortened: bool
    cooling: list[CoolDown] = []
    notes: list[str] = []


class Slice(Record):
    """The times in one of the ten equal parts of a run without pauses.

    Attributes:
        after_s: Seconds from the first inference of the run to the beginning of this part.
        wall: Wall time per inference.
        thermal: Temperature or thermal state as the device words it; empty if it reports none.
        clock: Governor and clock rate before and after; empty if the device reports none.
        others: Share of the CPU time that other processes used; None if it was not counted.
        energy: Energy of this part in words, or why it cannot be read; empty if it was not measured.
    """

    after_s: float
    wall: Statistics
    thermal: str = ""
    clock: str = ""
    others: float | None = None
    energy: str = ""


class Sustained(Record):
    """The times of one file that ran for minutes without a pause.

    Attributes:
        variant: Name of the file in the benchmark.
        device: The device that ran the file.
        threads: Number of threads within an operator.
        length: Length in tokens, or ``"text"``.
        minutes: Duration in minutes.
        slices: The ten parts of the run, in order of time.
        drift: Time in the last part relative to that in the first one, paired by input.
        provenance: How the times were obtained.
        wall_ms: All wall times in ms, [slices][runs].
    """

    variant: str
    device: str
    threads: int
    length: Length
    minutes: float
    slices: list[Slice]
    drift: Ratio
    provenance: Provenance
    wall_ms: list[list[float]]


class AnswerCheck(Record):
    """How far a device's outputs are from reference outputs, such as those recorded in the folder's golden rows.

    Attributes:
        variant: Name of the file in the benchmark.
        rows: Number of rows that were compared.
        largest: Largest difference among finite outputs.
        tolerance: Largest difference that is allowed.
        finite: Whether all outputs were finite.
        provenance: How the compared outputs were obtained.
        against: Name of the reference outputs, as a plural noun.
        equal: Whether all outputs have the same bits; None if only differences are known.
    """

    variant: str
    rows: int
    largest: float
    tolerance: float
    finite: bool
    provenance: Provenance
    against: str = "golden rows"
    equal: bool | None = None

    @property
    def passed(self) -> bool:
        """Whether all outputs are finite and the largest difference is within the tolerance."""
        return self.finite and self.largest <= self.tolerance

    @property
    def words(self) -> str:
        """The result of the comparison in one line: rows, largest difference, tolerance."""
        outcome = f"largest difference {self.largest:.3g}" if self.finite else "answers that are not numbers"
        if self.equal:
            outcome += ", equal bit for bit"
        return f"{self.rows} {self.against}: {outcome}, allowed {self.tolerance:.3g}"


class Reported(Record):
    """Numbers that a user's saved output of a measuring program contains, such as that of TFLite's ``benchmark_model``.

    Optional numbers that the output does not contain are None. A `Measurement` would need the load of the machine, CPU
    times and repeats as well, which such outputs never contain.

    Attributes:
        variant: Name of the file in tables.
        path: Path of the file in its artefact folder.
        sha256: Digest of the file in the artefact folder. The output has none; the user named the file.
        bytes: Size of the file.
        device: The device, in the user's words.
        tool: Name of the measuring program.
        source: Name of the file with the saved output.
        provenance: How the numbers were obtained.
        threads: Number of threads within an operator; 0 if the engine decided.
        length: Length in tokens.
        settings: Other settings, as the output words them.
        runs: Number of timed inferences.
        mean_ms: Mean time of an inference.
        p50_ms: Median time.
        p90_ms: 90th percentile of the times.
        p99_ms: 99th percentile of the times.
        min_ms: Time of the shortest inference.
        max_ms: Time of the longest inference.
        stdev_ms: Standard deviation of the times.
        load_ms: Time to open the file.
        first_ms: Time of the first inference.
        peak_memory_bytes: Peak memory above that of the program.
        peak_rss_bytes: Peak memory of the process.
        wall_ms: Single times in ms, in order; empty if the output has none.
        profile: Time per operator.
        notes: Remarks for the reader of the result.
    """

    variant: str
    path: str
    sha256: str
    bytes: int
    device: str
    tool: str
    source: str
    provenance: Provenance
    threads: int = Field(ge=0, le=4096)
    length: int = Field(ge=1, le=65536)
    settings: list[str] = []
    runs: int = Field(ge=1, le=1_000_000_000)
    mean_ms: _Milliseconds
    p50_ms: _Milliseconds | None = None
    p90_ms: _Milliseconds | None = None
    p99_ms: _Milliseconds | None = None
    min_ms: _Milliseconds | None = None
    max_ms: _Milliseconds | None = None
    stdev_ms: float | None = Field(default=None, ge=0, le=1e8, allow_inf_nan=False)
    load_ms: _Milliseconds | None = None
    first_ms: _Milliseconds | None = None
    peak_memory_bytes: int | None = Field(default=None, ge=0, le=2**48)
    peak_rss_bytes: int | None = Field(default=None, ge=0, le=2**48)
    wall_ms: list[_Milliseconds] = []
    profile: Profile | None = None
    notes: list[str] = []


# --- files compiled for an NPU ---------------------------------------------------------------------------------------------------


class LeftNodes(Record):
    """Nodes of one operator type that stay on the CPU, because an NPU's compiler rejected them for one reason.

    Attributes:
        op_type: Operator type.
        nodes: Number of nodes.
        reason: Why they were rejected, in the words of the vendor's compiler.
    """

    op_type: str
    nodes: int
    reason: str

    @property
    def words(self) -> str:
        """Number, type and reason, for a line of the terminal."""
        return f"{self.nodes} {self.op_type} ({self.reason})"


class EmulatedAnswers(AnswerCheck):
    """Comparison of the outputs of an NPU's emulator with those of this machine's CPU, for the same file and inputs.

    Attributes:
        available: Number of rows that could be emulated; fewer were, if the time was over.
        same: Share of equal decisions: the largest logit of a row, of each real token, or of start and end. None if the
            outputs are not logits of classes.
        score: Score of the emulated rows; None without labels, if no example was emulated whole, or if outputs are not
            finite.
        score_here: Score of the same rows on this machine's CPU; None if `score` is None.
    """

    available: int
    same: float | None
    score: Score | None = None
    score_here: Score | None = None

    @property
    def score_words(self) -> str:
        """The scores for tables, e.g. ``accuracy 84.50 (84.42 on this CPU)``; empty without scores."""
        if self.score is None or self.score_here is None:
            return ""
        metric = METRICS[self.score.metric]
        return f"{metric.name} {metric.format(self.score.value)} ({metric.format(self.score_here.value)} on this CPU)"

    @property
    def words(self) -> str:
        """The result of the comparison in one line, with the share of equal decisions."""
        same = f", {self.same * 100:.1f} % the same decision" if self.same is not None else ""
        return f"{super().words}{same}"


class OperatorCycles(Record):
    """Estimated cycles of all operators of one type on the NPU.

    Attributes:
        op_type: Operator type.
        cycles: Number of cycles in one inference.
    """

    op_type: str
    cycles: int


class Estimate(Record):
    """Time and memory of one inference on an NPU as its compiler estimates them; nothing was run.

    Operators that stay on the CPU are not part of the estimate.

    Attributes:
        system: The compiler's name for the clock rates and memories that were assumed.
        memory: The compiler's name for where weights and activations are kept.
        clock_mhz: Clock rate of the NPU.
        time_ms: Time on the NPU in ms.
        cycles: Number of clock cycles in that time.
        npu_cycles: Number of cycles in which the NPU computes; in the others it waits for memory.
        sram_bytes: Largest amount of SRAM that is used.
        dram_bytes: DRAM that is used.
        flash_bytes: Flash that is used.
        sram_traffic: Bytes read from and written to SRAM.
        dram_traffic: Bytes read from and written to DRAM.
        flash_traffic: Bytes read from and written to flash.
        operators: Cycles per operator type, the most first.
        products_left: Number of matrix products that stay on the CPU; if there are any, the estimate covers only a
            small part of the model.
        provenance: How the numbers were obtained.
    """

    system: str
    memory: str
    clock_mhz: float
    time_ms: float
    cycles: int
    npu_cycles: int
    sram_bytes: int
    dram_bytes: int
    flash_bytes: int
    sram_traffic: int
    dram_traffic: int
    flash_traffic: int
    operators: list[OperatorCycles]
    products_left: int
    provenance: Provenance


class Compilation(Record):
    """The result of compiling one file for one NPU at one length.

    Attributes:
        variant: Name of the file in the benchmark.
        sha256: Digest of the file.
        bytes: Size of the file.
        device: The device by the name that the user gave, e.g. ``qnn-host:SM8650``.
        target: Name of the chip in words.
        engine: Name of the compiler.
        engine_version: Version of the compiler.
        provenance: How placement, size and compile time were obtained.
        length: Length in tokens of the fixed input shape; the batch size is 1.
        op_types: Number of nodes on the NPU per operator type; of ONNX files, after ONNX Runtime's simplifications.
        partitions: Number of pieces in which the NPU runs them; each further piece costs a change between NPU and CPU.
        left: Nodes that stay on the CPU.
        compiled_bytes: Size of the compiled program.
        compile_s: Wall time of the compilation on this machine in seconds, which says nothing about the NPU.
        answers: Comparison of the emulator's outputs with this machine's; None if nothing was emulated.
        failed: Why there is no compiled program; empty if there is one.
        stopped: Why the emulator stopped early; empty if it did not.
        estimate: The compiler's estimate of the NPU's time and memory; None if it makes none.
    """

    variant: str
    sha256: str
    bytes: int
    device: str
    target: str
    engine: str
    engine_version: str
    provenance: Provenance
    length: int
    op_types: dict[str, int]
    partitions: int
    left: list[LeftNodes]
    compiled_bytes: int
    compile_s: float
    answers: EmulatedAnswers | None
    failed: str = ""
    stopped: str = ""
    estimate: Estimate | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes on the NPU."""
        return sum(self.op_types.values())

    @property
    def nodes_left(self) -> int:
        """Number of nodes on the CPU."""
        return sum(one.nodes for one in self.left)

    @property
    def wrong(self) -> str:
        """Why the compiled file fails: not compiled, emulator stopped, or outputs too different; empty if it passes."""
        name = f"{self.variant} on {self.device}, {self.length} tokens"
        if self.failed:
            return f"{name}: not compiled: {self.failed}"
        if self.stopped:
            return f"{name}: {self.stopped}"
        return f"{name}: {self.answers.words}" if self.answers and not self.answers.passed else ""
