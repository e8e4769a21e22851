"""Presets of a benchmark: runs, repeats, lengths and time of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

MLPERF_RUNS, MLPERF_S = 1024, 60.0
"""Minimum of inferences and seconds of MLPerf Mobile's single stream (rules 4.0, 8 May 2025)."""
_MLPERF_REPEATS = 4


class Preset(StrEnum):
    """How thoroughly a benchmark measures."""

    QUICK = "quick"
    """About 100 inferences of each file on real text, in about 10 s."""
    STANDARD = "standard"
    """Real text and several lengths, right after one another and after idle times, in about 4 minutes."""
    MLPERF = "mlperf"
    """At least 1,024 inferences and 60 s of each file on real text, for the 90th percentile, and single calls after
    idle times."""


@dataclass(frozen=True)
class PresetSettings:
    """The settings of a benchmark preset.

    Attributes:
        runs: Timed inferences of each file in each repeat.
        repeats: How often the whole measurement is repeated.
        lengths: Lengths in tokens that are measured besides real texts.
        gaps_ms: Idle times before single inferences, in milliseconds; measured at every length if the time budget
            allows.
        budget_s: Longest duration of the whole benchmark in seconds.
        least_s: Shortest time in seconds for which inferences are timed for one result, whatever the budget; 0 for
            none.
        profile: Whether time per operator is measured.
        fresh: Whether every repeat runs in a new process, if the device can start one.
    """

    runs: int
    repeats: int
    lengths: tuple[int, ...] = ()
    gaps_ms: tuple[float, ...] = ()
    budget_s: float = 120.0
    least_s: float = 0.0
    profile: bool = False
    fresh: bool = False


PRESETS: Mapping[Preset, PresetSettings] = MappingProxyType(
    {
        Preset.QUICK: PresetSettings(runs=35, repeats=3, budget_s=10.0),
        Preset.STANDARD: PresetSettings(100, 5, (32, 64, 128), (100.0,), budget_s=240.0, profile=True, fresh=True),
        Preset.MLPERF: PresetSettings(
            MLPERF_RUNS // _MLPERF_REPEATS, _MLPERF_REPEATS, gaps_ms=(100.0,), least_s=MLPERF_S, fresh=True
        ),
    }
)
