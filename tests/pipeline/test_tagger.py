"""A model of parts of speech has a tag for every word and no `O`: it is exported, scored and answers."""

from __future__ import annotations

import json
from pathlib import Path

from pocketbert import ExportOptions, api, load
from pocketbert.core.predict.answers import Spans
from pocketbert.core.types import Status
from support.tiny import tiny_classifier, write_own_tokenizer

TEXT = "set an alarm for six"


def test_parts_of_speech(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    told = write_own_tokenizer(tmp_path / "model", "bert")
    model = tiny_classifier("bert", 1, ("NOUN", "VERB", "ADJ"), 1, "AutoModelForTokenClassification", **told)
    model.save_pretrained(tmp_path / "model")
    options = ExportOptions(task="token-classification", formats=["onnx"], max_length=32)
    phone = load(api.export(str(tmp_path / "model"), tmp_path / "phone", options))
    (answer,) = phone.predict([TEXT])
    assert isinstance(answer, Spans)
    assert {span.label for span in answer.spans} <= {"NOUN", "VERB", "ADJ"}
    words = "".join(TEXT[span.start : span.end] for span in answer.spans).replace(" ", "")
    assert words == TEXT.replace(" ", ""), "every word has a tag"
    spans = [{"start": s.start, "end": s.end, "label": s.label} for s in answer.spans]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": TEXT, "label": spans}) + "\n" for _ in range(8)))
    found = api.verify(tmp_path / "phone", data=tmp_path / "rows.jsonl", max_drop=1.0)
    assert found.status is Status.PASSED
    assert {score["rows.jsonl"].value for score in found.scores.values()} == {1.0}
