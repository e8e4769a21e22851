"""Write docs/figures/families.json: the last result of every cell of the matrix, in short.

Run: python lab/matrix_figures.py runs/matrix/results*.jsonl > docs/figures/families.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read the lines of all files; one that a kill has cut is left out."""
    out = []
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            try:
                out.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return out


def figures(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Keep what every cell was last, with the machines and versions it was measured with.

    Args:
        found: Lines of tests/support/matrix/record.py, oldest first.
    """
    last: dict[tuple[str, ...], dict[str, Any]] = {}
    for result in found:
        last[tuple(result["cell"].values())] = result
    cells: dict[str, Any] = {}
    for (row, task, format, scheme), result in sorted(last.items()):
        value = result["worst"] if result["passed"] else f"failed: {' '.join(result['problem'].split())}"[:200]
        cells.setdefault(row, {}).setdefault(task, {}).setdefault(format, {})[scheme] = value
    exact = [r["median"] for r in last.values() if r["passed"] and r["cell"]["scheme"] == "fp32"]
    return {
        "machines": sorted({" ".join(r["isa"]) for r in last.values()}),
        "versions": {k: v for r in last.values() for k, v in r["versions"].items()},
        "code": sorted({r["code"] for r in last.values()}),
        "median fp32": sorted(exact)[len(exact) // 2] if exact else None,
        "cells": cells,
    }


def text(value: dict[str, Any]) -> str:
    """The JSON with one line for each system and task."""
    head = {k: v for k, v in value.items() if k != "cells"}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()]
    rows = [
        f"  {json.dumps(row)}: {{\n{_lines(tasks)}\n  }}" for row, tasks in value["cells"].items()
    ]  # one line for each task: a change is seen
    return "{\n" + "\n".join(lines) + '\n "cells": {\n' + ",\n".join(rows) + "\n }\n}\n"


def _lines(tasks: dict[str, Any]) -> str:
    return ",\n".join(f"   {json.dumps(task)}: {json.dumps(files)}" for task, files in tasks.items())


if __name__ == "__main__":
    sys.stdout.write(text(figures(results(map(Path, sys.argv[1:])))))
