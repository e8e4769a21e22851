"""Faults that were planted are found, made small and kept; what is right is not reported."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fuzz.__main__ as command
from fuzz.campaign import Campaign, remove
from fuzz.mutation import MUTATORS, Case, Mutator, Place, Step, Verdict, mutators_of
from fuzz.mutators.recipes import SCHEMA
from fuzz.mutators.special import become
from fuzz.report import summary
from fuzz.runner import MIB, Limits, Runner
from fuzz.targets import TARGETS, draw_case

PLANTED = """
import sys, time
from pathlib import Path

def main():
    recipe = Path("recipe.yaml")
    if not recipe.is_file() or recipe.is_symlink() or recipe.stat().st_size > 99 << 20:
        raise ValueError("planted")
    text = Path("recipe.yaml").read_text(errors="replace")
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
    if "beside" in text:
        Path("more.txt").write_text("x")
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
    **{"foreign": "foreign", "beside": "foreign", "left": "leftover"},
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
    planted: Callable[..., Campaign],
    plant: Callable[..., Case],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    campaign, kind = planted(tmp_path), FAULTS[word]
    if kind in ("time", "memory"):  # every trial takes as long, or as much, as the command may
        monkeypatch.setattr("fuzz.shrink.SECONDS", 3.0)
    assert kinds(campaign, plant(word)) == [kind], summary(campaign.tally)
    (kept,) = campaign.tally.kept.values()
    steps = [s.mutator for s in kept.case.steps]
    assert "recipe.plant" in steps
    if kind not in ("time", "memory"):  # making these small takes longer on a busy machine than is given
        assert steps == ["recipe.plant"]
    folder = next(tmp_path.iterdir())
    assert word in (folder / "input/recipe.yaml").read_text()
    about = json.loads((folder / "finding.json").read_text())
    assert about["finding"]["kind"] == about["in_a_new_process"]["kind"] == kind
    if kind in ("traceback", "exit 1", "message"):
        assert (folder / "input/recipe.yaml").stat().st_size < 100
    assert "recipes validate" in (folder / "reproduce.sh").read_text()


@pytest.mark.parametrize("kind", ["zero", "random", "memory", "fifo", "huge", "dangling", "loop"])
def test_a_fault_of_an_input_that_is_no_file_is_kept_without_opening_it(
    planted: Callable[..., Campaign],
    plant: Callable[..., Case],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, campaign = plant("traceback"), planted(tmp_path)

    def odd(draw: random.Random, place: Place) -> None:
        become(draw, place.recipe, kind)

    monkeypatch.setitem(MUTATORS, "recipe.odd", Mutator("odd", "recipe", odd, Verdict.BAD, frozenset()))
    steps = tuple(Step(f"recipe.{n}", n) for n in ("other", "odd", "other", "changed_tree"))
    opened = watch_opening(monkeypatch)
    assert kinds(campaign, replace(case, steps=steps)) == ["traceback"], summary(campaign.tally)
    (found,) = campaign.tally.kept.values()
    assert [s.mutator for s in found.case.steps] == ["recipe.odd"]
    kept = next(tmp_path.iterdir()) / "input/recipe.yaml"
    assert kept.is_fifo() if kind == "fifo" else not kept.exists() if kind == "huge" else kept.is_symlink()
    assert not opened


def watch_opening(patch: pytest.MonkeyPatch) -> list[str]:
    """What this process opens from now on that is a device, a pipe or a file of the system, and is refused then."""
    found: list[str] = []

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, *args: Any, **options: Any) -> Any:
            path = Path(os.devnull if isinstance(file, int) else os.path.realpath(file))
            odd = path.exists() and not path.is_file() and not path.is_dir() and str(path) != os.devnull
            if odd or path.is_relative_to("/proc"):
                found.append(str(path))
                raise OSError(str(path))
            return call(file, *args, **options)

        return opening

    patch.setattr("io.open", guarded(io.open))
    patch.setattr("os.open", guarded(os.open))
    return found


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


def test_the_same_number_is_the_same_case() -> None:
    cases = [draw_case(5, n) for n in range(200)]
    assert cases == [draw_case(5, n) for n in range(200)]
    assert cases != [draw_case(6, n) for n in range(200)]
    assert {c.target for c in cases} == set(TARGETS)


def test_every_target_is_mutated_by_grammar_by_bytes_and_soundly() -> None:
    for target in TARGETS:
        known = mutators_of(target)
        assert len(known) >= 6, target
        assert {Verdict.FINE, Verdict.BAD} <= {m.verdict for m in known}, target


def test_the_command_tells_its_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--help"])
    with pytest.raises(SystemExit, match="0"):
        command.main()
    assert "--minutes" in capsys.readouterr().out
