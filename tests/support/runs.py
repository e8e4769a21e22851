"""Run folders brought into the state that a test begins with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pocketbert.core.disk.files import digests

_OUTPUTS = {"verify": "verify.json", "benchmark": "benchmark.json", "data": "data.json", "pack": "phone"}


def undo(run: Path, *stages: str) -> None:
    """Make a finished run unfinished: take away the marks and outputs of some stages."""
    for stage in stages:
        output = run / _OUTPUTS.get(stage, stage)
        (run / ".stages" / f"{stage}.json").unlink()
        if output.is_dir():
            shutil.rmtree(output)
        else:
            output.unlink()


def sign(run: Path, stage: str) -> None:
    """Let a stage's mark say that its output was written as it is now: a change that no digest can tell."""
    mark = run / ".stages" / f"{stage}.json"
    files = digests(run / _OUTPUTS.get(stage, stage))
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "files": files}))
