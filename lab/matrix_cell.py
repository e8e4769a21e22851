"""Build one cell of the matrix of docs/lab/families.md, and tell how far its file is from the untouched model.

Run: python lab/matrix_cell.py bert text-classification onnx int8                     (exits with 1 where it does not pass)
     python lab/matrix_cell.py bert text-classification onnx int8 --layers 1 --keep FOLDER

The arguments are those of the cell: name of the system, column, format and scheme. The folder is left with the model and its files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from pocketbert.core.families import find_family
from pocketbert.core.types import Format, Scheme
from support.matrix.cells import TASK_CELLS, Cell, Unit
from support.matrix.measure import measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cell that the arguments name; returns 1 where it does not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("task", choices=[*TASK_CELLS])
    parser.add_argument("format", type=Format)
    parser.add_argument("scheme", type=Scheme)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder that does not exist; default: a temporary one")
    asked = parser.parse_args(arguments)
    cell = Cell(find_family(asked.row).graph, asked.task, str(asked.format), str(asked.scheme))
    unit = Unit(cell.row, TASK_CELLS[cell.task], asked.format)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(unit, asked.keep or Path(folder) / "cell", only=[asked.scheme], layers=asked.layers)
    (result,) = (r for r in results if r.cell == cell)
    kind = "RMS" if result.median != result.median else "largest difference"  # NaN: files in 8 bits have no median
    print(
        f"{cell}: {kind} {result.worst:.3g} of the spread, allowed {result.bound:.3g}; {len(result.shapes)} input shapes"
    )
    print(result.problem or "passed")
    return int(not result.passed)


if __name__ == "__main__":
    sys.exit(main())
