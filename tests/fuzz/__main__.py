"""python -m fuzz: run a campaign for some minutes; `make fuzz` calls this."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from fuzz.campaign import Campaign, remove
from fuzz.report import summary
from fuzz.runner import MIB, Limits, Runner
from fuzz.seeds import warm, write_seeds
from fuzz.targets import TARGETS, endless


def main() -> int:
    """Run a campaign; the exit status is 1 if anything was found."""
    about = "Mutate inputs of PocketBERT, and report every wrong end of a command."
    parser = argparse.ArgumentParser(prog="fuzz", description=about)
    option = parser.add_argument
    option("--seed", type=int, default=1, help="Seed of all choices.")
    option("--minutes", type=float, default=5.0, help="Stop after this time.")
    option("--mutants", type=int, help="Stop after this number of mutants.")
    option("--targets", default=",".join(TARGETS), help="Mutate these, comma-separated.")
    option("--python", type=Path, default=Path(sys.executable), help="Interpreter with the PocketBERT to test.")
    option("--seeds", type=Path, help="Take the sound inputs from this folder, or write them there.")
    option("--report", type=Path, default=Path("runs/fuzz"), help="Write reproductions into this folder.")
    option("--seconds", type=float, default=60.0, help="Longest time of one command.")
    option("--memory", type=int, default=2048, help="Most memory of one command in MiB.")
    chosen = parser.parse_args()
    work, report = Path(tempfile.mkdtemp(prefix="pocketbert-fuzz-")), chosen.report / str(chosen.seed)
    # no resolve(): an environment's python is a link, and knows its packages by where the link lies
    runner = Runner(chosen.python.absolute(), work / "runner", Limits(chosen.seconds, 10.0, chosen.memory * MIB))
    try:
        seeds = chosen.seeds or work / "seeds"
        if seeds.is_dir():
            warm(seeds, work, runner)
        else:
            write_seeds(seeds, runner)
        end = time.monotonic() + chosen.minutes * 60
        cases = islice(endless(chosen.seed, tuple(chosen.targets.split(","))), chosen.mutants)
        tally = Campaign(runner, seeds, work / "work", report).run(cases, lambda: end - time.monotonic())
        print(summary(tally))
        if tally.kept:
            print(f"fuzz: reproductions: {report}")
        return int(bool(tally.kept))
    finally:
        runner.close()
        remove(work)


if __name__ == "__main__":
    sys.exit(main())
