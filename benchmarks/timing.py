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
    """The times of one model file at one thread count, one input length and one idle time.

    Attributes:
        variant: The measured model file.
        opened: The file as the device has opened it.
        length: Length in tokens, or ``"text"``.
        feeds: The inputs, which are used one after the other, again and again.
        timed: Whether the device's times are latencies. If not, the warm-up is one inference per input shape.
        gap_ms: Idle time before each inference in ms; 0 if one inference follows the other.
        warmup_runs: Number of untimed inferences before the first timed one.
        warmup_stable: Whether the times became stable during the warm-up.
        cost_ms: Duration of one inference by this machine's clock, estimated in the warm-up and only used for planning.
        repeats: The times of each repeat.
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
        """All wall times in ms, one list per repeat."""
        return [[s.wall_ms for s in repeat] for repeat in self.repeats]

    @property
    def cpu_ms(self) -> list[list[float]]:
        """All CPU times in ms, one list per repeat; no lists if the device does not measure them."""
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
        """Run untimed inferences until their times are stable: at least 10, and at most 60 or `most_s` seconds.

        Times are stable if the medians of two windows of 5 runs on the same inputs differ by less than 3 %. ONNX
        Runtime plans memory for each input shape, so that the first run of a shape is slow. On a device without
        latencies, each shape is run once.
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

        One untimed inference comes before them, because the caches still hold the weights of another file.
        """
        self.repeats[-1] += self._run([first, *range(first, first + count)])[1:]

    def after_idle(self, gap_ms: float) -> Cell:
        """Return a copy without times, for single inferences after `gap_ms` ms of idle time."""
        made = copy.copy(self)  # with the inputs that were prepared
        made.gap_ms, made.repeats = gap_ms, []
        if isinstance(self.opened, Idling):
            made._run = self.opened.prepare_idle(self.feeds, gap_ms)
        return made

    def single(self, number: int) -> None:
        """Wait for the idle time, then time one inference on input `number` and add it to the current repeat.

        No untimed inference comes before it, as in an app that calls once per sentence: caches, clock rate and threads
        are as the idle time and the other files leave them.
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
        """Number of timed inferences per turn: 1 after an idle time, else a burst."""
        return 1 if self.gap_ms else BURST


def _interleave(cells: list[Cell], runs: int, order: np.random.Generator, least_s: float = 0.0) -> None:
    """Time files in turns for one repeat, in rounds with a new random order each; the times go into their `repeats`.

    A turn is a burst of inferences, or a single inference if there is an idle time before each.

    Args:
        cells: The files, all at the same length and idle time.
        runs: Number of timed inferences of each file.
        order: Random generator for the orders.
        least_s: Smallest number of seconds of timed inferences for each file; rounds continue until then.
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
    """Switch Python's garbage collector off in the block, and on again afterwards if it was on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Block:
    """What is timed at one thread count on one device: files that are open at once, lengths and idle times.

    Attributes:
        variants: The files.
        threads: Number of threads within an operator.
        lengths: Lengths in tokens, or ``"text"``.
        idle: Lengths, with idle times in ms, of single inferences, the most important ones first.
        sure: How many entries of `idle` are always timed; the others are timed if there is time for them.
        runs: Number of timed inferences of a file at a length in one repeat.
        repeats: How often all files and lengths are timed again, one pass after the other.
        least_s: Smallest number of seconds of timed inferences in each repeat, for each file and length without idle
            time.
        timed: Whether the device's times are latencies.
        seed: Seed of the random order of turns.
        without_idle: Names of the files that are not timed after idle times, because the device cannot.
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
            connection: The connection to the device.
            inputs: Model inputs by (file's name, length).
            deadline: Time by the monotonic clock by which to end; the number of runs is reduced to fit, to one burst at
                least. With `least_s` all runs are made.
            tick: Function that is called after every step, with a text for the progress bar.

        Returns:
            The times of every file and length, and of the idle times that fit; see `_idle_groups`.
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
        """Return the files to time after idle times, a group for each length and idle time.

        Groups after the first `sure` ones are left out if they do not fit into half of a repeat's `seconds`, unless
        `least_s` is set. Files in `without_idle` are left out of every group.
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
        """Return the text that the progress bar shows after a step: threads, length, idle time, runs."""
        return f"{wording.threads(self.threads)}, {wording.pace(length, gap_ms)}, {count} runs"


def _single_round_s(group: Sequence[Cell]) -> float:
    """Return the seconds that one inference of each file takes, with the idle times before them."""
    return sum(c.single_s for c in group)


def sustain(
    connection: Connection,
    cell: Cell,
    minutes: float,
    device: str,
    threads: int,
    cool: Callable[[float], None] = lambda most_s: None,
) -> Sustained:
    """Run one file for `minutes` without a pause; return its times in ten equal parts, and the slow-down.

    The device rests before. Unless the device makes the whole run by itself, the file is also warmed up.

    Args:
        connection: The connection to the device.
        cell: The open file with its inputs.
        minutes: Duration of the run in minutes.
        device: Name of the device for the record.
        threads: Number of threads within an operator, for the record.
        cool: Function that waits after the rest until the device is cool; it is given the largest number of seconds to
            wait.
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
    """Run bursts without a pause for ten parts of `length_s` seconds; each part begins with the first input."""
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
    """Time ten parts of `length_s` seconds in a single call on the device; return each part and its wall times in ms.

    Raises:
        MachineError: If a part has fewer inferences than a burst, or the device is lost.
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
    """Build the record of one part of a run without pauses; return it with its wall times in ms."""
    facts = {"thermal": load.thermal, "clock": load.clock, "others": load.others}
    words = load.energy.words if load.energy else ""
    return Slice(after_s=round(after_s, 3), wall=Statistics.of(wall), energy=words, **facts), wall
