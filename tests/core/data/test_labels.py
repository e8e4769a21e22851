"""Label sets: which names there are, in which order, and what a number in the data means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.cells import find_name_problems
from pocketbert.core.data.labels import Labels, resolve_labels
from pocketbert.core.errors import InputError
from pocketbert.core.predict.examples import Example, Label
from pocketbert.core.predict.spans import Span
from pocketbert.core.tasks import LabelKind

NAMES = Labels(("negative", "neutral", "positive"))


def rows(*labels: Label) -> list[Example]:
    return [Example(f"text {i}", None, label, i) for i, label in enumerate(labels, 1)]


@pytest.mark.parametrize("labels", [("positive", "negative", "neutral"), (2, "0", "1.0"), (2.0, 0, 1)])
def test_names_or_positions_become_ids(labels: tuple[Label, ...]) -> None:
    assert NAMES.ids(rows(*labels), "a.csv").tolist() == [2, 0, 1]


@pytest.mark.parametrize("names", [("2", "1", "0"), ("5.0", "1", "0", "2"), ("oos", "10", "2", "1", "0")])
def test_where_names_are_numbers_a_number_means_the_name(names: tuple[str, ...]) -> None:
    labels = Labels(names)
    assert labels.ids(rows(2, "2", 2.0, "2.0"), "a").tolist() == [names.index("2")] * 4
    with pytest.raises(InputError, match="some names are numbers, so a number means the name"):
        labels.ids(rows(3), "a")


def test_numbers_that_mean_nothing_in_the_names_are_refused() -> None:
    found = resolve_labels(None, None, rows("b", "a"))
    with pytest.raises(InputError, match="the order of the names was not declared"):
        found.ids(rows(1), "eval.jsonl")
    found = resolve_labels(["bad", "so", "good"], None, rows(1, 2, 3))
    with pytest.raises(InputError, match=r"a:1: label 4 is not in the label set; its numbers are '1', '2', '3'"):
        found.ids(rows(4), "a")
    with pytest.raises(InputError, match="numbers and names in one column"):
        found.ids(rows(1, "good"), "a")


@pytest.mark.parametrize("twin", ["a ", "\u200ba", "a\ufe0f", " a"])
def test_names_that_look_the_same_are_refused(twin: str) -> None:
    with pytest.raises(InputError, match="differ only in what cannot be seen"):
        resolve_labels(None, None, rows("a", "b", twin))
    assert find_name_problems(["1", "01"]) == ["the labels '1' and '01' are the same number"]
    assert find_name_problems(["caf\u00e9", "cafe\u0301"])
    assert find_name_problems(["May", "may", "a b", "ab"]) == []


@given(st.lists(st.integers(-3, 70000) | st.sampled_from(["a", "B", "2.5"]), min_size=2, max_size=12), st.randoms())
def test_the_order_of_rows_and_the_kind_of_file_never_change_an_id(values: list[int | str], shuffler: Any) -> None:
    mixed = [(v, str(v)) for v in values]
    order = list(range(len(mixed)))
    shuffler.shuffle(order)
    found: list[dict[str, int] | str] = []
    for kind, places in ((0, range(len(mixed))), (1, range(len(mixed))), (0, order)):
        examples = rows(*(mixed[i][kind] for i in places))
        try:
            ids = resolve_labels(None, None, examples).ids(examples, "a")
            found.append({mixed[i][1]: int(id) for i, id in zip(places, ids, strict=True)})
        except InputError:
            found.append("refused")
    assert found[0] == found[1] == found[2]


def test_a_label_outside_the_set_is_refused_with_its_row() -> None:
    with pytest.raises(InputError, match=r"a.csv:2: label 1, and 'positive' in row 1"):
        NAMES.ids(rows("positive", 1), "a.csv")
    with pytest.raises(InputError) as caught:
        NAMES.ids(rows("positve", 3, -1, "neutral", 1.5), "a.csv")
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3", "5"]
    assert "did you mean 'positive'?" in lines[0]
    assert "add the label under data.labels" in lines[1]


def test_the_labels_of_a_tagger_are_tags_as_they_are() -> None:
    speech = ["NOUN", "VERB", "ADJ"]  # a tag for every word, so that none is outside
    assert resolve_labels(None, speech, [], LabelKind.SPANS).names == tuple(speech)
    assert resolve_labels(sorted(speech), speech, [], LabelKind.SPANS).names == ("ADJ", "NOUN", "VERB")
    assert resolve_labels(["person"], None, [], LabelKind.SPANS).names == ("O", "B-person", "I-person")
    with pytest.raises(InputError, match="tags need 'O'"):
        resolve_labels(["B-person", "I-person"], speech, [], LabelKind.SPANS)


@pytest.mark.parametrize(
    ("declared", "teacher", "names", "note"),
    [
        (["b", "a"], ["a", "b"], ("b", "a"), ""),
        (None, ["b", "a"], ("b", "a"), "teacher"),
        (None, ["LABEL_0", "LABEL_1"], ("a", "b"), ""),
        (None, ["LABEL_1", "LABEL_0"], None, ""),
    ],
)
def test_the_declared_order_wins_then_the_teachers_names(
    declared: list[str] | None, teacher: list[str], names: tuple[str, ...] | None, note: str
) -> None:
    if names is None:  # no placeholders: names that the rows do not have
        with pytest.raises(InputError):
            resolve_labels(declared, teacher, rows("b", "a")).ids(rows("b", "a"), "a")
        return
    found = resolve_labels(declared, teacher, rows("b", "a"))
    assert (found.names, note in found.note) == (names, True)


@pytest.mark.parametrize(
    ("declared", "labels", "message"),
    [
        (None, ("a", "a"), "at least 2 labels, found .'a'."),
        (["a", "b", "a"], (), "occurs twice"),
        (None, (17, 1_000_000_000_000), "data.labels"),
        # sorted as text they were 0, 1, 10, 11, 2, ...: the number 2 silently became the label 10
        (None, (*range(12), "oos"), r"numbers in some rows \(row 1: 0\) and names in others \(row 13: 'oos'\)"),
    ],
)
def test_sets_of_labels_that_are_refused(declared: list[str] | None, labels: tuple[Label, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_labels(declared, None, rows(*labels))


@given(st.permutations(NAMES.names))
def test_a_permutation_reorders_the_models_outputs(order: list[str]) -> None:
    logits = np.array([[10.0 * NAMES.names.index(n) for n in order]])
    permutation = NAMES.permutation_from(Labels(tuple(order)), "teacher.model")
    assert (permutation is None) == (tuple(order) == NAMES.names)
    ours = logits if permutation is None else logits[:, permutation]
    assert ours.tolist() == [[0.0, 10.0, 20.0]]


def test_different_sets_are_refused_naming_both_sides() -> None:
    with pytest.raises(InputError, match=r"only in the data \['neutral'\], only in the model \['mixed'\]"):
        NAMES.permutation_from(Labels(("negative", "mixed", "positive")), "teacher.model")


STARS = [f"{i} star{'s' * (i > 1)}" for i in range(1, 6)]
DEFAULTS = [f"LABEL_{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ((5, 3, 1, 2, 4), ("1", "2", "3", "4", "5")),
        (("5.0", "3.0", "1.0"), ("1", "3", "5")),
        ((1, -1), ("-1", "1")),
        ((10, 9, 2, 1), ("1", "2", "9", "10")),
        ((0, 1, 3), ("0", "1", "3")),
        (("0", "2", "1"), ("LABEL_0", "LABEL_1", "LABEL_2")),
        ((0.5, -1, 2), ("-1", "0.5", "2")),
    ],
)
def test_labels_are_the_numbers_that_occur_in_numeric_order(labels: tuple[Label, ...], names: tuple[str, ...]) -> None:
    found = resolve_labels(None, None, rows(*labels))
    assert found.names == names
    assert ("LABEL_i" if names[0] == "LABEL_0" else "numbers") in found.note
    ids = found.ids(rows(*labels, *map(str, labels)), "a").tolist()
    assert ids == [sorted(map(float, labels)).index(float(label)) for label in labels] * 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a:1: label 7 is not in the label set"):
        found.ids(rows(7), "a")


def test_a_label_that_is_unknown_is_shown_once() -> None:
    found = resolve_labels(None, None, rows("lamp", "music"))
    with pytest.raises(InputError) as caught:
        found.ids(rows("tune", "lamp", "tune", "tune", "timer"), "a")
    assert [p.where for p in caught.value.problems] == ["a:1", "a:5", "a"]
    assert "and 2 more bad rows (4 in all)" in str(caught.value)
    tags = Labels(("O", "B-PER", "I-PER"))
    unknown, known = Span(0, 1, "LOC"), Span(0, 1, "PER")
    with pytest.raises(InputError) as caught:
        tags.spans(rows((unknown,), (known,), (unknown, unknown)), "a")
    assert [p.where for p in caught.value.problems] == ["a:1", "a"]
    assert "and 2 more bad rows (3 in all)" in str(caught.value)


def test_lists_of_numbers_are_labels_likewise() -> None:
    examples = rows((5, 1), (3,), (), (1,))
    found = resolve_labels(None, None, examples, LabelKind.NAMES)
    assert found.names == ("1", "3", "5")
    assert found.sets(examples, "a").tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    named = resolve_labels(["low", "middle", "high"], None, examples, LabelKind.NAMES)
    assert named.names == ("low", "middle", "high")
    assert named.sets(examples, "a").tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("declared", "teacher", "labels", "names", "ids", "note"),
    [
        (["bad", "good"], None, (0, 1), ["bad", "good"], [0, 1], ""),
        (["bad", "so", "good"], None, (1, 2, 3), ["bad", "so", "good"], [0, 1, 2], "1 = bad, 2 = so, 3 = good"),
        (["bad", "good"], None, (4, 0), ["bad", "good"], [1, 0], "0 = bad, 4 = good"),
        (["good", "bad"], ["bad", "good"], (-1, 1), ["good", "bad"], [0, 1], "-1 = good, 1 = bad"),
        (["3", "2", "1"], None, (1, 2, 3), ["3", "2", "1"], [2, 1, 0], ""),
        (None, STARS, (1, 5, 3), STARS, [0, 4, 2], "1 = 1 star, 2 = 2 stars"),
        (None, STARS, (0, 4, 2), STARS, [0, 4, 2], "taken from the teacher"),
        (None, DEFAULTS, (0, 1, 2, 3, 4), DEFAULTS, [0, 1, 2, 3, 4], "LABEL_i"),
        (None, DEFAULTS, (1, 2, 3, 4, 5), list("12345"), [0, 1, 2, 3, 4], "1 = LABEL_0, 2 = LABEL_1"),
        (None, DEFAULTS[:2], (-1, 1), ["-1", "1"], [0, 1], "-1 = LABEL_0, 1 = LABEL_1"),
    ],
)
def test_numbers_and_declared_names(
    declared: Any, teacher: Any, labels: tuple[int, ...], names: list[str], ids: list[int], note: str
) -> None:
    found = resolve_labels(declared, teacher, rows(*labels))
    assert [*found.names] == names
    assert note in found.note
    assert found.ids(rows(*labels), "a").tolist() == ids
    assert found.ids(rows(*map(float, labels)), "a").tolist() == ids


@pytest.mark.parametrize(
    ("declared", "teacher", "labels", "why"),
    [
        (["a", "b", "c"], None, (1, 2, 3, 4), "4 numbers for 3 names"),
        (["a", "b", "c"], None, (1, 2), "0 does not occur, so that 1 could be the first name or the second"),
        (None, STARS, (1, 2, 3, 4), "they are positions from 0, and are in the names too"),
        (None, ["bad", "so", "good"], (1, 2, 3), "which is which?"),
        (None, DEFAULTS, (1, 2, 3, 4), "0 does not occur"),
        (None, DEFAULTS, (1, 2, 3, 4, 5, 6), "6 numbers for 5 names"),
    ],
)
def test_numbers_that_could_be_several_names_are_refused(
    declared: list[str] | None, teacher: list[str] | None, labels: tuple[int, ...], why: str
) -> None:
    with pytest.raises(InputError) as caught:
        resolve_labels(declared, teacher, rows(*labels))
    [problem] = caught.value.problems
    assert why in problem.what
    assert "in numeric order" in problem.fix
