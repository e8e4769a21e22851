"""The record of a file that was compiled for an NPU: what runs there, what does not, and what an emulator answers."""

from __future__ import annotations

from pocketbert.benchmarks.records import AnswerCheck, Record
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.score import Score
from pocketbert.core.types import Provenance


class LeftNodes(Record):
    """Nodes of one operator type that the NPU does not take, for one reason.

    Attributes:
        op_type: Operator type.
        nodes: How many there are.
        reason: Why, as the vendor's compiler tells it.
    """

    op_type: str
    nodes: int
    reason: str

    @property
    def words(self) -> str:
        """For a line of the terminal."""
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
        """What was found."""
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
    """What a compiler's model of an NPU expects of one inference: nothing was run. Operators on the CPU are not in it.

    Attributes:
        system: Clock rates and memories that were assumed, by the compiler's name for them.
        memory: Where weights and activations are kept, likewise.
        clock_mhz: Clock rate of the NPU.
        time_ms: Time on the NPU.
        cycles: Cycles of that time.
        npu_cycles: Cycles in which the NPU computes; it waits for memory in the others.
        sram_bytes: SRAM that is used at most.
        dram_bytes: DRAM that is used.
        flash_bytes: Flash that is used.
        sram_traffic: Bytes read from and written to SRAM.
        dram_traffic: The same for DRAM.
        flash_traffic: The same for flash.
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
    """One file compiled for one NPU at one length.

    Attributes:
        variant: Name of the file.
        sha256: Its digest.
        bytes: Its size.
        device: The device as it was named, e.g. ``qnn-host:SM8650``.
        target: The chip in words.
        engine: What compiled it.
        engine_version: Version of that.
        provenance: How placement, size and compile time came about.
        length: Tokens of the fixed shape; batch is 1.
        op_types: Nodes on the NPU per operator type, after ONNX Runtime's simplifications.
        partitions: Pieces that they are in; each further one costs a change between NPU and CPU.
        left: Nodes that stay on the CPU.
        compiled_bytes: Size of the compiled program.
        compile_s: Wall time of the compilation on this machine, in seconds. It is no figure of the NPU.
        answers: What the emulator answered; None where nothing was emulated.
        failed: Why there is no compiled program; empty where there is one.
        stopped: Why the emulator stopped early; empty where it did not.
        estimate: What the compiler expects of the NPU's time and memory; None where it has no model of them.
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
        """What is wrong with the compiled file; empty where nothing is."""
        name = f"{self.variant} on {self.device}, {self.length} tokens"
        if self.failed:
            return f"{name}: not compiled: {self.failed}"
        if self.stopped:
            return f"{name}: {self.stopped}"
        return f"{name}: {self.answers.words}" if self.answers and not self.answers.passed else ""
