"""Comparing two models: all tasks, models that are equal, worse or reordered, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pocketbert import DiffOptions, GateError, InputError, api
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.columns import guess_columns
from pocketbert.core.data.labels import Labels
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.heads import make_head
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.pipeline.reference import load_reference_model
from support.tiny import tiny_classifier
from support.tiny_tokenizers import WORDS, write_tokenizer

NAMES = ("bad", "fair", "good")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
FAST = DiffOptions(latency=False, threads=1)
_WORDS = [word for word in WORDS if word.isalpha()]


def sentence(i: int, words: int = 6) -> str:
    """A text of words of the tiny vocabulary, another one for each number."""
    draw = np.random.default_rng(i)
    return " ".join(draw.choice(_WORDS, words))


def spans(i: int) -> dict[str, Any]:
    words = sentence(i).split()
    return {"text": words, "label": ["B-PER", "I-PER", "O", "B-LOC", "O", "O"][: len(words)]}


def answer(i: int) -> dict[str, Any]:
    context = sentence(i, 9)
    word = context.split()[i % 9]
    return {
        "question": sentence(i + 999, 3),
        "context": context,
        "answers": [{"text": word, "start": context.find(word)}],
    }


TASKS: dict[str, tuple[dict[str, Any], Callable[[int], dict[str, Any]]]] = {
    "text-classification": ({"labels": NAMES}, lambda i: {"text": sentence(i), "label": NAMES[i % 3]}),
    "multi-label": (
        {"labels": NAMES, "problem_type": "multi_label_classification"},
        lambda i: {"text": sentence(i), "label": list(NAMES[: i % 4])},
    ),
    "regression": (
        {"labels": ("value",), "problem_type": "regression"},
        lambda i: {"text": sentence(i), "label": i / 7},
    ),
    "token-classification": ({"labels": TAGS, "auto_class": "AutoModelForTokenClassification"}, spans),
    "question-answering": ({"labels": ("a", "b"), "auto_class": "AutoModelForQuestionAnswering"}, answer),
    "multiple-choice": (
        {"labels": ("x",), "auto_class": "AutoModelForMultipleChoice"},
        lambda i: {"question": sentence(i, 3), "choices": [sentence(i + k, 2) for k in (1, 2, 3)], "label": i % 3},
    ),
    "fill-mask": ({"labels": (), "auto_class": "AutoModelForMaskedLM"}, lambda i: {"text": sentence(i)}),
    "feature-extraction": (
        {"labels": (), "auto_class": "AutoModel"},
        lambda i: {"text": sentence(i), "text_pair": sentence(i + 1), "label": i / 20},
    ),
}


def write_model(folder: Path, task: str, seed: int, **changes: Any) -> Path:
    """A tiny random model of a task; the seed draws its weights."""
    settings = {**TASKS[task][0], **changes}
    tiny_classifier("bert", 1, seed=seed, std=0.7, **settings).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


Models = Callable[[str], tuple[Path, Path, Path]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, write_rows: Callable[..., Path]) -> Models:
    """`models(task)`: two models with other weights, and rows with labels; read-only by convention."""
    base = tmp_path_factory.mktemp("models")

    @cache
    def write(task: str) -> tuple[Path, Path, Path]:
        (base / task).mkdir()
        rows = write_rows(base / task / "rows.jsonl", [TASKS[task][1](i) for i in range(40)])
        return write_model(base / task / "old", task, 1), write_model(base / task / "new", task, 2), rows

    return write


def score(model: Path, rows: Path) -> float:
    """The score that verification gives a model."""
    folder = open_model_folder(str(model))
    assert folder.task is not None
    task = folder.task_row(folder.task)
    head = make_head(task, Labels(tuple(folder.labels or ()) if task.names_labels else ()))
    tokenizer = TextTokenizer(folder.path, min(folder.positions, folder.tokenizer_length))
    examples = read_examples(guess_columns(DataSource.at(str(rows)), task.labels).source, kind=task.labels)
    prepared = head.prepare(examples, tokenizer, "rows")
    return evaluate(load_reference_model(folder, task), tokenizer, EvalSet("rows", head, prepared))[0].value


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_the_scores_of_verification_and_its_differences(models: Models, task: str) -> None:
    old, new, rows = models(task)
    found = api.diff(old, new, rows, FAST)
    differences = found.differences
    assert found.task == task
    assert [differences.score.old, differences.score.new] == pytest.approx([score(old, rows), score(new, rows)])
    assert differences.flips
    assert all(flip.old != flip.new or flip.distance for flip in differences.flips)
    assert differences.score.low <= differences.score.drop <= differences.score.high
    if task in ("regression", "feature-extraction"):
        assert differences.mean_distance
        assert differences.outcomes is None
    else:
        assert sum(f.outcome == "lost" for f in differences.flips) == differences.outcomes.lost
        assert sum(f.outcome == "gained" for f in differences.flips) == differences.outcomes.gained
    itself = api.diff(old, old, rows, DiffOptions(latency=False, threads=1, max_drop=0.0))
    same = itself.differences
    assert not (same.flips or same.flipped or same.mean_distance or itself.failures)
    assert same.score.drop == same.score.low == same.score.high == 0


def test_flips_are_counted_by_label(models: Models) -> None:
    old, new, rows = models("text-classification")
    differences = api.diff(old, new, rows, FAST).differences
    outcomes, changes = differences.outcomes, differences.by_label
    counted = [(f.count, f.lost, f.gained) for f in differences.label_flips]
    assert [sum(n) for n in zip(*counted, strict=True)] == [differences.flipped, outcomes.lost, outcomes.gained]
    assert {c.label for c in changes} == set(NAMES)
    assert sum(c.count for c in changes) == differences.rows == 40
    assert all(c.new_right - c.old_right == c.gained - c.lost for c in changes)
    flip = differences.flips[0]
    assert (flip.texts[0], flip.gold) == (sentence(flip.row - 1), NAMES[(flip.row - 1) % 3])


def test_labels_are_matched_by_name(models: Models, tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    old, _, rows = models("text-classification")
    model = AutoModelForSequenceClassification.from_pretrained(old)
    with torch.no_grad():
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter.flip(0))
    names = dict(enumerate(reversed(NAMES)))
    model.config.id2label, model.config.label2id = names, {name: i for i, name in names.items()}
    model.save_pretrained(tmp_path / "reversed")
    write_tokenizer(tmp_path / "reversed")
    numbered = write_rows(tmp_path / "numbers.jsonl", [{"text": sentence(i), "label": i % 3} for i in range(40)])
    for data in (rows, numbered):
        found = api.diff(old, tmp_path / "reversed", data, FAST).differences
        assert not found.flips
        assert found.score.old == found.score.new


def test_outputs_that_are_not_finite_fail_as_no_answer(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: TorchPredictor, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"logits": np.full((len(inputs["input_ids"]), len(NAMES)), np.nan, np.float32)}

    old, new, rows = models("text-classification")
    monkeypatch.setattr(TorchPredictor, "run", run)
    with pytest.raises(GateError, match=r"OLD PyTorch fp32: the outputs for row \d+ are not finite"):
        api.diff(old, new, rows, FAST)


@pytest.mark.parametrize("task", ["text-classification", "multiple-choice"])
def test_rows_without_labels_are_compared_for_agreement_only(
    task: str, models: Models, tmp_path: Path, write_rows: Callable[..., Path]
) -> None:
    old, new, rows = models(task)
    labelled = api.diff(old, new, rows, FAST).differences
    bare = [{k: v for k, v in TASKS[task][1](i).items() if k != "label"} for i in range(40)]
    files = [write_rows(tmp_path / "bare.jsonl", bare)]
    if task == "text-classification":
        files.append(tmp_path / "lines.txt")
        files[1].write_text("".join(f"{row['text']}\n" for row in bare))
    for data in files:
        found = api.diff(old, new, data, DiffOptions(latency=False, threads=1, max_flips=0.0))
        assert found.differences.score is found.differences.outcomes is None
        assert found.differences.flipped == labelled.flipped > 0
        assert "answers differ" in found.failures[0]
        with pytest.raises(InputError, match=r"labels.*--label, or .* --fail-on-flips"):
            api.diff(old, new, data, DiffOptions(latency=False, max_drop=0.0))


def test_vectors_without_scores_are_compared_by_their_cosine(
    models: Models, tmp_path: Path, write_rows: Callable[..., Path]
) -> None:
    old, new, _ = models("feature-extraction")
    texts = write_rows(tmp_path / "texts.jsonl", [{"text": sentence(i)} for i in range(10)])
    found = api.diff(old, new, texts, FAST).differences
    assert found.score is None
    assert found.mean_distance is not None
    assert 0 < found.mean_distance < 2
    named = [{"text": sentence(2 * i), "text_pair": sentence(2 * i + 1)} for i in range(5)]
    paired = api.diff(old, new, write_rows(tmp_path / "pairs.jsonl", named), FAST).differences
    assert (paired.rows, paired.score) == (5, None)
    assert paired.mean_distance == pytest.approx(found.mean_distance), "both texts of a pair count"
    other = write_model(tmp_path / "wide", "feature-extraction", 3, hidden_size=64, num_attention_heads=4)
    with pytest.raises(InputError, match="vectors have .* and 64 numbers"):
        api.diff(old, other, texts, FAST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ("bad", "fair", "best")}, r"only in OLD \['good'\], only in NEW \['best'\].*matched by name"),
        ({"problem_type": "multi_label_classification"}, "its task is multi-label, that of OLD is text-classification"),
        (None, "NEW.*'int8' and 'fp32' both name a scheme"),
    ],
)
def test_models_that_cannot_be_compared_are_refused(
    models: Models, tmp_path: Path, changes: dict[str, Any] | None, message: str
) -> None:
    old, _, rows = models("text-classification")
    other: object = f"{tmp_path}:int8:fp32"
    if changes is None:
        (tmp_path / "artifacts.json").write_text("{}")
    else:
        other = write_model(tmp_path / "other", "text-classification", 3, **changes)
    with pytest.raises(InputError, match=message):
        api.diff(old, other, rows, FAST)
