"""Waiting until a device is about as cool as at the beginning, where it tells a temperature or a limit of its clock rate.

What ran before heats a processor: the file that is measured next would be slower for what others did. A device that tells
nothing of its heat is not waited for. The time for waiting is bounded, and is not part of the benchmark's budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pocketbert.benchmarks.load import Heat
from pocketbert.benchmarks.records import CoolDown

MARGIN_C, MARGIN_CLOCK = 3.0, 0.02
"""A device is cool where no sensor is further above its first reading, in °C, and its clock rate is not limited more, as a share."""
MOST_S, MOST_SHARE = 60.0, 0.5
"""Most seconds that all waits of a session take, and most of its budget."""
LOOK_S = 1.0
"""Between two readings."""


class Cooling:
    """Waits for one device, and keeps a record of it.

    Args:
        read: Tells how hot the device is; None where it cannot tell. It is asked first when this object is made.
        budget_s: Seconds that the measurement may take.
    """

    def __init__(self, read: Callable[[], Heat] | None, budget_s: float) -> None:
        self._read = read or Heat
        self._start = self._read()
        self.most_s = min(MOST_S, MOST_SHARE * budget_s)
        self.waits: list[CoolDown] = []

    @property
    def waited_s(self) -> float:
        """Seconds of all waits."""
        return sum(wait.seconds for wait in self.waits)

    def wait(self, before: str, tell: Callable[[str], None], most_s: float | None = None) -> None:
        """Wait until the device is cool again, or the time for it is over.

        Args:
            before: What is measured next, in words.
            tell: Is told that it waits.
            most_s: Most seconds of this wait; default what is left of those of the session.
        """
        then = now = self._read()
        if self._cool(now):
            return
        began, left = time.monotonic(), self.most_s - self.waited_s if most_s is None else most_s
        if left > 0:
            tell(f"waits until it is cool, before {before}")
        while not self._cool(now) and (waited := time.monotonic() - began) < left:
            time.sleep(min(LOOK_S, left - waited))
            now = self._read()
        self.waits.append(
            CoolDown(
                before=before,
                seconds=round(time.monotonic() - began, 3),
                rise_before=round(then.rise(self._start), 1),
                rise_after=round(now.rise(self._start), 1),
                slowed_before=round(max(0.0, then.slowed(self._start)), 3),
                slowed_after=round(max(0.0, now.slowed(self._start)), 3),
                cool=self._cool(now),
            )
        )

    def note(self) -> str:
        """What a reader should know of the waits, in words; empty where there was none."""
        if not self.waits:
            return ""
        late = [wait for wait in self.waits if not wait.cool]
        times = f"{len(self.waits)} time" + "s" * (len(self.waits) > 1)
        told = f"Waited {times}, {self.waited_s:.0f} s in all, for the device to cool down"
        if not late:
            return f"{told} to within {MARGIN_C:g} °C of the beginning."
        names = ", ".join(wait.before for wait in late)
        return f"{told}; before {names} it was still warm when the time for waiting was over, {late[-1].words}."

    def _cool(self, heat: Heat) -> bool:
        return heat.rise(self._start) <= MARGIN_C and heat.slowed(self._start) <= MARGIN_CLOCK
