"""Rounds of the engines page: engines that took part in different rounds are compared in those that both have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))

from engine.columns import FASTEST
from engine.measure import QUIET, Engine, Part, contenders
from engine.results import ENOUGH, Cell, Result


def _part(times, generation=0, others=None, length="128"):
    """Engines with one time for each of their rounds."""
    engines = {n: Engine(wall=[[t] for t in ts], cpu=list(ts), after=[0.0] * len(ts)) for n, ts in times.items()}
    rounds = max(len(ts) for ts in times.values())
    finalists = [n for n, ts in times.items() if len(ts) == rounds]
    return Part(
        threads=1,
        length=length,
        generation=generation,
        finalists=finalists,
        engines=engines,
        others=others or [0.0] * rounds,
    )


def test_an_engine_that_left_is_compared_in_the_rounds_it_had():
    # The machine gets twice as slow when the engine has gone: only common rounds say who is faster.
    first = _part({"a": [1.0] * 6 + [2.0] * 20, "b": [1.5] * 6, FASTEST: [1.0] * 6 + [2.0] * 20})
    second = _part({"a": [4.0] * 20, FASTEST: [2.0] * 20}, generation=1)
    cell = Cell(1, "128", (first, second))
    assert (cell.ratio("b", "a").median, cell.ratio("b", "a").pairs) == (1.5, 6)
    assert cell.ratio("a", FASTEST).pairs == 46
    assert cell.finalists == ["a", FASTEST]
    assert cell.median("b") == 1.5


def test_disturbed_rounds_are_left_out_where_enough_quiet_ones_remain():
    loud = QUIET + 0.01
    slow, quick = [3.0, 1.0] * ENOUGH, [1.0] * (2 * ENOUGH)
    enough = Cell(1, "128", (_part({"a": slow, "b": quick}, others=[loud, 0.0] * ENOUGH),))
    assert (enough.ratio("a", "b").median, enough.ratio("a", "b").pairs) == (1.0, ENOUGH)
    few = Cell(1, "128", (_part({"a": slow, "b": quick}, others=[loud] * (ENOUGH + 1) + [0.0] * (ENOUGH - 1)),))
    assert few.ratio("a", "b").pairs == 2 * ENOUGH


def test_those_near_the_fastest_go_on_and_fastest_always():
    part = _part({"best": [1.0] * 6, "near": [1.2] * 6, "far": [1.4] * 6, FASTEST: [9.0] * 6})
    assert contenders(part) == ["best", "near", FASTEST]
    assert contenders(part, ["far"]) == ["best", "near", "far", FASTEST]


def test_fastest_keeps_somebody_to_be_compared_with():
    part = _part({"a": [2.0] * 6, "b": [3.0] * 6, FASTEST: [1.0] * 6})
    assert contenders(part) == ["a", FASTEST]


def test_one_slow_round_sends_nobody_home():
    part = _part({"a": [1.0] * 6, "b": [9.0, 9.0, 1.0, 1.0, 9.0, 1.0]})
    assert contenders(part) == ["a", "b"]


def test_who_is_judged_leaves_somebody_to_be_compared_with():
    """A toolkit's choice that is lucky in the first rounds put everybody else out, and nothing was judged."""
    times = {"a": 2.0, "b": 4.0, "own choice": 1.0, FASTEST: 1.1}
    part = Part(threads=1, length="16", generation=0)
    part.engines = {name: Engine(wall=[[ms]] * 3) for name, ms in times.items()}
    assert contenders(part, ["own choice"]) == ["a", "own choice", FASTEST]


@pytest.mark.parametrize(("key", "kept"), [("same", True), ("other", False)])
def test_resumed_generation_by_generation(tmp_path, key, kept):
    about = ("m", key, "trained", "machine", "texts")
    result = Result(model="m", key="same", weights="trained", machine="machine", texts="texts")
    result.parts = [_part({"a": [1.0] * 6}), _part({"a": [1.0] * 6}, 1), _part({"a": [1.0] * 6}, length="16")]
    result.save(tmp_path / "m.json")
    again = Result.resume(tmp_path / "m.json", *about)
    assert [again.part(1, n, g) is not None for n, g in (("128", 0), ("128", 1), ("16", 0))] == [kept] * 3
    assert again.part(1, "16", 1) is None
    assert [len(c.parts) for c in again.cells()] == ([2, 1] if kept else [])
