"""Findings made small: the fewest changes of the input that still show the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fuzz.judge import Finding
from fuzz.mutation import Case

if TYPE_CHECKING:
    from fuzz.campaign import Campaign

SECONDS = 90.0
"""What making one finding small may cost."""


def smaller(campaign: Campaign, case: Case, finding: Finding, left: float) -> Case:
    """Leave out steps of a case as long as the same is found, for at most `left` seconds."""
    end = time.monotonic() + min(SECONDS, left)
    for number in reversed(range(len(case.steps))):
        if len(case.steps) > 1 and time.monotonic() < end and _shows(campaign, case.without(number), finding):
            case = case.without(number)
    return case


def _shows(campaign: Campaign, case: Case, finding: Finding) -> bool:
    try:
        found, _ = campaign.try_case(case)
    except Exception:
        return False  # a change that needs the one that was left out
    return found is not None and found.signature == finding.signature
