"""What the measuring process and the one that runs the vendor's library tell each other, as files of one folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

JOB_FILE = "job.json"
TOLD_FILE = "told.json"
FEEDS_FILE = "feeds.npz"
CONTEXT_FILE = "context.onnx"


def answer_file(folder: Path, row: int) -> Path:
    """Where the outputs of one row are."""
    return folder / f"answer{row}.npz"


class Job(BaseModel):
    """What to compile.

    Attributes:
        model: The ONNX file.
        soc_model: Number of the chip.
        architecture: Version of its Hexagon processor.
        dimensions: Sizes of the file's named dimensions: an NPU takes fixed shapes only.
        rows: Inputs that are computed by the emulator afterwards.
        budget_s: Seconds for these; one row is always computed.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    soc_model: int
    architecture: int
    dimensions: dict[str, int]
    rows: int
    budget_s: float


class Group(BaseModel):
    """Nodes of the graph that one execution provider runs together.

    Attributes:
        provider: Its name.
        nodes: Name and operator type of each node.
    """

    model_config = ConfigDict(frozen=True)

    provider: str
    nodes: list[tuple[str, str]]


class Told(BaseModel):
    """What the compiler answered.

    Attributes:
        groups: Who runs which nodes, after ONNX Runtime's own simplifications.
        compile_s: Wall time of the compilation on this machine.
        bytes: Size of the compiled program.
        failed: Why there is none; empty where there is.
    """

    model_config = ConfigDict(frozen=True)

    groups: list[Group] = []
    compile_s: float = 0.0
    bytes: int = 0
    failed: str = ""
