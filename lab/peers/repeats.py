"""How well `pocketbert benchmark` repeats: the same comparison again and again, each time in a fresh process.

Every repeat runs the command on all files of a folder and keeps each file's time relative to the first file, at every
thread count, length and cadence. A later ratio holds if it lies in the interval of the first repeat, widened by the
square root of two, since both of them vary. The goal is 9 of 10. At the end one run is made with a busy process on
another core, which the result has to report.

Repeats are kept in `--output` as they are made, and a second call goes on where the first one stopped.

Run: nice python lab/peers/repeats.py -m phone -o repeats.json [--repeats 11] [--minutes 60]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.results import BUSY
from pocketbert.benchmarks.statistics import Ratio
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.disk.files import sha256_json, write_atomic
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import installed_versions

GOAL = 0.9
"""Share of the later ratios that should hold."""
_SPIN = "while True: pass"


class Repeat(BaseModel):
    """One run of the command.

    Attributes:
        ratios: Time relative to the first file, by file, threads, length and idle time in words.
        others: Largest share of the CPU time that went to other processes.
        noticed: Whether the result has a note about them.
    """

    ratios: dict[str, Ratio]
    others: float
    noticed: bool


class Repeats(BaseModel):
    """All runs.

    Attributes:
        key: Changes with the files, the command, the machine and the versions.
        machine: CPU and instruction-set extensions.
        repeats: One after the other.
        busy: The run with a busy process on another core; None before it was made.
    """

    key: str
    machine: str
    repeats: list[Repeat] = []
    busy: Repeat | None = None


def main() -> None:
    options = _options()
    command = ["--threads", options.threads, "--lengths", options.lengths, "--budget", f"{options.budget:g}"]
    command += ["--gaps", options.gaps, "--runs", str(options.runs)]
    kept = resume(options.output, _key(options.model, command))
    began, made = time.monotonic(), len(kept.repeats)
    for number in range(made, options.repeats):
        start = began + (number - made) * options.minutes * 60 / options.repeats
        time.sleep(max(0.0, start - time.monotonic()))
        kept.repeats.append(_run(options.model, command))
        write_atomic(options.output, kept.model_dump_json(indent=1))
        print(f"repeat {number + 1} of {options.repeats}: others had {kept.repeats[-1].others:.0%}", flush=True)
    if kept.busy is None and not options.no_busy:
        with subprocess.Popen([sys.executable, "-c", _SPIN]) as spinning:
            try:
                kept.busy = _run(options.model, command)
            finally:
                spinning.kill()
        write_atomic(options.output, kept.model_dump_json(indent=1))
    print("\n".join(summary(kept)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "-m",
        "--model",
        type=Path,
        required=True,
        help="artefact folder; all its files that an engine here runs are measured",
    )
    add("-o", "--output", type=Path, required=True, help="JSON file with all repeats")
    add("--repeats", type=int, default=11, help="runs in all; the first one gives the intervals")
    add("--minutes", type=float, default=0.0, help="spread the beginnings of the runs over so many minutes")
    add("--threads", default="1,2")
    add("--lengths", default="32,64")
    add("--gaps", default="100")
    add("--runs", type=int, default=100)
    add("--budget", type=float, default=120.0, help="seconds of one run")
    add("--no-busy", action="store_true", help="leave out the run with a busy process on another core")
    return parser.parse_args()


def _key(folder: Path, command: Sequence[str]) -> str:
    files = {r.path: r.sha256 for r in read_artefacts(folder).models()}
    return sha256_json(
        [files, list(command), asdict(describe_machine()), installed_versions(("onnxruntime", "ai-edge-litert"))]
    )


def resume(path: Path, key: str) -> Repeats:
    """What was made so far of the same files with the same command on the same machine."""
    try:
        old = Repeats.model_validate_json(path.read_text())
    except (OSError, ValidationError):
        old = None
    return old if old is not None and old.key == key else Repeats(key=key, machine=describe_machine().summary)


def _run(folder: Path, command: Sequence[str]) -> Repeat:
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "benchmark.json"
        start = [sys.executable, "-P", "-m", "pocketbert", "benchmark", "-m", str(folder), "-o", str(output)]
        subprocess.run([*start, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return read(BenchmarkResult.read(output))


def read(result: BenchmarkResult) -> Repeat:
    """What is kept of a run."""
    others = max(m.load.others or 0.0 for m in result.measurements)
    return Repeat(
        ratios={f"{c.variant}, {c.threads}, {c.length}, {c.gap_ms:g}": c.wall for c in result.comparisons},
        others=others,
        noticed=any("Other processes used" in note for note in result.protocol.notes),
    )


def widened(ratio: Ratio) -> tuple[float, float]:
    """The interval of a ratio, wider by the square root of two on either side of the median."""
    middle, wider = math.log(ratio.median), math.sqrt(2)
    ends = (middle + wider * (math.log(end) - middle) for end in (ratio.low, ratio.high))
    low, high = (math.exp(end) for end in ends)
    return low, high


def held(kept: Repeats) -> dict[str, tuple[int, int]]:
    """For each comparison, how many later ratios lie in the first one's widened interval, and how many there are."""
    out = {}
    for name, ratio in kept.repeats[0].ratios.items() if kept.repeats else ():
        low, high = widened(ratio)
        later = [r.ratios[name].median for r in kept.repeats[1:] if name in r.ratios]
        out[name] = sum(low <= median <= high for median in later), len(later)
    return out


def summary(kept: Repeats) -> list[str]:
    """The result in lines of text."""
    counts = held(kept)
    lines = [f"{kept.machine}; provenance: measured; {len(kept.repeats)} runs, each in a fresh process"]
    lines += ["file, threads, length, idle ms: first ratio [interval, widened]: later ratios inside"]
    for name, (inside, later) in counts.items():
        low, high = widened(first := kept.repeats[0].ratios[name])
        lines.append(f"  {name}: {first.median:.3f} [{low:.3f}, {high:.3f}]: {inside} of {later}")
    inside, later = (sum(c[i] for c in counts.values()) for i in (0, 1))
    if later:
        verdict = "met" if inside >= GOAL * later else "missed"
        lines.append(f"in all {inside} of {later} ratios repeat; the goal of {GOAL:.0%} is {verdict}")
    disturbed = sum(r.others > BUSY for r in kept.repeats)
    if disturbed:
        lines.append(
            f"in {disturbed} of {len(kept.repeats)} runs other processes had more than {BUSY:.0%} of the CPU time"
        )
    if kept.busy is not None:
        told = "reported" if kept.busy.noticed else f"NOT reported (it takes {BUSY:.0%})"
        lines.append(f"a busy process on another core had {kept.busy.others:.0%} of the CPU time: {told}")
    return lines


if __name__ == "__main__":
    main()
