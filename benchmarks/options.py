"""What a benchmark is asked for, as one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks.records import TEXT, Length
from pocketbert.core.data.source import DataSource
from pocketbert.core.devices import LOCAL, MOST_GAP_MS, parse_measuring_device
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.recipe.presets import PRESETS, Preset

MOST_SUSTAINED_MIN = 240.0
"""Longest sustained measurement of a file, in minutes."""


@dataclass(frozen=True)
class BenchmarkOptions:
    """Settings of a benchmark.

    Attributes:
        devices: Devices to measure on, one after the other.
        threads: Thread counts.
        lengths: Tokens, or ``"text"`` for the real texts at their own length. Lengths beyond the smallest
            `max_length` are clipped to it, and `protocol.notes` says so.
        runs: Timed inferences per variant, thread count, length and repeat.
        repeats: Passes over everything.
        gaps_ms: Idle times in ms. For each, single inferences after it are timed too: an app that calls once for a sentence finds
            caches, clock rate and threads as idle time leaves them. At the first length they are made at any rate, at the others
            where they fit into half of the budget.
        baseline: Name of the variant to compare with; default the first.
        budget_s: Seconds that everything may take, shared by the devices. When `runs` do not fit, fewer are made
            (never fewer than one burst of 5, so that a tiny budget is overrun), and the result says how many.
        seed: Decides the order of turns and texts.
        profile: Whether to profile per operator (at the first thread count).
        label: Text of the progress bar; empty for none.
        app: Whether phones behind adb are measured by the demo app on them instead of the runners.
        data: Labelled rows on which emulated files are scored in place of golden rows and texts; of one folder's task.
        sustained_min: Minutes that each file runs without a pause at the end, at the first thread count and length; 0 for none.
            They are not part of the budget.
        fresh: Whether every repeat is made by a fresh process, so that intervals hold how processes differ; on this machine and on
            those that are reached by SSH.
        least_s: Seconds of timed inferences that every figure without idle time has at least, all repeats together; `runs`
            are made at any rate then, whatever the budget. 0 for no such bound.
    """

    devices: Sequence[str] = (LOCAL,)
    threads: Sequence[int] = (1,)
    lengths: Sequence[Length] = (TEXT,)
    runs: int = 50
    repeats: int = 5
    gaps_ms: Sequence[float] = ()
    baseline: str | None = None
    budget_s: float = 60.0
    seed: int = 0
    profile: bool = True
    label: str = "benchmark"
    data: DataSource | None = None
    app: bool = False
    fresh: bool = False
    least_s: float = 0.0
    sustained_min: float = 0.0

    def check(self, names: Sequence[str]) -> None:
        """Check the options for variants of these names.

        Raises:
            InputError: Listing every problem.
        """
        bad = list(self._problems())
        if not names:
            bad.append(Problem("variants", "none given.", "Name at least one model file."))
        if len(set(names)) < len(names):
            bad.append(Problem("variants", f"names must differ, got {', '.join(names)}."))
        if self.baseline is not None and self.baseline not in names:
            bad.append(Problem("baseline", f"no variant '{self.baseline}'; {nearest(self.baseline, names)}."))
        if bad:
            raise InputError(bad)

    def _problems(self) -> list[Problem]:
        bad = []
        if not self.devices:
            bad.append(Problem("devices", "none given.", "Name at least one: pocketbert devices"))
        for device in self.devices:
            try:
                parse_measuring_device(device)
            except ValueError as error:
                bad.append(Problem("devices", f"{error}."))
        if not self.threads or min(self.threads) < 1:
            bad.append(Problem("threads", f"{list(self.threads)}; allowed: one or more whole numbers from 1."))
        if not self.lengths or any(x != TEXT and (not isinstance(x, int) or x < 3) for x in self.lengths):
            bad.append(Problem("lengths", f"{list(self.lengths)}; allowed: whole numbers from 3, and 'text'."))
        if any(not 0 < gap <= MOST_GAP_MS for gap in self.gaps_ms):
            bad.append(Problem("gaps", f"{list(self.gaps_ms)}; allowed: milliseconds above 0, up to {MOST_GAP_MS:g}."))
        if not 0 <= self.sustained_min <= MOST_SUSTAINED_MIN:
            allowed = f"allowed: minutes from 0 to {MOST_SUSTAINED_MIN:g}."
            bad.append(Problem("sustained", f"{self.sustained_min:g}; {allowed}"))
        numbers = {"runs": self.runs, "repeats": self.repeats, "budget_s": self.budget_s}
        return [*bad, *(Problem(k, f"{n}; allowed: above 0.") for k, n in numbers.items() if n <= 0)]


def preset_options(name: str) -> BenchmarkOptions:
    """Return the options of a preset.

    Args:
        name: ``quick``, ``standard`` or ``mlperf``.

    Raises:
        InputError: If there is no such preset.
    """
    known = [p.value for p in Preset]
    if name not in known:
        raise InputError(Problem("preset", f"'{name}' is unknown; {nearest(name, known)}."))
    preset = PRESETS[Preset(name)]
    return BenchmarkOptions(
        threads=(1, 2),
        lengths=(TEXT, *preset.lengths),
        runs=preset.runs,
        repeats=preset.repeats,
        gaps_ms=preset.gaps_ms,
        budget_s=preset.budget_s,
        least_s=preset.least_s,
        profile=preset.profile,
        fresh=preset.fresh,
    )


FOLDER_OPTIONS = preset_options(Preset.STANDARD)
"""Options of `pocketbert benchmark` where none are given."""
