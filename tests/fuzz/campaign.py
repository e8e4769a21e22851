"""The loop: mutants are made and run until time or number is up, and what is found is made small and kept."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz.judge import Finding, Seen, judge, snapshot
from fuzz.mutation import Case
from fuzz.report import Reproduction, Tally, write_reproduction
from fuzz.runner import Ended, Runner
from fuzz.shrink import smaller
from fuzz.targets import TARGETS

TOLD_EVERY_S = 15.0
NEIGHBOURS = ("neighbour/", "neighbour/.out.run/", "here/.out.old/", "here/.out.run.d/")


class Campaign:
    """Runs cases and keeps what they find.

    Args:
        runner: Runs commands.
        seeds: The sound inputs.
        work: Scratch folder.
        report: Folder for reproductions; None to keep none on disk.
        tell: Where progress goes.
    """

    def __init__(
        self,
        runner: Runner,
        seeds: Path,
        work: Path,
        report: Path | None = None,
        tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self.runner, self.seeds, self.work, self.report, self.tell = runner, seeds, work, report, tell
        self.tally = Tally()

    def run(self, cases: Iterator[Case], until: Callable[[], float]) -> Tally:
        """Run cases until none are left or `until` returns no more seconds."""
        began = told = time.monotonic()
        tally = self.tally
        for case in cases:
            left = until()
            if left <= 0:
                break
            finding, _ = self.try_case(case)
            tally.mutants += 1
            tally.by_target[f"{case.target} {case.verb}"] += 1
            if finding is not None:
                self._keep(case, finding, left)
            if time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                found = f"{sum(tally.findings.values())} findings of {len(tally.findings)} signatures"
                self.tell(f"fuzz: {tally.mutants} mutants, {found}, {int(left) // 60}:{int(left) % 60:02d} left")
        tally.seconds = time.monotonic() - began
        return tally

    def sandbox(self) -> Path:
        """An empty folder for the input of a case, and the files of a stranger around it."""
        sandbox = self.work / "sandbox"
        remove(sandbox)
        sandbox.mkdir(parents=True)
        return sandbox

    def try_case(self, case: Case, cold: bool = False) -> tuple[Finding | None, Ended]:
        """Run one case, `cold` in a new interpreter; return what is wrong and how the command ended."""
        sandbox = self.sandbox()
        place = TARGETS[case.target].prepare(self.seeds, sandbox / "here")
        verdict = case.apply(place)
        for name in NEIGHBOURS:
            path = sandbox / name / "thesis.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("precious")
        self.last_argv = TARGETS[case.target].commands[case.verb](place)
        before = self._seen(sandbox)
        ended = self.runner.run(self.last_argv, place.here, place.stdin or os.devnull, cold=cold)
        if not cold:
            self.tally.exits[ended.code] += 1
        return judge(case.verb, verdict, ended, self.runner.limits, before, self._seen(sandbox)), ended

    def _seen(self, sandbox: Path) -> Seen:
        return snapshot(sandbox) | {f"home/{n}": w for n, w in snapshot(self.runner.folder / "home").items()}

    def _keep(self, case: Case, finding: Finding, left: float) -> None:
        signature = finding.signature
        if finding.kind == "accepted":
            signature += case.steps[0].mutator
        self.tally.findings[signature] += 1
        if signature in self.tally.kept:
            return
        again, ended = self.try_case(case, cold=True)
        if again is None:  # the machine was busy, or the warm process differs: not a finding
            self.tally.findings[signature] -= 1
            self.tell(f"fuzz: not seen again in a new process: {case.name} {signature}")
            return
        small = smaller(self, case, finding, left)
        kept = Reproduction(small, finding, again, ended, self.last_argv)
        self.tally.kept[signature] = kept
        self.tell(f"fuzz: {finding.kind}: {small.verb} {[s.mutator for s in small.steps]} {finding.about[:150]!r}")
        if self.report is not None:
            self.try_case(small)
            write_reproduction(self.report, kept, self.work / "sandbox/here", self.runner)


def remove(folder: Path) -> None:
    """Remove a scratch folder, read-only things in it included."""
    if folder.is_dir():
        for path in [folder, *folder.rglob("*")]:
            if not path.is_symlink() and path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)
