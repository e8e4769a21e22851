"""Teachers that are models of transformers: every kind of head, families outside the table, means, inference, resumption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pocketbert.api import TeachOptions, teach
from pocketbert.core.data.columns import guess_columns
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, write_modules
from pocketbert.core.tasks import LabelKind
from pocketbert.pipeline.teach import writing
from pocketbert.pipeline.teach.answering import AnswerForm, AskedRow
from pocketbert.pipeline.teach.models import open_teacher_model
from support.tiny import tiny_classifier, write_bert, write_own_tokenizer
from support.tiny_texts import LABELS, task_rows, write_lines
from support.tiny_tokenizers import write_byte_bpe

ROWS = 10


def build(
    folder: Path, family: str, labels: Sequence[str], auto_class: str = "", seed: int = 0, **changes: Any
) -> Path:
    """A tiny model with its own tokenizer."""
    folder.mkdir(parents=True)
    told = write_own_tokenizer(folder, family)
    auto_class = auto_class or "AutoModelForSequenceClassification"
    tiny_classifier(family, 2, labels, seed, auto_class, **told, **changes).save_pretrained(folder)
    return folder


def build_decoder(folder: Path) -> Path:
    """A tiny GPT-2 with a head that classifies: outside the table of families, and without a padding token of its own."""
    folder.mkdir()
    size = write_byte_bpe(folder)
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {n: i for i, n in enumerate(LABELS)}}
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=64, n_embd=16, n_layer=1, n_head=2, pad_token_id=1, **names
    )
    torch.manual_seed(1)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "rows.jsonl", task_rows(ROWS, 1))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def direct(folder: Path, text: str) -> Any:
    """The outputs of a classifier for one text, as transformers gives them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        return model(**{k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}).logits[0].double()


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        (None, ""),
        (5, "pocketbert_heads is 5, which does not fit the labels"),
        (["a", 1], "pocketbert_heads is ['a', 1], which does not fit the labels"),
        ({"mood": "regression", "size": "regression"}, "does not fit the labels"),
    ],
)
def test_heads_in_a_config_are_checked_before_a_model_is_opened(
    tmp_path: Path, data: Path, heads: Any, said: str
) -> None:
    folder = build(tmp_path / "m", "bert", LABELS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pocketbert_heads": heads}))
    if said:
        with pytest.raises(InputError) as caught:
            teach([str(folder)], data, tmp_path / "out.jsonl")
        assert said in str(caught.value)
    else:
        assert teach([str(folder)], data, tmp_path / "out.jsonl").labelled == ROWS


@pytest.mark.parametrize("family", ["roberta", "albert", "decoder"])
def test_a_classifier_of_any_family_answers_as_transformers_does(tmp_path: Path, data: Path, family: str) -> None:
    folder = build_decoder(tmp_path / "m") if family == "decoder" else build(tmp_path / "m", family, LABELS)
    report = teach([str(folder)], data, tmp_path / "out.jsonl")
    rows = read(report.output)
    assert (report.rows, report.names, report.labelled) == (ROWS, LABELS, ROWS)
    assert [row["text"] for row in rows] == [row["text"] for row in read(data)]
    p = direct(folder, rows[3]["text"]).softmax(-1).tolist()
    assert [rows[3]["teacher"][name] for name in LABELS] == pytest.approx(p, abs=1e-6)
    likely = [max(row["teacher"], key=row["teacher"].get) for row in rows]
    assert report.right == np.mean([name == row["label"] for name, row in zip(likely, rows, strict=True)])
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_teachers_are_averaged_by_name_with_weights(tmp_path: Path, data: Path) -> None:
    one = build(tmp_path / "a", "bert", LABELS)
    other = build(tmp_path / "b", "roberta", LABELS[::-1], seed=3)
    options = TeachOptions(weights=(3, 1), column="mean")
    report = teach([str(one), str(other)], data, tmp_path / "out.jsonl", options)
    row = read(report.output)[0]
    p, q = (direct(folder, row["text"]).softmax(-1) for folder in (one, other))
    assert [row["mean"][n] for n in LABELS] == pytest.approx((0.75 * p + 0.25 * q.flip(0)).tolist(), abs=1e-6)
    assert report.agreement is not None
    assert 0 <= report.agreement <= 1
    again = teach([str(one), str(one)], data, tmp_path / "same.jsonl")
    assert again.agreement == 1
    assert "the teachers agree on 100.0%" in again.lines()
    with pytest.raises(InputError, match="has other labels than"):
        teach([str(one), str(build(tmp_path / "c", "bert", ("x", "y", "z")))], data, tmp_path / "no.jsonl")


class FixedTeacher:
    """A teacher that answers every row alike."""

    def __init__(self, form: AnswerForm, answer: list[Any]) -> None:
        self.title, self.form, self.names, self._answer = "fixed", form, ("a", "b", "c", "d"), np.array(answer)

    def answer(self, rows: Sequence[AskedRow]) -> list[Any]:
        return [self._answer for _ in rows]


@pytest.mark.parametrize(
    ("form", "one", "other", "agreement"),
    [
        (AnswerForm.LABELS, [0.9, 0.9, 0.9, 0.1], [0.9, 0.9, 0.1, 0.9], 0.0),
        (AnswerForm.TAGS, np.eye(4)[[0, 1]].tolist(), np.eye(4)[[0, 2]].tolist(), 0.5),
    ],
)
def test_only_tags_are_compared_word_by_word(
    tmp_path: Path, form: AnswerForm, one: list[Any], other: list[Any], agreement: float
) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [{"text": "good day"}, {"text": "old lamp"}])
    settings = writing.TeachSettings(DataSource.at(str(rows), text="text"), tmp_path / "out.jsonl", "teacher", (1, 1))
    report = writing.teach([FixedTeacher(form, one), FixedTeacher(form, other)], settings)
    assert report.agreement == agreement


FORMS: list[tuple[str, str, tuple[str, ...], str | None, LabelKind]] = [
    ("several labels", "AutoModelForSequenceClassification", LABELS, "multi-label", LabelKind.NAMES),
    ("a score", "AutoModelForSequenceClassification", ("x",), None, LabelKind.SCORE),
    ("tags", "AutoModelForTokenClassification", ("O", "B-X", "I-X"), None, LabelKind.SPANS),
    ("vectors", "AutoModel", (), "feature-extraction", LabelKind.SCORE_OR_NONE),
]


@pytest.mark.parametrize(("auto_class", "labels", "task", "kind"), [f[1:] for f in FORMS], ids=[f[0] for f in FORMS])
def test_what_a_teacher_writes_is_read_as_the_answers_of_a_column(
    tmp_path: Path, data: Path, auto_class: str, labels: tuple[str, ...], task: str | None, kind: LabelKind
) -> None:
    folder = build(tmp_path / "m", "roberta", labels, auto_class, num_labels=max(len(labels), 1))
    report = teach([str(folder)], data, tmp_path / "out.jsonl", TeachOptions(task=task))
    source = DataSource.model_validate({"path": str(report.output), "teacher": "teacher", "label": "none"})
    examples, unlabelled = read_labelled_examples(source, kind=kind)
    assert (len(examples), unlabelled) == (ROWS, [])
    assert all(example.answer is not None for example in examples)
    if kind is LabelKind.NAMES:
        p = direct(folder, examples[0].text).sigmoid().tolist()
        assert read(report.output)[0]["teacher"] == pytest.approx(dict(zip(labels, p, strict=True)), abs=1e-6)
    if kind is LabelKind.SPANS:
        assert examples[0].answer is not None
        assert examples[0].answer.places is not None
        assert len(examples[0].answer.places) == len(examples[0].text.split())


def test_vectors_of_several_encoders_average_their_cosines(tmp_path: Path, data: Path) -> None:
    folders = [build(tmp_path / name, "bert", (), "AutoModel", seed=seed) for name, seed in (("a", 1), ("b", 2))]
    for folder in folders:
        write_modules(folder, DEFAULT_POOLING, 32, 64)
    vectors = []
    for asked, name in (([folders[0]], "one"), ([folders[1]], "two"), (folders, "both")):
        path = teach([str(folder) for folder in asked], data, tmp_path / f"{name}.jsonl").output
        vectors.append(np.array([row["teacher"] for row in read(path)]))
    one, two, both = (v @ v.T for v in vectors)
    np.testing.assert_allclose(both, (one + two) / 2, atol=1e-4)


def test_spans_of_answers_are_places_of_the_context(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", "bert", (), "AutoModelForQuestionAnswering")
    contexts = [" ".join(row["text"] for row in task_rows(n, n)) for n in (1, 2, 9)]
    rows = [{"question": "which one", "context": context, "answers": ["song"]} for context in contexts]
    path = write_lines(tmp_path / "qa.jsonl", [{**row, "answers": [row["context"].split()[0]]} for row in rows])
    report = teach([str(folder)], path, tmp_path / "out.jsonl", TeachOptions(max_length=40))
    for row in read(report.output):
        cell = row["teacher"]
        for i, key in enumerate(("start", "end")):
            total = sum(p for _, p in cell[key]) + cell["null"][i]
            assert total == pytest.approx(1, abs=0.02)
            assert all(0 <= place <= len(row["context"]) for place, _ in cell[key])
    assert guess_columns(DataSource.at(str(report.output))).kind is LabelKind.ANSWERS


NLI = ("contradiction", "neutral", "entailment")


def test_zero_shot_takes_entailment_over_contradiction(tmp_path: Path, data: Path) -> None:
    folder = build(tmp_path / "nli", "roberta", NLI)
    labels = {"lamp": "a light", "music": "a song", "timer": "the time"}
    options = TeachOptions(labels=labels, template="It is about {}.")
    report = teach([str(folder)], data, tmp_path / "out.jsonl", options)
    row = read(report.output)[2]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for text in labels.values():
        inputs = tokenizer(row["text"], f"It is about {text}.", return_tensors="pt")
        with torch.inference_mode():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[0].double()
        scores.append(float(logits[2] - logits[0]))
    expected = torch.tensor(scores).softmax(-1).tolist()
    assert [row["teacher"][name] for name in labels] == pytest.approx(expected, abs=1e-5)
    plain = build(tmp_path / "plain", "bert", LABELS)
    with pytest.raises(InputError, match="a model of inference has entailment and contradiction"):
        teach([str(plain)], data, tmp_path / "no.jsonl", options)


@pytest.mark.parametrize("dies_at", [5, 7])  # in the first row of a portion, and later in it
def test_a_killed_command_goes_on_behind_the_last_whole_row(
    dies_at: int, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "m", "bert", LABELS)
    monkeypatch.setattr(writing, "PORTION", 4)
    whole = teach([str(folder)], data, tmp_path / "whole.jsonl").output.read_bytes()
    asked: list[int] = []
    answer = writing.mean_answer

    def dies(*args: Any) -> Any:
        asked.append(1)
        if len(asked) == dies_at:
            raise KeyboardInterrupt
        return answer(*args)

    monkeypatch.setattr(writing, "mean_answer", dies)
    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt) as caught:
        teach([str(folder)], data, output)
    assert not output.exists()
    kept = tmp_path / ".out.jsonl.answers"
    assert str(kept) in "".join(caught.value.__notes__)
    with kept.open("ab") as stream:
        stream.write(b'[{"text": "half a li')  # a row that was half written when the power went
    report = teach([str(folder)], data, output)
    assert len(asked) == dies_at + ROWS - 4  # the first portion is not answered again
    assert output.read_bytes() == whole
    assert (report.rows, kept.exists()) == (ROWS, False)


def test_rows_that_other_weights_answered_are_asked_again(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = build(tmp_path / "m", "bert", LABELS), tmp_path / "out.jsonl"
    monkeypatch.setattr(writing, "PORTION", 4)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            teach([str(folder)], data, output)
    shutil.copy(build(tmp_path / "other", "bert", LABELS, seed=5) / "model.safetensors", folder)
    whole = teach([str(folder)], data, tmp_path / "whole.jsonl").output.read_bytes()
    assert teach([str(folder)], data, output).output.read_bytes() == whole


REFUSED: list[tuple[str, Callable[[Path], str], str]] = [
    ("no head", lambda at: str(build(at, "bert", (), "AutoModel")), "has no head that answers"),
    ("no model", lambda at: str(at), "no model folder"),
    ("pickled weights", lambda at: str(pickled(at)), "has no .safetensors weights"),
    ("code of its own", lambda at: str(remote(at)), "transformers does not open it"),
]


def pickled(folder: Path) -> Path:
    build(folder, "bert", LABELS)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


def remote(folder: Path) -> Path:
    build(folder, "bert", LABELS)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('this code ran')")
    return folder


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_cannot_teach_is_refused(tmp_path: Path, data: Path, make: Callable[[Path], str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        teach([make(tmp_path / "m")], data, tmp_path / "out.jsonl")
    assert message in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_rows_without_a_text_are_all_named(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", "bert", LABELS)
    path = write_lines(tmp_path / "rows.jsonl", [{"text": "a lamp"}, {"text": ""}, {"text": 3}])
    with pytest.raises(InputError) as caught:
        teach([str(folder)], DataSource.at(str(path), text="text"), tmp_path / "out.jsonl")
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["2", "3"]


def test_a_teacher_without_weights_is_described_and_refused_as_one_with_them(tmp_path: Path) -> None:
    for model in (build(tmp_path / "model", "albert", LABELS), build_decoder(tmp_path / "decoder")):
        with_weights, without = (open_teacher_model(str(model), with_weights=given) for given in (True, False))
        assert {p.device.type for p in without._model.model.parameters()} == {"meta"}
        for name in ("title", "form", "names"):
            assert getattr(with_weights, name) == getattr(without, name)
    encoder = str(write_bert(tmp_path / "encoder"))
    refused = []
    for given in (True, False):
        with pytest.raises(InputError, match="its checkpoint lacks weights") as error:
            open_teacher_model(encoder, "text-classification", with_weights=given)
        refused.append(str(error.value))
    assert refused[0] == refused[1]
