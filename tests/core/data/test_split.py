from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.examples import Example, drop_duplicates_of, hold_out, hold_out_share


def examples(texts: list[str]) -> list[Example]:
    return [Example(t, None, 0, i) for i, t in enumerate(texts, 1)]


TEXTS = st.lists(st.integers(0, 40).map("text {}".format), max_size=60)


@given(TEXTS, st.randoms(), st.integers(0, 30))
def test_the_same_rows_are_held_out_whatever_the_order(texts: list[str], random: object, rows: int) -> None:
    shuffled = list(texts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first = {e.text for e in hold_out(examples(texts), rows)[1]}
    assert first == {e.text for e in hold_out(examples(shuffled), rows)[1]}


@given(TEXTS, st.integers(0, 30))
def test_every_row_is_on_one_side_and_equal_texts_together(texts: list[str], rows: int) -> None:
    keep, held = hold_out(examples(texts), rows)
    assert Counter(e.row for e in keep + held) == Counter(range(1, len(texts) + 1))
    assert not {e.text for e in keep} & {e.text for e in held}
    for side in (keep, held):
        assert [e.row for e in side] == sorted(e.row for e in side)


@given(st.lists(st.integers(), unique=True, max_size=60), st.integers(0, 100))
def test_distinct_texts_give_the_wanted_number_up_to_half(numbers: list[int], rows: int) -> None:
    _, held = hold_out(examples([f"text {n}" for n in numbers]), rows)
    assert len(held) == min(rows, len(numbers) // 2)


@given(TEXTS, st.integers(0, 30))
def test_never_more_than_half_is_held_out(texts: list[str], rows: int) -> None:
    keep, held = hold_out(examples(texts), rows)
    assert len(held) <= len(keep)


def test_a_larger_hold_out_contains_the_smaller() -> None:
    rows = examples([f"text {i}" for i in range(100)])
    small, large = ({e.text for e in hold_out(rows, n)[1]} for n in (10, 30))
    assert small < large


def test_without_drops_rows_that_occur_elsewhere() -> None:
    left, dropped = drop_duplicates_of(examples(["a", "B ", "c", "b"]), examples(["b", "d"]))
    assert [e.text for e in left] == ["a", "c"]
    assert dropped == 2


@given(TEXTS, TEXTS, st.floats(0.05, 0.5))
def test_a_share_is_stable_when_rows_are_added(texts: list[str], more: list[str], fraction: float) -> None:
    keep, held = hold_out_share(examples(texts), fraction)
    assert Counter(e.row for e in keep + held) == Counter(range(1, len(texts) + 1))
    assert not {e.text for e in keep} & {e.text for e in held}
    _, later = hold_out_share(examples(texts + more), fraction)
    assert {e.text for e in held} <= {e.text for e in later}


def test_a_share_is_about_as_large_as_asked() -> None:
    _, held = hold_out_share(examples([f"text {n}" for n in range(5000)]), 0.1)
    assert 430 < len(held) < 570


def test_rows_of_a_label_that_no_other_row_has_are_kept() -> None:
    rare = [Example(f"text {n}", None, f"label {n}", n) for n in range(50)]
    assert hold_out_share(rare, 0.5) == (rare, [])
    often = [Example(f"text {n}", None, ("a", f"b{n % 2}"), n) for n in range(50)]
    keep, held = hold_out_share(often, 0.5)
    assert held
    assert {name for e in keep for name in e.label} == {"a", "b0", "b1"}
