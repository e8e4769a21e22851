from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.examples import Example, Label
from pocketbert.core.data.labels import Labels, placeholder_names, resolve_labels
from pocketbert.core.errors import InputError

NAMES = Labels(("negative", "neutral", "positive"))


def rows(*labels: Label) -> list[Example]:
    return [Example(f"text {i}", None, label, i) for i, label in enumerate(labels, 1)]


def test_names_numbers_and_numbers_as_text_become_ids() -> None:
    assert NAMES.ids(rows("positive", "negative", 1, "2", "0"), "a.csv").tolist() == [2, 0, 1, 2, 0]


def test_labels_that_are_numerals_are_names_first() -> None:
    stars = Labels(("5", "1"))
    assert stars.ids(rows("5", "1", 0, 1), "a.csv").tolist() == [0, 1, 0, 1]


def test_a_label_outside_the_set_is_refused_with_its_row() -> None:
    with pytest.raises(InputError) as caught:
        NAMES.ids(rows("positve", 3, -1, "neutral", 1.0), "a.csv")
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
