"""What people and programs see of each answer."""

from __future__ import annotations

import json
from typing import Any

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
UNSURE, SURE = (Prediction("good", SCORES["good"], SCORES, False, unknown) for unknown in (True, False))
SPAN = FoundSpan(4, 7, "per", "Ada", 0.98765432)
GUESSES = (Guess("##ing", "ing", 0.5), Guess("film", "film", 0.25), Guess("day", "day", 0.1))
FILLED = Filled((GUESSES, GUESSES), False)
EMBEDDING = Embedding(np.linspace(0, 1, 8, dtype=np.float32))
GOOD = {"label": "good", "score": 0.712346}
BOTH = {"good": 0.712346, "so so": 0.087654}
SHOWN = {"start": 4, "end": 7, "label": "per", "text": "Ada", "score": 0.987654}
FIRST_GUESS, SECOND_GUESS = ({"token": g.token, "text": g.text, "score": g.score} for g in GUESSES[:2])


@pytest.mark.parametrize(
    ("answer", "top", "fields", "line"),
    [
        (PREDICTION, 1, GOOD, "good\t0.7123"),
        (PREDICTION, 2, GOOD | {"top": [GOOD, {"label": "bad", "score": 0.2}]}, "good\t0.7123\tbad\t0.2000"),
        # without a threshold programs that read answers see no new field
        (UNSURE, 1, GOOD | {"unknown": True}, "(unknown)\tgood\t0.7123"),
        (SURE, 1, GOOD | {"unknown": False}, "good\t0.7123"),
        (Labelling(("good",), SCORES, False), 1, {"labels": ["good"], "scores": {"good": 0.712346}}, "good\t0.7123"),
        (Labelling((), SCORES, False), 1, {"labels": [], "scores": {"good": 0.712346}}, "(none)"),
        # given labels are shown, however small
        (Labelling(("so so",), SCORES, False), 1, {"labels": ["so so"], "scores": BOTH}, "so so\t0.0877"),
        (Value(2.00000049, False), 1, {"value": 2.0}, "2.0000"),
        (Spans((SPAN,), True), 1, {"spans": [SHOWN]}, "per [4:7] Ada"),
        (Spans((), False), 1, {"spans": []}, "(none)"),
        (Excerpt("Ada", 4, 7, 0.5), 1, {"answer": "Ada", "start": 4, "end": 7, "score": 0.5}, "Ada\t[4:7]\t0.5000"),
        (Excerpt("", 0, 0, 0.25), 1, {"answer": "", "start": 0, "end": 0, "score": 0.25}, "(no answer)\t[0:0]\t0.2500"),
        (FILLED, 1, {"masks": [[FIRST_GUESS]] * 2}, "ing 0.5000 | ing 0.5000"),
        (FILLED, 2, {"masks": [[FIRST_GUESS, SECOND_GUESS]] * 2}, " | ".join(["ing 0.5000 film 0.2500"] * 2)),
        (Filled((), False), 1, {"masks": []}, "(no mask in the text)"),
    ],
)
def test_fields_and_line_of_every_answer(answer: Answer, top: int, fields: dict[str, Any], line: str) -> None:
    assert answer.fields(top) == fields
    assert json.loads(json.dumps(answer.fields(99))) == answer.fields(99)
    assert answer.line(top) == line
    assert isinstance(answer.truncated, bool)


def test_vectors_and_more_alternatives_than_there_are() -> None:
    assert EMBEDDING.fields()["embedding"] == pytest.approx(np.linspace(0, 1, 8).tolist(), abs=1e-6)
    assert json.loads(json.dumps(EMBEDDING.fields())) == EMBEDDING.fields()
    assert EMBEDDING.line() == "[0.0000 0.1429 0.2857 0.4286 0.5714 0.7143 ... 8 numbers]"
    assert len(PREDICTION.fields(99)["top"]) == 3
    assert list(Labelling(("good",), SCORES, False).fields(2)["scores"]) == ["good", "bad"]
    assert Spans((SPAN, SPAN), False).line() == "per [4:7] Ada; per [4:7] Ada"
