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
    """Base of all records: immutable; unknown keys are ignored, so that newer files of the same schema open."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ColdStart(Record):
    """Load time, first inference and memory of one file in a fresh process.

    Attributes:
        load_ms: Opening the file (in the page cache), graph optimization included.
        first_ms: First inference; None where the program that measured does not report it.
        length: Tokens of that inference.
        peak_memory_bytes: Peak resident memory above what the process had before it opened the file; None where it is not reported.
        peak_rss_bytes: The same peak, absolute, interpreter and libraries included; None where it is not reported.
        told_by: Program that measured and printed these figures; empty where this benchmark measured them.
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
        variants: Names of the variants that use this tokenizer.
        sha256: Digest of ``tokenizer.json``.
        texts: Number of different texts.
        tokens_mean: Mean tokens per text.
        per_text: Wall time per text.
        wall_ms: Raw wall times in ms, in the order they were taken; empty in results before version 2.1.
        provenance: How the figures came about.
    """

    variants: list[str]
    sha256: str
    texts: int
    tokens_mean: float
    per_text: Statistics
    wall_ms: list[float] = []
    provenance: Provenance


class PostProcessingTime(Record):
    """Time from the outputs of an engine to the answer, one text at a time, each right after an inference.

    Attributes:
        variants: Names of the variants that share this step (same task and longest length).
        task: What the model does, such as ``text-classification``.
        outputs_of: Name of the variant whose outputs were used.
        texts: Number of different texts.
        tokens_mean: Mean tokens per text.
        per_text: Wall time per text.
        wall_ms: Raw wall times in ms, in the order of the texts.
        provenance: How the figures came about.
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
        op_type: Operator type in the graph that really runs, after the engine's fusions.
        nodes: How many there are.
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
        nodes: Nodes it runs.
        op_types: Nodes per operator type.
        cost: Share of the cost by the engine's own estimate; None where it makes none.
    """

    provider: str
    nodes: int
    op_types: dict[str, int]
    cost: float | None = None


class Profile(Record):
    """Time per operator type and placement on processors of one variant.

    Attributes:
        variant: Name of the variant.
        threads: Threads within an operator.
        length: Tokens of the input.
        runs: Inferences that were averaged.
        ops: Time per operator type, largest first.
        placement: Nodes per execution provider.
        provenance: How the figures came about.
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
    """A wait until a device was about as cool as at the beginning.

    Attributes:
        before: Name of the measurement after the wait.
        seconds: How long it took.
        rise_before: Largest rise of a sensor since the beginning when the wait began, in °C; 0 where there is none.
        rise_after: Largest rise of a sensor when the wait ended, in °C.
        slowed_before: By how much the system limited the clock rate more than at the beginning, as a share; 0 where not.
        slowed_after: Limit of the clock rate when the wait ended, as `slowed_before`.
        cool: Whether it had cooled down, so that the wait was not ended by its limit.
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
    """How the timings were taken.

    Attributes:
        description: How the timings were taken, as a paragraph for the report.
        baseline: Variant that the others are compared with.
        threads: Thread counts, in the order measured.
        lengths: Lengths, in the order measured.
        texts: Number of different real texts used.
        runs_asked: Requested number of timed inferences per variant and repeat.
        runs_made: Fewest and most timed inferences per variant and repeat that were really made.
        repeats: How often all files and lengths are timed anew, one pass after the other.
        fresh: Whether every repeat was made by a fresh process; intervals of ratios then come from the repeats.
        burst: Timed inferences of one variant before the next one has its turn.
        budget_s: Time allowed; 0 where there was no limit.
        took_s: Time taken.
        shortened: Whether fewer runs than requested were made, to keep the budget.
        cooling: Waits until the device had cooled down; they are not part of the budget.
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
    """The timings of one of the ten equal parts of a run without pauses.

    Attributes:
        after_s: Seconds since the first inference when it began.
        wall: Wall time per inference.
        thermal: Temperature or thermal state, in the device's own words; empty where it reports none.
        clock: Governor and clock rate before and after; empty where the device reports none.
        others: Share of the CPU time that other processes used; None where it was not counted.
        energy: Energy meanwhile in words, or why it cannot be read; empty where none was looked for.
    """

    after_s: float
    wall: Statistics
    thermal: str = ""
    clock: str = ""
    others: float | None = None
    energy: str = ""


class Sustained(Record):
    """The timings of one file that ran for minutes without a pause.

    Attributes:
        variant: Name of the variant.
        device: Where it ran.
        threads: Threads within an operator.
        length: Tokens, or ``"text"``.
        minutes: Duration in minutes.
        slices: In order of time.
        drift: Time of the last slice over that of the first one, paired by input.
        provenance: How the figures came about.
        wall_ms: Raw wall times in ms, [slices][runs].
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
        variant: Name of the variant.
        rows: Rows compared.
        largest: Largest difference among finite answers.
        tolerance: Largest one that is allowed.
        finite: Whether all answers were numbers.
        provenance: How the answers came about.
        against: Name of the reference outputs, as a plural noun.
        equal: Whether all answers have the same bits; None where only differences are known.
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
        """Whether the largest difference is within the tolerance and all answers are numbers."""
        return self.finite and self.largest <= self.tolerance

    @property
    def words(self) -> str:
        """The outcome of the check as a line of text: rows, largest difference, tolerance."""
        outcome = f"largest difference {self.largest:.3g}" if self.finite else "answers that are not numbers"
        if self.equal:
            outcome += ", equal bit for bit"
        return f"{self.rows} {self.against}: {outcome}, allowed {self.tolerance:.3g}"


class Reported(Record):
    """Figures read from a saved output of a measuring program, such as TFLite's ``benchmark_model``.

    Figures that the text lacks are None. Load, CPU time and repeats are never in it, so that it is no `Measurement`.

    Attributes:
        variant: Name of the file in tables.
        path: The file in its artefact folder.
        sha256: Digest of that file. The text has none; the user named the file.
        bytes: Its size.
        device: Where it was measured, in the user's words.
        tool: The program.
        source: Name of the text.
        provenance: How the figures came about.
        threads: Threads within an operator; 0 where the engine decided.
        length: Tokens.
        settings: Other settings in the text, in its own words.
        runs: Timed inferences.
        mean_ms: Their mean.
        p50_ms: Their median.
        p90_ms: Their 90th percentile.
        p99_ms: Their 99th percentile.
        min_ms: The shortest one.
        max_ms: The longest one.
        stdev_ms: Their standard deviation.
        load_ms: Opening the file.
        first_ms: First inference.
        peak_memory_bytes: Peak memory above that of the program.
        peak_rss_bytes: Peak memory of the process.
        wall_ms: Single times in ms, in order; empty where the text has none.
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
    """Nodes of one operator type that stay on the CPU because the NPU's compiler rejects them for one reason.

    Attributes:
        op_type: Operator type.
        nodes: How many there are.
        reason: Why, in the words of the vendor's compiler.
    """

    op_type: str
    nodes: int
    reason: str

    @property
    def words(self) -> str:
        """Number, type and reason, for a line of the terminal."""
        return f"{self.nodes} {self.op_type} ({self.reason})"


class EmulatedAnswers(AnswerCheck):
    """Answers of an NPU's emulator compared with those of this machine's CPU for the same file and inputs.

    Attributes:
        available: Rows that there were; fewer were computed where the time was over.
        same: Share of decisions that are the same: the largest logit of a row, of each real token, or of start and end;
            None where the outputs are no logits of classes.
        score: Score of the emulated rows on labelled data; None without.
        score_here: Score of the same rows, unpadded, on this machine's CPU.
    """

    available: int
    same: float | None
    score: Score | None = None
    score_here: Score | None = None

    @property
    def score_words(self) -> str:
        """The scores for tables, e.g. ``84.50 (84.42 on this CPU)``; empty where rows had no labels."""
        if self.score is None or self.score_here is None:
            return ""
        metric = METRICS[self.score.metric]
        return f"{metric.name} {metric.format(self.score.value)} ({metric.format(self.score_here.value)} on this CPU)"

    @property
    def words(self) -> str:
        """The outcome of the check as a line of text, with the share of equal decisions."""
        same = f", {self.same * 100:.1f} % the same decision" if self.same is not None else ""
        return f"{super().words}{same}"


class OperatorCycles(Record):
    """Estimated cycles of all operators of one type on the NPU.

    Attributes:
        op_type: Operator type.
        cycles: Cycles of one inference.
    """

    op_type: str
    cycles: int


class Estimate(Record):
    """Time and memory of one inference by a compiler's model of an NPU: nothing was run. Operators on the CPU are not in it.

    Attributes:
        system: Clock rates and memories that were assumed, by the compiler's name for them.
        memory: The compiler's name for where weights and activations are kept.
        clock_mhz: Clock rate of the NPU.
        time_ms: Time on the NPU.
        cycles: Cycles of that time.
        npu_cycles: Cycles in which the NPU computes; it waits for memory in the others.
        sram_bytes: SRAM that is used at most.
        dram_bytes: DRAM that is used.
        flash_bytes: Flash that is used.
        sram_traffic: Bytes read from and written to SRAM.
        dram_traffic: Bytes read from and written to DRAM.
        flash_traffic: Bytes read from and written to flash.
        operators: Cycles per operator type, most first.
        products_left: Matrix products that stay on the CPU: with them the estimate is only of a small part of the model.
        provenance: How the figures came about.
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
    """The outcome of compiling one file for one NPU at one length.

    Attributes:
        variant: Name of the file.
        sha256: Its digest.
        bytes: Its size.
        device: The device as it was named, e.g. ``qnn-host:SM8650``.
        target: Name of the chip as text.
        engine: Name of the compiler.
        engine_version: Version of the compiler.
        provenance: How placement, size and compile time came about.
        length: Tokens of the fixed shape; batch is 1.
        op_types: Nodes on the NPU per operator type, after ONNX Runtime's simplifications.
        partitions: Pieces that they are in; each further one costs a change between NPU and CPU.
        left: Nodes that stay on the CPU.
        compiled_bytes: Size of the compiled program.
        compile_s: Wall time of the compilation on this machine, in seconds. It is no figure of the NPU.
        answers: Comparison of the emulator's outputs with this machine's; None where nothing was emulated.
        failed: Why there is no compiled program; empty where there is one.
        stopped: Why the emulator stopped early; empty where it did not.
        estimate: The compiler's estimate of the NPU's time and memory; None where it makes none.
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
        """Nodes on the NPU."""
        return sum(self.op_types.values())

    @property
    def nodes_left(self) -> int:
        """Nodes on the CPU."""
        return sum(one.nodes for one in self.left)

    @property
    def wrong(self) -> str:
        """A line saying why this compiled file fails: not compiled, stopped, or answers too far off; else empty."""
        name = f"{self.variant} on {self.device}, {self.length} tokens"
        if self.failed:
            return f"{name}: not compiled: {self.failed}"
        if self.stopped:
            return f"{name}: {self.stopped}"
        return f"{name}: {self.answers.words}" if self.answers and not self.answers.passed else ""
