"""Measure the most memory that `pocketbert teach` takes for files of more and more rows, each in a process of its own.

Run: OMP_NUM_THREADS=1 python lab/teach_memory.py [--rows 20000 --rows 200000] [--allowed 8]

The teacher is a tiny BERT with random weights, and the rows are short sentences, so that nearly all memory is that of the libraries:
what rows leave behind shows. The peaks are those of the resident memory (VmHWM of /proc, so on Linux only). Exits with 1 if the peak
of the longest file is more than --allowed MB over that of the shortest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from pocketbert.core.host.hardware import describe_machine, load_average
from support.tiny import write_bert
from support.tiny_texts import LABELS, task_rows, write_lines

TEACH = """
import pathlib
from pocketbert.cli.main import main
try:
    main()
finally:
    print([line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")][0])
"""


def measure_peak(model: Path, rows: Path) -> float:
    """Write the model's answers to rows beside them in a process of its own, and return its peak of resident memory in MB."""
    arguments = ["teach", "-m", str(model), "--data", str(rows), "-o", str(rows.with_suffix(".taught.jsonl"))]
    ended = subprocess.run([sys.executable, "-c", TEACH, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return int(ended.stdout.split()[-2]) * 1024 / 1e6


def main() -> int:
    """Measure the numbers of rows that the command line names; return 1 if memory grows with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="default 20000 and 200000; may be repeated")
    parser.add_argument("--allowed", type=float, default=8.0, help="MB that the peaks may differ by")
    options = parser.parse_args()
    print(f"{describe_machine().summary}; load {load_average():.1f}; random weights; provenance measured")
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_bert(Path(folder) / "model", LABELS)
        for count in sorted(options.rows or [20_000, 200_000]):
            rows, began = write_lines(Path(folder) / f"{count}.jsonl", task_rows(count, 1)), time.monotonic()
            peaks.append(measure_peak(model, rows))
            size, took = rows.stat().st_size / 1e6, time.monotonic() - began
            print(f"{count:,} rows, {size:.1f} MB: at most {peaks[-1]:,.1f} MB, {took:.0f} s", flush=True)
    return int(peaks[-1] - peaks[0] > options.allowed)


if __name__ == "__main__":
    sys.exit(main())
