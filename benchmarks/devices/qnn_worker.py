"""Compile one file for a Hexagon processor and emulate some rows, in a separate process.

A vendor's library may crash or hang; then this process ends and the measuring one reports it. Both exchange the
files of a folder: `Job` and the inputs, then `Outcome` and the outputs of each row.

``python -m pocketbert.benchmarks.devices.qnn_worker FOLDER``
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pocketbert.core.disk.files import write_atomic

JOB_FILE = "job.json"
OUTCOME_FILE = "told.json"
FEEDS_FILE = "feeds.npz"
PROVIDER = "QNNExecutionProvider"
_CONTEXT_FILE = "context.onnx"
_VERBOSE, _ERRORS = 0, 3


class Job(BaseModel):
    """The compilation and emulation to do.

    Attributes:
        model: Path of the ONNX file.
        soc_model: Number of the chip in ``Qnn_SocModel_t``.
        architecture: Version of the chip's Hexagon processor.
        dimensions: Sizes of the file's named dimensions: an NPU takes fixed shapes only.
        rows: Number of input rows that the emulator then computes.
        budget_s: Seconds for these rows; one row is always computed.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    soc_model: int
    architecture: int
    dimensions: dict[str, int]
    rows: int
    budget_s: float


class _NodeGroup(BaseModel):
    """Nodes of the graph that one execution provider runs together.

    Attributes:
        provider: Name of the execution provider.
        nodes: Name and operator type of each node.
    """

    model_config = ConfigDict(frozen=True)

    provider: str
    nodes: list[tuple[str, str]]


class Outcome(BaseModel):
    """The result of the compilation.

    Attributes:
        groups: Which provider runs which nodes, after ONNX Runtime's own simplifications.
        compile_s: Wall time of the compilation on this machine.
        bytes: Size of the compiled program.
        failed: Why there is no compiled program; empty if there is one.
    """

    model_config = ConfigDict(frozen=True)

    groups: list[_NodeGroup] = []
    compile_s: float = 0.0
    bytes: int = 0
    failed: str = ""


def answer_file(folder: Path, row: int) -> Path:
    """Return the path of the file with the outputs of one row."""
    return folder / f"answer{row}.npz"


def main(folder: Path) -> None:
    """Read the job file in a folder, compile its model for the NPU, write the outcome, and run its rows in the emulator."""
    job = Job.model_validate_json((folder / JOB_FILE).read_text(encoding="utf-8"))
    try:
        session, seconds = _compile(job, folder)
    except Exception as error:
        failed = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        (folder / OUTCOME_FILE).write_text(Outcome(failed=failed).model_dump_json(), encoding="utf-8")
        return
    outcome = Outcome(
        groups=[
            _NodeGroup(provider=g.ep_name, nodes=[(n.name, n.op_type) for n in g.get_nodes()])
            for g in session.get_provider_graph_assignment_info()
        ],
        compile_s=round(seconds, 3),
        bytes=sum(p.stat().st_size for p in folder.glob("context*.bin")),
    )
    (folder / OUTCOME_FILE).write_text(outcome.model_dump_json(), encoding="utf-8")
    _emulate(session, job, folder)


def _compile(job: Job, folder: Path) -> tuple[Any, float]:
    """Compile a model by opening it with the QNN provider; the compiled program is written into the folder.

    Returns:
        (ONNX Runtime session whose NPU part runs in the emulator, seconds of the compilation).
    """
    import onnxruntime as ort
    import onnxruntime_qnn

    ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    options = ort.SessionOptions()
    options.log_severity_level = _VERBOSE  # only the verbose log has the reasons why nodes are refused
    for name, size in job.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    for key, value in (
        ("session.record_ep_graph_assignment_info", "1"),
        ("ep.context_enable", "1"),
        ("ep.context_embed_mode", "0"),
        ("ep.context_file_path", str(folder / _CONTEXT_FILE)),
    ):
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices(
        [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER],
        {
            "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
            "htp_arch": str(job.architecture),
            "soc_model": str(job.soc_model),
            # the last dequantization of an output runs on the NPU, too, instead of on the CPU
            "offload_graph_io_quantization": "0",
        },
    )
    begin = time.monotonic()
    return ort.InferenceSession(job.model, options), time.monotonic() - begin


def _emulate(session: Any, job: Job, folder: Path) -> None:
    """Run rows in the emulator, at least one, until the time is over; write each row's outputs to a file."""
    import onnxruntime as ort

    quiet = ort.RunOptions()
    quiet.log_severity_level = _ERRORS
    names = [o.name for o in session.get_outputs()]
    inputs = {i.name for i in session.get_inputs()}
    end = time.monotonic() + job.budget_s
    with np.load(folder / FEEDS_FILE) as feeds:
        columns = {name: feeds[name] for name in feeds.files if name in inputs}
    for row in range(job.rows):
        if row and time.monotonic() > end:
            return
        outputs = session.run(names, {name: column[row] for name, column in columns.items()}, quiet)
        content = io.BytesIO()
        np.savez(content, **dict(zip(names, outputs, strict=True)))
        write_atomic(answer_file(folder, row), content.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
