"""Whether a cheap call some ms before makes a single call after an idle time faster: what `Model.warm` would be worth.

For each engine and number of threads a process of its own opens the SST-2 student's int8 files and makes single calls after an
idle time. In each round every way to prepare has one turn, in a new order: nothing, one inference of the shortest length or of
the call's own length, some ms before. A ratio is paired by round: time with the preparation over time without. Each is
made twice: after sleep only, and where 64 MB of memory were written at the beginning of the idle time, as by an app that draws
its screen, so that the weights are in no cache any more. A round counts where other processes had little of the CPU in all of it.

Run: nice python lab/runtimes/warm_calls.py FOLDER-WITH-INT8-FILES -o warm.json [--processes 2] [--openvino FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from pocketbert.benchmarks.load import Load, LoadWatch
from pocketbert.benchmarks.statistics import paired_ratio
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile, FilePredictor, add_missing_inputs
from pocketbert.runtime.onnx import OnnxPredictor, Spin

SHORTEST = 16
NOTHING = "nothing"
WAYS = (NOTHING, "shortest 10 ms before", "shortest 50 ms before", "same 10 ms before", "same 50 ms before")
"""How a call is prepared: which inference, and how long before."""
WORK_BYTES = 64 << 20
ENGINES = ("litert", "onnxruntime", "onnxruntime, threads wait busily", "openvino")


class Plan(BaseModel):
    """What one process does.

    Attributes:
        engine: One of `ENGINES`.
        path: The file.
        threads: Threads within an operator.
        parts: Length in tokens, idle time in ms and rounds of each part.
        other_work: Whether memory is written at the beginning of an idle time, for each part.
    """

    engine: str
    path: Path
    threads: int
    parts: list[tuple[int, float, int]]
    other_work: list[bool]


class Part(BaseModel):
    """What was measured of one engine, number of threads, length and idle time in one process.

    Attributes:
        engine: One of `ENGINES`.
        threads: Threads within an operator.
        length: Tokens.
        gap_ms: Idle time before the timed call.
        other_work: Whether memory was written at its beginning.
        wall_ms: Wall time of each call by the way to prepare, in the order of the rounds.
        others: Largest share of the CPU that other processes had in a turn of each round.
    """

    engine: str
    threads: int
    length: int
    gap_ms: float
    other_work: bool
    wall_ms: dict[str, list[float]]
    others: list[float]

    def quiet(self, way: str, most: float) -> list[float]:
        """Times of the rounds in which other processes had at most this share of the CPU."""
        return [ms for ms, share in zip(self.wall_ms[way], self.others, strict=True) if share <= most]


class Process(BaseModel):
    """What one process measured, and what else the machine did meanwhile."""

    parts: list[Part]
    load: Load | None = None


class Record(BaseModel):
    """All of a run."""

    machine: str
    processes: list[Process] = []


def opened(plan: Plan) -> FilePredictor:
    """Open the file with the plan's engine."""
    if plan.engine == ENGINES[2]:
        return OnnxPredictor(plan.path, plan.threads, spin=Spin.ON)
    format = Format.TFLITE if plan.engine == "litert" else Format.ONNX
    runtime = Runtime.OPENVINO if plan.engine == "openvino" else None
    return EngineFile(plan.path, format, runtime).open(plan.threads)


def call(predictor: FilePredictor, length: int) -> Callable[[], float]:
    """A function that runs one inference and returns its wall time in ms."""
    fits = min((n for n in predictor.lengths if n >= length), default=length)
    ids = (np.arange(length, dtype=np.int64) * 7 % 997 + 1000)[None, :]
    ids, mask = (np.pad(x, ((0, 0), (0, fits - length))) for x in (ids, np.ones_like(ids)))
    inputs = add_missing_inputs(
        predictor, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    )

    def timed() -> float:
        begin = time.perf_counter_ns()
        predictor.run(inputs)
        return (time.perf_counter_ns() - begin) / 1e6

    return timed


def single(
    timed: Callable[[], float], short: Callable[[], float], way: str, gap_s: float, work: np.ndarray | None
) -> float:
    """Wait for the idle time, with a preparation in it, and return the time of one call in ms."""
    end = time.perf_counter() + gap_s
    if work is not None:
        work += 1
    if way != NOTHING:
        kind, before_ms = way.split()[:2]
        time.sleep(max(0.0, end - float(before_ms) / 1000 - time.perf_counter()))
        (timed if kind == "same" else short)()
    time.sleep(max(0.0, end - time.perf_counter()))
    return timed()


def measure(plan: Plan) -> Process:
    """Do what a process is for."""
    predictor, order = opened(plan), np.random.default_rng(0)
    work = np.zeros(WORK_BYTES // 8)
    short, parts = call(predictor, SHORTEST), list[Part]()
    for (length, gap_ms, rounds), busy in zip(plan.parts, plan.other_work, strict=True):
        timed = call(predictor, length)
        for _ in range(20):
            short(), timed()
        walls: dict[str, list[float]] = {way: [] for way in WAYS}
        shares = list[float]()
        for _ in range(rounds):
            turns = list[float]()
            for i in order.permutation(len(WAYS)):
                watch = LoadWatch()
                walls[WAYS[i]].append(single(timed, short, WAYS[i], gap_ms / 1000, work if busy else None))
                turns.append(watch.stop().others or 0.0)
            shares.append(max(turns))
        facts = {"engine": plan.engine, "threads": plan.threads, "length": length, "gap_ms": gap_ms}
        parts.append(Part(**facts, other_work=busy, wall_ms=walls, others=shares))
    return Process(parts=parts)


def lines(record: Record, most: float) -> list[str]:
    """A Markdown table: one row for each engine, number of threads, length and idle time, all processes together.

    Args:
        record: What was measured.
        most: Share of the CPU that other processes had at most in the rounds that count.
    """
    groups: dict[tuple[str, int, int, float, bool], list[Part]] = {}
    for process in record.processes:
        for p in process.parts:
            groups.setdefault((p.engine, p.threads, p.length, p.gap_ms, p.other_work), []).append(p)
    heads = ["engine", "threads", "tokens", "idle ms", "other work", "rounds", "p50 ms without", *WAYS[1:]]
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (engine, threads, length, gap, busy), parts in groups.items():
        every = {way: [x for p in parts for x in p.quiet(way, most)] for way in WAYS}
        cells = [engine, f"{threads}", f"{length}", f"{gap:g}", "yes" if busy else "no"]
        cells += [f"{len(every[NOTHING])}", f"{float(np.median(every[NOTHING])):.2f}" if every[NOTHING] else "–"]
        for way in WAYS[1:] if every[NOTHING] else ():
            ratio = paired_ratio(every[way], every[NOTHING])
            cells.append(f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")
        out.append(f"| {' | '.join(cells)} |")
    return out


def main() -> None:
    """Measure in one process for each engine and number of threads, write all samples and print the table."""
    if sys.argv[1:] == ["--process"]:
        print(measure(Plan.model_validate_json(sys.stdin.read())).model_dump_json())
        return
    options = _options()
    record = Record(machine=describe_machine().summary)
    paths = {e: options.folder / ("model_int8.tflite" if e == "litert" else "model_int8.onnx") for e in ENGINES[:3]}
    paths |= {"openvino": options.openvino} if options.openvino else {}
    paths = {engine: path for engine, path in paths.items() if engine in options.engines}
    parts = [
        (n, gap, options.rounds if gap < 1000 else options.long_rounds) for gap in options.gaps for n in options.lengths
    ]
    for _ in range(options.processes):
        for engine, path in paths.items():
            for threads in options.threads:
                if engine == ENGINES[2] and threads == 1:
                    continue  # no other thread waits
                plan = Plan(
                    engine=engine,
                    path=path,
                    threads=threads,
                    parts=parts * 2,
                    other_work=[False] * len(parts) + [True] * len(parts),
                )
                watch = LoadWatch()
                done = subprocess.run(
                    [sys.executable, __file__, "--process"],
                    input=plan.model_dump_json(),
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                load = watch.stop()
                made = Process.model_validate_json(done.stdout.splitlines()[-1])
                record.processes.append(made.model_copy(update={"load": load}))
                write_atomic(options.output, record.model_dump_json(indent=1) + "\n")
                print(f"{engine}, {threads} threads: {load.summary}", file=sys.stderr, flush=True)
    print("\n".join(lines(record, options.most_others)))
    print(f"\nmeasured on {record.machine}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path, help="holds model_int8.tflite and model_int8.onnx")
    add("-o", "--output", type=Path, required=True, help="JSON file with all samples")
    add("--openvino", type=Path, help="ONNX file for OpenVINO; without it OpenVINO is left out")
    add("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="which engines")
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--lengths", type=int, nargs="+", default=[32, 128])
    add("--gaps", type=float, nargs="+", default=[100.0, 1000.0], help="idle times in ms")
    add("--rounds", type=int, default=20, help="rounds of idle times below 1 s")
    add("--long-rounds", type=int, default=8, help="rounds of longer ones")
    add(
        "--most-others", type=float, default=0.25, help="count rounds in which others had at most this share of the CPU"
    )
    add("--processes", type=int, default=2, help="processes for each engine and number of threads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
