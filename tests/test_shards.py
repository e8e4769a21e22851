"""How slow tests are dealt to shards, and what is said of their duration."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from support.shards import deal_tests, function_of, parse_shard, read_long_cases

NODES = [
    f"../tests/a/test_x.py::test_{name}[{i}]" for name, count in (("long", 30), ("short", 200)) for i in range(count)
]
SECONDS = {"tests/a/test_x.py::test_long": 20.0, "tests/a/test_x.py::test_short": 1.5}


@pytest.mark.parametrize("count", [1, 3, 7, 24])
def test_shards_together_are_all_tests_and_take_about_equally_long(count: int) -> None:
    shards = deal_tests(NODES, count, SECONDS)
    assert shards == deal_tests(random.Random(1).sample(NODES, len(NODES)), count, SECONDS)
    assert sorted(node for shard in shards for node in shard) == sorted(NODES)
    loads = [sum(SECONDS[function_of(node)] for node in shard) for shard in shards]
    assert max(loads) - min(loads) <= 40


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "a/b", "1/4/2"])
def test_what_is_no_shard_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"SHARD='.*write 3/12"):
        parse_shard(text)


def test_each_long_case_is_a_test_that_is_there() -> None:
    root = Path(__file__).parents[1]
    names = {function_of(name) for name in read_long_cases()}
    assert len(names) > 100
    missing = []
    for name in sorted(names):
        file, _, function = name.partition("::")
        text = (root / file).read_text("utf-8") if (root / file).is_file() else ""
        if not re.search(rf"^def {re.escape(function)}\(" if function else "^def test_", text, re.MULTILINE):
            missing.append(name)
    assert missing == []
