"""What people and programs see of each answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pocketbert.core.predict.answers import (
    Answer,
    Embedding,
    Excerpt,
    Filled,
    FoundSpan,
    Guess,
    Labelling,
    Prediction,
    Spans,
    Value,
)

SCORES = {"bad": 0.2, "good": 0.7123456789, "so so": 0.0876543211}
PREDICTION = Prediction("good", SCORES["good"], SCORES, False)
LABELLING = Labelling(("good",), SCORES, False)
SPAN = FoundSpan(4, 7, "per", "Ada", 0.98765432)
GUESSES = (Guess("##ing", "ing", 0.5), Guess("film", "film", 0.25), Guess("day", "day", 0.1))
EVERY: list[Answer] = [
    PREDICTION,
    LABELLING,
    Value(2.5, False),
    Spans((SPAN,), True),
    Excerpt("Ada", 4, 7, 0.5),
    Filled((GUESSES, GUESSES), False),
    Embedding(np.linspace(0, 1, 8, dtype=np.float32)),
]


@pytest.mark.parametrize("answer", EVERY, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("top", [1, 2, 99])
def test_fields_are_plain_json_and_a_line_is_one_line(answer: Answer, top: int) -> None:
    assert json.loads(json.dumps(answer.fields(top))) == answer.fields(top)
    assert answer.line(top)
    assert "\n" not in answer.line(top)
    assert isinstance(answer.truncated, bool)


def test_one_label_and_its_alternatives() -> None:
    assert PREDICTION.fields() == {"label": "good", "score": 0.712346}
    assert PREDICTION.fields(2)["top"] == [
        {"label": "good", "score": 0.712346},
        {"label": "bad", "score": 0.2},
    ]
    assert len(PREDICTION.fields(99)["top"]) == 3
    assert PREDICTION.line() == "good\t0.7123"
    assert PREDICTION.line(2) == "good\t0.7123\tbad\t0.2000"


def test_an_unknown_answer_keeps_its_label_and_is_marked() -> None:
    unsure, sure = (Prediction("good", SCORES["good"], SCORES, False, unknown) for unknown in (True, False))
    assert unsure.fields() == {"label": "good", "score": 0.712346, "unknown": True}
    assert sure.fields() == {"label": "good", "score": 0.712346, "unknown": False}
    assert unsure.line() == "(unknown)\tgood\t0.7123"
    assert unsure.line(2) == "(unknown)\tgood\t0.7123\tbad\t0.2000"
    assert sure.line() == PREDICTION.line()
    assert "unknown" not in PREDICTION.fields()  # no threshold: programs that read answers see no new field


def test_several_labels() -> None:
    assert LABELLING.fields() == {"labels": ["good"], "scores": {"good": 0.712346}}
    assert list(LABELLING.fields(2)["scores"]) == ["good", "bad"]
    assert LABELLING.line() == "good\t0.7123"
    none = Labelling((), SCORES, False)
    assert none.fields() == {"labels": [], "scores": {"good": 0.712346}}
    assert none.line() == "(none)"
    unsure = Labelling(("so so",), SCORES, False)
    assert set(unsure.fields()["scores"]) == {"so so", "good"}, "given labels are shown, however small"


def test_a_number() -> None:
    assert Value(2.00000049, False).fields() == {"value": 2.0}
    assert Value(-0.5, False).line() == "-0.5000"


def test_spans() -> None:
    assert EVERY[3].fields() == {"spans": [{"start": 4, "end": 7, "label": "per", "text": "Ada", "score": 0.987654}]}
    assert Spans((SPAN, SPAN), False).line() == "per [4:7] Ada; per [4:7] Ada"
    assert Spans((), False).line() == "(none)"
    assert Spans((), False).fields() == {"spans": []}


def test_an_excerpt() -> None:
    assert EVERY[4].fields() == {"answer": "Ada", "start": 4, "end": 7, "score": 0.5}
    assert EVERY[4].line() == "Ada\t[4:7]\t0.5000"
    assert Excerpt("", 0, 0, 0.25).line() == "(no answer)\t[0:0]\t0.2500"


def test_guesses_for_masked_places() -> None:
    filled = EVERY[5]
    assert filled.fields() == {"masks": [[{"token": "##ing", "text": "ing", "score": 0.5}]] * 2}
    assert [len(place) for place in filled.fields(2)["masks"]] == [2, 2]
    assert filled.line(2) == "ing 0.5000 film 0.2500 | ing 0.5000 film 0.2500"
    assert Filled((), False).line() == "(no mask in the text)"


def test_a_vector() -> None:
    vector = EVERY[6]
    assert vector.fields()["embedding"] == pytest.approx(np.linspace(0, 1, 8).tolist(), abs=1e-6)
    assert vector.line() == "[0.0000 0.1429 0.2857 0.4286 0.5714 0.7143 ... 8 numbers]"
