"""Everything that is timed at one thread count on one device, all files open at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.devices.protocol import Connection
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.measurement import Variant
from pocketbert.benchmarks.records import Length
from pocketbert.benchmarks.timing.cell import BURST, Cell, interleave
from pocketbert.core.seeds import generator

WARMUP_SHARE, IDLE_SHARE = 0.25, 0.5
"""Most of the time that warm-up, and inferences after idle times, may take."""
SINGLES, LEAST_SINGLES = 20, 3
"""Most and fewest inferences of a variant after an idle time in one repeat: each costs the idle time."""

Tick = Callable[[str], None]
Inputs = Mapping[tuple[str, Length], list[Feed]]
"""What each variant reads at each length."""


@dataclass(frozen=True)
class Block:
    """What is timed.

    Attributes:
        variants: The files.
        threads: Threads within an operator.
        lengths: Tokens, or ``"text"``.
        idle: Lengths and idle times in ms of single inferences, the most important ones first.
        sure: How many of these are made at any rate; further ones are made where there is time for them.
        runs: Timed inferences of a variant at a length in one repeat.
        repeats: Passes over everything.
        least_s: Seconds of timed inferences that every figure without idle time has at least in each repeat.
        timed: Whether the device's times are latencies.
        seed: What the order of turns is drawn from.
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
        """Open the files, warm them up and time them in turns.

        Args:
            connection: The device.
            inputs: What the variants read.
            deadline: When it should end, by the monotonic clock; fewer runs are made where they do not fit.
            tick: Told after every step, in words.

        Returns:
            The timings of every variant, length and idle time.
        """
        order = generator(*self.seed)
        opened = {v.name: connection.open(v.file, self.threads) for v in self.variants}
        groups = [
            [Cell(v, opened[v.name], x, inputs[v.name, x], self.timed) for v in self.variants] for x in self.lengths
        ]
        cells = [cell for group in groups for cell in group]
        allowance = WARMUP_SHARE * (deadline - time.monotonic()) / len(cells)
        for cell in cells:
            cell.warm_up(allowance)
            tick(f"{wording.threads(self.threads)}: warm-up")
        cost_s = sum(c.cost_ms for c in cells) / 1000 * (1 + 1 / BURST)
        idle = self._idle(groups, (deadline - time.monotonic()) / self.repeats)
        idle_s = sum(map(_seconds, idle))
        runs, singles = self.runs, min(SINGLES, self.runs)
        for repeat in range(self.repeats):
            # Planned again each time and only ever downwards: the machine may have become slower meanwhile.
            left = (deadline - time.monotonic()) / (self.repeats - repeat)
            if not self.least_s:  # else all runs are made, whatever they take
                singles = min(singles, max(LEAST_SINGLES, int(IDLE_SHARE * left / idle_s))) if idle else 0
                left -= singles * idle_s
                runs = min(runs, max(BURST, int(left / max(cost_s, 1e-9)) // BURST * BURST))
            for group in [*groups, *idle]:
                count = singles if group[0].gap_ms else runs
                interleave(group, count, order, 0.0 if group[0].gap_ms else self.least_s)
                tick(self.step(group[0].length, group[0].gap_ms, count))
        return [*cells, *(c for group in idle for c in group)]

    def _idle(self, groups: Sequence[list[Cell]], seconds: float) -> list[list[Cell]]:
        """The single inferences that are made: those that fit into their share of a repeat's seconds, and the sure ones."""
        out = list[list[Cell]]()
        for number, (length, gap) in enumerate(self.idle):
            cells = groups[list(self.lengths).index(length)]
            group = [c.after_idle(gap) for c in cells if c.variant.name not in self.without_idle]
            takes = LEAST_SINGLES * sum(map(_seconds, [*out, group]))
            if group and (number < self.sure or self.least_s or takes <= IDLE_SHARE * seconds):
                out.append(group)
        return out

    def step(self, length: Length, gap_ms: float, count: int) -> str:
        """What was just timed, in words."""
        return f"{wording.threads(self.threads)}, {wording.pace(length, gap_ms)}, {count} runs"


def _seconds(group: Sequence[Cell]) -> float:
    """What one inference of each variant after its idle time takes."""
    return sum(c.single_s for c in group)
