"""The loop: mutants are made and run until time or number is up, and what is found is made small and kept."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.case import Case, draw_case, prepared
from fuzz.judge import Finding, judge, snapshot
from fuzz.mutation import Place, Verdict
from fuzz.report import Reproduction, write_reproduction
from fuzz.runner import Ended, Runner
from fuzz.shrink import smaller
from fuzz.targets import TARGETS, stdin_of

TOLD_EVERY_S = 15.0
NEIGHBOURS = (
    "neighbour/thesis.txt",
    "neighbour/.out.run/thesis.txt",
    "here/.out.old/thesis.txt",
    "here/.out.run.d/thesis.txt",
)


@dataclass
class Tally:
    """What a campaign did.

    Attributes:
        mutants: Commands that ran.
        by_target: The same by target and command.
        exits: The same by exit status.
        findings: How often each signature was seen.
        kept: The first case of each signature.
        seconds: How long it took.
    """

    mutants: int = 0
    by_target: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    kept: dict[str, Reproduction] = field(default_factory=dict)
    seconds: float = 0.0


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
        for case in cases:
            left = until()
            if left <= 0:
                break
            finding, _ = self.try_case(case)
            self.tally.mutants += 1
            self.tally.by_target[f"{case.target} {case.verb}"] += 1
            if finding is not None:
                self._keep(case, finding, left)
            if time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                self.tell(
                    f"fuzz: {self.tally.mutants} mutants, {sum(self.tally.findings.values())} findings of "
                    f"{len(self.tally.findings)} signatures, {int(left) // 60}:{int(left) % 60:02d} left"
                )
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def try_case(
        self, case: Case, cold: bool = False, change: Callable[[Place], None] | None = None
    ) -> tuple[Finding | None, Ended]:
        """Run one case; return what is wrong and how the command ended.

        Args:
            case: What to run.
            cold: In a new interpreter.
            change: A further change of the mutated input.
        """
        sandbox = self.sandbox()
        place, verdict = prepared(case, self.seeds, sandbox / "here")
        if change is not None:
            change(place)
        return self._run(case, place, verdict, sandbox, cold)

    def sandbox(self) -> Path:
        """An empty folder with files of a stranger."""
        sandbox = self.work / "sandbox"
        remove(sandbox)
        sandbox.mkdir(parents=True)
        return sandbox

    def _run(
        self, case: Case, place: Place, verdict: Verdict, sandbox: Path, cold: bool
    ) -> tuple[Finding | None, Ended]:
        for name in NEIGHBOURS:
            path = sandbox / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("precious")
        argv = TARGETS[case.target].commands[case.verb](place)
        self.last_argv = argv
        home = self.runner.folder / "home"
        before = snapshot(sandbox) | {f"home/{n}": w for n, w in snapshot(home).items()}
        ended = self.runner.run(argv, place.here, stdin_of(place), cold=cold)
        after = snapshot(sandbox) | {f"home/{n}": w for n, w in snapshot(home).items()}
        if not cold:
            self.tally.exits[ended.code] += 1
        return judge(case.verb, verdict, ended, self.runner.limits, before, after), ended

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
        small, change, place = smaller(self, case, finding, left)
        kept = Reproduction(small, finding, again, ended, self.last_argv)
        self.tally.kept[signature] = kept
        self.tell(f"fuzz: {finding.kind}: {small.verb} {[s.mutator for s in small.steps]} {finding.about[:150]!r}")
        if self.report is not None:
            self.try_case(small, change=change)
            write_reproduction(self.report, kept, self.work / "sandbox/here", self.runner, place)


def remove(folder: Path) -> None:
    """Remove a scratch folder, read-only things in it included."""
    if folder.is_dir():
        for path in [folder, *folder.rglob("*")]:
            if not path.is_symlink() and path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def endless(seed: int, targets: tuple[str, ...] = tuple(TARGETS)) -> Iterator[Case]:
    """The cases of a seed, without end."""
    number = 0
    while True:
        yield draw_case(seed, number, targets)
        number += 1
