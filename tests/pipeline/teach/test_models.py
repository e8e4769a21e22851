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

from pocketbert import TeachReport
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


Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path, data: Path) -> Ask:
    """`ask(*models, to="out", **options)`: let models answer the rows of `data`; returns the report and the rows."""

    def run(*models: Path, to: str = "out", **options: Any) -> tuple[TeachReport, list[dict[str, Any]]]:
        report = teach([*map(str, models)], data, tmp_path / f"{to}.jsonl", TeachOptions(**options))
        return report, [json.loads(line) for line in report.output.read_text("utf-8").splitlines()]

    return run


def direct(folder: Path, *texts: str) -> Any:
    """The outputs of a classifier for one text or pair, as transformers gives them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.inference_mode():
        return model(**{k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}).logits[0].double()


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        (5, "pocketbert_heads is 5, which does not fit the labels"),
        (["a", 1], "pocketbert_heads is ['a', 1], which does not fit the labels"),
        ({"mood": "regression", "size": "regression"}, "does not fit the labels"),
    ],
)
def test_heads_in_a_config_are_checked_before_a_model_is_opened(
    heads: Any, said: str, ask: Ask, tmp_path: Path
) -> None:
    folder = build(tmp_path / "m", "bert", LABELS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pocketbert_heads": heads}))
    with pytest.raises(InputError) as caught:
        ask(folder)
    assert said in str(caught.value)


@pytest.mark.parametrize("family", ["roberta", "albert", "decoder"])
def test_a_classifier_of_any_family_answers_as_transformers_does(family: str, ask: Ask, tmp_path: Path) -> None:
    folder = build_decoder(tmp_path / "m") if family == "decoder" else build(tmp_path / "m", family, LABELS)
    report, rows = ask(folder)
    assert (report.rows, report.names, report.labelled) == (ROWS, LABELS, ROWS)
    assert [row["text"] for row in rows] == [row["text"] for row in task_rows(ROWS, 1)]
    p = direct(folder, rows[3]["text"]).softmax(-1).tolist()
    assert [rows[3]["teacher"][name] for name in LABELS] == pytest.approx(p, abs=1e-6)
    likely = [max(row["teacher"], key=row["teacher"].get) for row in rows]
    assert report.right == np.mean([name == row["label"] for name, row in zip(likely, rows, strict=True)])
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_teachers_are_averaged_by_name_with_weights(ask: Ask, tmp_path: Path) -> None:
    one = build(tmp_path / "a", "bert", LABELS)
    other = build(tmp_path / "b", "roberta", LABELS[::-1], seed=3)
    report, (row, *_) = ask(one, other, weights=(3, 1), column="mean")
    p, q = (direct(folder, row["text"]).softmax(-1) for folder in (one, other))
    assert [row["mean"][n] for n in LABELS] == pytest.approx((0.75 * p + 0.25 * q.flip(0)).tolist(), abs=1e-6)
    assert report.agreement is not None
    assert 0 <= report.agreement <= 1
    again, _ = ask(one, one, to="same")
    assert again.agreement == 1
    assert "the teachers agree on 100.0%" in again.lines()
    with pytest.raises(InputError, match="has other labels than"):
        ask(one, build(tmp_path / "c", "bert", ("x", "y", "z")), to="no")


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


@pytest.mark.parametrize(
    ("auto_class", "labels", "task", "kind"),
    [
        ("AutoModelForSequenceClassification", LABELS, "multi-label", LabelKind.NAMES),
        ("AutoModelForSequenceClassification", ("x",), None, LabelKind.SCORE),
        ("AutoModelForTokenClassification", ("O", "B-X", "I-X"), None, LabelKind.SPANS),
        ("AutoModel", (), "feature-extraction", LabelKind.SCORE_OR_NONE),
    ],
    ids=["several labels", "a score", "tags", "vectors"],
)
def test_what_a_teacher_writes_is_read_as_the_answers_of_a_column(
    auto_class: str, labels: tuple[str, ...], task: str | None, kind: LabelKind, ask: Ask, tmp_path: Path
) -> None:
    folder = build(tmp_path / "m", "roberta", labels, auto_class, num_labels=max(len(labels), 1))
    report, rows = ask(folder, task=task)
    source = DataSource.model_validate({"path": str(report.output), "teacher": "teacher", "label": "none"})
    examples, unlabelled = read_labelled_examples(source, kind=kind)
    assert (len(examples), unlabelled) == (ROWS, [])
    assert all(example.answer is not None for example in examples)
    if kind is LabelKind.NAMES:
        p = direct(folder, examples[0].text).sigmoid().tolist()
        assert rows[0]["teacher"] == pytest.approx(dict(zip(labels, p, strict=True)), abs=1e-6)
    if kind is LabelKind.SPANS:
        assert examples[0].answer.places is not None
        assert len(examples[0].answer.places) == len(examples[0].text.split())


def test_vectors_of_several_encoders_average_their_cosines(ask: Ask, tmp_path: Path) -> None:
    folders = [build(tmp_path / name, "bert", (), "AutoModel", seed=seed) for name, seed in (("a", 1), ("b", 2))]
    for folder in folders:
        write_modules(folder, DEFAULT_POOLING, 32, 64)
    cosines = []
    for asked, name in ((folders[:1], "one"), (folders[1:], "two"), (folders, "both")):
        vectors = np.array([row["teacher"] for row in ask(*asked, to=name)[1]])
        cosines.append(vectors @ vectors.T)
    one, two, both = cosines
    np.testing.assert_allclose(both, (one + two) / 2, atol=1e-4)


def test_spans_of_answers_are_places_of_the_context(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", "bert", (), "AutoModelForQuestionAnswering")
    contexts = [" ".join(row["text"] for row in task_rows(n, n)) for n in (1, 2, 9)]
    rows = [{"question": "which one", "context": c, "answers": [c.split()[0]]} for c in contexts]
    path = write_lines(tmp_path / "qa.jsonl", rows)
    report = teach([str(folder)], path, tmp_path / "out.jsonl", TeachOptions(max_length=40))
    for row in map(json.loads, report.output.read_text().splitlines()):
        cell = row["teacher"]
        for i, key in enumerate(("start", "end")):
            total = sum(p for _, p in cell[key]) + cell["null"][i]
            assert total == pytest.approx(1, abs=0.02)
            assert all(0 <= place <= len(row["context"]) for place, _ in cell[key])
    assert guess_columns(DataSource.at(str(report.output))).kind is LabelKind.ANSWERS


NLI = ("contradiction", "neutral", "entailment")


def test_zero_shot_takes_entailment_over_contradiction(ask: Ask, tmp_path: Path) -> None:
    folder = build(tmp_path / "nli", "roberta", NLI)
    labels = {"lamp": "a light", "music": "a song", "timer": "the time"}
    options = {"labels": labels, "template": "It is about {}."}
    row = ask(folder, **options)[1][2]
    scores = [direct(folder, row["text"], f"It is about {text}.") for text in labels.values()]
    expected = torch.stack([logits[2] - logits[0] for logits in scores]).softmax(-1).tolist()
    assert [row["teacher"][name] for name in labels] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match="a model of inference has entailment and contradiction"):
        ask(build(tmp_path / "plain", "bert", LABELS), to="no", **options)


@pytest.mark.parametrize("dies_at", [5, 7])  # in the first row of a portion, and later in it
def test_a_killed_command_goes_on_behind_the_last_whole_row(
    dies_at: int, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "m", "bert", LABELS)
    monkeypatch.setattr(writing, "PORTION", 4)
    whole = ask(folder, to="whole")[0].output.read_bytes()
    asked: list[int] = []
    answer = writing.mean_answer

    def dies(*args: Any) -> Any:
        asked.append(1)
        if len(asked) == dies_at:
            raise KeyboardInterrupt
        return answer(*args)

    monkeypatch.setattr(writing, "mean_answer", dies)
    output, kept = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.answers"
    with pytest.raises(KeyboardInterrupt) as caught:
        ask(folder)
    assert not output.exists()
    assert str(kept) in "".join(caught.value.__notes__)
    with kept.open("ab") as stream:
        stream.write(b'[{"text": "half a li')  # a row that was half written when the power went
    report, _ = ask(folder)
    assert len(asked) == dies_at + ROWS - 4  # the first portion is not answered again
    assert output.read_bytes() == whole
    assert (report.rows, kept.exists()) == (ROWS, False)


def test_rows_that_other_weights_answered_are_asked_again(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "m", "bert", LABELS)
    monkeypatch.setattr(writing, "PORTION", 4)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ask(folder)
    shutil.copy(build(tmp_path / "other", "bert", LABELS, seed=5) / "model.safetensors", folder)
    assert ask(folder, to="whole")[1] == ask(folder)[1]


def pickled(folder: Path) -> Path:
    build(folder, "bert", LABELS)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


def remote(folder: Path) -> Path:
    build(folder, "bert", LABELS)
    own = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    config = {**json.loads((folder / "config.json").read_text()), "model_type": "own", "auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('this code ran')")
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda at: build(at, "bert", (), "AutoModel"), "has no head that answers"),
        (lambda at: at, "no model folder"),
        (pickled, "has no .safetensors weights"),
        (remote, "transformers does not open it"),
    ],
    ids=["no head", "no model", "pickled weights", "code of its own"],
)
def test_what_cannot_teach_is_refused(make: Callable[[Path], Path], message: str, ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        ask(make(tmp_path / "m"))
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
