"""The fuzz campaign with a fixed seed finds nothing: some mutants in the usual suite, a thousand of them in the long one."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
from fuzz import runner
from fuzz.campaign import Campaign
from fuzz.mutators.recipes import SCHEMA
from fuzz.report import summary
from fuzz.seeds import warm, write_recipe
from fuzz.targets import endless

from support.commander import run_command
from support.tiny import write_bert
from support.tiny_texts import LABELS

SEED = 20
LIGHT = ("recipe", "override", "rows", "artefact", "stdin")
"""Targets whose commands need no torch."""
LARGE = {"rows.long_cells", "rows.sparse_table", "rows.packed_nothing", "rows.many_labels", "stdin.long_line"}
"""Mutators of inputs so large that a right answer takes seconds: in the long campaign only."""


class Here(runner.Runner):
    """Runs commands in this process."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.limits, self.patch = folder, runner.Limits(), patch
        (folder / "home").mkdir(parents=True)
        for name, place in (("HOME", "home"), ("POCKETBERT_CACHE", "cache")):
            patch.setenv(name, str(folder / place))

    def run(
        self, argv: Sequence[str], cwd: Path, stdin: str = os.devnull, cold: bool = False, learn: str = ""
    ) -> runner.Ended:
        """Run one command."""
        closed = stdin == "closed"
        with self.patch.context() as patch, Path(os.devnull if closed else stdin).open("rb") as given:
            patch.chdir(cwd)
            patch.setattr(sys, "stdin", None if closed else io.TextIOWrapper(given, "utf-8"))
            ended = run_command(self.folder, *argv)
        return runner.Ended(ended.code, "", 0.0, ended.grown, ended.out, ended.err, len(ended.err))


def write_seeds(seeds: Path, trio: Path) -> Path:
    seeds.mkdir()
    shutil.copytree(trio / "phone", seeds / "phone")
    write_bert(seeds / "model", LABELS)
    write_recipe(seeds)
    return seeds


@pytest.mark.parametrize("mutants", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_a_fixed_seed_finds_nothing(
    mutants: int, trio: Path, outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, here = write_seeds(tmp_path / "seeds", trio), Here(tmp_path / "runner", monkeypatch)
    (seeds / SCHEMA).write_text(here.run(["recipes", "schema"], seeds).out)
    cases = (c for c in endless(SEED, LIGHT) if not {s.mutator for s in c.steps} & LARGE)
    tally = Campaign(here, seeds, tmp_path / "work").run(islice(cases, mutants), lambda: 600.0)
    assert tally.mutants == mutants
    assert not tally.findings, summary(tally)


@pytest.fixture
def in_children(tmp_path: Path) -> Iterator[runner.Runner]:
    made = runner.Runner(Path(sys.executable), tmp_path / "runner", runner.Limits())
    yield made
    made.close()


@pytest.mark.slow
def test_many_mutants_find_nothing(trio: Path, in_children: runner.Runner, tmp_path: Path) -> None:
    campaign = Campaign(in_children, write_seeds(tmp_path / "seeds", trio), tmp_path / "work", tmp_path / "report")
    warm(campaign.seeds, campaign.work, in_children)
    # a number and not a time: a fast machine must not meet other inputs than a slow one
    tally = campaign.run(islice(endless(SEED), 1000), lambda: 600.0)
    assert not tally.kept, summary(tally)
