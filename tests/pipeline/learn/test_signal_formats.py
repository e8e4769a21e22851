"""Teacher signals in JSON Lines, CSV, TSV and Parquet: the same losses in each, those of the teacher in the loop."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.data.labels import Labels
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, Prepared, make_head
from pocketbert.core.heads.token_classification import find_words
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Level, TaskName
from pocketbert.distill.losses.task import soft_loss
from pocketbert.distill.teacher.column import ColumnTeacher
from pocketbert.distill.training.data import TrainSet
from pocketbert.pipeline.learn.answers import ColumnSettings, column_outputs
from support.tiny_texts import LABELS, task_rows

Array = NDArray[np.float64]
ROWS, TAGS = 6, ("O", "B-X", "I-X")
FORMATS = ("jsonl", "csv", "tsv", "parquet")


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


def votes_of(z: Array) -> Array:
    """Whole numbers of votes that are a distribution."""
    return np.floor(softmax(z) * 7) + np.eye(len(z))[z.argmax()]


def kept(z: Array, label: int, p: float) -> Array:
    """The distribution with `p` at one label and the rest spread over the others."""
    return np.where(np.arange(len(z)) == label, p, (1 - p) / (len(z) - 1))


Signal = tuple[str, Callable[[Array], dict[str, Any]], dict[str, Any], Callable[[Array], Array]]
"""Task, columns of a row with the teacher's logits z, keys of the column, and the probabilities that z becomes in the loop."""
CLASS, MANY = "text-classification", "multi-label"
SIGNALS: dict[str, Signal] = {
    "probabilities by name": (CLASS, lambda z: {"a": by_name(LABELS, softmax(z))}, {}, softmax),
    "probabilities in label order": (CLASS, lambda z: {"a": softmax(z).tolist()}, {}, softmax),
    "the most likely, the rest spread": (
        CLASS,
        lambda z: {"a": {LABELS[z.argmax()]: float(softmax(z).max())}},
        {},
        lambda z: kept(z, int(z.argmax()), float(softmax(z).max())),
    ),
    "logits by name": (CLASS, lambda z: {"a": by_name(LABELS, z)}, {"kind": "logits"}, softmax),
    "logits in label order": (CLASS, lambda z: {"a": z.tolist()}, {"kind": "logits"}, softmax),
    "log-probabilities": (CLASS, lambda z: {"a": by_name(LABELS, np.log(softmax(z)))}, {}, softmax),
    "columns of numbers": (CLASS, lambda z: by_name(LABELS, softmax(z)), {"column": ",".join(LABELS)}, softmax),
    "votes by name": (
        CLASS,
        lambda z: {"a": {n: int(v) for n, v in by_name(LABELS, votes_of(z)).items()}},
        {},
        lambda z: votes_of(z) / votes_of(z).sum(),
    ),
    "votes of people": (
        CLASS,
        lambda z: {"ann": LABELS[z.argmax()], "ben": LABELS[z.argmin()], "eva": LABELS[z.argmax()]},
        {"column": "ann,ben,eva"},
        lambda z: (2 * np.eye(len(z))[z.argmax()] + np.eye(len(z))[z.argmin()]) / 3,
    ),
    "labels, smoothed": (
        CLASS,
        lambda z: {"a": LABELS[z.argmax()]},
        {"smoothing": 0.3},
        lambda z: 0.7 * np.eye(len(z))[z.argmax()] + 0.1,
    ),
    "labels with a confidence": (
        CLASS,
        lambda z: {"a": LABELS[z.argmax()], "sure": 0.75},
        {"confidence": "sure"},
        lambda z: kept(z, int(z.argmax()), 0.75),
    ),
    "probabilities of several labels": (MANY, lambda z: {"a": by_name(LABELS, 1 / (1 + np.exp(-z)))}, {}, softmax),
    "a score": ("regression", lambda z: {"a": float(z[0])}, {}, softmax),
    "a vector": ("feature-extraction", lambda z: {"a": z.tolist()}, {}, softmax),
    "choices": (
        "multiple-choice",
        lambda z: {"a": softmax(z).tolist(), "choices": ["a song", "a lamp", "six"]},
        {},
        softmax,
    ),
    "tags by name": ("token-classification", lambda z: {"a": [by_name(TAGS, p) for p in softmax(z)]}, {}, softmax),
    "tags with places": ("token-classification", lambda z: {"a": z}, {}, softmax),
    "scores of spans": ("question-answering", lambda z: {"a": z}, {}, softmax),
}


def spans_of(z: Array, text: str) -> dict[str, Any]:
    """Probabilities that the answer starts and ends with each word, and of none in the last place."""
    ends = np.cumsum([len(word) + 1 for word in text.split()]) - 1
    places = {"start": [0, *(ends[:-1] + 1).tolist()], "end": ends.tolist()}
    p = softmax(z)
    cell = {
        key: [[at, float(v)] for at, v in zip(own, p[i], strict=False)] for i, (key, own) in enumerate(places.items())
    }
    return {**cell, "null": p[:, -1].tolist()}


def make_row(name: str, text: str, draw: np.random.Generator) -> tuple[dict[str, Any], Array]:
    """A row with a signal, and the teacher's logits: of the whole text, of each word, or of start and end at each word."""
    task, write, *_ = SIGNALS[name]
    words = text.split()
    shapes = {"token-classification": (len(words), 3), "question-answering": (2, len(words) + 1), "regression": (1,)}
    z = draw.normal(size=shapes.get(task, (3,)), scale=2)
    row = {"text": text, "label": [] if task == MANY else 0, **write(z)}
    if task == "question-answering":
        return {"text": "where", "context": text, "label": [], "a": spans_of(z, text)}, z
    if task != "token-classification":
        return row, z
    if name == "tags by name":
        return {**row, "text": words, "label": ["O"] * len(words)}, z
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    units = zip(starts, words, softmax(z), strict=False)
    return {
        **row,
        "label": [],
        "a": [{"start": s, "end": s + len(w), "probs": by_name(TAGS, p)} for s, w, p in units],
    }, z


def outputs_in_loop(name: str, rows: Prepared, logits: Sequence[Array]) -> dict[str, list[NDArray[np.float32]]]:
    """What the teacher gives in the loop, by output and tokenized row."""
    task, _, _, probabilities = SIGNALS[name]
    if task in (MANY, "regression", "feature-extraction"):
        return {
            "sentence_embedding" if task == "feature-extraction" else "logits": [z.astype(np.float32) for z in logits]
        }
    outputs: dict[str, list[Any]] = {}
    for encoded, z in zip(rows.encoded, logits, strict=False):
        if task == "token-classification":
            full = np.zeros((len(encoded), len(TAGS)))
            first, _ = find_words(encoded)
            full[first] = z[: len(first)]
            outputs.setdefault("logits", []).append(full)
        elif task == "question-answering":
            assert encoded.places is not None
            offsets = encoded.places.offsets
            context = np.flatnonzero(encoded.places.parts == 1)
            text = rows.examples[len(outputs.get("start_logits", ()))].pair or ""
            ends = np.cumsum([len(word) + 1 for word in text.split()]) - 1
            for i, (key, characters) in enumerate({"start": [0, *(ends[:-1] + 1)], "end": ends - 1}.items()):
                made = np.full(len(encoded), -60.0)
                made[0] = np.log(softmax(z)[i, -1])
                for character, value in zip(characters, np.log(softmax(z)[i]), strict=False):
                    made[context[(offsets[context, 0] <= character) & (character < offsets[context, 1])]] = value
                outputs.setdefault(f"{key}_logits", []).append(made)
        else:
            outputs.setdefault("logits", []).append(np.log(np.maximum(probabilities(z), np.exp(-60.0))))
    if task == "multiple-choice":
        outputs["logits"] = [np.array([value]) for z in outputs["logits"] for value in z]
    return {key: [value.astype(np.float32) for value in values] for key, values in outputs.items()}


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as a file of the format that its name says; in tables, lists and objects are JSON in their cells."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, [*rows[0]], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()})
    return path


def read_rows(path: Path, name: str, tokenizer: TextTokenizer) -> tuple[Prepared, ColumnSettings]:
    """Read the rows of a file as a run does."""
    task, _, section, _ = SIGNALS[name]
    more = (
        {"text_pair": "context"}
        if task == "question-answering"
        else {"choices": "choices"}
        if name == "choices"
        else {}
    )
    source = DataSource.model_validate({"path": str(path), "teacher": {"column": "a", **section}, **more})
    row = TASKS[TaskName(task)]
    examples, _ = read_labelled_examples(source, kind=row.labels)
    labels = Labels(TAGS if row.level is Level.TOKEN and row.names_labels else LABELS if row.names_labels else ())
    prepared = make_head(row, labels, AnswerSettings()).prepare(examples, tokenizer, path.name)
    assert source.teacher is not None
    return prepared, ColumnSettings(source.teacher, labels, row, path.name)


@pytest.mark.parametrize("name", SIGNALS)
def test_every_format_gives_the_losses_of_the_teacher_in_the_loop(
    name: str, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    tokenizer, draw = TextTokenizer(tiny_model("bert"), 64), np.random.default_rng(3)
    rows, logits = zip(*(make_row(name, row["text"], draw) for row in task_rows(ROWS, 2)), strict=True)
    states, losses = dict[str, Any](), dict[str, float]()
    for format in FORMATS:
        prepared, settings = read_rows(write_rows(tmp_path / f"a.{format}", rows), name, tokenizer)
        task = settings.task
        together = 3 if name == "choices" else 1
        batch = TrainSet(prepared, tokenizer, together).batch(range(len(prepared.encoded)), 0)
        loop = outputs_in_loop(name, prepared, logits)
        by_token = [*loop] if task.level is Level.TOKEN else []
        for source, outputs in ((format, column_outputs(prepared, settings)), ("loop", loop)):
            taught = ColumnTeacher(outputs, by_token)(batch).outputs
            for key, value in taught.items():
                states.setdefault(key, torch.from_numpy(draw.normal(size=value.shape, scale=2).astype(np.float32)))
            shape = (*batch["input_ids"].shape, 3)
            states.setdefault("last_hidden_state", torch.from_numpy(draw.normal(size=shape).astype(np.float32)))
            losses[source] = float(soft_loss(task, SimpleNamespace(**states), taught, batch, 2.0, DEFAULT_POOLING).mean)
    assert losses["loop"] > 0.01
    for format in FORMATS:
        assert losses[format] == pytest.approx(losses["loop"], rel=1e-6, abs=1e-6), format


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("a.txt", "a lamp\na song\n", "no column 'label' or 'a'; allowed: text"),
        ("a.conll", "turn B-lamp\non O\n\nplay B-music\n", "allowed: column 1, column 2"),
    ],
)
def test_a_file_that_cannot_carry_a_signal_is_refused(file: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    source = DataSource.model_validate({"path": str(tmp_path / file), "teacher": {"column": "a", "kind": "logits"}})
    with pytest.raises(InputError) as caught:
        read_labelled_examples(source, kind=TASKS[TaskName.TEXT_CLASSIFICATION].labels)
    assert said in str(caught.value)
