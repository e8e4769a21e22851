"""Copies on disk: made once, in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.distill.augment import _DESCRIPTION, CopyStore, SourceRow, _Texts

ROWS = [SourceRow(i, (f"text {i}\u2028 with\nbreaks",)) for i in range(10)]


class Counting:
    """Two copies of each row; dies when it is asked for row `dies`."""

    def __init__(self, dies: int | None = None) -> None:
        self.dies, self.seen, self.made = dies, [], 0

    def copies(self, rows: Any) -> list[list[_Texts]]:
        if any(r.number == self.dies for r in rows):
            raise KeyboardInterrupt
        self.seen += [r.number for r in rows]
        return [[(f"{r.texts[0]} {i}",) for i in range(r.number % 3)] for r in rows]

    def make(self) -> Any:
        self.made += 1
        return self


def test_copies_come_back_in_order(tmp_path: Path) -> None:
    store = CopyStore(tmp_path / "work", "key", len(ROWS), 4)
    store.fill(ROWS, Counting().make)
    assert list(store.read()) == Counting().copies(ROWS)
    assert store.parts == 3


def test_a_killed_run_continues_with_the_missing_parts(tmp_path: Path) -> None:
    dying, rest, none = Counting(dies=5), Counting(), Counting()
    with pytest.raises(KeyboardInterrupt):
        CopyStore(tmp_path / "work", "key", len(ROWS), 4).fill(ROWS, dying.make)
    store = CopyStore(tmp_path / "work", "key", len(ROWS), 4)
    store.fill(ROWS, rest.make)
    assert (dying.seen, rest.seen) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    assert list(store.read()) == Counting().copies(ROWS)
    store.fill(ROWS, none.make)
    assert none.made == 0


@pytest.mark.parametrize("change", [{"key": "other"}, {"rows": 9}, {"at_once": 5}])
def test_copies_of_something_else_are_made_again(tmp_path: Path, change: dict[str, Any]) -> None:
    CopyStore(tmp_path / "work", "key", 10, 4).fill(ROWS, Counting().make)
    again = Counting()
    settings = {"key": "key", "rows": 10, "at_once": 4, **change}
    store = CopyStore(tmp_path / "work", **settings)
    store.fill(ROWS[: settings["rows"]], again.make)
    assert len(again.seen) == settings["rows"]
    assert len(list(store.read())) == settings["rows"]


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no augmented rows"):
        CopyStore(tmp_path / "work", "key", 10).fill(ROWS, Counting().make)
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["thesis.txt"]


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / _DESCRIPTION).write_text("{")
    with pytest.raises(InputError, match=r"augment\.json"):
        CopyStore(tmp_path / "work", "key", 10).fill(ROWS, Counting().make)
