from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.examples import Example, Label
from pocketbert.core.data.labels import Labels, placeholder_names, resolve_labels
from pocketbert.core.data.numerals import name_problems
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import LabelKind

NAMES = Labels(("negative", "neutral", "positive"))


def rows(*labels: Label) -> list[Example]:
    return [Example(f"text {i}", None, label, i) for i, label in enumerate(labels, 1)]


@pytest.mark.parametrize("labels", [("positive", "negative", "neutral"), (2, "0", "1.0"), (2.0, 0, 1)])
def test_names_or_positions_become_ids(labels: tuple[Label, ...]) -> None:
    assert NAMES.ids(rows(*labels), "a.csv").tolist() == [2, 0, 1]


def test_names_and_positions_in_one_column_are_refused_with_a_row_of_each() -> None:
    with pytest.raises(InputError, match=r"a.csv:2: label 1, and 'positive' in row 1"):
        NAMES.ids(rows("positive", 1), "a.csv")


@pytest.mark.parametrize("names", [("2", "1", "0"), ("5.0", "1", "0", "2"), ("oos", "10", "2", "1", "0")])
def test_where_names_are_numbers_a_number_means_the_name(names: tuple[str, ...]) -> None:
    labels = Labels(names)
    assert labels.ids(rows(2, "2", 2.0, "2.0"), "a").tolist() == [names.index("2")] * 4
    with pytest.raises(InputError, match="some names are numbers, so a number means the name"):
        labels.ids(rows(3), "a")


def test_numbers_beside_a_name_in_the_training_data_are_refused_with_a_row_of_each() -> None:
    # sorted as text they were 0, 1, 10, 11, 2, ...: the number 2 silently became the label 10
    with pytest.raises(InputError, match=r"numbers in some rows \(row 1: 0\) and names in others \(row 13: 'oos'\)"):
        resolve_labels(None, None, rows(*range(12), "oos"))


def test_a_position_means_nothing_in_names_that_were_sorted() -> None:
    found = resolve_labels(None, None, rows("b", "a"))
    with pytest.raises(InputError, match="the order of the names was not declared"):
        found.ids(rows(1), "eval.jsonl")


def test_numbers_that_are_no_positions_name_their_labels() -> None:
    found = resolve_labels(None, None, rows(-1, 1, 0.5))
    assert found.names == ("-1", "0.5", "1")
    assert found.ids(rows("1.0", -1.0), "a").tolist() == [2, 0]


@pytest.mark.parametrize("twin", ["a ", "\u200ba", "a\ufe0f", " a"])
def test_names_that_look_the_same_are_refused(twin: str) -> None:
    with pytest.raises(InputError, match="differ only in what cannot be seen"):
        resolve_labels(None, None, rows("a", "b", twin))
    assert name_problems(["1", "01"]) == ["the labels '1' and '01' are the same number"]
    assert name_problems(["caf\u00e9", "cafe\u0301"])
    assert name_problems(["May", "may", "a b", "ab"]) == []


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
    with pytest.raises(InputError) as caught:
        NAMES.ids(rows("positve", 3, -1, "neutral", 1.5), "a.csv")
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3", "5"]
    assert "did you mean 'positive'?" in lines[0]
    assert "add the label under data.labels" in lines[1]


def test_the_declared_order_wins() -> None:
    assert resolve_labels(["b", "a"], ["a", "b"], rows("a", "b")).names == ("b", "a")


def test_then_the_teachers_order_wins() -> None:
    labels = resolve_labels(None, ["b", "a"], rows("a", "b"))
    assert labels.names == ("b", "a")
    assert "teacher" in labels.note


def test_the_labels_of_a_tagger_are_tags_as_they_are() -> None:
    speech = ["NOUN", "VERB", "ADJ"]  # a tag for every word, so that none is outside
    assert resolve_labels(None, speech, [], LabelKind.SPANS).names == tuple(speech)
    assert resolve_labels(sorted(speech), speech, [], LabelKind.SPANS).names == ("ADJ", "NOUN", "VERB")
    assert resolve_labels(["person"], None, [], LabelKind.SPANS).names == ("O", "B-person", "I-person")
    with pytest.raises(InputError, match="tags need 'O'"):
        resolve_labels(["B-person", "I-person"], speech, [], LabelKind.SPANS)


def test_placeholders_of_a_teacher_do_not_count() -> None:
    assert resolve_labels(None, ["LABEL_0", "LABEL_1"], rows("b", "a")).names == ("a", "b")
    assert placeholder_names(["LABEL_0", "LABEL_1"])
    assert not placeholder_names(["LABEL_1", "LABEL_0"])


@pytest.mark.parametrize("labels", [(0, 1, 2), ("0", "2", "1")])
def test_numbers_alone_are_called_label_i_and_said(labels: tuple[Label, ...]) -> None:
    found = resolve_labels(None, None, rows(*labels))
    assert found.names == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert "LABEL_i" in found.note


def test_one_label_is_too_few() -> None:
    with pytest.raises(InputError, match="at least 2 labels, found .'a'."):
        resolve_labels(None, None, rows("a", "a"))


def test_a_label_may_not_occur_twice() -> None:
    with pytest.raises(InputError, match="occurs twice"):
        resolve_labels(["a", "b", "a"], None, [])


def test_numbers_that_are_no_labels_are_refused() -> None:
    with pytest.raises(InputError, match="data.labels"):
        resolve_labels(None, None, rows(17, 1_000_000_000_000))


def test_equal_orders_need_no_permutation() -> None:
    assert NAMES.permutation_from(Labels(NAMES.names), "teacher.model") is None


@given(st.permutations(NAMES.names))
def test_a_permutation_reorders_the_models_outputs(order: list[str]) -> None:
    logits = np.array([[10.0 * NAMES.names.index(n) for n in order]])
    permutation = NAMES.permutation_from(Labels(tuple(order)), "teacher.model")
    ours = logits if permutation is None else logits[:, permutation]
    assert ours.tolist() == [[0.0, 10.0, 20.0]]


def test_different_sets_are_refused_naming_both_sides() -> None:
    with pytest.raises(InputError, match=r"only in the data \['neutral'\], only in the model \['mixed'\]"):
        NAMES.permutation_from(Labels(("negative", "mixed", "positive")), "teacher.model")


def test_id2label_is_the_order() -> None:
    assert NAMES.id2label == {0: "negative", 1: "neutral", 2: "positive"}
    assert len(NAMES) == 3
