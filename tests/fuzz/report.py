"""Reproductions on disk, and the summary of a campaign."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fuzz.files import is_plain, read_plain
from fuzz.judge import Finding
from fuzz.mutation import Case
from fuzz.runner import Ended, Runner

LARGEST = 1 << 22
"""Bytes of a file that is copied into a reproduction; of a larger one the size is noted."""


@dataclass(frozen=True)
class Reproduction:
    """A finding as it is kept."""

    case: Case  # the smallest that shows it
    finding: Finding
    cold: Finding  # what was found in a new process
    ended: Ended  # how the command ended there
    argv: list[str]


@dataclass
class Tally:
    """What a campaign did."""

    mutants: int = 0  # commands that ran
    by_target: Counter[str] = field(default_factory=Counter)  # and command
    exits: Counter[int] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)  # by signature
    kept: dict[str, Reproduction] = field(default_factory=dict)  # the first of each signature
    seconds: float = 0.0


def write_reproduction(report: Path, kept: Reproduction, here: Path, runner: Runner) -> None:
    """Write the mutated input `here`, the command line and what was seen into a new folder below `report`."""
    folder = report / f"{kept.case.name}-{kept.finding.kind.replace(' ', '-')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    left_out = _copy(here, folder / "input")
    closed = kept.case.steps[0].mutator == "stdin.closed"
    stdin = "<&-" if closed else "< stdin" if is_plain(here / "stdin", LARGEST) else "< /dev/null"
    line = " ".join(shlex.quote(a) for a in kept.argv)
    (folder / "reproduce.sh").write_text(
        "#!/bin/bash\n# POCKETBERT: the command to test\n"
        f'cd "$(dirname "$0")/input" && ulimit -v {20 << 20} && timeout {runner.limits.seconds:.0f} '
        f'${{POCKETBERT:-pocketbert}} {line} {stdin}\necho "exit $?"\n'
    )
    about = {
        **{"case": asdict(kept.case), "finding": asdict(kept.finding), "in_a_new_process": asdict(kept.cold)},
        **{"exit": kept.ended.code, "seconds": round(kept.ended.seconds, 1)},
        **{"resident_mib": kept.ended.resident >> 20, "limits": asdict(runner.limits)},
        **{"left_out": left_out, "python": str(runner.python)},
    }
    (folder / "finding.json").write_text(json.dumps(about, indent=1))
    (folder / "stderr.txt").write_text(kept.ended.err[-20_000:], encoding="utf-8", errors="replace")


def _copy(source: Path, target: Path) -> list[str]:
    """Copy a tree with its links; return what was left out."""
    out = []
    for base, folders, names in os.walk(source):
        place = target / Path(base).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in [*names, *(f for f in folders if (Path(base) / f).is_symlink())]:
            path = Path(base) / name
            if path.is_symlink():
                (place / name).symlink_to(path.readlink())
            elif path.is_fifo():
                os.mkfifo(place / name)
            elif is_plain(path, LARGEST):
                (place / name).write_bytes(read_plain(path, LARGEST))
            else:
                out.append(f"{path.relative_to(source)}: {path.lstat().st_size} bytes")
    return out


def summary(tally: Tally) -> str:
    """What a campaign did and found, for people."""
    targets = ", ".join(f"{name} {n}" for name, n in sorted(tally.by_target.items()))
    exits = ", ".join(f"{code}: {n}" for code, n in sorted(tally.exits.items()))
    lines = [f"{tally.mutants} mutants in {tally.seconds:.0f} s ({targets})", f"exits {exits}"]
    for signature, kept in sorted(tally.kept.items()):
        steps = " + ".join(s.mutator for s in kept.case.steps)
        about = f"{kept.finding.kind:10} {kept.case.verb:18} {steps}: {kept.finding.about[:160]!r}"
        lines.append(f"  {tally.findings[signature]:4d} x {about}")
    lines.append(f"{sum(tally.findings.values())} findings of {len(tally.kept)} signatures")
    return "\n".join(f"fuzz: {line}" for line in lines)
