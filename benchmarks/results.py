"""Timings turned into the records of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol as Shape

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.compiling import Target
from pocketbert.benchmarks.devices.protocol import Connection
from pocketbert.benchmarks.load import Cooling, Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import Length, Profile, Protocol
from pocketbert.benchmarks.statistics import Statistics, repeat_interval, time_ratio
from pocketbert.benchmarks.timing import BURST, IDLE_SHARE, LEAST_SINGLES, STABLE, WARMUP_LEAST, WARMUP_MOST, Cell
from pocketbert.core.devices import DeviceName, Figure
from pocketbert.core.host.hardware import Machine, machine
from pocketbert.core.host.system import installed
from pocketbert.core.predict.tokenization import Text

BUSY = 0.10
"""From this share of foreign CPU time on, the result carries a note."""


class Session(Shape):
    """What the protocol of a session is described from."""

    connection: Connection
    texts: Sequence[Text]
    options: BenchmarkOptions
    budget_s: float
    notes: list[str]
    made: list[int]
    cooling: Cooling

    @property
    def threads(self) -> list[int]:
        """The numbers of threads, in the order measured."""
        ...

    @property
    def idle(self) -> list[tuple[Length, float]]:
        """Lengths and idle times that single inferences were asked for."""
        ...

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether every repeat was made by a fresh process."""
        ...


@dataclass(frozen=True)
class Measured:
    """What all measurements at one thread count on one device have in common.

    Attributes:
        device: The device.
        machine: Its CPU and ISA.
        threads: Threads within an operator.
        load: What else it did.
        fresh: Whether every repeat was made by a fresh process.
    """

    device: DeviceName
    machine: Machine
    threads: int
    load: Load
    fresh: bool = False

    def measurement(self, cell: Cell, cold: ColdRun | None) -> Measurement:
        """The record of a cell. Times of a device whose times are no latency are left out."""
        used = cell.feeds[: max(map(len, cell.repeats))]
        walls, cpus = (cell.wall_ms, cell.cpu_ms) if cell.timed else ([], [])
        counts = cell.guest_instructions if Figure.GUEST_INSTRUCTIONS in self.device.info.figures else []
        return Measurement(
            variant=cell.variant.name,
            sha256=cell.variant.sha256,
            bytes=cell.variant.bytes,
            device=str(self.device),
            engine=cell.opened.engine,
            engine_version=cell.opened.engine_version,
            provenance=self.device.info.provenance,
            machine=self.machine,
            threads=self.threads,
            length=cell.length,
            gap_ms=cell.gap_ms,
            tokens_mean=float(np.mean([f["input_ids"].shape[1] for f in used])),
            load=self.load,
            wall=_statistics(walls),
            wall_interval=repeat_interval([float(np.median(r)) for r in walls]) if walls else None,
            cpu=_statistics(cpus),
            cold=cold.start if cold else None,
            warmup_runs=cell.warmup_runs,
            warmup_stable=cell.warmup_stable,
            wall_ms=walls,
            cpu_ms=cpus,
            guest_instructions=Statistics.of(counts) if counts else None,
        )

    def comparisons(self, cells: Sequence[Cell], baseline: str) -> list[Comparison]:
        """Every variant with the baseline; none on a device whose times are no latency."""
        base = {(c.length, c.gap_ms): c for c in cells if c.variant.name == baseline}
        return [
            Comparison(
                variant=c.variant.name,
                baseline=baseline,
                threads=self.threads,
                length=c.length,
                gap_ms=c.gap_ms,
                wall=time_ratio(c.wall_ms, base[c.length, c.gap_ms].wall_ms, c.turn, self.fresh),
                cpu=time_ratio(c.cpu_ms, base[c.length, c.gap_ms].cpu_ms, c.turn, self.fresh) if c.cpu_ms else None,
                provenance=self.device.info.figures[Figure.LATENCY],
            )
            for c in cells
            if c.timed and c.variant.name != baseline and (c.length, c.gap_ms) in base
        ]


def _statistics(repeats: Sequence[Sequence[float]]) -> Statistics | None:
    return Statistics.of([x for repeat in repeats for x in repeat]) if repeats else None


def profiles(variants: Sequence[Variant], cold: Mapping[str, ColdRun | None], threads: int) -> list[Profile]:
    """The profiles that were made, in the order of the variants."""
    return [
        found.ops.profile(v.name, threads, found.start.length)
        for v in variants
        if (found := cold[v.name]) is not None and found.ops is not None
    ]


def missing_profiles(variants: Sequence[Variant], made: Sequence[Profile]) -> list[str]:
    """A note that names the variants without a profile."""
    names = [v.name for v in variants if v.name not in {p.variant for p in made}]
    return [f"No profile of {', '.join(names)}: the engine cannot make one."] if names else []


def protocol(session: Session, lengths: list[Length], measurements: Sequence[Measurement], took_s: float) -> Protocol:
    """How the timings of a session were taken."""
    options, made = session.options, session.made
    budget_s = options.budget_s if len(options.devices) == 1 else round(session.budget_s, 1)
    return Protocol(
        description=_describe(session.connection.method, measurements, session.fresh) + _least(options),
        baseline=session.baseline,
        threads=session.threads,
        lengths=lengths,
        texts=min(len(session.texts), max(made)),
        runs_asked=options.runs,
        runs_made=(min(made), max(made)),
        repeats=options.repeats,
        fresh=session.fresh,
        burst=BURST,
        budget_s=0.0 if options.least_s else budget_s,
        took_s=round(took_s, 2),
        shortened=min(made) < options.runs,
        cooling=session.cooling.waits,
        notes=[
            *session.notes,
            *_notes(measurements, made, options.runs, budget_s),
            *_left_out(session.idle, measurements, options.repeats, budget_s),
            *filter(None, [session.cooling.note()]),
        ],
    )


def nothing_timed(targets: Sequence[Target], options: BenchmarkOptions) -> BenchmarkResult:
    """A result for compilations only: no device of the benchmark runs files."""
    variants = {v.name: v for target in targets for v in target.variants}
    return BenchmarkResult(
        machine=machine(),
        versions=installed(("pocketbert", "onnxruntime", "numpy", "tokenizers"))
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


def _notes(measurements: Sequence[Measurement], made: Sequence[int], runs: int, budget_s: float) -> list[str]:
    out = []
    if min(made) < runs:
        told = f"{min(made)} to {max(made)}" if max(made) > min(made) else f"{made[0]}"
        out.append(f"{told} runs per repeat instead of {runs}: the budget was {budget_s:g} s.")
    warmed = [m.warmup_stable for m in measurements if not m.gap_ms]
    if restless := warmed.count(False):
        out.append(
            f"In {restless} of {len(warmed)} warm-ups the times still changed by more than {STABLE * 100:.0f} % at the "
            "end: other load, or a changing clock rate. Compare the time ratios rather than single times."
        )
    busiest = max(m.load.others or 0.0 for m in measurements)
    if busiest > BUSY and measurements[0].wall is not None:
        out.append(
            f"Other processes used up to {busiest * 100:.0f} % of the CPU time meanwhile; times are longer than on an idle machine."
        )
    cores = measurements[0].machine.cores
    many = sorted({m.threads for m in measurements if m.threads > cores})
    if many:
        out.append(f"Threads {', '.join(map(str, many))}: more than the {cores} cores this process may use.")
    return out


def _left_out(
    idle: Sequence[tuple[Length, float]], measurements: Sequence[Measurement], repeats: int, budget_s: float
) -> list[str]:
    """Tell which lengths have no single inferences after idle times, since there was no time for them, and what they take."""
    out = []
    for gap in dict.fromkeys(gap for _, gap in idle):
        lacking = [
            m
            for m in measurements
            if not m.gap_ms
            and (m.length, gap) in idle
            and not any((x.threads, x.length, x.gap_ms) == (m.threads, m.length, gap) for x in measurements)
        ]
        if not lacking:
            continue
        took_ms = sum(gap + (m.wall.p50 if m.wall else 0.0) for m in lacking)
        seconds = LEAST_SINGLES * repeats * took_ms / 1000
        counts = {m.threads for m in measurements}
        at = {x: {m.threads for m in lacking if m.length == x} for x in dict.fromkeys(m.length for m in lacking)}
        lengths = ", ".join(
            wording.length(x) + ("" if some == counts else f" ({wording.threads(max(some))})") for x, some in at.items()
        )
        out.append(
            f"No single inferences after {gap:g} ms idle at {lengths}: they take {seconds:.0f} s more, and idle times take at most "
            f"{IDLE_SHARE * 100:.0f} % of a budget, of {budget_s:g} s here. Give a larger budget, or fewer lengths or files."
        )
    return out


def _least(options: BenchmarkOptions) -> str:
    if not options.least_s:
        return ""
    return (
        f" Each figure without idle time has at least {options.runs * options.repeats:,} inferences and {options.least_s:g} s of them; as in MLPerf "
        "Mobile's single stream, p90 is the figure to quote (this is not an MLPerf result: files take turns)."
    )


def _describe(method: str, measurements: Sequence[Measurement], fresh: bool) -> str:
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
    return (
        "Batch 1; unpadded where a file takes any length, else padded to the smallest length that it takes. Files take turns in bursts "
        f"of {BURST} timed inferences, in a new order each round, "
        "after one untimed inference each; a repeat visits every length. Warm-up: every input shape once, then until "
        f"the medians of two windows agree within {STABLE * 100:.0f} %, {WARMUP_LEAST} to {WARMUP_MOST} runs. {processes}{idle}{method} "
        "Percentiles are nearest-rank; intervals are 95 %: for times, Student's t on the logarithms of the repeats' "
        "medians; for ratios, "
        f"{ratios}."
    )
