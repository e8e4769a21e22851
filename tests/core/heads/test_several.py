"""Several heads on one encoder: labels, scores and answers of each are those of the head by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import make_head
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.answers import HeadAnswers, Labelling, Prediction, Spans, Value
from pocketbert.core.predict.examples import Example, HeadLabels
from pocketbert.core.predict.predictor import split_by_text, split_heads
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Level, TaskName, several_task, task_of
from support.head_rows import score_outputs

HEADS = {
    "intent": "text-classification",
    "topics": "multi-label",
    "mood": "regression",
    "slots": "token-classification",
}
OWN = {"intent": ("a", "b", "c"), "topics": ("x", "y"), "mood": (), "slots": ("O", "B-per", "I-per")}
LABELS = tuple(f"{head}: {name}" for head, names in OWN.items() for name in names or ("number",))
HEAD: Any = make_head(several_task(HEADS), Labels(LABELS))
ROWS = [
    ("Zoe met Bob", ("a", ("x",), 0.5, (Span(0, 3, "per"), Span(8, 11, "per")))),
    ("good day", ("b", (), 0.1, None)),
    ("bob", (None, ("x", "y"), 0.9, (Span(0, 3, "per"),))),
    ("met him today", ("c", ("y",), None, ())),
]


@pytest.fixture
def examples() -> list[Example]:
    return [Example(text, None, HeadLabels(labels), i) for i, (text, labels) in enumerate(ROWS, 1)]


def draw_outputs(prepared: Any) -> list[np.ndarray]:
    """Logits of all heads; those of heads on whole texts are the same at each token."""
    draw, outputs = np.random.default_rng(0), []
    for row in prepared.encoded:
        matrix = draw.normal(size=(len(row), len(LABELS))).astype(np.float32)
        matrix[:, :6] = matrix[0, :6]
        outputs.append(matrix)
    return outputs


def test_columns_and_outputs_follow_the_heads() -> None:
    task = HEAD.task
    columns = {h.name: (h.start, h.stop) for h in task.heads}
    assert columns == {"intent": (0, 3), "topics": (3, 5), "mood": (5, 6), "slots": (6, 9)}
    assert task.outputs == task.answer == ("intent_logits", "topics_logits", "mood_logits", "slots_logits")
    assert task.compared == tuple((name,) for name in task.outputs)
    texts = several_task({"a": "text-classification", "b": "regression"})
    assert [(t.level, t.auto_class, t.single_only) for t in (task, texts)] == [
        (Level.TOKEN, "AutoModelForTokenClassification", True),
        (Level.TEXT, "AutoModelForSequenceClassification", False),
    ]
    assert TaskName.SEVERAL not in TASKS
    assert several_task(dict(sorted(HEADS.items())), LABELS) == task, "labels decide the order of the heads"


def test_a_label_that_a_row_lacks_is_marked_and_trains_nothing(
    examples: list[Example], tokenizer: TextTokenizer
) -> None:
    prepared = HEAD.prepare(examples, tokenizer, "a.jsonl")
    targets = prepared.targets
    assert targets["intent.labels"].tolist() == [0, 1, 0, 2]
    assert targets["intent.labelled"].tolist() == [True, True, False, True]
    assert targets["topics.labels"].tolist() == [[1, 0], [0, 0], [1, 1], [0, 1]]
    assert "topics.labelled" not in targets, "each row has them"
    assert targets["mood.labels"][:3].tolist() == pytest.approx([0.5, 0.1, 0.9])
    assert targets["slots.labelled"].tolist() == [True, False, True, True]
    assert [len(own) for own in targets["slots.labels"]] == [len(row) for row in prepared.encoded]
    assert set(targets["slots.labels"][1].tolist()) == {IGNORED_LABEL, 0}, "words are marked for the teacher's outputs"
    assert [truth[0] for truth in prepared.truth] == [0, 1, None, 2]
    bare = HEAD.prepare(examples, tokenizer, "a.jsonl", labelled=False)
    assert [*bare.targets] == ["slots.labels"]
    assert not len(bare.truth)


def test_each_head_is_scored_as_by_itself_on_the_rows_with_its_label(
    examples: list[Example], tokenizer: TextTokenizer
) -> None:
    prepared = HEAD.prepare(examples, tokenizer, "a.jsonl")
    outputs = draw_outputs(prepared)
    score = score_outputs(HEAD, prepared, outputs)
    alone = {}
    for place, (name, task) in enumerate(HEADS.items()):
        own, columns = make_head(task_of(task), Labels(OWN[name])), HEAD.task.heads[place].columns
        rows = [replace(e, label=e.label.labels[place]) for e in examples]  # type: ignore[union-attr]
        numbers = [i for i, row in enumerate(rows) if row.label is not None]
        part = own.prepare([rows[i] for i in numbers], tokenizer, "a.jsonl")
        first = None if name == "slots" else 1
        alone[name] = score_outputs(own, part, [outputs[i][:first, columns] for i in numbers])
    assert score.heads == alone
    assert score.value == pytest.approx(np.mean([own.value for own in alone.values()]))
    assert score.others["slots.span_f1"] == alone["slots"].value
    assert (score.metric, score.rows) == ("mean_of_heads", 4)
    outputs[2][0, 8] = np.nan
    broken = score_outputs(HEAD, prepared, outputs)
    assert not broken.finite
    assert not broken.heads["slots"].finite
    assert broken.heads["intent"] == alone["intent"], "the other heads keep their score"


def test_a_head_of_which_no_row_has_a_label_is_named_and_in_no_mean(
    examples: list[Example], tokenizer: TextTokenizer
) -> None:
    prepared = HEAD.prepare(examples[2:3], tokenizer, "a.jsonl")
    score = score_outputs(HEAD, prepared, draw_outputs(prepared))
    assert {name: own.rows for name, own in score.heads.items()} == {"intent": 0, "topics": 1, "mood": 1, "slots": 1}
    assert score.value == pytest.approx(np.mean([own.value for own in score.heads.values() if own.rows]))
    assert not any(name.startswith("intent.") for name in score.others)


def test_the_answer_holds_that_of_each_head(examples: list[Example], tokenizer: TextTokenizer) -> None:
    prepared = HEAD.prepare(examples, tokenizer, "a.jsonl", labelled=False)
    outputs = draw_outputs(prepared)
    outputs[0][:, :6] = [0, 3, 0, 2, -2, 0.25]
    outputs[0][:, 6:] = [5, 0, 0]
    outputs[0][1, 6:] = [0, 5, 0]
    answer = HEAD.answers(outputs, prepared)[0]
    assert isinstance(answer, HeadAnswers)
    kinds = {name: type(own) for name, own in answer.answers.items()}
    assert kinds == {"intent": Prediction, "topics": Labelling, "mood": Value, "slots": Spans}
    fields = answer.fields()
    assert fields["intent"]["label"] == "b"
    assert fields["topics"]["labels"] == ["x"]
    assert fields["mood"] == {"value": 0.25}
    assert [span["text"] for span in fields["slots"]["spans"]] == ["Zoe"]
    assert answer.line().split("\t")[:4] == ["intent", "b", "0.9094", "topics"]
    assert not answer.truncated


def test_outputs_of_files_are_put_side_by_side_at_real_tokens() -> None:
    logits = np.arange(2 * 4 * 9, dtype=np.float32).reshape(2, 4, 9)
    outputs = split_heads(logits, HEAD.task)
    assert {name: value.shape for name, value in outputs.items()} == {
        "intent_logits": (2, 3),
        "topics_logits": (2, 2),
        "mood_logits": (2, 1),
        "slots_logits": (2, 4, 3),
    }
    inputs = {"attention_mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]]), "input_ids": np.ones((2, 4), np.int64)}
    whole = split_by_text(outputs, inputs, HEAD.task.outputs, HEAD.task, None)
    assert [m.shape for m in whole] == [(3, 9), (2, 9)]
    assert (whole[0][:, :6] == logits[0, 0, :6]).all(), "heads on texts are read at the first token"
    assert (whole[1][:, 6:] == logits[1, :2, 6:]).all()
    intent = split_by_text(outputs, inputs, ("intent_logits",), HEAD.task, None)
    assert [m.shape for m in intent] == [(1, 3), (1, 3)]


@pytest.mark.parametrize("names", [("start", "end"), ("end", "start"), ("begin", "end")])
def test_heads_on_texts_may_be_called_as_the_outputs_of_question_answering(names: tuple[str, str]) -> None:
    labels = [f"{name}: {label}" for name in names for label in "ab"]
    task = several_task(dict.fromkeys(names, "text-classification"), labels)
    logits = np.arange(8, dtype=np.float32).reshape(2, 4)
    inputs = {"attention_mask": np.ones((2, 5), np.int64), "input_ids": np.ones((2, 5), np.int64)}
    matrices = split_by_text(split_heads(logits, task), inputs, task.answer, task, None)
    assert np.array_equal(matrices, logits[:, None]), "a row of all columns per text"
    alone = split_by_text(split_heads(logits, task), inputs, task.compared[0], task, None)
    assert np.array_equal(alone, logits[:, None, :2])
