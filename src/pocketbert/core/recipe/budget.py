"""The limits of a budget for quantized files (`BudgetSection`), and their form on the command line.

Values that were probably meant in another unit are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field, ValidationError, field_validator, model_validator

from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.recipe.sections import Section

_EXAMPLES = {"max_drop": "max_drop=0.01", "max_size_mb": "max_size_mb=8", "max_p90_ms": "max_p90_ms=5"}
_LARGEST_DROP = 0.2
"""Nobody ships a file that is 20 points worse: a larger number was meant in points."""
LARGEST_MB = 100_000.0
"""No encoder has files of 100 GB: such a number was meant in kB or bytes."""
LARGEST_MS = 60_000.0
"""A text that takes a minute is no limit for a phone: such a number was meant in microseconds."""
SMALLEST_MS = 0.02
"""No machine runs an encoder in less: such a number was meant in seconds."""


class BudgetSection(Section):
    """Limits within which the files of a run are chosen; a limit that is not set is not checked."""

    max_drop: float | None = Field(
        None,
        description="Largest loss of the deciding metric against the exported file of the same format, as a fraction: "
        "0.01 is one point.",
    )
    max_size_mb: float | None = Field(None, description="Largest file in MB (1,000,000 bytes).")
    max_p90_ms: float | None = Field(
        None,
        description="Largest 90th percentile of the latency on this machine in milliseconds: one thread, real texts.",
    )

    @field_validator("max_drop")
    @classmethod
    def _check_drop(cls, value: float | None) -> float | None:
        """Return the largest allowed loss of a budget; raise ValueError if it is negative or was given in points."""
        if value is not None and value > _LARGEST_DROP:
            points = "1 point" if value == 1 else f"{value:g} points"
            raise ValueError(
                f"{value:g} would be {100 * value:g} points: it is a fraction, 0.01 is one point. For {points} write "
                f"{value / 100:g}"
            )
        if value is not None and value < 0:
            raise ValueError(f"{value:g} is below 0: it is the loss that is allowed; 0.01 is one point")
        return value

    @field_validator("max_size_mb")
    @classmethod
    def _check_size(cls, value: float | None) -> float | None:
        """Return the size limit; raise ValueError if it is 0 or less, or was given in bytes instead of MB."""
        if value is not None and value >= LARGEST_MB:
            raise ValueError(f"{value:,.0f} MB is no phone file: for {value:,.0f} bytes write {value / 1e6:g}")
        if value is not None and value <= 0:
            raise ValueError(f"{value:g} is not above 0: it is the size in MB (1,000,000 bytes)")
        return value

    @field_validator("max_p90_ms")
    @classmethod
    def _check_latency(cls, value: float | None) -> float | None:
        """Return the latency limit; raise ValueError if it is 0 or less, or was given in seconds or microseconds."""
        if value is not None and value >= LARGEST_MS:
            raise ValueError(
                f"{value:,.0f} ms is over a minute for one text: for {value:,.0f} microseconds write {value / 1000:g}"
            )
        if value is not None and value <= 0:
            raise ValueError(f"{value:g} is not above 0: it is a time in milliseconds; 0.005 seconds are 5")
        if value is not None and value < SMALLEST_MS:
            raise ValueError(
                f"{value:g} ms is less than any encoder takes: for {value:g} seconds write {1000 * value:g}"
            )
        return value

    @model_validator(mode="after")
    def _check_limits(self) -> BudgetSection:
        if not self.set_limits:
            raise ValueError(f"no limit is set: give at least one of {', '.join(LIMITS)}")
        return self

    @property
    def set_limits(self) -> dict[str, float]:
        """The limits that are set, as numbers by name."""
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}

    @property
    def text(self) -> str:
        """The limits in the syntax of the command line, e.g. ``max_drop=0.01,max_size_mb=8``."""
        return ",".join(f"{name}={value:g}" for name, value in self.set_limits.items())

    @property
    def smallest_wins(self) -> bool:
        """Whether the smallest of the files within the limits is chosen, which is so if only the drop is limited.

        If the size or the latency is limited too, the most accurate file is chosen.
        """
        return self.max_size_mb is None and self.max_p90_ms is None


LIMITS = tuple(BudgetSection.model_fields)
"""Names of all limits."""


def parse_budget(texts: Sequence[str], option: str) -> BudgetSection:
    """Parse the limits of a command's budget option, ``NAME=NUMBER`` texts.

    Raises:
        InputError: Listing every problem.
    """
    problems, values = [], dict[str, float]()
    for text in texts or [""]:
        name, equals, number = (part.strip() for part in text.partition("="))
        if name not in LIMITS:
            problems.append(Problem(option, f"'{name}' is no limit; {suggest_allowed(name, LIMITS)}."))
        elif not equals or not number:
            problems.append(Problem(option, f"{name} has no value.", f"Write {name}=NUMBER, e.g. {_EXAMPLES[name]}."))
        elif name in values:
            problems.append(Problem(option, f"{name} is given twice.", "Give each limit once."))
        else:
            try:
                value = float(number)
            except ValueError:
                value = math.nan
            if math.isfinite(value):
                values[name] = value
            else:
                what = f"{name}={number} is not a number; units are part of the name."
                problems.append(Problem(option, what, f"Write e.g. {_EXAMPLES[name]}."))
    try:
        # without any value, only the other problems are reported
        budget = BudgetSection.model_validate(values) if values or not problems else None
    except ValidationError as validation_error:
        budget = None
        for error in validation_error.errors(include_url=False, include_input=False):
            where = " ".join([option, *map(str, error["loc"])])
            problems.append(Problem(where, f"{error['msg'].removeprefix('Value error, ')}."))
    if problems or budget is None:
        raise InputError(problems)
    return budget
