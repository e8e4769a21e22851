"""The benchmark of an artefact folder times what becomes of the outputs; that of a run is in gates/test_export.py."""

from __future__ import annotations

from pathlib import Path

import pocketbert
from pocketbert import api
from pocketbert.benchmarks.measurement import BenchmarkOptions
from pocketbert.benchmarks.text_steps import PostProcessing
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.predictor import feed
from pocketbert.runtime.engines import EngineFile


def test_a_folders_benchmark_has_the_post_processing_of_its_task(finished: Path) -> None:
    options = BenchmarkOptions(runs=10, repeats=2, label="", profile=False, budget_s=1)
    made = api.benchmark([finished / "phone"], options)
    (told,) = made.post_processing
    assert told.variants == [v.name for v in made.variants]


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
