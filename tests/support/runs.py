"""Run folders brought into the state that a test begins with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pocketbert.core.disk.files import file_digests

_DISTILL = "distill."
_OUTPUTS = {"verify": "verify.json", "benchmark": "benchmark.json", "data": "data.json", "pack": "phone"}


def output_of(run: Path, step: str) -> Path:
    """The file or folder that a step writes."""
    if step.startswith(_DISTILL):
        return run / "distill" / step.removeprefix(_DISTILL)
    return run / _OUTPUTS.get(step, step)


def undo(run: Path, *steps: str) -> None:
    """Make a finished run unfinished: take away the marks and outputs of some steps."""
    for step in steps:
        output = output_of(run, step)
        (run / ".steps" / f"{step}.json").unlink()
        if output.is_dir():
            shutil.rmtree(output)
        else:
            output.unlink()


def sign(run: Path, step: str) -> None:
    """Let a step's mark say that its output was written as it is now: a change that no digest can tell."""
    mark = run / ".steps" / f"{step}.json"
    files = file_digests(output_of(run, step))
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "files": files}))
