"""Run folders brought into the state that a test begins with."""

from __future__ import annotations

import shutil
from pathlib import Path

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
