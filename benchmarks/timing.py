"""Time files in turns: warm-up until stable, then short bursts, single inferences after idle times, or minutes without a pause.

A `Cell` is one file at one thread count and length with its timings. `Block.run` opens all files of one device and thread count,
warms their cells up and lets them take turns (`_interleave`). `sustain` runs one file for minutes.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.devices.protocol import Burst, Connection, Idling, OpenedFile, Sample, Sustaining
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import Variant
from pocketbert.benchmarks.records import Length, Slice, Sustained
from pocketbert.benchmarks.statistics import Statistics, burst_medians, paired_ratio
from pocketbert.core.errors import MachineError
from pocketbert.core.seeds import generator
from pocketbert.core.types import Provenance

Tick = Callable[[str], None]
"""Called with words after every step."""
Inputs = Mapping[tuple[str, Length], list[Feed]]
"""What each variant reads at each length."""

BURST = 5
"""Timed inferences of one variant before the next one has its turn."""
STABLE = 0.03
"""Two windows of a warm-up closer than this are stable."""
WARMUP_LEAST, WARMUP_MOST = 10, 60
_SLICES = 10
"""Slices of a sustained measurement. It begins after a rest as long as a slice, in which the device cools down."""
IDLE_SHARE = 0.5
"""Most of the time that inferences after idle times may take."""
LEAST_SINGLES = 3
"""Fewest inferences of a variant after an idle time in one repeat."""
_MOST_SINGLES = 20
"""Most of them: each costs the idle time."""
_WARMUP_SHARE = 0.25
"""Most of the time that the warm-up may take."""
_WINDOW = 5
"""Inferences whose medians are compared during warm-up."""


@dataclass
class Cell:
    """The timings of one model file at one thread count, one input length and one idle time.

    Attributes:
        variant: The measured model file.
        opened: The opened file.
        length: Tokens or ``"text"``.
        feeds: Inputs to cycle through.
        timed: Whether the device's times are latencies; else the warm-up is one inference per input shape.
        gap_ms: Idle time before each inference in ms; 0 for one after the other.
        warmup_runs: Untimed inferences before the first timed one.
        warmup_stable: Whether the warm-up's times became stable.
        cost_ms: Estimated duration of one inference by this machine's clock, from the warm-up; for planning only.
        repeats: Samples, one list per repeat.
    """

    variant: Variant
    opened: OpenedFile
    length: Length
    feeds: list[Feed]
    timed: bool = True
    gap_ms: float = 0.0
    warmup_runs: int = 0
    warmup_stable: bool = False
    cost_ms: float = 0.0
    repeats: list[list[Sample]] = field(default_factory=list)
    _run: Burst = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._run = self.opened.prepare(self.feeds)

    @property
    def wall_ms(self) -> list[list[float]]:
        """Raw wall times, one list per repeat."""
        return [[s.wall_ms for s in repeat] for repeat in self.repeats]

    @property
    def cpu_ms(self) -> list[list[float]]:
        """Raw CPU times, same shape; none at all where the device does not measure them."""
        times = [[s.cpu_ms for s in repeat if s.cpu_ms is not None] for repeat in self.repeats]
        return times if all(times) else []

    @property
    def guest_instructions(self) -> list[float]:
        """Instructions per inference, counted by an emulator, over all repeats; empty on other devices."""
        return [s.guest_instructions for repeat in self.repeats for s in repeat if s.guest_instructions is not None]

    def run(self, numbers: Sequence[int]) -> list[Sample]:
        """Run the inputs with these indices and return their times, without adding them to `repeats`."""
        return self._run(numbers)

    def warm_up(self, most_s: float) -> None:
        """Run untimed inferences until the times are stable: at least 10, at most 60 or `most_s` seconds.

        ONNX Runtime plans memory per input shape, so a shape's first run is slow. Stable means that the
        medians of two windows of 5 runs on the same inputs differ by less than 3 %.
        """
        begin = time.monotonic()
        shapes = {int(f["input_ids"].shape[1]): i for i, f in enumerate(self.feeds)}
        self._run(list(shapes.values()))
        self.warmup_runs = len(shapes)
        if not self.timed:
            self.warmup_stable = True
            self.cost_ms = (time.monotonic() - begin) * 1000 / len(shapes)
            return
        before = None
        while not self.warmup_stable or self.warmup_runs < WARMUP_LEAST:
            window = time.monotonic()
            median = self._time_window()
            self.warmup_runs += _WINDOW
            self.warmup_stable = before is not None and abs(median / before - 1) < STABLE
            before = median
            self.cost_ms = max(median, (time.monotonic() - window) * 1000 / _WINDOW)
            late = self.warmup_runs >= WARMUP_MOST or time.monotonic() - begin > most_s
            if late and self.warmup_runs >= WARMUP_LEAST:
                return

    def _time_window(self) -> float:
        """Return the median wall time in ms of `_WINDOW` inferences on the first inputs."""
        return float(np.median([s.wall_ms for s in self._run(range(_WINDOW))]))

    def burst(self, first: int, count: int) -> None:
        """Time `count` inferences on the inputs from index `first` on, and add them to the current repeat.

        One inference comes before whose time is not kept: the caches hold the weights of another variant.
        """
        self.repeats[-1] += self._run([first, *range(first, first + count)])[1:]

    def after_idle(self, gap_ms: float) -> Cell:
        """Return a copy without timings that times single inferences after `gap_ms` ms of idling."""
        made = copy.copy(self)  # with the inputs that were prepared
        made.gap_ms, made.repeats = gap_ms, []
        if isinstance(self.opened, Idling):
            made._run = self.opened.prepare_idle(self.feeds, gap_ms)
        return made

    def single(self, number: int) -> None:
        """Wait for the idle time, then time one inference on input `number` and add it to the current repeat.

        Nothing runs before it, as in an app that calls once for a sentence: caches, clock rate and threads are as the
        idle time and the other variants leave them.
        """
        if not isinstance(self.opened, Idling):
            time.sleep(self.gap_ms / 1000)
        self.repeats[-1] += self._run([number])

    @property
    def single_s(self) -> float:
        """Seconds that one inference takes, idle time included; for planning only."""
        pauses = self.opened.pauses if isinstance(self.opened, Idling) else 1
        return (self.gap_ms * pauses + self.cost_ms) / 1000

    @property
    def turn(self) -> int:
        """Timed inferences per turn: 1 after an idle time, else a burst."""
        return 1 if self.gap_ms else BURST


def _interleave(cells: list[Cell], runs: int, order: np.random.Generator, least_s: float = 0.0) -> None:
    """Make one repeat: rounds in which every variant has one turn, in a new random order each round; fills `repeats`.

    A turn is a burst, or one inference where the cells wait before each.

    Args:
        cells: The variants, on the same length and with the same idle time.
        runs: Timed inferences of each.
        order: Random generator of the orders.
        least_s: Seconds of timed inferences that each has at least; rounds go on until then.
    """
    for cell in cells:
        cell.repeats.append([])
    turn, spent_ms = cells[0].turn, [0.0] * len(cells)
    with _no_garbage_collection():
        first = 0
        while first < runs or min(spent_ms) < least_s * 1000:
            for i in order.permutation(len(cells)):
                made = len(cells[i].repeats[-1])
                if cells[i].gap_ms:
                    cells[i].single(first)
                else:
                    cells[i].burst(first, min(BURST, runs - first) if first < runs else BURST)
                spent_ms[i] += sum(s.wall_ms for s in cells[i].repeats[-1][made:])
            first += turn


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch Python's garbage collector off, and on again if it was on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Block:
    """What is timed at one thread count on one device: the files, all open at once, their lengths and idle times.

    Attributes:
        variants: The files.
        threads: Threads within an operator.
        lengths: Tokens, or ``"text"``.
        idle: Lengths and idle times in ms of single inferences, the most important ones first.
        sure: How many entries of `idle` are always timed; the others only where time is left for them.
        runs: Timed inferences of a variant at a length in one repeat.
        repeats: How often all files and lengths are timed anew, one pass after the other.
        least_s: Seconds of timed inferences that every figure without idle time has at least in each repeat.
        timed: Whether the device's times are latencies.
        seed: Seed of the random order of turns.
        without_idle: Names of files that are not timed after idle times, since the device cannot.
    """

    variants: Sequence[Variant]
    threads: int
    lengths: Sequence[Length]
    idle: Sequence[tuple[Length, float]]
    sure: int
    runs: int
    repeats: int
    least_s: float
    timed: bool
    seed: tuple[int, str, int]
    without_idle: Sequence[str] = ()

    def run(self, connection: Connection, inputs: Inputs, deadline: float, tick: Tick) -> list[Cell]:
        """Open the files, warm them up and time them in turns; return their timings.

        Args:
            connection: The device.
            inputs: Model inputs by (variant's name, length).
            deadline: Time of the monotonic clock by which it should end; runs are reduced to fit.
            tick: Called with words after every step.

        Returns:
            The timings of every variant, length and idle time.
        """
        order = generator(*self.seed)
        opened = {v.name: connection.open(v.file, self.threads) for v in self.variants}
        groups = [
            [Cell(v, opened[v.name], x, inputs[v.name, x], self.timed) for v in self.variants] for x in self.lengths
        ]
        cells = [cell for group in groups for cell in group]
        allowance = _WARMUP_SHARE * (deadline - time.monotonic()) / len(cells)
        for cell in cells:
            cell.warm_up(allowance)
            tick(f"{wording.threads(self.threads)}: warm-up")
        cost_s = sum(c.cost_ms for c in cells) / 1000 * (1 + 1 / BURST)
        idle = self._idle_groups(groups, (deadline - time.monotonic()) / self.repeats)
        idle_s = sum(map(_single_round_s, idle))
        runs, singles = self.runs, min(_MOST_SINGLES, self.runs)
        for repeat in range(self.repeats):
            # Planned again each time and only ever downwards: the machine may have become slower meanwhile.
            left = (deadline - time.monotonic()) / (self.repeats - repeat)
            if not self.least_s:  # else all runs are made, whatever they take
                singles = min(singles, max(LEAST_SINGLES, int(IDLE_SHARE * left / idle_s))) if idle else 0
                left -= singles * idle_s
                runs = min(runs, max(BURST, int(left / max(cost_s, 1e-9)) // BURST * BURST))
            for group in [*groups, *idle]:
                count = singles if group[0].gap_ms else runs
                _interleave(group, count, order, 0.0 if group[0].gap_ms else self.least_s)
                tick(self.step(group[0].length, group[0].gap_ms, count))
        return [*cells, *(c for group in idle for c in group)]

    def _idle_groups(self, groups: Sequence[list[Cell]], seconds: float) -> list[list[Cell]]:
        """Return the variants to time after an idle time, grouped by length and idle time.

        Those beyond the first `sure` are dropped where they do not fit into their share of the `seconds` of a repeat.
        """
        idle_groups = list[list[Cell]]()
        for number, (length, gap) in enumerate(self.idle):
            cells = groups[list(self.lengths).index(length)]
            group = [c.after_idle(gap) for c in cells if c.variant.name not in self.without_idle]
            takes = LEAST_SINGLES * sum(map(_single_round_s, [*idle_groups, group]))
            if group and (number < self.sure or self.least_s or takes <= IDLE_SHARE * seconds):
                idle_groups.append(group)
        return idle_groups

    def step(self, length: Length, gap_ms: float, count: int) -> str:
        """Return the progress bar's note on the step that just ended: threads, length, idle time, runs."""
        return f"{wording.threads(self.threads)}, {wording.pace(length, gap_ms)}, {count} runs"


def _single_round_s(group: Sequence[Cell]) -> float:
    """Return the seconds that one inference of each variant takes, idle times included."""
    return sum(c.single_s for c in group)


def sustain(
    connection: Connection,
    cell: Cell,
    minutes: float,
    device: str,
    threads: int,
    cool: Callable[[float], None] = lambda most_s: None,
) -> Sustained:
    """Run one file for `minutes` without a pause, after a rest and a warm-up; return ten slices and the slow-down.

    Args:
        connection: The device.
        cell: The file and its inputs.
        minutes: Duration in minutes.
        device: Name of the device.
        threads: Threads within an operator.
        cool: Waits after the rest until the device is cool; it gets the most seconds that this may take.
    """
    length_s = minutes * 60 / _SLICES
    time.sleep(length_s)
    cool(length_s)
    if isinstance(cell.opened, Sustaining):
        slices = _in_one_run(connection, cell.opened, cell.feeds, length_s)
    else:
        cell.warm_up(length_s)
        slices = _in_bursts(connection, cell, length_s)
    walls = [wall for _, wall in slices]
    # bursts of the last slice over those of the first one, which began with the same inputs
    first, last = (burst_medians([wall], BURST) for wall in (walls[0], walls[-1]))
    count = min(len(first), len(last))
    return Sustained(
        variant=cell.variant.name,
        device=device,
        threads=threads,
        length=cell.length,
        minutes=minutes,
        slices=[one for one, _ in slices],
        drift=paired_ratio(last[:count], first[:count]),
        provenance=Provenance.MEASURED,
        wall_ms=walls,
    )


def _in_bursts(connection: Connection, cell: Cell, length_s: float) -> list[tuple[Slice, list[float]]]:
    """Run bursts back to back for ten slices of `length_s` seconds; each slice begins with the first input again."""
    slices, began = list[tuple[Slice, list[float]]](), time.monotonic()
    for number in range(_SLICES):
        watch, after_s, samples = connection.watch(), time.monotonic() - began, list[Sample]()
        while not samples or time.monotonic() - began < (number + 1) * length_s:
            samples += cell.run(range(len(samples), len(samples) + BURST))
        slices.append(_slice(after_s, [s.wall_ms for s in samples], watch.stop()))
    return slices


def _in_one_run(
    connection: Connection, opened: Sustaining, feeds: Sequence[Feed], length_s: float
) -> list[tuple[Slice, list[float]]]:
    """Time ten slices of `length_s` seconds in a single call on the device; return each slice and its wall times in ms.

    Raises:
        MachineError: If a slice has fewer inferences than a burst, or the device is lost.
    """
    loads = list[Load]()
    pool = ThreadPoolExecutor(1)
    try:
        seconds = math.ceil(round(_SLICES * length_s, 3))
        running, began = pool.submit(opened.run_for, feeds, seconds), time.monotonic()
        for number in range(_SLICES):
            watch = connection.watch()
            wait([running], timeout=max(0.0, began + (number + 1) * length_s - time.monotonic()))
            loads.append(watch.stop())
        samples = running.result()
    finally:
        pool.shutdown(wait=False)  # after an error the end of the connection ends what runs
    walls, spent_ms = [list[float]() for _ in loads], 0.0
    for sample in samples:
        walls[min(_SLICES - 1, int(spent_ms / 1000 / length_s))].append(sample.wall_ms)
        spent_ms += sample.wall_ms
    if min(map(len, walls)) < BURST:
        what = f"{len(samples)} inferences are too few for {_SLICES} slices of {length_s:g} s."
        raise MachineError(f"sustained: {what} Give more minutes.")
    return [_slice(i * length_s, wall, load) for i, (wall, load) in enumerate(zip(walls, loads, strict=True))]


def _slice(after_s: float, wall: list[float], load: Load) -> tuple[Slice, list[float]]:
    """Return one slice of a run without pauses (statistics, heat, clock, energy) and its wall times in ms."""
    facts = {"thermal": load.thermal, "clock": load.clock, "others": load.others}
    words = load.energy.words if load.energy else ""
    return Slice(after_s=round(after_s, 3), wall=Statistics.of(wall), energy=words, **facts), wall
