"""What a step is made from: flat keys, and the words for what differs."""

from __future__ import annotations

import pytest

from pocketbert.pipeline.run_folder.step import MadeFrom, _flatten


def test_sections_become_dotted_keys() -> None:
    sections = {"distill": [{"steps": 3, "signals": {"hidden": 1.0}}], "export": {"lengths": [1, 2]}, "student": None}
    assert _flatten(sections) == {
        "distill.0.steps": 3,
        "distill.0.signals.hidden": 1.0,
        "export.lengths": [1, 2],
        "student": None,
    }


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"seed": 1}, {"seed": 1}, []),
        ({"seed": 1}, {"seed": 2}, ["seed was 1, is 2"]),
        ({"a": "int8"}, {"a": "w8"}, ["a was int8, is w8"]),
        ({"a": "two words"}, {"a": None}, ['a was "two words", is not set']),
        ({"a": "x" * 80}, {"a": True}, [f"a was {'x' * 57}..., is true"]),
        ({"s": {"a": 1}}, {"s": {"a": 1, "b": 2}}, ["s.b was not set, is 2"]),
        ({"s": None, "t": 1}, {"s": {"a": 1, "b": 2}, "t": 1}, ["s was not set, is set"]),
        ({"s": {"a": 1, "b": 2}}, {"s": None}, ["s was set, is not set"]),
        ({"d": [{"a": 1}, {"a": 2}]}, {"d": [{"a": 1}]}, ["d.1 was set, is not set"]),
        ({"d": []}, {"d": [{"a": 1}]}, ["d was not set, is set"]),
    ],
)
def test_each_change_is_named(before: dict[str, object], now: dict[str, object], said: list[str]) -> None:
    made, wanted = MadeFrom(step="x", settings=_flatten(before)), MadeFrom(step="x", settings=_flatten(now))
    assert made.changes(wanted) == said
    assert (made.hash == wanted.hash) == (said == [])


def test_gates_and_versions_are_not_part_of_the_identity() -> None:
    made = MadeFrom(step="x", gates={"atol": 1}, versions={"torch": "1"})
    now = MadeFrom(step="x", gates={"atol": 2}, versions={"torch": "2"})
    assert made.hash == now.hash
    assert made.exact({}) != now.exact({})
    assert made.gate_changes(now) == ["atol was 1, is 2"]
    assert made.version_changes(now) == ["torch was 1, is 2"]
    assert made.accepting(now).version_changes(now) == []
    assert made.accepting(now).accepting(now).accepted == [{"torch": "2"}]
    assert made.accepting(now).history == "torch 1, taken on with 2"
