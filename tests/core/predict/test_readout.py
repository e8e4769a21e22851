from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Arrays,
    Batching,
    answer_outputs,
    has_token_outputs,
    join_texts,
    run_rows,
    split_by_text,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName

TEXT, MULTI = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.MULTI_LABEL]
TOKENS, QUESTIONS = TASKS[TaskName.TOKEN_CLASSIFICATION], TASKS[TaskName.QUESTION_ANSWERING]
FILL, EMBED = TASKS[TaskName.FILL_MASK], TASKS[TaskName.FEATURE_EXTRACTION]
MASK = 4
IDS = np.array([[2, 9, 4, 8, 3, 0], [2, 7, 3, 0, 0, 0], [2, 4, 6, 5, 4, 3]])
REAL = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])


def inputs(side: str = "right") -> dict[str, NDArray[np.int64]]:
    if side == "right":
        return {"input_ids": IDS, "attention_mask": REAL}
    rolled = [np.roll(IDS[i], 6 - REAL[i].sum()) for i in range(3)]
    return {"input_ids": np.stack(rolled), "attention_mask": REAL[:, ::-1].copy()}


def numbered(*shape: int) -> NDArray[np.float32]:
    """Every number tells its place."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_of_padding_are_left_out(side: str) -> None:
    values = numbered(3, 6, 4)
    found = split_by_text({"logits": values}, inputs(side), ("logits",), TOKENS, None)
    assert [m.shape for m in found] == [(5, 4), (3, 4), (6, 4)]
    for i, count in enumerate((5, 3, 6)):
        wanted = values[i, :count] if side == "right" else values[i, 6 - count :]
        np.testing.assert_array_equal(found[i], wanted)


@pytest.mark.parametrize("side", ["right", "left"])
def test_of_fill_mask_only_masked_tokens_are_read_and_all_where_there_are_none(side: str) -> None:
    values = numbered(3, 6, 7)
    given_ = inputs(side)
    found = split_by_text({"logits": values}, given_, ("logits",), FILL, MASK)
    np.testing.assert_array_equal(found[0], values[0, [2 + (side == "left")]])
    np.testing.assert_array_equal(found[2], values[2, [1, 4]])
    assert found[1].shape == (3, 7)
    assert [m.shape[0] for m in split_by_text({"logits": values}, given_, ("logits",), FILL, None)] == [5, 3, 6]
    assert [m.shape[0] for m in split_by_text({"logits": values}, given_, ("logits",), TOKENS, MASK)] == [5, 3, 6]


def test_a_mask_in_the_padding_is_no_masked_token() -> None:
    ids = np.array([[2, 9, 3, MASK, MASK]])
    given_ = {"input_ids": ids, "attention_mask": np.array([[1, 1, 1, 0, 0]])}
    [found] = split_by_text({"logits": numbered(1, 5, 2)}, given_, ("logits",), FILL, MASK)
    assert found.shape == (3, 2)


@pytest.mark.parametrize(("task", "name"), [(TEXT, "logits"), (MULTI, PROBABILITIES), (EMBED, "sentence_embedding")])
def test_outputs_of_texts_are_one_row_each(task: Task, name: str) -> None:
    values = numbered(3, 5)
    found = split_by_text({name: values}, inputs(), (name,), task, None)
    assert [m.tolist() for m in found] == [[row] for row in values.tolist()]


def test_as_many_labels_as_tokens_are_still_labels() -> None:
    assert [m.shape for m in split_by_text({"logits": numbered(3, 6)}, inputs(), ("logits",), TEXT, None)] == [
        (1, 6)
    ] * 3


def test_start_and_end_stand_side_by_side() -> None:
    start, end = numbered(3, 6), 100 + numbered(3, 6)
    found = split_by_text({"end_logits": end, "start_logits": start}, inputs(), QUESTIONS.answer, QUESTIONS, None)
    assert [m.shape for m in found] == [(5, 2), (3, 2), (6, 2)]
    assert found[1].tolist() == [[6, 106], [7, 107], [8, 108]]
    [alone, *_] = split_by_text({"end_logits": end}, inputs(), ("end_logits",), QUESTIONS, None)
    assert alone.tolist() == [[100], [101], [102], [103], [104]]


def test_token_states_are_read_at_real_tokens() -> None:
    found = split_by_text({"last_hidden_state": numbered(3, 6, 8)}, inputs(), ("last_hidden_state",), EMBED, None)
    assert [m.shape for m in found] == [(5, 8), (3, 8), (6, 8)]


@pytest.mark.parametrize(
    ("task", "outputs"),
    [
        (TOKENS, {"logits": numbered(3, 4)}),
        (TOKENS, {"logits": numbered(3, 5, 4)}),
        (TOKENS, {"logits": numbered(3, 7, 4)}),
        (TOKENS, {"logits": numbered(2, 6, 4)}),
        (FILL, {"logits": numbered(3, 5, 9)}),
        (QUESTIONS, {"start_logits": numbered(3, 5), "end_logits": numbered(3, 5)}),
        (QUESTIONS, {"start_logits": numbered(3, 1), "end_logits": numbered(3, 1)}),
    ],
)
def test_outputs_without_a_row_for_each_token_are_no_answers(task: Task, outputs: Mapping[str, Any]) -> None:
    found = split_by_text(outputs, inputs(), task.answer, task, MASK)
    assert len(found) == 3
    assert all(np.isnan(m).all() and m.size for m in found)


class Counting:
    """Answers each token with its id, its place among the real ones, and the length of the batch."""

    engine, engine_version = "counting", "1"
    inputs, outputs, lengths = ("input_ids", "attention_mask"), ("logits",), ()

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        self.shapes.append(ids.shape)
        return {"logits": np.stack([ids, mask.cumsum(-1) * mask, mask * ids.shape[1]], -1).astype(np.float32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    made: Path = tmp_path_factory.mktemp("readout")
    make_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder, 32)


@given(
    st.lists(st.integers(0, 20), max_size=12),
    st.integers(1, 5),
    st.floats(0, 0.9),
    st.sampled_from(["right", "left"]),
)
def test_every_row_gets_its_own_tokens_whatever_is_batched(
    folder: Path, words: list[int], rows: int, slack: float, side: str
) -> None:
    tokenizer = TextTokenizer(folder, 32, padding_side=side)
    encoded = tokenizer.encode(["good " * n for n in words])
    engine = Counting()
    found = run_rows(engine, tokenizer, encoded, TOKENS, Batching(rows, slack))
    assert [m[:, 0].tolist() for m in found] == [e.ids.tolist() for e in encoded]
    assert all(m[:, 1].tolist() == list(range(1, len(e) + 1)) for m, e in zip(found, encoded, strict=True))
    assert all(s[0] <= rows for s in engine.shapes)
    alone = run_rows(engine, tokenizer, encoded, TOKENS)
    assert all((m[:, 2] == len(e)).all() for m, e in zip(alone, encoded, strict=True)), "one unpadded row at a time"
    assert join_texts(found).shape[0] == sum(map(len, encoded))


def test_what_is_kept_is_made_small_at_once(tokenizer: TextTokenizer) -> None:
    encoded = tokenizer.encode(["good day", "bad", "good"])
    seen: list[int] = []

    def first(row: int, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(row)
        return matrix[:1, :2] + 100 * row

    found = run_rows(Counting(), tokenizer, encoded, TOKENS, Batching(2, 0.5), reduce=first)
    assert sorted(seen) == [0, 1, 2]
    cls = float(encoded[0].ids[0])
    assert [m.tolist() for m in found] == [[[cls + 100 * i, 1 + 100 * i]] for i in range(3)]


def test_a_file_with_the_score_function_inside_answers_probabilities() -> None:
    inside = Counting()
    assert answer_outputs(TEXT, inside) == ("logits",)
    inside.outputs = (PROBABILITIES,)  # type: ignore[misc, assignment]
    assert answer_outputs(TEXT, inside) == (PROBABILITIES,)
    assert answer_outputs(QUESTIONS, Counting()) == ("start_logits", "end_logits")


def test_tasks_with_a_row_per_token() -> None:
    assert {t.name for t in TASKS.values() if has_token_outputs(t)} == {
        TaskName.TOKEN_CLASSIFICATION,
        TaskName.QUESTION_ANSWERING,
        TaskName.FILL_MASK,
    }
    assert join_texts([]).shape == (0, 0)
