"""A teacher whose answers are in a column: every form of a signal gives the losses that the same teacher gives in the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.data.labels import Labels
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.teacher_column import read_answer
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, Prepared, make_head
from pocketbert.core.heads.multiple_choice import even_choices
from pocketbert.core.heads.token_classification import find_words
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Level, TaskName
from pocketbert.distill.losses.task import soft_loss
from pocketbert.distill.teacher.column import ColumnTeacher
from pocketbert.distill.training.data import TrainSet
from pocketbert.pipeline.learn.answers import ColumnSettings, column_outputs, fit_vectors, name_rows, score_answers
from support.tiny_texts import LABELS, task_rows, write_lines

Array = NDArray[np.float64]
TAGS = ("O", "B-X", "I-X")
ROWS, WIDTH = 12, 6


@dataclass
class Taught:
    """Rows that a column teaches, and what the same teacher gives in the loop."""

    rows: Prepared
    settings: ColumnSettings
    outputs: dict[str, list[NDArray[np.float32]]]

    def losses(self, temperature: float, draw: np.random.Generator) -> tuple[float, float]:
        """The loss of a random student from the column, and from the teacher."""
        task = self.settings.task
        by_token = task.level is Level.TOKEN
        outputs = column_outputs(self.rows, self.settings)
        column = ColumnTeacher(outputs, [*outputs] if by_token else ())
        together = len(self.rows.encoded) if task.name is TaskName.MULTIPLE_CHOICE else 1
        batch = TrainSet(self.rows, self.rows.tokenizer, together).batch(range(len(self.rows.encoded)), 0)  # type: ignore[arg-type]
        loop = ColumnTeacher(self.outputs, [*self.outputs] if by_token else ())(batch).outputs
        made = {n: torch.from_numpy(draw.normal(size=v.shape, scale=2).astype(np.float32)) for n, v in loop.items()}
        if task.name is TaskName.FEATURE_EXTRACTION:
            states = draw.normal(size=(*batch["input_ids"].shape, WIDTH)).astype(np.float32)
            made = {"last_hidden_state": torch.from_numpy(states)}
        taught = column(batch).outputs
        both = (
            soft_loss(task, SimpleNamespace(**made), found, batch, temperature, DEFAULT_POOLING)
            for found in (taught, loop)
        )
        one, other = (float(term.mean) for term in both)
        return one, other


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


def top_two(p: Array) -> dict[str, float]:
    order = np.argsort(-p)
    return {LABELS[i]: float(p[i]) for i in order[:2]}


TEXT_FORMS: dict[str, tuple[str, Callable[[Array], Any]]] = {
    "probabilities by name": ("text-classification", lambda z: by_name(LABELS, softmax(z))),
    "probabilities in label order": ("text-classification", lambda z: softmax(z).tolist()),
    "the two most likely, the rest is the third": ("text-classification", lambda z: top_two(softmax(z))),
    "logits by name": ("text-classification", lambda z: by_name(LABELS, z)),
    "logits in label order": ("text-classification", lambda z: z.tolist()),
    "log-probabilities by name": ("text-classification", lambda z: by_name(LABELS, np.log(softmax(z)))),
    "probabilities of several labels": ("multi-label", lambda z: by_name(LABELS, 1 / (1 + np.exp(-z)))),
    "logits of several labels": ("multi-label", lambda z: by_name(LABELS, z)),
    "a score": ("regression", lambda z: float(z[0])),
}  # fmt: skip


@pytest.fixture
def tokenizer(tiny_model: Callable[..., Path]) -> TextTokenizer:
    return TextTokenizer(tiny_model("bert"), 24)


def teach(
    path: Path, task: str, tokenizer: TextTokenizer, names: Sequence[str] = LABELS, **keys: Any
) -> tuple[Prepared, ColumnSettings]:
    """Read the rows of a file as a run reads them."""
    source = DataSource.model_validate({"path": str(path), "teacher": "probs", **keys})
    row = TASKS[TaskName(task)]
    examples, _ = read_labelled_examples(source, kind=row.labels)
    labels = Labels(tuple(names) if row.names_labels else ())
    prepared = make_head(row, labels, AnswerSettings()).prepare(examples, tokenizer, path.name)
    assert source.teacher is not None
    return replace(prepared, tokenizer=tokenizer), ColumnSettings(source.teacher, labels, row, path.name)


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_answers_for_texts_give_the_teachers_losses(form: str, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    task, words = TEXT_FORMS[form]
    draw = np.random.default_rng(3)
    z = draw.normal(size=(ROWS, 1 if task == "regression" else len(LABELS)), scale=3).astype(np.float32)
    answers = zip(task_rows(ROWS, 1), z, strict=True)
    rows = [{"text": row["text"], "probs": words(v.astype(np.float64))} for row, v in answers]
    prepared, settings = teach(write_lines(tmp_path / "a.jsonl", rows), task, tokenizer)
    for temperature in (1.0, 2.0):
        column, loop = Taught(prepared, settings, {"logits": [*z]}).losses(temperature, draw)
        assert column == pytest.approx(loop, rel=1e-6, abs=1e-6)


def test_token_answers_are_carried_over_characters(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    draw, rows, logits = np.random.default_rng(5), [], []
    for i, row in enumerate(task_rows(ROWS, 2)):
        words = row["text"].split()
        z = draw.normal(size=(len(words), 3), scale=2).astype(np.float32)
        logits.append(z)
        p = softmax(z.astype(np.float64))
        starts = np.cumsum([0, *(len(w) + 1 for w in words)])
        units = [
            {"start": int(s), "end": int(s) + len(w), "probs": by_name(TAGS, v)}
            for s, w, v in zip(starts, words, p, strict=False)
        ]
        form = {0: [by_name(TAGS, v) for v in p], 1: p.tolist(), 2: units}[i % 3] if i else units
        rows.append({"text": row["text"] if i % 3 == 2 or not i else words, "tags": ["O"] * len(words), "probs": form})
    rows = [row if isinstance(row["text"], list) else {**row, "tags": []} for row in rows]
    keys = {"label": "tags"}
    named, lists = ([r for r in rows if isinstance(r["probs"][0], dict) is is_named] for is_named in (True, False))
    for part, chosen in (("named", named), ("lists", lists)):
        prepared, settings = teach(
            write_lines(tmp_path / f"{part}.jsonl", chosen), "token-classification", tokenizer, TAGS, **keys
        )
        outputs = []
        for row, encoded in zip(chosen, prepared.encoded, strict=True):
            first, _ = find_words(encoded)
            full = np.zeros((len(encoded), 3), np.float32)
            full[first] = logits[rows.index(row)][: len(first)]
            outputs.append(full)
        column, loop = Taught(prepared, settings, {"logits": outputs}).losses(2.0, draw)
        assert column == pytest.approx(loop, rel=1e-6, abs=1e-6)


def test_span_scores_give_the_teachers_losses(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    tokenizer = TextTokenizer(tiny_model("bert"), 64)  # each context in one window
    draw, rows = np.random.default_rng(7), []
    texts = [row["text"] for row in task_rows(ROWS, 4)]
    plain = [{"q": "where", "c": text, "answers": [], "probs": {"start": [], "end": []}} for text in texts]
    keys = {"text": "q", "text_pair": "c", "label": "answers"}
    bare, _ = teach(write_lines(tmp_path / "plain.jsonl", plain), "question-answering", tokenizer, (), **keys)
    outputs: dict[str, list[NDArray[np.float32]]] = {"start_logits": [], "end_logits": []}
    for row, window in zip(plain, bare.encoded, strict=True):
        context = np.flatnonzero(window.places.parts == 1)
        cell: dict[str, Any] = {"null": []}
        for key, end in (("start", 0), ("end", 1)):
            p = softmax(draw.normal(size=len(context) + 1, scale=2))
            # where no character is, the teacher holds nothing for possible
            z = np.full(len(window), -60.0, np.float32)
            z[context], z[0] = np.log(p[1:]), np.log(p[0])
            outputs[f"{key}_logits"].append(z)
            characters = window.places.offsets[context, end].tolist()
            cell[key] = [[character, float(v)] for character, v in zip(characters, p[1:], strict=True)]
            cell["null"].append(float(p[0]))
        rows.append({**row, "probs": cell})
    prepared, settings = teach(write_lines(tmp_path / "a.jsonl", rows), "question-answering", tokenizer, (), **keys)
    column, loop = Taught(prepared, settings, outputs).losses(1.0, draw)
    assert column == pytest.approx(loop, rel=1e-6, abs=1e-6)


def test_windows_of_a_context_share_the_scores_of_its_characters(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    context = " ".join(row["text"] for row in task_rows(8, 4))
    place = context.index("song") if "song" in context else 40
    cell = {"start": [[place, 0.9]], "end": [[place + 1, 0.9]], "null": 0.1}
    keys = {"text": "q", "text_pair": "c", "label": "answers"}
    row = {"q": "where", "c": context, "probs": cell}
    prepared, settings = teach(write_lines(tmp_path / "a.jsonl", [row]), "question-answering", tokenizer, (), **keys)
    outputs = column_outputs(prepared, settings)
    assert len(prepared.encoded) > 1
    for window, start in zip(prepared.encoded, outputs["start_logits"], strict=True):
        offsets = window.places.offsets
        inside = (window.places.parts == 1) & (offsets[:, 0] <= place) & (place < offsets[:, 1])
        p = softmax(start.astype(np.float64))
        assert p[inside].sum() == pytest.approx(0.9 if inside.any() else 0, abs=1e-6)
        assert p[0] == pytest.approx(0.1 if inside.any() else 1, abs=1e-6)


def test_vectors_and_choices_give_the_teachers_losses(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    draw = np.random.default_rng(9)
    vectors = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
    rows = [{"text": r["text"], "probs": v.tolist()} for r, v in zip(task_rows(ROWS, 1), vectors, strict=True)]
    prepared, settings = teach(write_lines(tmp_path / "v.jsonl", rows), "feature-extraction", tokenizer)
    column, loop = Taught(prepared, settings, {"sentence_embedding": [*vectors]}).losses(1.0, draw)
    assert column == pytest.approx(loop, rel=1e-6, abs=1e-6)

    with pytest.raises(InputError, match="have 3 to 6 numbers"):
        path = write_lines(tmp_path / "w.jsonl", [*rows, {"text": "a lamp", "probs": [0.5, 1.5, 2.5]}])
        column_outputs(*teach(path, "feature-extraction", tokenizer))
    counts = [3, 2, 3, 2]
    z = [draw.normal(size=count, scale=2) for count in counts]
    asked = [
        {
            "text": f"which {i}",
            "choices": [f"song {k}" for k in range(len(v))],
            "label": 0,
            "probs": softmax(v).tolist(),
        }
        for i, v in enumerate(z)
    ]
    prepared, settings = teach(
        write_lines(tmp_path / "c.jsonl", asked), "multiple-choice", tokenizer, choices="choices"
    )
    filled = [np.array([x], np.float32) for v in z for x in [*v, *[0.0] * (3 - len(v))]]
    column, loop = Taught(even_choices(prepared), settings, {"logits": filled}).losses(2.0, draw)
    assert column == pytest.approx(loop, rel=1e-6, abs=1e-6)


HARD: dict[str, tuple[dict[str, Any], dict[str, Any], list[float]]] = {
    "a label": ({"probs": "lamp"}, {}, [1, 0, 0]),
    "a number": ({"probs": 2}, {}, [0, 0, 1]),
    "smoothed": ({"probs": "lamp"}, {"smoothing": 0.3}, [0.8, 0.1, 0.1]),
    "with confidence": ({"probs": "music", "sure": 0.7}, {"confidence": "sure"}, [0.15, 0.7, 0.15]),
    "smoothed logits": ({"probs": [40.0, -40.0, -41.0]}, {"smoothing": 0.3}, [0.8, 0.1, 0.1]),
    "a list of votes": ({"probs": ["lamp", "lamp", "timer", "lamp"]}, {}, [0.75, 0, 0.25]),
    "votes by name": ({"probs": {"lamp": 3, "timer": 1}}, {}, [0.75, 0, 0.25]),
    "as JSON in a table": ({"probs": '{"lamp": 0.25, "music": 0.5, "timer": 0.25}'}, {}, [0.25, 0.5, 0.25]),
    "the most likely": ({"probs": {"lamp": 0.5}}, {}, [0.5, 0.25, 0.25]),
    "rounded": ({"probs": {"lamp": 0.33, "music": 0.33, "timer": 0.33}}, {}, [1 / 3, 1 / 3, 1 / 3]),
    "columns of their own": (
        {"lamp": 0.2, "music": 0.2, "timer": "0.6"},
        {"column": "lamp,music,timer"},
        [0.2, 0.2, 0.6],
    ),
}


@pytest.mark.parametrize("form", HARD)
def test_labels_votes_and_rounded_numbers_are_distributions(
    form: str, tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    row, section, expected = HARD[form]
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a lamp", **row}])
    prepared, settings = teach(path, "text-classification", tokenizer, teacher={"column": "probs", **section})
    (logits,) = column_outputs(prepared, settings)["logits"]
    np.testing.assert_allclose(softmax(logits.astype(np.float64)), expected, atol=1e-6)
    assert prepared.examples[0].label in (LABELS[int(np.argmax(expected))], int(np.argmax(expected)))


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ({"lamp": "much"}, "'much' is no finite number"),
        ([1e300, 1.0, 2.0], "is no finite number"),
        ({"lamp": 0.9, "music": 0.9, "timer": 0.9}, "add up to 2.7"),
        ({"lamp": 0.1, "music": 0.1, "timer": 0.1}, "add up to 0.3"),
        ({"lamp": 0.5, "tune": 0.5}, "label 'tune' is not in the label set"),
        ([0.5, 0.5], "has 2 numbers, there are 3 labels"),
    ],
)
def test_what_is_no_answer_is_refused_with_its_row(
    probs: Any, message: str, tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a lamp", "label": "lamp", "probs": probs}])
    with pytest.raises(InputError) as caught:
        section = {"column": "probs", "kind": "probabilities"}
        column_outputs(*teach(path, "text-classification", tokenizer, teacher=section))
    assert message in str(caught.value)
    assert "a.jsonl" in str(caught.value)


def test_answers_without_an_order_of_labels_and_labels_that_no_answer_prefers() -> None:
    path = "a.jsonl"
    example = Example("a", None, "lamp", 1)
    source = DataSource.model_validate({"path": path, "teacher": "probs"})
    assert source.teacher is not None
    named = {"text": "a", "probs": {"lamp": 0.9, "music": 0.1}}
    answers = [
        read_answer(source.teacher, row, TASKS[TaskName.TEXT_CLASSIFICATION].labels, None, "a")
        for row in (named, {"probs": [0.5, 0.5]})
    ]
    first, second = (replace(example, answer=answer) for answer in answers)
    assert [row.label for row in name_rows([first], False, path)] == ["lamp", "music"]
    assert [row.label for row in name_rows([second], True, path)] == [0, 1]
    for label in ("lamp", ("lamp",), (Span(0, 1, "X"),)):
        with pytest.raises(InputError, match="nothing tells which number is which label"):
            name_rows([replace(second, label=label)], False, path)
    assert [row.label for row in name_rows([replace(second, label=1)], False, path)] == [0, 1]


def test_answers_are_scored_against_labels_of_their_own_only(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = [
        {"text": f"a lamp {i}", "label": "lamp", "probs": {"lamp": 0.9 if i else 0.1, "music": 0.1 if i else 0.9}}
        for i in range(4)
    ]
    prepared, settings = teach(write_lines(tmp_path / "a.jsonl", rows), "text-classification", tokenizer)
    head = make_head(settings.task, settings.labels, AnswerSettings())
    score = score_answers(head, prepared, settings)
    assert score.value == 0.75
    bare = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    prepared, settings = teach(write_lines(tmp_path / "b.jsonl", bare), "text-classification", tokenizer)
    assert score_answers(head, prepared, settings) is None


@pytest.mark.parametrize("cut", [(), (2,)])
@pytest.mark.parametrize("width", [4, 8, 12])
def test_vectors_of_another_width_keep_their_cosines(width: int, cut: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    # eight numbers, of which four directions hold all
    vectors = [*(draw.normal(size=(30, 4)) @ np.linalg.qr(draw.normal(size=(8, 4)))[0].T).astype(np.float32)]
    mapped = fit_vectors(vectors, vectors, Pooling(dimensions=cut), width, 7)

    def cosines(of: Sequence[NDArray[np.float32]]) -> Array:
        matrix = np.stack(of).astype(np.float64)
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        return np.asarray(unit @ unit.T)

    assert {len(vector) for vector in mapped} == {width}
    np.testing.assert_allclose(cosines(mapped), cosines(vectors), atol=1e-5)
