"""The benchmark section of a recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from pocketbert.core.devices import LOCAL, MOST_GAP_MS, check_device
from pocketbert.core.recipe.presets import MLPERF_RUNS, MLPERF_S, PRESETS, Preset
from pocketbert.core.recipe.section import Section

_STANDARD = PRESETS[Preset.STANDARD]


class BenchmarkSection(Section):
    """Where and how to measure latency."""

    preset: Preset = Field(
        Preset.STANDARD,
        description=f"How thoroughly: quick ({PRESETS[Preset.QUICK].budget_s:g} s, real text), standard, or mlperf (at least "
        f"{MLPERF_RUNS:,} inferences and {MLPERF_S:g} s of each file, real text); sets runs, repeats and gaps_ms where they are not given.",
    )
    devices: list[Annotated[str, AfterValidator(check_device)]] = Field(
        [LOCAL],
        min_length=1,
        description="Devices to measure on, one after the other; `pocketbert devices` lists them.",
    )
    threads: list[PositiveInt] = Field([1, 2], min_length=1, description="Thread counts.")
    runs: int = Field(_STANDARD.runs, ge=10, description="Timed inferences per variant and repeat.")
    repeats: int = Field(_STANDARD.repeats, ge=2, description="Repeats, for the interval.")
    gaps_ms: list[Annotated[float, Field(gt=0, le=MOST_GAP_MS)]] = Field(
        list(_STANDARD.gaps_ms),
        description="Idle times in ms; single inferences after them are timed too, on real text and, where the budget allows, at every "
        "length.",
    )
    sustained_min: float = Field(
        0.0,
        ge=0,
        le=240,
        description="Minutes that each file runs without a pause at the end, to see how its time changes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: object) -> object:
        """Fill in what the preset sets, so that a resolved recipe holds what was measured."""
        if not isinstance(given, dict) or given.get("preset") not in list(Preset):
            return given
        preset = PRESETS[Preset(given["preset"])]
        return {"runs": preset.runs, "repeats": preset.repeats, "gaps_ms": list(preset.gaps_ms), **given}
