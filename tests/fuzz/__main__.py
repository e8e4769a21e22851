"""python -m fuzz: run a campaign for some minutes; `make fuzz` calls this."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from fuzz.campaign import Campaign, endless, remove
from fuzz.report import summary
from fuzz.runner import MIB, Limits, Runner
from fuzz.seeds import warm, write_seeds
from fuzz.targets import TARGETS


def main() -> int:
    """Run a campaign; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(
        prog="fuzz", description="Mutate inputs of PocketBERT, and report every wrong end of a command."
    )
    parser.add_argument("--seed", type=int, default=1, help="Seed of all choices.")
    parser.add_argument("--minutes", type=float, default=5.0, help="Stop after this time.")
    parser.add_argument("--mutants", type=int, help="Stop after this number of mutants.")
    parser.add_argument("--targets", default=",".join(TARGETS), help="Mutate these, comma-separated.")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="Interpreter with the PocketBERT to test."
    )
    parser.add_argument("--seeds", type=Path, help="Take the sound inputs from this folder, or write them there.")
    parser.add_argument("--report", type=Path, default=Path("runs/fuzz"), help="Write reproductions into this folder.")
    parser.add_argument("--seconds", type=float, default=60.0, help="Longest time of one command.")
    parser.add_argument("--memory", type=int, default=2048, help="Most memory of one command in MiB.")
    chosen = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="pocketbert-fuzz-"))
    # no resolve(): an environment's python is a link, and knows its packages by where the link lies
    runner = Runner(chosen.python.absolute(), work / "runner", Limits(chosen.seconds, 10.0, chosen.memory * MIB))
    try:
        seeds = chosen.seeds or work / "seeds"
        if not seeds.is_dir():
            write_seeds(seeds, runner)
        else:
            warm(seeds, work, runner)
        campaign = Campaign(runner, seeds, work / "work", chosen.report / str(chosen.seed))
        end = time.monotonic() + chosen.minutes * 60
        cases = islice(endless(chosen.seed, tuple(chosen.targets.split(","))), chosen.mutants)
        tally = campaign.run(cases, lambda: end - time.monotonic())
        print(summary(tally))
        if tally.kept:
            print(f"fuzz: reproductions: {chosen.report / str(chosen.seed)}")
        return int(bool(tally.kept))
    finally:
        runner.close()
        remove(work)


if __name__ == "__main__":
    sys.exit(main())
