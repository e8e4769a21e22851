from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.predict.answers import Prediction
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.runtime import model as runtime_model
from pocketbert.runtime.model import load
from pocketbert.runtime.onnx import OnnxPredictor


def change(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "artifacts.json").read_text())
    (folder / "artifacts.json").write_text(json.dumps({**content, **values}))


def records(folder: Path) -> list[dict[str, Any]]:
    found = json.loads((folder / "artifacts.json").read_text())["files"]
    assert isinstance(found, list)
    return found


def changed_record(folder: Path, which: str, **values: Any) -> None:
    change(folder, files=[{**r, **(values if r["path"] == which else {})} for r in records(folder)])


def test_the_default_variant_is_opened(phone: Path) -> None:
    opened = pocketbert.load(phone)
    assert opened.record.path == "onnx/model_int8.onnx"
    assert opened.labels == ["negative", "neutral", "positive"]


def test_a_run_folder_stands_for_the_artefact_folder_in_it(phone: Path) -> None:
    assert pocketbert.load(str(phone.parent)).folder == phone


def test_a_model_says_what_it_is(phone: Path) -> None:
    opened = pocketbert.load(phone)
    assert (opened.task, opened.file) == ("text-classification", "onnx/model_int8.onnx")
    assert opened.max_length == opened.artefacts.processing.max_length
    shown = repr(opened)
    assert "text-classification" in shown
    assert "3 labels" in shown
    assert len(shown) < 300


@pytest.mark.parametrize("wrong", [1, None, (1, "a"), ("a", "b", "c"), (), b"bytes"])
def test_what_is_no_text_is_refused(phone: Path, wrong: Any) -> None:
    with pytest.raises(InputError, match="text 2: is .*, neither a text nor a pair of texts"):
        pocketbert.load(phone).predict(["fine", wrong])


def test_answers_are_those_of_the_file(phone: Path) -> None:
    opened = load(str(phone), scheme="fp32", threads=1)
    tokenizer, predictor = TextTokenizer(phone, 32), OnnxPredictor(phone / "onnx" / "model.onnx")
    for text, answer in zip(SENTENCES, opened.predict(SENTENCES), strict=True):
        logits = predictor.run(tokenizer.pad(tokenizer.encode([text])))["logits"][0]
        scores = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert answer.label == opened.labels[int(scores.argmax())]
        assert list(answer.scores.values()) == pytest.approx(scores.tolist(), abs=1e-5)
        assert answer.score == max(answer.scores.values())
        assert sum(answer.scores.values()) == pytest.approx(1)


def test_each_file_answers_at_its_own_temperature(phone: Path) -> None:
    before = {scheme: load(phone, scheme) for scheme in ("fp32", "int8")}
    changed_record(phone, "onnx/model.onnx", confidence={"temperature": 2.5, "fitted_rows": 900})
    changed_record(phone, "onnx/model_int8.onnx", confidence={"temperature": 0.5})
    for scheme, temperature in (("fp32", 2.5), ("int8", 0.5)):
        opened, plain = load(phone, scheme), before[scheme]
        for logits, answer, old in zip(
            opened.outputs(SENTENCES), opened.predict(SENTENCES), plain.predict(SENTENCES), strict=True
        ):
            assert isinstance(answer, Prediction)
            assert isinstance(old, Prediction)
            numbers = logits[0].astype(np.float64) / temperature
            powers = np.exp(numbers - numbers.max())
            assert list(answer.scores.values()) == pytest.approx((powers / powers.sum()).tolist(), abs=1e-9)
            assert (answer.label, answer.truncated) == (old.label, old.truncated)
            assert answer.score != old.score
        np.testing.assert_array_equal(
            np.concatenate(opened.outputs(SENTENCES)), np.concatenate(plain.outputs(SENTENCES))
        )


def test_the_threshold_is_compared_with_the_probability_after_the_temperature(phone: Path) -> None:
    text = SENTENCES[0]
    [plain] = load(phone, "fp32").predict(text)
    assert isinstance(plain, Prediction)
    assert plain.unknown is None
    content = json.loads((phone / "artifacts.json").read_text())
    least = round(plain.score - 0.001, 4)  # just below
    change(phone, processing={**content["processing"], "unknown": least})
    assert load(phone, "fp32").predict(text)[0].fields()["unknown"] is False
    changed_record(phone, "onnx/model.onnx", confidence={"temperature": 4.0})
    [warm] = load(phone, "fp32").predict(text)
    assert warm.fields()["unknown"] is True
    assert warm.fields()["label"] == plain.label
    assert warm.line().startswith("(unknown)\t")
    change(phone, processing={**content["processing"], "unknown": 1.5})
    with pytest.raises(InputError, match="unknown"):
        load(phone)


def test_a_file_with_another_threshold_answers_differently(phone: Path) -> None:
    text = SENTENCES[0]
    [fp32], [int8] = (load(phone, scheme).predict(text) for scheme in ("fp32", "int8"))
    assert isinstance(fp32, Prediction)
    assert isinstance(int8, Prediction)
    above, below = round(fp32.score + 0.001, 4), round(int8.score - 0.001, 4)
    changed_record(phone, "onnx/model.onnx", confidence={"unknown": above})
    changed_record(phone, "onnx/model_int8.onnx", confidence={"unknown": below})
    assert load(phone, "fp32").predict(text)[0].fields()["unknown"] is True
    assert load(phone, "int8").predict(text)[0].fields()["unknown"] is False
    content = json.loads((phone / "artifacts.json").read_text())
    change(phone, processing={**content["processing"], "unknown": 0.9999})  # of files without a threshold
    assert load(phone, "int8").predict(text)[0].fields()["unknown"] is False
    changed_record(phone, "onnx/model_int8.onnx", confidence={})
    assert load(phone, "int8").predict(text)[0].fields()["unknown"] is True
    changed_record(phone, "onnx/model.onnx", confidence={"unknown": 1.5})
    with pytest.raises(InputError, match="confidence.unknown"):
        load(phone)


@pytest.mark.parametrize("wrong", [0, -1, 1e9, "NaN", "hot"])
def test_a_temperature_that_is_none_is_refused(phone: Path, wrong: Any) -> None:
    changed_record(phone, "onnx/model.onnx", confidence={"temperature": wrong})
    with pytest.raises(InputError, match="confidence.temperature"):
        load(phone)


def test_one_text_a_list_pairs_and_nothing(phone: Path) -> None:
    opened = load(phone, "fp32")
    [single] = opened.predict("a good film")
    assert opened.predict(["a good film"]) == [single]
    pairs = opened.predict([("a good", "film"), ("film", "a good")])
    assert len(pairs) == 2
    assert pairs[0].scores != pairs[1].scores != single.scores
    assert opened.predict([]) == []
    assert opened.predict("") != []


def test_order_and_length_of_the_batch_do_not_matter(phone: Path) -> None:
    opened = load(phone, "fp32")
    texts = [*SENTENCES, *SENTENCES[:5]] * 2
    together = opened.predict(texts)
    for text, answer in list(zip(texts, together, strict=True))[::9]:
        assert answer.scores == pytest.approx(opened.predict(text)[0].scores, abs=1e-5)


def test_truncation_is_flagged(phone: Path) -> None:
    short, long = load(phone).predict(["good", "good " * 100])
    assert (short.truncated, long.truncated) == (False, True)


def test_a_variant_is_chosen_by_scheme(phone: Path) -> None:
    assert load(phone, scheme="fp32").record.path == "onnx/model.onnx"
    assert load(phone, scheme="int8").record.path == "onnx/model_int8.onnx"


def test_a_variant_that_is_not_there_is_refused_with_those_that_are(phone: Path) -> None:
    with pytest.raises(
        InputError, match=r"no 'int4' file in the folder; did you mean 'int8'\? \(allowed: fp32, int8\)"
    ):
        load(phone, scheme="int4")


def test_a_file_that_failed_its_gates_is_refused(phone: Path) -> None:
    changed_record(phone, "onnx/model_int8.onnx", status="failed")
    with pytest.raises(GateError, match="onnx/model_int8.onnx is marked failed"):
        load(phone)
    assert load(phone, "fp32").predict("good")


def test_a_file_of_another_size_is_refused(phone: Path) -> None:
    with (phone / "onnx" / "model_int8.onnx").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match=r"the folder's list says [\d,]+.*Copy the folder again"):
        load(phone)


@pytest.mark.parametrize("name", ["onnx/model_int8.onnx", "tokenizer.json", "artifacts.json"])
def test_a_missing_file_is_named(phone: Path, name: str) -> None:
    (phone / name).unlink()
    with pytest.raises(InputError, match=name):
        load(phone)


def test_unknown_keys_of_newer_folders_are_ignored(phone: Path) -> None:
    changed_record(phone, "onnx/model_int8.onnx", npu={"a": 1})
    change(phone, schema_version="1.9", news=[1, 2])
    assert load(phone).predict("good")[0].label in load(phone).labels


def test_another_major_schema_is_refused(phone: Path) -> None:
    change(phone, schema_version="2.0")
    with pytest.raises(InputError, match="schema version '2.0' cannot be read.*Update PocketBERT"):
        load(phone)


@pytest.mark.parametrize("path", ["../model.onnx", "/model.onnx"])
def test_a_path_outside_the_folder_is_refused(phone: Path, path: str) -> None:
    (phone.parent / "model.onnx").write_bytes((phone / "onnx" / "model_int8.onnx").read_bytes())
    changed_record(phone, "onnx/model_int8.onnx", path=path)
    with pytest.raises(InputError, match="leaves the folder"):
        load(phone)


def test_a_link_that_leads_outside_is_refused(phone: Path) -> None:
    outside = phone.parent / "model.onnx"
    (phone / "onnx" / "model_int8.onnx").rename(outside)
    (phone / "onnx" / "model_int8.onnx").symlink_to(outside)
    with pytest.raises(InputError, match="leaves the folder"):
        load(phone)


def test_a_score_function_of_another_task_is_refused(phone: Path) -> None:
    change(phone, processing={"max_length": 32, "score": "sigmoid"})
    with pytest.raises(InputError, match="processing.score is sigmoid, of text-classification it is softmax"):
        load(phone)


def test_rows_are_batched_by_length(phone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = load(phone, "fp32")
    shapes: list[tuple[int, int]] = []
    run = opened.predictor.run

    def noting(inputs: Any) -> Any:
        shapes.append(inputs["input_ids"].shape)
        assert inputs["attention_mask"].all()
        return run(inputs)

    monkeypatch.setattr(opened.predictor, "run", noting)
    opened.predict(["good film"] * 70 + ["a good film"] * 3)
    assert sorted(shapes) == [(3, 5), (6, 4), (32, 4), (32, 4)]
    assert runtime_model._BATCH == 32
