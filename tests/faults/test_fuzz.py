"""The fuzz campaign with a fixed seed finds nothing: some mutants in the usual suite, ten minutes of them in the long one."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from fuzz.campaign import Campaign
from fuzz.report import summary
from fuzz.runner import Limits, Runner
from fuzz.seeds import warm, warm_light, write_recipe
from fuzz.targets import endless

from support.tiny import write_bert
from support.tiny_texts import LABELS

SEED = 20
MUTANTS = 40
LIGHT = ("recipe", "override", "rows", "artefact", "stdin")
"""Targets whose commands need no torch."""
LARGE = {"rows.long_cells", "rows.sparse_table", "rows.packed_nothing", "rows.many_labels", "stdin.long_line"}
"""Mutators of inputs so large that a right answer takes seconds: in the long campaign only."""


@pytest.fixture
def campaign(trio: Path, tmp_path: Path) -> Iterator[Campaign]:
    """A campaign on the tiny task's artefact folder of three formats."""
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    shutil.copytree(trio / "phone", seeds / "phone")
    write_bert(seeds / "model", LABELS)
    write_recipe(seeds)
    runner = Runner(Path(sys.executable), tmp_path / "runner", Limits())
    yield Campaign(runner, seeds, tmp_path / "work", tmp_path / "report")
    runner.close()


def test_a_fixed_seed_finds_nothing(campaign: Campaign) -> None:
    warm_light(campaign.seeds, campaign.runner)
    cases = (c for c in endless(SEED, LIGHT) if not {s.mutator for s in c.steps} & LARGE)
    tally = campaign.run(islice(cases, MUTANTS), lambda: 600.0)
    assert tally.mutants == MUTANTS
    assert not tally.kept, summary(tally)


@pytest.mark.slow
def test_ten_minutes_find_nothing(campaign: Campaign) -> None:
    warm(campaign.seeds, campaign.work, campaign.runner)
    end = time.monotonic() + 600
    tally = campaign.run(endless(SEED), lambda: end - time.monotonic())
    assert not tally.kept, summary(tally)
