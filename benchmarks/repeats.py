"""Make the repeats of a benchmark in fresh processes, one after the other: on this machine, or by the worker of another one.

`run_fresh` makes all repeats of a block and joins their timings. `local_repeats` starts a Python process for each repeat,
`remote_repeats` starts the worker of another machine anew.

Two processes with the same files differ by more than the rounds of one: where memory, code and threads lie is decided when a
process begins. In an hour of runs on a quiet machine, ratios of two files varied by 2 to 7 % between processes on one thread
and by up to 17 % on two, and intervals of the rounds of one process held later ratios in 67 % of cases instead of 90 %
(docs/lab/benchmarks.md, `lab/peers/repeats.py`). So each repeat opens all files in a new process, and intervals come from
the repeats.

``python -m pocketbert.benchmarks.repeats`` reads a request from stdin and prints the timings of one repeat.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from pocketbert.benchmarks.devices.protocol import Burst, Restarting, Sample
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.records import Length
from pocketbert.benchmarks.timing import Block, Cell, Inputs, Tick
from pocketbert.core.errors import ExitCode, InputError, MachineError, PocketBertError, Problem

Repeat = Callable[[Block, float], Sequence["_Series"]]
"""Makes the only repeat of a block in a fresh process, given the seconds that it may take."""

_HANGS_S = 1800.0
"""A repeat that takes so much longer than planned hangs."""


class _Series(BaseModel):
    """The times that one process took for one file at one length and idle time.

    Attributes:
        variant: Name of the file.
        length: Length in tokens, or ``"text"``.
        gap_ms: Idle time before each inference.
        engine: Engine name.
        engine_version: Version of the engine.
        warmup_runs: Number of untimed inferences before the timed ones.
        warmup_stable: Whether the times became stable during the warm-up.
        wall_ms: Wall time of each inference.
        cpu_ms: CPU time of each inference.
    """

    variant: str
    length: Length
    gap_ms: float
    engine: str
    engine_version: str
    warmup_runs: int
    warmup_stable: bool
    wall_ms: list[float]
    cpu_ms: list[float | None]

    @classmethod
    def of(cls, cell: Cell) -> _Series:
        """Build the record of a file that was timed in a single repeat."""
        return cls(
            variant=cell.variant.name,
            length=cell.length,
            gap_ms=cell.gap_ms,
            engine=cell.opened.engine,
            engine_version=cell.opened.engine_version,
            warmup_runs=cell.warmup_runs,
            warmup_stable=cell.warmup_stable,
            wall_ms=cell.wall_ms[0],
            cpu_ms=[s.cpu_ms for s in cell.repeats[0]],
        )


def run_fresh(block: Block, inputs: Inputs, deadline: float, tick: Tick, make_repeat: Repeat) -> list[Cell]:
    """Time the files of a block with a new process for every repeat; return the times of all repeats together.

    Args:
        block: Files, lengths and idle times to time at one thread count.
        inputs: Model inputs by (file's name, length).
        deadline: Time by the monotonic clock by which all repeats should end.
        tick: Function that is called after every step, with a text for the progress bar.
        make_repeat: Function that runs one repeat in a new process, from `local_repeats` or `remote_repeats`.

    Returns:
        The times of every file, length and idle time; entry i of `repeats` is from process i.

    Raises:
        InputError: If an engine refuses a file.
        MachineError: If a process crashes or hangs.
    """
    cells: dict[tuple[str, Length, float], Cell] = {}
    runs, idle, sure = block.runs, block.idle, block.sure
    for repeat in range(block.repeats):
        left = (deadline - time.monotonic()) / (block.repeats - repeat)
        seed = (*block.seed[:2], block.seed[2] * 1000 + repeat)
        all_series = make_repeat(replace(block, runs=runs, repeats=1, seed=seed, idle=idle, sure=sure), left)
        for series in all_series:
            _add_series(cells, series, block, inputs)
        run_counts = [len(s.wall_ms) for s in all_series if not s.gap_ms]
        if not block.least_s:
            runs = min(runs, *run_counts)
        # what the first process had time for is made by all of them: figures of fewer repeats had no interval
        idle = list(dict.fromkeys((s.length, s.gap_ms) for s in all_series if s.gap_ms))
        sure = len(idle)
        for series in {(s.length, s.gap_ms): s for s in all_series}.values():
            tick(block.step(series.length, series.gap_ms, len(series.wall_ms)))
    return list(cells.values())


def _add_series(cells: dict[tuple[str, Length, float], Cell], series: _Series, block: Block, inputs: Inputs) -> None:
    """Add the times that one process took to `cells`, as a further repeat of each file, length and idle time."""
    key = (series.variant, series.length, series.gap_ms)
    if key not in cells:
        variant = next(v for v in block.variants if v.name == series.variant)
        opened, feeds = _ClosedFile(series.engine, series.engine_version), inputs[key[:2]]
        cells[key] = Cell(variant, opened, series.length, feeds, gap_ms=series.gap_ms, warmup_stable=True)
    cell = cells[key]
    cell.warmup_runs = max(cell.warmup_runs, series.warmup_runs)
    cell.warmup_stable &= series.warmup_stable
    cell.repeats.append([Sample(w, c) for w, c in zip(series.wall_ms, series.cpu_ms, strict=True)])


@dataclass
class _ClosedFile:
    """Name and version of the engine that ran a file, for a process that has ended."""

    engine: str
    engine_version: str

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Return a function that refuses to run anything."""

        def burst(numbers: Sequence[int]) -> list[Sample]:
            raise RuntimeError("the process that had opened this file has ended")

        return burst


def remote_repeats(connection: Restarting, inputs: Inputs) -> Repeat:
    """Return a function that runs one repeat on another machine, in a worker process that is started anew.

    Args:
        connection: The connection to the device.
        inputs: Model inputs by (file's name, length).
    """

    def make_repeat(block: Block, seconds: float) -> list[_Series]:
        deadline = time.monotonic() + seconds
        connection.restart()
        return [_Series.of(c) for c in block.run(connection, inputs, deadline, lambda _: None)]

    return make_repeat


@contextlib.contextmanager
def local_repeats(inputs: Inputs) -> Iterator[Repeat]:
    """Yield a function that runs one repeat in a new Python process; it reads the inputs from a temporary file."""
    with tempfile.TemporaryDirectory(prefix="pocketbert-") as folder:
        path = Path(folder) / "inputs.npz"
        _write_inputs(path, inputs)
        yield lambda block, seconds: _run_process(_Request(block=block, seconds=seconds, inputs=path))


# --- a process of this machine ---------------------------------------------------------------------------------------------------


class _Request(BaseModel):
    """What the process of one repeat reads from stdin.

    Attributes:
        block: Files, lengths and idle times to time in one repeat.
        seconds: Seconds that the repeat may take.
        inputs: Path of the file with the inputs, which `_write_inputs` wrote.
    """

    block: Block
    seconds: float
    inputs: Path


class _Answer(BaseModel):
    """What the process of one repeat prints: its timings."""

    series: list[_Series]


def _run_process(request: _Request) -> list[_Series]:
    """Start the process of one repeat with `request` on stdin; return the timings that it prints."""
    # -P: a folder named like one of our imports in the user's working directory must not be picked up
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command,
            input=request.model_dump_json(),
            capture_output=True,
            encoding="utf-8",
            timeout=max(request.seconds, 0.0) + _HANGS_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError("the process that times a repeat hangs.") from error
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    if done.returncode == ExitCode.INPUT:
        raise InputError(Problem("benchmark", last))
    try:
        return _Answer.model_validate_json((done.stdout.splitlines() or [""])[-1]).series
    except ValidationError as error:
        raise MachineError(f"the process that times a repeat failed: {last}") from error


def _write_inputs(path: Path, inputs: Inputs) -> None:
    """Write the inputs to an ``.npz`` file: for each file and length all rows concatenated, and their lengths."""
    arrays = {}
    for number, (key, feeds) in enumerate(inputs.items()):
        arrays[f"{number}/key"] = np.array(json.dumps(key))
        arrays[f"{number}/tokens"] = np.array([next(iter(f.values())).shape[1] for f in feeds])
        for name in feeds[0]:
            arrays[f"{number}/input/{name}"] = np.concatenate([f[name] for f in feeds], axis=1)
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _read_inputs(path: Path) -> dict[tuple[str, Length], list[Feed]]:
    """Read the ``.npz`` file of inputs; return the input rows by (file's name, length)."""
    inputs: dict[tuple[str, Length], list[Feed]] = {}
    with np.load(path, allow_pickle=False) as stored:
        for number in range(sum(name.endswith("/key") for name in stored.files)):
            variant, length = json.loads(str(stored[f"{number}/key"]))
            ends = np.cumsum(stored[f"{number}/tokens"])[:-1]
            begin = f"{number}/input/"
            split = {
                name.removeprefix(begin): np.split(stored[name], ends, axis=1)
                for name in stored.files
                if name.startswith(begin)
            }
            count = len(ends) + 1
            inputs[variant, length] = [
                {name: np.ascontiguousarray(rows[i]) for name, rows in split.items()} for i in range(count)
            ]
    return inputs


def _main() -> int:
    """Read a request on stdin, run one repeat on this machine, and print the times on the last line of stdout.

    Returns:
        The exit status: 0, or that of the error, whose text is then the last line on stderr.
    """
    try:
        request = _Request.model_validate_json(sys.stdin.read())
        from pocketbert.benchmarks.devices.local import connect_local

        deadline = time.monotonic() + request.seconds
        cells = request.block.run(connect_local(""), _read_inputs(request.inputs), deadline, lambda _: None)
        answer = _Answer(series=[_Series.of(c) for c in cells])
    except PocketBertError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(answer.model_dump_json())
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(_main())
