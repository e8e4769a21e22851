"""Running rows through a predictor: batches, lengths, what is read of the outputs, scores and vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Arrays,
    Batching,
    Predictor,
    ScoredPredictor,
    TorchPredictor,
    answer_outputs,
    feed,
    has_token_outputs,
    join_texts,
    pool_embeddings,
    run_rows,
    smallest_fitting_length,
    split_by_text,
)
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, VectorLayer
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, ScoreFunction, Task, TaskName

TEXT, MULTI = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.MULTI_LABEL]
TOKENS, QUESTIONS = TASKS[TaskName.TOKEN_CLASSIFICATION], TASKS[TaskName.QUESTION_ANSWERING]
FILL, EMBED = TASKS[TaskName.FILL_MASK], TASKS[TaskName.FEATURE_EXTRACTION]
MASK = 4
IDS = np.array([[2, 9, 4, 8, 3, 0], [2, 7, 3, 0, 0, 0], [2, 4, 6, 5, 4, 3]])
REAL = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
COUNTS = [5, 3, 6]


class Counting:
    """Answers each token with its id, its place among the real ones, and the length of the batch."""

    engine, engine_version = "counting", "1"
    inputs, outputs = ("input_ids", "attention_mask"), ("logits",)

    def __init__(self, lengths: tuple[int, ...] = ()) -> None:
        self.lengths = lengths
        self.shapes: list[tuple[int, int]] = []
        self.padded: list[int] = []

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        ids, mask = np.asarray(inputs["input_ids"]), np.asarray(inputs["attention_mask"])
        self.shapes.append(ids.shape)
        self.padded.append(int((mask == 0).sum()))
        return {"logits": np.stack([ids, mask.cumsum(-1) * mask, mask * ids.shape[1]], -1).astype(np.float32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    made: Path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(made)
    return made


# Batches and lengths


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 20), max_size=12), st.integers(1, 5), st.floats(0, 0.9), st.sampled_from(["right", "left"])
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
    assert join_texts(found).shape[0] == sum(map(len, encoded))
    for (count, width), padded in zip(engine.shapes, engine.padded, strict=True):
        assert count <= rows
        assert padded <= slack * width * count + 1e-9
    kept = run_rows(engine, tokenizer, encoded, TOKENS, reduce=lambda row, m: m[:1, :2] + 100 * row)
    assert [m.tolist() for m in kept] == [[[e.ids[0] + 100 * i, 1 + 100 * i]] for i, e in enumerate(encoded)]
    alone = run_rows(engine, tokenizer, encoded, TOKENS)
    assert all((m[:, 2] == len(e)).all() for m, e in zip(alone, encoded, strict=True)), "one unpadded row at a time"


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_padded_to_what_the_predictor_takes(folder: Path, side: str) -> None:
    tokenizer = TextTokenizer(folder, 48, padding_side=side)
    rows = tokenizer.encode(["good day", "good " * 11])
    free, fixed = Counting(), Counting((8, 16, 48))
    assert feed(free, tokenizer, rows)["input_ids"].shape == (2, 13)
    assert feed(free, tokenizer, rows, 20)["input_ids"].shape == (2, 20)
    assert feed(fixed, tokenizer, rows[:1])["input_ids"].shape == (1, 8)
    assert feed(fixed, tokenizer, rows[:1], 9)["input_ids"].shape == (1, 16)
    batch = feed(fixed, tokenizer, rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert {name: value.shape for name, value in batch.items()} == dict.fromkeys(names, (2, 16))
    ours = batch["attention_mask"] == 1
    assert [batch["input_ids"][i][ours[i]].tolist() for i in range(2)] == [r.ids.tolist() for r in rows]
    assert ours[:, 0 if side == "right" else -1].all()
    assert smallest_fitting_length(fixed.lengths, 16) == 16
    with pytest.raises(InputError, match=r"49 tokens; the file takes 8, 16, 48\..*Cut the text to the longest"):
        feed(fixed, tokenizer, rows, 49)


# What is read of the outputs


def make_inputs(side: str = "right") -> dict[str, NDArray[np.int64]]:
    if side == "right":
        return {"input_ids": IDS, "attention_mask": REAL}
    rolled = [np.roll(IDS[i], 6 - COUNTS[i]) for i in range(3)]
    return {"input_ids": np.stack(rolled), "attention_mask": REAL[:, ::-1].copy()}


def numbered(*shape: int) -> NDArray[np.float32]:
    """Every number tells its place."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_of_padding_are_left_out(side: str) -> None:
    values = numbered(3, 6, 4)
    found = split_by_text({"logits": values}, make_inputs(side), ("logits",), TOKENS, MASK)
    for i, count in enumerate(COUNTS):
        wanted = values[i, :count] if side == "right" else values[i, 6 - count :]
        np.testing.assert_array_equal(found[i], wanted)
    found = split_by_text({"last_hidden_state": values}, make_inputs(side), ("last_hidden_state",), EMBED, None)
    assert [m.shape for m in found] == [(n, 4) for n in COUNTS]


@pytest.mark.parametrize("side", ["right", "left"])
def test_of_fill_mask_only_masked_tokens_are_read_and_all_where_there_are_none(side: str) -> None:
    values = numbered(3, 6, 7)
    inputs = make_inputs(side)
    found = split_by_text({"logits": values}, inputs, ("logits",), FILL, MASK)
    np.testing.assert_array_equal(found[0], values[0, [2 + (side == "left")]])
    np.testing.assert_array_equal(found[2], values[2, [1, 4]])
    assert found[1].shape == (3, 7)
    assert [m.shape[0] for m in split_by_text({"logits": values}, inputs, ("logits",), FILL, None)] == COUNTS


def test_a_mask_in_the_padding_is_no_masked_token() -> None:
    inputs = {"input_ids": np.array([[2, 9, 3, MASK, MASK]]), "attention_mask": np.array([[1, 1, 1, 0, 0]])}
    [found] = split_by_text({"logits": numbered(1, 5, 2)}, inputs, ("logits",), FILL, MASK)
    assert found.shape == (3, 2)


@pytest.mark.parametrize(("task", "name"), [(TEXT, "logits"), (MULTI, PROBABILITIES), (EMBED, "sentence_embedding")])
@pytest.mark.parametrize("width", [5, 6])  # as many labels as tokens are still labels
def test_outputs_of_texts_are_one_row_each(task: Task, name: str, width: int) -> None:
    values = numbered(3, width)
    found = split_by_text({name: values}, make_inputs(), (name,), task, None)
    assert [m.tolist() for m in found] == [[row] for row in values.tolist()]


def test_start_and_end_stand_side_by_side() -> None:
    start, end = numbered(3, 6), 100 + numbered(3, 6)
    found = split_by_text({"end_logits": end, "start_logits": start}, make_inputs(), QUESTIONS.answer, QUESTIONS, None)
    assert [m.shape for m in found] == [(n, 2) for n in COUNTS]
    assert found[1].tolist() == [[6, 106], [7, 107], [8, 108]]
    [alone, *_] = split_by_text({"end_logits": end}, make_inputs(), ("end_logits",), QUESTIONS, None)
    assert alone.tolist() == [[100], [101], [102], [103], [104]]


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
    found = split_by_text(outputs, make_inputs(), task.answer, task, MASK)
    assert len(found) == 3
    assert all(np.isnan(m).all() and m.size for m in found)


def test_the_outputs_that_answer_are_those_of_the_task_or_the_probabilities_inside() -> None:
    inside = Counting()
    assert answer_outputs(TEXT, inside) == ("logits",)
    inside.outputs = (PROBABILITIES,)  # type: ignore[misc, assignment]
    assert answer_outputs(TEXT, inside) == (PROBABILITIES,)
    assert answer_outputs(QUESTIONS, Counting()) == ("start_logits", "end_logits")
    assert {t for t in TASKS.values() if has_token_outputs(t)} == {TOKENS, QUESTIONS, FILL}
    assert join_texts([]).shape == (0, 0)


# Scores and vectors

LOGITS = np.array([[2.0, 0.0, -1.0], [-30.0, 40.0, 0.0]], np.float32)


class Fixed(Counting):
    """Answers the same logits to everything."""

    outputs = ("logits", "more")  # type: ignore[assignment]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        super().run(inputs)
        return {"more": np.zeros(2), "logits": LOGITS}


@pytest.mark.parametrize(
    ("score", "exact"),
    [
        (ScoreFunction.SOFTMAX, np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)),
        (ScoreFunction.SIGMOID, 1 / (1 + np.exp(-LOGITS))),
        (ScoreFunction.NONE, LOGITS),
    ],
)
def test_the_first_output_becomes_scores(score: ScoreFunction, exact: NDArray[np.float32]) -> None:
    inner = Fixed((4, 8))
    predictor: Predictor = ScoredPredictor(inner, score)
    found = predictor.run({"input_ids": np.ones((2, 4), np.int64), "attention_mask": np.ones((2, 4), np.int64)})
    assert list(found) == [PROBABILITIES] == list(predictor.outputs)
    np.testing.assert_allclose(found[PROBABILITIES], exact, atol=1e-6)
    assert inner.shapes == [(2, 4)]
    assert (predictor.inputs, predictor.lengths, predictor.engine) == (inner.inputs, (4, 8), "counting")


@pytest.mark.parametrize("family", ["bert", "xlnet", "distilbert", "longformer"])
def test_a_model_runs_in_eval_mode_with_the_inputs_that_it_takes(family: str, open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny(family, 2)
    predictor = TorchPredictor(model.train(), TEXT, folder.family.inputs)
    batch = tokenizer.pad(tokenizer.encode([*SENTENCES[:3], ("good", "bad")]))
    assert "token_type_ids" in batch
    first, second = predictor.run(batch), predictor.run(batch)
    np.testing.assert_array_equal(first["logits"], second["logits"])
    assert (first["logits"].shape, first["logits"].dtype) == ((4, 3), np.float32)
    assert not model.training


@pytest.mark.parametrize("pooling", [Pooling(k, n) for k in PoolingKind for n in (True, False)], ids=str)
def test_embeddings_follow_their_definition(
    pooling: Pooling, make_classifier: Callable[..., Any], open_tiny: Callable[..., Any]
) -> None:
    _, folder, tokenizer = open_tiny("bert", 2)
    model = make_classifier("bert", 2, ("a", "b"), auto_class=EMBED.auto_class)
    predictor = TorchPredictor(model, EMBED, folder.family.inputs, pooling)
    rows = tokenizer.encode(list(SENTENCES[:4]))
    together = predictor.run(tokenizer.pad(rows))
    assert list(together) == list(EMBED.outputs) == list(predictor.outputs)
    for i, row in enumerate(rows):
        alone = predictor.run(tokenizer.pad([row]))
        states = alone["last_hidden_state"][0]
        weights = np.arange(1, len(states) + 1)[:, None] / (len(states) * (len(states) + 1) / 2)
        vector = {
            PoolingKind.CLS: states[0],
            PoolingKind.MEAN: states.mean(0),
            PoolingKind.MAX: states.max(0),
            PoolingKind.MEAN_SQRT_LEN: states.sum(0) / len(states) ** 0.5,
            PoolingKind.WEIGHTED_MEAN: (states * weights).sum(0),
            PoolingKind.LAST_TOKEN: states[-1],
        }[pooling.kind]
        vector = vector / np.linalg.norm(vector) if pooling.normalize else vector
        np.testing.assert_allclose(alone["sentence_embedding"][0], vector, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(together["sentence_embedding"][i], vector, rtol=1e-4, atol=1e-5)
    assert together["sentence_embedding"].dtype == np.float32


_WEIGHT = np.ones((5, 4), np.float32)


@pytest.mark.parametrize("kind", PoolingKind)
def test_rows_without_tokens_give_zeros_and_no_rows_none(kind: PoolingKind) -> None:
    states, dense = np.ones((2, 3, 4), np.float32), VectorLayer("Dense", 5, "GELU", weights={"linear.weight": _WEIGHT})
    mask = np.array([[0, 0, 0], [1, 1, 0]])
    got = pool_embeddings(states, mask, Pooling(kind, False))
    assert not got[0].any()
    assert got[1].all()
    assert not pool_embeddings(states * 0, mask, Pooling(kind, True)).any(), "a vector of zeros stays one"
    for pooling, width in ((Pooling(kind, True, (PoolingKind.CLS,)), 8), (Pooling(kind, True, layers=(dense,)), 5)):
        assert pool_embeddings(states[:0], mask[:0], pooling).shape == (0, width)


def test_a_model_that_remembers_computes_each_batch_once_and_shares_no_array(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    remembering = TorchPredictor(model, TEXT, folder.family.inputs, remember=True)
    batch, other = (tokenizer.pad(tokenizer.encode(texts)) for texts in (["a good film", "not bad"], ["not bad"]))
    first = remembering.run(batch)["logits"]
    remembering.run(batch)["logits"][:] = 0
    np.testing.assert_array_equal(remembering.run(batch)["logits"], first)
    assert len(calls) == 1
    remembering.run(other)
    assert len(calls) == 2
    np.testing.assert_array_equal(TorchPredictor(model, TEXT, folder.family.inputs).run(batch)["logits"], first)


def test_an_engine_whose_rows_are_computed_apart_gets_all_rows_of_a_length_together(folder: Path) -> None:
    class Apart(Counting):
        computes_rows_apart = True

    together, alone = Apart(), Counting()
    tokenizer = TextTokenizer(folder, 48)
    rows = tokenizer.encode(["good " * n for n in (5, 3, 5)])
    both = [run_rows(one, tokenizer, rows, TOKENS) for one in (together, alone)]
    assert sorted(together.shapes) == [(1, 5), (2, 7)]
    assert all(np.array_equal(a, b) for a, b in zip(*both, strict=True))
