"""Findings made small: fewer changes, fewer changed files, fewer bytes, as long as the same is found."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fuzz.files import LIST, files, is_plain, is_signed, read_plain, sign
from fuzz.judge import Finding
from fuzz.mutation import Case, Place
from fuzz.targets import TARGETS

if TYPE_CHECKING:
    from fuzz.campaign import Campaign

RUNS, SECONDS = 40, 90.0
"""What making one finding small may cost."""
LARGEST = 1 << 20
"""Bytes of a file whose bytes are taken away."""
Change = Callable[[Place], None]


class Shrinker:
    """Tries smaller forms of one finding, for some seconds."""

    def __init__(self, campaign: Campaign, finding: Finding, seconds: float) -> None:
        self.campaign, self.finding = campaign, finding
        self.end, self.left = time.monotonic() + seconds, RUNS

    def same(self, case: Case, change: Change | None = None) -> bool:
        """Whether a form still shows the finding; False when nothing may be tried any more."""
        if self.left <= 0 or time.monotonic() > self.end:
            return False
        self.left -= 1
        try:
            found, _ = self.campaign.try_case(case, change=change)
        except Exception:
            return False  # a change that needs the one that was left out
        return found is not None and found.signature == self.finding.signature

    def change(self, restored: list[str], contents: dict[str, bytes], signed: bool) -> Change:
        """Some files as they were, others with these contents, and a list that agrees if it did."""

        def apply(place: Place) -> None:
            for name in restored:
                (place.here / name).unlink(missing_ok=True)
                if (self.campaign.seeds / name).is_file():
                    shutil.copy(self.campaign.seeds / name, place.here / name)
            for name, raw in contents.items():
                if is_plain(place.here / name):
                    (place.here / name).write_bytes(raw)
            if signed:
                sign(place.phone)

        return apply

    def cut(
        self, case: Case, name: str, raw: bytes, restored: list[str], contents: dict[str, bytes], signed: bool
    ) -> None:
        """Leave ever smaller stretches out of a file, as long as the same is found; the rest goes into `contents`."""
        part = len(raw) // 2
        while part >= 1 and self.left > 0:
            at = 0
            while at < len(raw) and self.left > 0:
                shorter = raw[:at] + raw[at + part :]
                if self.same(case, self.change(restored, {**contents, name: shorter}, signed)):
                    raw = contents[name] = shorter
                else:
                    at += part
            part //= 2

    def mutated(self, case: Case) -> tuple[dict[str, bytes | None], bool]:
        """The changed files, None for one that is too large, and whether the list of the folder agrees with them."""
        place = TARGETS[case.target].prepare(self.campaign.seeds, self.campaign.sandbox() / "here")
        case.apply(place)
        changed: dict[str, bytes | None] = {}
        for now in files(place.here):
            sound = self.campaign.seeds / now.relative_to(place.here)
            raw = read_plain(now) if is_plain(now, LARGEST) else None
            if raw is None or not is_plain(sound, LARGEST) or read_plain(sound) != raw:
                changed[now.relative_to(place.here).as_posix()] = raw
        return changed, is_plain(place.phone / LIST) and is_signed(place.phone)


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
        if len(case.steps) > 1 and own.same(case.without(number)):
            case = case.without(number)
    if finding.kind in ("accepted", "refused", "foreign", "leftover"):
        return case, None, ""  # with other bytes the input would be another one, and so the right answer
    changed, signed = own.mutated(case)
    restored: list[str] = []
    for name in [n for n in changed if not n.endswith(LIST)] if len(changed) > 1 else []:
        if own.same(case, own.change([*restored, name], {}, signed)):
            restored.append(name)
    contents: dict[str, bytes] = {}
    for name, raw in changed.items():
        if name not in restored and raw is not None and not (name.endswith(LIST) and signed):
            own.cut(case, name, raw, restored, contents, signed)
    if not restored and not contents:
        return case, None, ""
    about = [*(f"{n} as it was" for n in restored), *(f"{n} cut to {len(c)} bytes" for n, c in contents.items())]
    return case, own.change(restored, contents, signed), "; ".join(about)
