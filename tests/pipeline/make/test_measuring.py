"""The benchmark times what becomes of the outputs: the steps that `predict` takes."""

from __future__ import annotations

from pathlib import Path

import pocketbert
from pocketbert.benchmarks.text_steps import PostProcessing
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.predictor import feed
from pocketbert.runtime.engines import EngineFile


def test_what_is_timed_makes_the_answers_of_predict(finished: Path) -> None:
    phone = finished / "phone"
    model, artefacts = pocketbert.load(phone), read_artefacts(phone)
    record = artefacts.default_model()
    how = PostProcessing(artefacts.head(), record.temperature)
    text = "turn off the lights"
    rows = how.head.prepare([Example(text, None, None, 1)], model.tokenizer, "texts", labelled=False)
    predictor = EngineFile(phone / record.path, record.format).open(1)
    inputs = [feed(predictor, model.tokenizer, [row]) for row in rows.encoded]
    assert how.answers([predictor.run(given) for given in inputs], inputs, rows, False) == model.predict([text])
