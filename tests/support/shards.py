"""Deal the slow tests to shards that take about equally long, and say beforehand how long a run takes.

`make test-all SHARD=3/12` runs the third of twelve shards. Which shard a test belongs to follows from the names of the
slow tests and their recorded durations alone, so every worker and every machine deals alike. Durations stand in
`tests/seconds.json`; a run with `RECORD_SECONDS=1` writes those of the tests that it ran there.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).parents[1] / "seconds.json"
UNKNOWN_S = 2.0
"""Seconds of a case whose function has no record yet."""
PIECE_S = 40.0
"""Cases of one function go to a shard together, as they share fixtures, until they take this long."""


def read_seconds(path: Path = RECORD) -> dict[str, float]:
    """Return the recorded seconds per case, by test function where it is slow and by test file for the others."""
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number and the count of a shard such as ``3/12``.

    Raises:
        ValueError: If it is not written so, or the number is not within 1 and the count.
    """
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"SHARD={text!r} is no shard: write 3/12 for the third of twelve")
    return int(match[1]), int(match[2])


def function_of(node: str) -> str:
    """Return the name of the test function of a test: the node's name from ``tests/`` on, without its case."""
    return re.sub(r"^.*?(?=tests/)", "", node.partition("[")[0])


def deal_tests(nodes: Iterable[str], count: int, seconds: Mapping[str, float]) -> list[list[str]]:
    """Deal tests to `count` shards of about equal duration: the longest piece first, each to the shortest shard so far.

    Args:
        nodes: Names of tests, the cases of a function in any order.
        count: Number of shards.
        seconds: Seconds per case by test function.
    """
    cases = defaultdict(list)
    for node in nodes:
        cases[function_of(node)].append(node)
    pieces = []
    for function, unsorted in sorted(cases.items()):
        names = sorted(unsorted)
        each = seconds.get(function, UNKNOWN_S)
        step = max(1, int(PIECE_S / max(each, 0.01)))
        pieces += [(each * len(names[i : i + step]), names[i : i + step]) for i in range(0, len(names), step)]
    shards: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for length, names in sorted(pieces, key=lambda piece: -piece[0]):
        shortest = loads.index(min(loads))
        shards[shortest] += names
        loads[shortest] += length
    return shards


def expected_minutes(nodes: Iterable[str], workers: int) -> float:
    """Return about how many minutes the tests take with so many processes on a quiet machine, from the record."""
    seconds = read_seconds()
    work = sum(seconds.get(function_of(n), seconds.get(function_of(n).partition("::")[0], UNKNOWN_S)) for n in nodes)
    return work / max(workers, 1) / 60


# what tests/conftest.py gives to pytest

_announced = False
_durations: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the slow tests of the shard that the variable SHARD names, and all tests that are not slow."""
    text = os.environ.get("SHARD", "")
    if not text:
        return
    number, count = parse_shard(text)
    names = [item.nodeid for item in items if item.get_closest_marker("slow")]
    others = set(names) - set(deal_tests(names, count, read_seconds())[number - 1])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
    items[:] = [item for item in items if item.nodeid not in others]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Say before the first test how long all of them take."""
    global _announced
    if not _announced and len(ids) > 100:
        _announced = True
        workers = node.config.option.numprocesses or 1
        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        minutes = expected_minutes(ids, workers)
        reporter.write_line(
            f"{len(ids)} tests: about {minutes:.0f} minutes with {workers} processes on a quiet machine"
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of set-up, call and clean-up of every test."""
    function = function_of(report.nodeid)
    slow = "slow" in report.keywords
    _durations[function if slow else function.partition("::")[0]][report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations into the record where RECORD_SECONDS asks for it; tests that did not run keep theirs."""
    if not os.environ.get("RECORD_SECONDS") or hasattr(session.config, "workerinput"):
        return
    new = {name: round(sum(cases.values()) / len(cases), 3) for name, cases in _durations.items()}
    RECORD.write_text(json.dumps(read_seconds() | new, indent=0, sort_keys=True) + "\n", "utf-8")
