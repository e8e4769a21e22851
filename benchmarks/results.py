"""Turn timings into the records of a benchmark, and put into words how they were taken.

`make_measurement` and `make_comparisons` make the records of what was timed at one thread count. `describe_method`,
`timing_notes` and `idle_notes` write what the protocol of a session says. `make_compilation_result` is a result without any device that
runs files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.compiling import Target
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Comparison, Measurement
from pocketbert.benchmarks.records import Length, Protocol
from pocketbert.benchmarks.statistics import Statistics, repeat_interval, time_ratio
from pocketbert.benchmarks.timing import BURST, IDLE_SHARE, LEAST_SINGLES, STABLE, WARMUP_LEAST, WARMUP_MOST, Cell
from pocketbert.core.devices import DeviceName, Figure
from pocketbert.core.host.hardware import Machine, describe_machine
from pocketbert.core.host.system import installed_versions

BUSY = 0.10
"""From this share of foreign CPU time on, the result carries a note."""


def make_measurement(
    cell: Cell, cold: ColdRun | None, device: DeviceName, machine: Machine, threads: int, load: Load
) -> Measurement:
    """Build the stored record of one file's times; times of an emulator are left out, as they are not latencies.

    Args:
        cell: The times of the file at one length and idle time.
        cold: Start of the file in a new process; None if the device does not measure it.
        device: Name of the device, with its argument.
        machine: The device's CPU and instruction set.
        threads: Number of threads within an operator.
        load: Other load, temperature and clock rate of the device while the times were taken.
    """
    used = cell.feeds[: max(map(len, cell.repeats))]
    walls, cpus = (cell.wall_ms, cell.cpu_ms) if cell.timed else ([], [])
    counts = cell.guest_instructions if Figure.GUEST_INSTRUCTIONS in device.info.figures else []
    return Measurement(
        variant=cell.variant.name,
        sha256=cell.variant.sha256,
        bytes=cell.variant.bytes,
        device=str(device),
        engine=cell.opened.engine,
        engine_version=cell.opened.engine_version,
        provenance=device.info.provenance,
        machine=machine,
        threads=threads,
        length=cell.length,
        gap_ms=cell.gap_ms,
        tokens_mean=float(np.mean([f["input_ids"].shape[1] for f in used])),
        load=load,
        wall=Statistics.of([time for repeat in walls for time in repeat]) if walls else None,
        wall_interval=repeat_interval([float(np.median(r)) for r in walls]) if walls else None,
        cpu=Statistics.of([time for repeat in cpus for time in repeat]) if cpus else None,
        cold=cold.start if cold else None,
        warmup_runs=cell.warmup_runs,
        warmup_stable=cell.warmup_stable,
        wall_ms=walls,
        cpu_ms=cpus,
        guest_instructions=Statistics.of(counts) if counts else None,
    )


def make_comparisons(
    cells: Sequence[Cell], baseline: str, device: DeviceName, threads: int, fresh: bool
) -> list[Comparison]:
    """Return each file's times relative to the baseline's, with intervals; empty for an emulator.

    Lengths and idle times that the baseline was not timed at are left out.

    Args:
        cells: The times at one thread count.
        baseline: Name of the file that the others are compared with.
        device: Name of the device, with its argument.
        threads: Number of threads within an operator.
        fresh: Whether every repeat ran in a new process.
    """
    base = {(c.length, c.gap_ms): c for c in cells if c.variant.name == baseline}
    return [
        Comparison(
            variant=c.variant.name,
            baseline=baseline,
            threads=threads,
            length=c.length,
            gap_ms=c.gap_ms,
            wall=time_ratio(c.wall_ms, base[c.length, c.gap_ms].wall_ms, c.turn, fresh),
            cpu=time_ratio(c.cpu_ms, base[c.length, c.gap_ms].cpu_ms, c.turn, fresh) if c.cpu_ms else None,
            provenance=device.info.figures[Figure.LATENCY],
        )
        for c in cells
        if c.timed and c.variant.name != baseline and (c.length, c.gap_ms) in base
    ]


def describe_method(method: str, measurements: Sequence[Measurement], options: BenchmarkOptions, fresh: bool) -> str:
    """Return a paragraph for the report on how the times were taken, and how medians and intervals are computed.

    Args:
        method: Sentences on how this device measures.
        measurements: The measurements on one device.
        options: The requested settings of the benchmark.
        fresh: Whether every repeat ran in a new process.
    """
    gaps = sorted({m.gap_ms for m in measurements if m.gap_ms})
    idle = (
        f"After idle times ({', '.join(f'{g:g} ms' for g in gaps)}) files take turns of one inference each. "
        if gaps
        else ""
    )
    processes = "Every repeat opens all files in a fresh process. " if fresh else ""
    ratios = (
        "the means of the logarithms of the repeats' ratios, and Student's t"
        if fresh
        else "order statistics of the rounds' ratios"
    )
    text = (
        "Batch 1; unpadded where a file takes any length, else padded to the smallest length that it takes. Files take turns in bursts "
        f"of {BURST} timed inferences, in a new order each round, "
        "after one untimed inference each; a repeat visits every length. Warm-up: every input shape once, then until "
        f"the medians of two windows agree within {STABLE * 100:.0f} %, {WARMUP_LEAST} to {WARMUP_MOST} runs. {processes}{idle}{method} "
        "Percentiles are nearest-rank; intervals are 95 %: for times, Student's t on the logarithms of the repeats' "
        "medians; for ratios, "
        f"{ratios}."
    )
    if options.least_s:
        text += (
            f" Each figure without idle time has at least {options.runs * options.repeats:,} inferences and {options.least_s:g} s of them; as in MLPerf "
            "Mobile's single stream, p90 is the figure to quote (this is not an MLPerf result: files take turns)."
        )
    return text


def timing_notes(
    measurements: Sequence[Measurement], run_counts: Sequence[int], runs: int, budget_s: float
) -> list[str]:
    """Return notes on what makes the times less certain: fewer runs, unstable warm-ups, other load, many threads.

    Args:
        measurements: The measurements on one device.
        run_counts: Numbers of timed inferences that the repeats had.
        runs: Requested number of timed inferences per repeat.
        budget_s: Seconds that the benchmark was allowed to take.
    """
    notes = []
    fewest, most = min(run_counts), max(run_counts)
    if fewest < runs:
        counts = f"{fewest} to {most}" if most > fewest else f"{run_counts[0]}"
        notes.append(f"{counts} runs per repeat instead of {runs}: the budget was {budget_s:g} s.")
    warmed = [m.warmup_stable for m in measurements if not m.gap_ms]
    if restless := warmed.count(False):
        notes.append(
            f"In {restless} of {len(warmed)} warm-ups the times still changed by more than {STABLE * 100:.0f} % at the "
            "end: other load, or a changing clock rate. Compare the time ratios rather than single times."
        )
    busiest = max(m.load.others or 0.0 for m in measurements)
    if busiest > BUSY and measurements[0].wall is not None:
        notes.append(
            f"Other processes used up to {busiest * 100:.0f} % of the CPU time meanwhile; times are longer than on an idle machine."
        )
    cores = measurements[0].machine.cores
    many = sorted({m.threads for m in measurements if m.threads > cores})
    if many:
        notes.append(f"Threads {', '.join(map(str, many))}: more than the {cores} cores this process may use.")
    return notes


def idle_notes(
    idle: Sequence[tuple[Length, float]], measurements: Sequence[Measurement], repeats: int, budget_s: float
) -> list[str]:
    """Return a note for each idle time whose single inferences did not fit into the time budget at some lengths.

    Args:
        idle: Lengths and idle times in ms of the single inferences that were requested.
        measurements: The measurements on one device.
        repeats: Number of repeats (passes over all files and lengths).
        budget_s: Seconds that the benchmark was allowed to take.
    """
    notes = []
    measured = {(m.threads, m.length, m.gap_ms) for m in measurements}
    for gap in dict.fromkeys(gap for _, gap in idle):
        lacking = [
            m
            for m in measurements
            if not m.gap_ms and (m.length, gap) in idle and (m.threads, m.length, gap) not in measured
        ]
        if not lacking:
            continue
        took_ms = sum(gap + (m.wall.p50 if m.wall else 0.0) for m in lacking)
        seconds = LEAST_SINGLES * repeats * took_ms / 1000
        all_threads = {m.threads for m in measurements}
        threads_by_length = {
            x: {m.threads for m in lacking if m.length == x} for x in dict.fromkeys(m.length for m in lacking)
        }
        lengths = ", ".join(
            wording.length(x) + ("" if some == all_threads else f" ({wording.threads(max(some))})")
            for x, some in threads_by_length.items()
        )
        notes.append(
            f"No single inferences after {gap:g} ms idle at {lengths}: they take {seconds:.0f} s more, and idle times take at most "
            f"{IDLE_SHARE * 100:.0f} % of a budget, of {budget_s:g} s here. Give a larger budget, or fewer lengths or files."
        )
    return notes


def make_compilation_result(targets: Sequence[Target], options: BenchmarkOptions) -> BenchmarkResult:
    """Return a benchmark result without timings, for a benchmark that only compiles files for NPUs."""
    variants = {v.name: v for target in targets for v in target.variants}
    return BenchmarkResult(
        machine=describe_machine(),
        versions=installed_versions(("pocketbert", "onnxruntime", "numpy", "tokenizers"))
        | {target.compiler.engine: target.compiler.engine_version for target in targets},
        protocol=Protocol(
            description=" ".join(dict.fromkeys(target.compiler.method for target in targets)),
            baseline="",
            threads=[],
            lengths=list(options.lengths),
            texts=0,
            runs_asked=0,
            runs_made=(0, 0),
            repeats=0,
            burst=0,
            budget_s=options.budget_s,
            took_s=0.0,
            shortened=False,
        ),
        variants=list(variants.values()),
        measurements=[],
        comparisons=[],
        tokenizers=[],
        profiles=[],
    )
