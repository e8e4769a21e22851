"""Findings made small: fewer changes, fewer changed files, fewer bytes, as long as the same is found."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.case import Case
from fuzz.judge import Finding
from fuzz.mutation import Place
from fuzz.mutators.special import files
from fuzz.plain import is_plain, read_plain
from fuzz.signing import LIST, sign, unsigned

if TYPE_CHECKING:
    from fuzz.campaign import Campaign

RUNS, SECONDS = 40, 90.0
"""What making one finding small may cost."""
LARGEST = 1 << 20
"""Bytes of a file whose bytes are taken away."""
Change = Callable[[Place], None]


class Shrinker:
    """Tries smaller forms of one finding.

    Args:
        campaign: Runs cases.
        finding: What must be found again.
        seconds: What all trials together may take.
    """

    def __init__(self, campaign: Campaign, finding: Finding, seconds: float) -> None:
        self.campaign, self.finding = campaign, finding
        self.end, self.left = time.monotonic() + seconds, RUNS

    def same(self, case: Case, change: Change | None) -> bool:
        """Whether a form still shows the finding; False when nothing may be tried any more."""
        if self.left <= 0 or time.monotonic() > self.end:
            return False
        self.left -= 1
        try:
            found, _ = self.campaign.try_case(case, change=change)
        except Exception:
            return False  # a change that needs the one that was left out
        return found is not None and found.signature == self.finding.signature


def smaller(campaign: Campaign, case: Case, finding: Finding, left: float) -> tuple[Case, Change | None, str]:
    """A smaller form of a finding.

    Args:
        campaign: Runs cases.
        case: Where it was found.
        finding: What was found.
        left: Seconds that the campaign has left.

    Returns:
        The case, a further change of its mutated input if there is one, and what that change does.
    """
    own = Shrinker(campaign, finding, min(SECONDS, left))
    for number in reversed(range(len(case.steps))):
        if len(case.steps) > 1 and own.same(case.without(number), None):
            case = case.without(number)
    if finding.kind in ("accepted", "refused", "foreign", "leftover"):
        return case, None, ""  # with other bytes the input would be another one, and so the right answer
    restored = _restored(own, case)
    change, about = _cut(own, case, restored)
    return case, change, about


def _mutated(campaign: Campaign, case: Case) -> tuple[Path, list[str], bool]:
    """Names of changed files, and whether the list of the folder agreed with them."""
    from fuzz.case import prepared

    sandbox = campaign.sandbox()
    place, _ = prepared(case, campaign.seeds, sandbox / "here")
    names = [p.relative_to(place.here).as_posix() for p in files(place.here)]
    changed = []
    for name in names:
        sound, now = campaign.seeds / name, place.here / name
        if not is_plain(now, LARGEST) or not is_plain(sound, LARGEST) or read_plain(sound) != read_plain(now):
            changed.append(name)
    signed = is_plain(place.phone / LIST) and not unsigned(place.phone)
    return place.here, changed, signed


def _restored(own: Shrinker, case: Case) -> list[str]:
    """Changed files that can be as they were."""
    _, changed, signed = _mutated(own.campaign, case)
    out: list[str] = []
    for name in [n for n in changed if not n.endswith(LIST)] if len(changed) > 1 else []:
        if own.same(case, _change(own.campaign.seeds, [*out, name], {}, signed)):
            out.append(name)
    return out


def _change(seeds: Path, restored: list[str], contents: dict[str, bytes], signed: bool) -> Change:
    def change(place: Place) -> None:
        for name in restored:
            (place.here / name).unlink(missing_ok=True)
            if (seeds / name).is_file():
                shutil.copy(seeds / name, place.here / name)
        for name, raw in contents.items():
            if is_plain(place.here / name):
                (place.here / name).write_bytes(raw)
        if signed:
            sign(place.phone)

    return change


def _cut(own: Shrinker, case: Case, restored: list[str]) -> tuple[Change | None, str]:
    """The changed files with as few bytes as possible: ever smaller stretches are left out."""
    here, changed, signed = _mutated(own.campaign, case)
    contents: dict[str, bytes] = {}
    for name in changed:
        if name in restored or (name.endswith(LIST) and signed) or not is_plain(here / name, LARGEST):
            continue
        raw = read_plain(here / name)
        part = len(raw) // 2
        while part >= 1 and own.left > 0:
            at = 0
            while at < len(raw):
                shorter = raw[:at] + raw[at + part :]
                if own.same(case, _change(own.campaign.seeds, restored, {**contents, name: shorter}, signed)):
                    raw = contents[name] = shorter
                else:
                    at += part
                if own.left <= 0:
                    break
            part //= 2
        here, _, _ = _mutated(own.campaign, case)
    if not restored and not contents:
        return None, ""
    about = [*(f"{n} as it was" for n in restored), *(f"{n} cut to {len(c)} bytes" for n, c in contents.items())]
    return _change(own.campaign.seeds, restored, contents, signed), "; ".join(about)
