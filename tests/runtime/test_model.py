"""An artefact folder that is opened: its answers, the file that is chosen, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.predict.answers import Prediction
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.runtime.model import Model, load, load_callers, predict_portions
from pocketbert.runtime.onnx import OnnxPredictor

FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"


def change(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "artifacts.json").read_text())
    (folder / "artifacts.json").write_text(json.dumps({**content, **values}))


def change_record(folder: Path, which: str, **values: Any) -> None:
    listed = json.loads((folder / "artifacts.json").read_text())["files"]
    change(folder, files=[{**r, **(values if r["path"] == which else {})} for r in listed])


def set_threshold(folder: Path, unknown: float) -> None:
    """The threshold of files without one of their own."""
    processing = json.loads((folder / "artifacts.json").read_text())["processing"]
    change(folder, processing={**processing, "unknown": unknown})


def predict_one(folder: Path, scheme: str = "fp32") -> Prediction:
    [answer] = load(folder, scheme).predict(SENTENCES[0])
    assert isinstance(answer, Prediction)
    return answer


def softmax(logits: np.ndarray) -> list[float]:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return list((powers / powers.sum()).tolist())


def test_the_default_file_is_opened_and_says_what_it_is(phone: Path) -> None:
    opened = pocketbert.load(str(phone.parent))  # a run folder stands for the artefact folder in it
    assert opened.folder == phone
    assert (opened.task, opened.file, opened.max_length) == ("text-classification", INT8, 32)
    assert opened.labels == ["negative", "neutral", "positive"]
    assert "text-classification" in repr(opened) and "3 labels" in repr(opened)


@pytest.mark.parametrize("wrong", [1, None, (1, "a"), ("a", "b", "c"), (), b"bytes"])
def test_what_is_no_text_is_refused(phone: Path, wrong: Any) -> None:
    with pytest.raises(InputError, match="text 2: is .*, neither a text nor a pair of texts"):
        pocketbert.load(phone).predict(["fine", wrong])


def test_answers_are_those_of_the_file(phone: Path) -> None:
    opened = load(str(phone), scheme="fp32", threads=1)
    tokenizer, predictor = TextTokenizer(phone, 32), OnnxPredictor(phone / FP32)
    for text, answer in zip(SENTENCES, opened.predict(SENTENCES), strict=True):
        logits = predictor.run(tokenizer.pad(tokenizer.encode([text])))["logits"][0]
        assert answer.label == opened.labels[int(logits.argmax())]
        assert list(answer.scores.values()) == pytest.approx(softmax(logits), abs=1e-5)
        assert answer.score == max(answer.scores.values())


def test_each_file_answers_at_its_own_temperature(phone: Path) -> None:
    temperatures = {"fp32": 2.5, "int8": 0.5}
    before = {scheme: load(phone, scheme) for scheme in temperatures}
    change_record(phone, FP32, confidence={"temperature": 2.5, "fitted_rows": 900})
    change_record(phone, INT8, confidence={"temperature": 0.5})
    for scheme, temperature in temperatures.items():
        opened, plain = load(phone, scheme), before[scheme]
        for logits, answer, old in zip(
            opened.outputs(SENTENCES), opened.predict(SENTENCES), plain.predict(SENTENCES), strict=True
        ):
            assert list(answer.scores.values()) == pytest.approx(softmax(logits[0] / temperature), abs=1e-5)
            assert (answer.label, answer.truncated) == (old.label, old.truncated)
            assert answer.score != old.score
        np.testing.assert_array_equal(
            np.concatenate(opened.outputs(SENTENCES)), np.concatenate(plain.outputs(SENTENCES))
        )


def test_the_threshold_is_compared_with_the_probability_after_the_temperature(phone: Path) -> None:
    plain = predict_one(phone)
    assert plain.unknown is None
    set_threshold(phone, round(plain.score - 0.001, 4))  # just below
    assert predict_one(phone).fields()["unknown"] is False
    change_record(phone, FP32, confidence={"temperature": 4.0})
    warm = predict_one(phone)
    assert (warm.fields()["unknown"], warm.fields()["label"]) == (True, plain.label)
    assert warm.line().startswith("(unknown)\t")


def test_a_files_own_threshold_comes_before_that_of_the_folder(phone: Path) -> None:
    above, below = (round(predict_one(phone, s).score + by, 4) for s, by in (("fp32", 0.001), ("int8", -0.001)))
    set_threshold(phone, 0.9999)
    change_record(phone, FP32, confidence={"unknown": above})
    change_record(phone, INT8, confidence={"unknown": below})
    assert [predict_one(phone, s).unknown for s in ("fp32", "int8")] == [True, False]
    change_record(phone, INT8, confidence={})
    assert predict_one(phone, "int8").unknown is True


def test_one_text_a_list_pairs_and_nothing(phone: Path) -> None:
    opened = load(phone, "fp32")
    [single] = opened.predict("a good film")
    assert opened.predict(["a good film"]) == [single]
    one, other = opened.predict([("a good", "film"), ("film", "a good")])
    assert one.scores != other.scores != single.scores
    assert opened.predict([]) == []
    assert len(opened.predict("")) == 1


def test_rows_are_batched_by_length_and_at_most_32_together(phone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, shapes = load(phone, "fp32"), list[tuple[int, int]]()
    run = opened.predictor.run

    def noting(inputs: Any) -> Any:
        shapes.append(inputs["input_ids"].shape)
        assert inputs["attention_mask"].all()
        return run(inputs)

    monkeypatch.setattr(opened.predictor, "run", noting)
    opened.predict(["good film"] * 70 + ["a good film"] * 3)
    assert sorted(shapes) == [(3, 5), (6, 4), (32, 4), (32, 4)]


class Sleeper:
    """A model that needs longer for some texts, and must not be used by two threads at once."""

    def __init__(self) -> None:
        self.busy = threading.Lock()

    def predict(self, texts: Any, prompt: str | None = None) -> list[str]:
        assert self.busy.acquire(blocking=False)
        time.sleep(0.02 if "slow" in texts else 0)
        if "fail" in texts:
            raise InputError([])
        self.busy.release()
        return [f"{prompt} {text}" for text in texts]


def test_portions_are_answered_in_their_order_and_few_are_read_ahead() -> None:
    models: Any = [Sleeper() for _ in range(3)]
    read, answered = [], []

    def portions() -> Any:
        for number in range(30):
            read.append(number)
            assert len(read) - len(answered) <= 5
            yield [str(number), "slow" if number % 4 == 0 else "quick"]

    for [first, _] in predict_portions(models, portions(), "query"):
        answered += [first]
    assert answered == [f"query {number}" for number in range(30)]
    with pytest.raises(InputError):
        list(predict_portions(models, [["slow"], ["fail"], ["slow"]]))


def test_callers_of_onnx_runtime_share_its_session_and_answer_as_one_model(phone: Path) -> None:
    models = load_callers(phone, threads=3)
    assert len(models) == 3 and len({id(m.predictor) for m in models}) == 1
    assert len({id(m.tokenizer) for m in models}) == 3
    assert len(load_callers(phone, callers=1)) == 1
    alone = load(phone).predict(list(SENTENCES) * 4)
    assert [a for part in predict_portions(models, [SENTENCES] * 40) for a in part] == load(phone).predict(
        SENTENCES
    ) * 40
    assert models[1].predict(list(SENTENCES) * 4) == alone


def test_truncation_is_flagged(phone: Path) -> None:
    short, long = load(phone).predict(["good", "good " * 100])
    assert (short.truncated, long.truncated) == (False, True)


def test_a_file_is_chosen_by_scheme_and_one_that_is_not_there_is_refused_with_those_that_are(phone: Path) -> None:
    assert [load(phone, scheme=s).record.path for s in ("fp32", "int8")] == [FP32, INT8]
    said = r"no 'int4' file in the folder; did you mean 'int8'\? \(allowed: fp32, int8\)"
    with pytest.raises(InputError, match=said):
        load(phone, scheme="int4")


def test_a_file_that_failed_its_gates_is_refused(phone: Path) -> None:
    change_record(phone, INT8, status="failed")
    with pytest.raises(GateError, match="onnx/model_int8.onnx is marked failed"):
        load(phone)
    assert load(phone, "fp32").predict("good")


def test_unknown_keys_of_newer_folders_are_ignored(phone: Path) -> None:
    change_record(phone, INT8, npu={"a": 1})
    change(phone, schema_version="1.9", news=[1, 2])
    opened: Model = load(phone)
    assert opened.predict("good")[0].label in opened.labels


def append_a_byte(folder: Path) -> None:
    with (folder / INT8).open("ab") as stream:
        stream.write(b"x")


def point_outside(path: str) -> Callable[[Path], None]:
    def point(folder: Path) -> None:
        (folder.parent / "model.onnx").write_bytes((folder / INT8).read_bytes())
        change_record(folder, INT8, path=path)

    return point


def link_outside(folder: Path) -> None:
    outside = folder.parent / "model.onnx"
    (folder / INT8).rename(outside)
    (folder / INT8).symlink_to(outside)


def set_temperature(value: Any) -> Callable[[Path], None]:
    return lambda folder: change_record(folder, FP32, confidence={"temperature": value})


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no model": (lambda f: (f / INT8).unlink(), INT8),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
    "no list": (lambda f: (f / "artifacts.json").unlink(), "artifacts.json"),
    "another size": (append_a_byte, r"the folder's list says [\d,]+.*Copy the folder again"),
    "another major schema": (
        lambda f: change(f, schema_version="2.0"),
        "schema version '2.0' cannot be read.*Update PocketBERT",
    ),
    "a path outside": (point_outside("../model.onnx"), "leaves the folder"),
    "an absolute path": (point_outside("/model.onnx"), "leaves the folder"),
    "a link outside": (link_outside, "leaves the folder"),
    "a score function of another task": (
        lambda f: change(f, processing={"max_length": 32, "score": "sigmoid"}),
        "processing.score is sigmoid, of text-classification it is softmax",
    ),
    "a threshold above 1": (lambda f: set_threshold(f, 1.5), "unknown"),
    "a file's threshold above 1": (lambda f: change_record(f, FP32, confidence={"unknown": 1.5}), "confidence.unknown"),
    **{f"temperature {v}": (set_temperature(v), "confidence.temperature") for v in (0, -1, 1e9, "NaN", "hot")},
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_folder_is_refused(phone: Path, what: str) -> None:
    damage, said = DAMAGE[what]
    damage(phone)
    with pytest.raises(InputError, match=said):
        load(phone)
