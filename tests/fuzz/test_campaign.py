"""The fuzz tool finds planted faults, makes them small and keeps them, and reports nothing that is right."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.campaign import Campaign, remove
from fuzz.mutation import MUTATORS, Case, Mutator, Place, Step, Verdict, mutators_of
from fuzz.mutators.recipes import SCHEMA
from fuzz.report import summary
from fuzz.runner import MIB, Limits, Runner
from fuzz.targets import TARGETS

PLANTED = """
import sys, time
from pathlib import Path

def main():
    recipe = Path("recipe.yaml")
    text = recipe.read_text()
    if "traceback" in text:
        raise ValueError("planted")
    if "machine" in text:
        sys.exit("Error: ValueError: planted")
    if "hang" in text:
        time.sleep(1000)
    if "work" in text:
        while True:
            pass
    if "memory" in text:
        held = [bytearray(b"x" * (64 << 20)) for _ in range(40)]
    if "foreign" in text:
        Path("../neighbour/thesis.txt").unlink()
    if "left" in text:
        Path("out").mkdir()
        bad("left")
    if "silent" in text:
        print("Error:", file=sys.stderr)
        sys.exit(2)
    if "long" in text:
        bad("x" * 500)
    if "escape" in text:
        bad("\\x1b[2J")
    if "accept" in text:
        return
    bad("refused")

def bad(text):
    print("Error: " + text, file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    main()
"""
LIMITS = Limits(seconds=3.0, idle=0.5, memory=300 * MIB)
FAULTS = {
    **{"traceback": "traceback", "machine": "exit 1", "hang": "time", "work": "time", "memory": "memory"},
    **{"foreign": "foreign", "left": "leftover"},
    **dict.fromkeys(("silent", "long", "escape"), "message"),
}
"""What the planted command does wrong, and the kind of finding that this is."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Campaign]]:
    """`planted(report)`: a campaign against a command that does wrong where the recipe has a certain word."""
    folder = tmp_path_factory.mktemp("planted")
    package = folder / "packages/pocketbert/cli"
    package.mkdir(parents=True)
    for name in ("pocketbert/__init__.py", "pocketbert/cli/__init__.py"):
        (folder / "packages" / name).touch()
    (package / "main.py").write_text(PLANTED)
    seeds = folder / "seeds"
    (seeds / "rows").mkdir(parents=True)
    (seeds / "model").mkdir()
    for name in ("train.jsonl", "eval.jsonl", SCHEMA):
        (seeds / name).write_text("{}")
    (seeds / "recipe.yaml").write_text("".join(f"key{i}: {i}\n" for i in range(50)))
    runner = Runner(Path(sys.executable), folder / "runner", LIMITS, folder / "packages")

    def make(report: Path | None = None) -> Campaign:
        remove(folder / "work")
        return Campaign(runner, seeds, folder / "work", report, tell=lambda text: None)

    yield make
    runner.close()


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Case]:
    """`plant(word, verdict)`: a case that writes a word into the recipe, between two changes that do not matter."""

    def make(word: str, verdict: Verdict = Verdict.BAD) -> Case:
        def change(draw: random.Random, place: Place) -> None:
            place.recipe.write_text(place.recipe.read_text() + f"x: {word}\n")

        def other(draw: random.Random, place: Place) -> None:
            place.recipe.write_text("# more\n" + place.recipe.read_text())

        for name, made in (("plant", change), ("other", other)):
            monkeypatch.setitem(MUTATORS, f"recipe.{name}", Mutator(name, "recipe", made, verdict, frozenset()))
        steps = (Step("recipe.other", "1"), Step("recipe.plant", "2"), Step("recipe.other", "3"))
        return Case(1, 1, "recipe", "validate", steps)

    return make


def kinds(campaign: Campaign, case: Case) -> list[str]:
    """What a campaign finds in one case, and keeps."""
    tally = campaign.run(iter([case]), lambda: 60.0)
    return [kept.finding.kind for kept in tally.kept.values()]


@pytest.mark.parametrize("word", [pytest.param(w, marks=pytest.mark.slow) if w == "work" else w for w in FAULTS])
def test_planted_faults_are_found_and_made_small(
    planted: Callable[..., Campaign], plant: Callable[..., Case], word: str, tmp_path: Path
) -> None:
    campaign, kind = planted(tmp_path), FAULTS[word]
    assert kinds(campaign, plant(word)) == [kind], summary(campaign.tally)
    (kept,) = campaign.tally.kept.values()
    assert [s.mutator for s in kept.case.steps] == ["recipe.plant"]
    folder = next(tmp_path.iterdir())
    assert word in (folder / "input/recipe.yaml").read_text()
    about = json.loads((folder / "finding.json").read_text())
    assert about["finding"]["kind"] == about["in_a_new_process"]["kind"] == kind
    assert "recipes validate" in (folder / "reproduce.sh").read_text()


def test_a_wrong_success_and_a_wrong_refusal_are_found_and_right_ends_are_not(
    planted: Callable[..., Campaign], plant: Callable[..., Case]
) -> None:
    for word, verdict, found in (
        ("accept", Verdict.BAD, ["accepted"]),
        ("sound", Verdict.FINE, ["refused"]),
        ("accept", Verdict.FINE, []),
        ("accept", Verdict.ANY, []),
        ("nothing", Verdict.BAD, []),
    ):
        case = plant(word, verdict)
        assert kinds(planted(), case if verdict is Verdict.FINE else case.without(0).without(1)) == found, word


def test_every_target_is_mutated_by_grammar_by_bytes_and_soundly() -> None:
    for target in TARGETS:
        known = mutators_of(target)
        assert len(known) >= 6, target
        assert {Verdict.FINE, Verdict.BAD} <= {m.verdict for m in known}, target
