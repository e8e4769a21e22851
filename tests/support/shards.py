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
_LONGEST_MODULE = "pipeline/test_run_folder.py"
UNKNOWN_S = 2.0
"""Seconds of a slow case whose function has no record yet."""
UNKNOWN_FAST_S = 0.15
"""Seconds of a case of the fast suite whose file has no record yet: what one takes on average."""
LONG_CASES = Path(__file__).parents[1] / "long_cases.txt"
"""Names of cases that are slow, though their function has no mark: one in a line."""
PIECE_S = 40.0
"""Cases of one function go to a shard together, as they share fixtures, until they take this long."""


def read_seconds(path: Path = RECORD) -> dict[str, float]:
    """Return the recorded seconds per case, by test function where it is slow and by test file for the others."""
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def read_long_cases() -> frozenset[str]:
    """Return the names of the cases, and of whole test files, that `LONG_CASES` lists, from ``tests/`` on."""
    lines = LONG_CASES.read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number and the count of a shard such as ``3/12``.

    Raises:
        ValueError: If it is not written so, or the number is not within 1 and the count.
    """
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"SHARD={text!r} is no shard: write 3/12 for the third of twelve")
    return int(match[1]), int(match[2])


def name_from_tests(node: str) -> str:
    """Return the name of a test from ``tests/`` on, from wherever pytest was started."""
    return re.sub(r"^.*?(?=tests/)", "", node)


def function_of(node: str) -> str:
    """Return the name of the test function of a test: the node's name from ``tests/`` on, without its case."""
    return name_from_tests(node.partition("[")[0])


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


def expected_minutes(nodes: Iterable[str], workers: int, slow: bool = False) -> float:
    """Return about how many minutes the tests take with so many processes on a quiet machine, from the record.

    Args:
        nodes: Names of the tests.
        workers: Number of processes.
        slow: Whether they are slow ones, whose record is by function: a function may have fast cases too.
    """
    seconds = read_seconds()
    functions = [function_of(node) for node in nodes]
    by_file = [seconds.get(f.partition("::")[0], UNKNOWN_FAST_S) for f in functions]
    work = sum(seconds.get(f, known) if slow else known for f, known in zip(functions, by_file, strict=True))
    return work / max(workers, 1) / 60


# what tests/conftest.py gives to pytest

_announced = False
_durations: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the long cases as slow; of the slow tests keep those of the shard that the variable SHARD names.

    The module with the longest tests comes first: at the end it would be all that is left, for one process.
    """
    items.sort(key=lambda item: _LONGEST_MODULE not in item.nodeid)
    long_cases = read_long_cases()
    for item in items:
        name = name_from_tests(item.nodeid)
        if {name, name.partition("::")[0]} & long_cases:
            item.add_marker(pytest.mark.slow)
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
        minutes = expected_minutes(ids, workers, slow=bool(os.environ.get("SHARD")))
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
