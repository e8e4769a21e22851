"""Which columns are taken from a file that names none, and when the answer is a question to the user."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.predict.spans import Span
from pocketbert.core.tasks import LabelKind

TEXTS = [f"please tell me about the number {i} of my orders" for i in range(40)]
NAMES = ["orders", "weather", "music", "alarm"] * 10
CELLS: dict[str, list[Any]] = {
    "texts": TEXTS,
    "words": [t.split() for t in TEXTS],
    "names": NAMES,
    "0/1": [0, 1] * 20,
    "yes/no": ["yes", "no"] * 20,
    "numbers": list(range(40)),
    "scores": [i / 7 for i in range(40)],
    "keys": [f"key {i}" for i in range(40)],
    "one": ["train"] * 40,
    "tags": [["O"] * 10] * 40,
    "answers": [{"text": ["orders"], "answer_start": [0]}] * 40,
}


def guess(path: Path, cells: Mapping[str, Any] | str, kind: LabelKind | None = None, **given: str) -> Columns:
    """Guess the columns of rows that are given, or described as ``name=entry of CELLS``."""
    if isinstance(cells, str):
        cells = {name: CELLS[what] for name, what in (word.split("=") for word in cells.split())}
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return guess_columns(DataSource(path=str(path / "rows.jsonl"), **given), kind)


def taken(found: Columns) -> str:
    """The columns of the text, the second text and the label."""
    return f"{found.source.text} {found.source.text_pair or '-'} {found.source.label}"


def test_columns_are_found_by_the_surer_name_and_by_content_in_rows_that_are_sorted_by_label(tmp_path: Path) -> None:
    found = guess(tmp_path, "title=texts text=texts label=0/1 label_text=yes/no")
    assert found.note == "text: column 'text', label: column 'label' (2 numbers)"
    cells = {"said": [f"{t} and {i}" for i in range(20) for t in TEXTS], "goal": sorted(NAMES * 20)}
    assert guess(tmp_path, cells).note == "text: column 'said', label: column 'goal' (4 names)"


@pytest.mark.parametrize("pair", ["premise hypothesis", "question sentence"])
def test_columns_of_pairs_are_found_by_their_names(tmp_path: Path, pair: str) -> None:
    first, second = pair.split()
    assert taken(guess(tmp_path, f"{first}=texts {second}=texts label=names")) == f"{pair} label"


@pytest.mark.parametrize(
    ("cells", "messages"),
    [
        ("first=texts other=texts label=names", ["'first', 'other' could be the texts", "--text", "'label'"]),
        ("text=texts intent=names topic=names", ["'intent', 'topic' could be the labels", "--label 'intent'"]),
        ("text=texts row=keys", ["no column is surely the labels"]),
        ("text=texts score=scores sentiment=names", ["could be the labels"]),
    ],
)
def test_what_could_be_several_is_a_question(tmp_path: Path, cells: str, messages: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        guess(tmp_path, cells)
    [problem] = caught.value.problems
    assert all(message in str(problem) for message in messages)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (CELLS["scores"], LabelKind.SCORE),
        ([0.5, 1.5] * 20, None),
        (CELLS["numbers"], None),
        ([i % 3 for i in range(40)], LabelKind.NAME),
        (["1", "5"] * 20, LabelKind.NAME),
        ([["a", "b"], ["b"], [], ["a"]] * 10, LabelKind.NAMES),
        (["a; b", "b", "a", "b;c"] * 10, LabelKind.NAMES),
        (["yes; really", "no"] * 20, LabelKind.NAME),
        (CELLS["keys"], None),
        ([[{"start": 0, "end": 6, "label": "polite"}]] * 40, LabelKind.SPANS),
    ],
)
def test_kinds_of_labels(tmp_path: Path, cells: list, kind: LabelKind | None) -> None:
    assert guess(tmp_path, {"text": TEXTS, "label": cells}).kind is kind


def test_the_task_and_given_columns_choose(tmp_path: Path) -> None:
    cells = "raw=texts tokens=words tags=tags intent=names"
    assert taken(guess(tmp_path, cells, LabelKind.NAME, text="raw")) == "raw - intent"
    cells = "text=texts body=texts label=names topic=names"
    assert taken(guess(tmp_path, cells, label="topic", text="body")) == "body - topic"
    assert guess(tmp_path, "text=texts score=scores sentiment=names", LabelKind.SCORE).source.label == "score"
    for kind in (LabelKind.NONE, LabelKind.SCORE_OR_NONE):
        assert guess(tmp_path, "content=texts part=names", kind).source.text == "content"
    assert guess(tmp_path, "tokens=words tags=tags").kind is LabelKind.SPANS
    assert guess(tmp_path, "question=texts context=texts answers=answers").kind is LabelKind.ANSWERS


def in_turn(*cells: Any) -> list[Any]:
    """Give each of 40 rows one of the cells, in turn."""
    return [cells[i % len(cells)] for i in range(len(TEXTS))]


def with_row(cells: list[Any], row: int, cell: Any) -> list[Any]:
    """Replace the cell of one row."""
    return [cell if i == row else usual for i, usual in enumerate(cells)]


NAMED = in_turn("good", "bad")
ENGLISH = in_turn({"label": "en", "score": 0.97}, {"label": "fr", "score": 0.8})
VECTORS = in_turn([i / 7 for i in range(32)])
UNITS = in_turn([{"start": 0, "end": 6, "probs": {"O": 0.1, "B-A": 0.9}}])
SPANS = in_turn([{"start": 0, "end": 6, "label": "A"}])
SOURCES, BOOLEANS = in_turn("web", "app"), in_turn(True, False)
GOOD = {"good": 0.9, "bad": 0.1}
ANSWERS, TRUTHS, DIGITS = in_turn(GOOD), in_turn({"true": 0.9, "false": 0.1}), in_turn({"0": 0.9, "1": 0.1})


@pytest.mark.parametrize(
    ("cells", "label", "teacher", "labels"),
    [
        # the same labels, written in another way
        ({"fraud": BOOLEANS, "probs": TRUTHS}, "fraud", "probs", {"true", "false"}),
        ({"verdict": in_turn(0.0, 1.0), "probs": DIGITS}, "verdict", "probs", {0, 1}),
        ({"verdict": in_turn("1", "2"), "probs": in_turn({"1.0": 0.9, "2.0": 0.1})}, "verdict", "probs", {1, 2}),
        (
            {"verdict": in_turn("good ", "bad"), "p": in_turn({" good": 0.9, "bad": 0.1})},
            "verdict",
            "p",
            {"good", "bad"},
        ),
        (
            {"tags": in_turn([True, "x"], ["x"]), "probs": in_turn({"true": 0.9, "x": 0.8})},
            "tags",
            "probs",
            {("true", "x"), ("x",)},
        ),
        ({"verdict": NAMED, "probs": in_turn({"good": 0.9, "bad": 0.8})}, "verdict", "probs", {("good",), ("bad",)}),
        # answers that name no labels
        ({"verdict": NAMED, "p": in_turn([0.9, 0.1])}, "verdict", "p", {"good", "bad"}),
        ({"spans": SPANS, "teacher": UNITS}, "spans", "teacher", None),
        ({"score": CELLS["numbers"], "embedding": VECTORS}, None, "embedding", None),
        # the answers show which of two columns holds the labels
        ({"verdict": NAMED, "channel": SOURCES, "p": ANSWERS}, "verdict", "p", {"good", "bad"}),
        ({"ann": NAMED, "ben": NAMED, "p": ANSWERS}, None, "p", {"good"}),
        ({"source": SOURCES, "part": in_turn("a", "b"), "probs": ANSWERS}, None, "probs", {"good"}),
        # what a model says of other things
        ({"verdict": NAMED, "language": ENGLISH}, "verdict", None, {"good", "bad"}),
        ({"verdict": NAMED, "spoken": in_turn({"en": 0.9, "fr": 0.1})}, "verdict", None, {"good", "bad"}),
        ({"rating": CELLS["scores"], "language": ENGLISH}, "rating", None, None),
        ({"spans": SPANS, "language": ENGLISH}, "spans", None, None),
        ({"toxic": in_turn(0, 1), "insult": in_turn(1, 1, 0), "language": ENGLISH}, "toxic,insult", None, None),
        ({"label": ANSWERS, "source": SOURCES}, None, "label", {"good"}),
    ],
)
def test_labels_beside_answers_are_kept(
    tmp_path: Path, cells: dict[str, Any], label: str | None, teacher: str | None, labels: set[Any] | None
) -> None:
    found = guess(tmp_path, {"text": TEXTS, **cells})
    assert (found.source.label if "label" in found.source.model_fields_set else None) == label
    assert (found.source.teacher.column if found.source.teacher else None) == teacher
    assert ("are left out" in found.note) is (teacher is None)
    assert found.kind is not None
    examples = read_examples(found.source, kind=found.kind)
    assert len(examples) == len(TEXTS)
    assert all((example.answer is None) is (teacher is None) for example in examples)
    assert labels is None or {example.label for example in examples} == labels


TAGGED = {"tokens": CELLS["words"], "tags": CELLS["tags"], "teacher": in_turn([{"O": 0.9, "B-A": 0.1}] * 10)}
ASKED = {"question": TEXTS, "context": TEXTS, "answers": in_turn([{"text": "please", "answer_start": 0}])}
PLACED = {"teacher": in_turn({"start": [[0, 0.9]], "end": [[6, 0.9]], "null": 0.1})}


@pytest.mark.parametrize(
    ("cells", "kind", "label"),
    [(TAGGED, LabelKind.SPANS, "tags"), ({**ASKED, **PLACED}, LabelKind.ANSWERS, "answers")],
)
def test_gold_tags_and_answers_keep_their_teacher(
    tmp_path: Path, cells: dict[str, Any], kind: LabelKind, label: str
) -> None:
    found = guess(tmp_path, cells)
    assert (found.kind, found.source.label) == (kind, label)
    assert all(example.answer is not None for example in read_examples(found.source, kind=kind))


@pytest.mark.parametrize(
    ("cells", "labels", "answers"),
    [
        ({"source": SOURCES, "probs": ANSWERS}, "'source'", "probs"),
        ({"verdict": NAMED, "sentiment": ENGLISH}, "'verdict'", "sentiment"),
        ({"fraud": in_turn(0, 1), "probs": ANSWERS}, "'fraud'", "probs"),
        ({"verdict": NAMED, "channel": SOURCES, "language": ENGLISH}, "'verdict', 'channel'", "language"),
        ({"sure": CELLS["scores"], "p": ANSWERS}, "'sure'", "p"),
        ({"label": NAMED, "embedding": VECTORS}, "'label'", "embedding"),
        ({"label": in_turn(0, 1), "probs": ANSWERS}, "'label'", "probs"),
        ({"verdict": NAMED, "embedding": VECTORS}, "'verdict'", "embedding"),
        ({"verdict": NAMED, "places": UNITS}, "'verdict'", "places"),
    ],
)
def test_answers_of_other_labels_are_a_question(
    tmp_path: Path, cells: dict[str, Any], labels: str, answers: str
) -> None:
    with pytest.raises(InputError) as caught:
        guess(tmp_path, {"text": TEXTS, **cells})
    [problem] = caught.value.problems
    label = labels.split(",")[0].strip("'")
    assert f"{labels} could be the labels; the answers in column '{answers}' are of other labels" in str(problem)
    assert f"--label '{label}' leaves the answers out, --teacher '{answers}' learns them" in str(problem)
    by_label = guess(tmp_path, {"text": TEXTS, **cells}, label=label)
    assert (by_label.source.teacher, by_label.source.label) == (None, label)
    by_answers = guess(tmp_path, {"text": TEXTS, **cells}, teacher=answers)
    assert by_answers.source.teacher is not None
    for found, is_taught in ((by_label, False), (by_answers, True)):
        assert found.kind is not None
        examples = read_examples(found.source, kind=found.kind)
        assert [example.answer is not None for example in examples] == [is_taught] * len(TEXTS)


@pytest.mark.parametrize("label", ["label", "verdict"])
def test_a_typed_column_beside_answers_by_name(tmp_path: Path, label: str) -> None:
    datasets = pytest.importorskip("datasets")
    probs = {"neg": datasets.Value("float64"), "pos": datasets.Value("float64")}
    features = datasets.Features(
        {"text": datasets.Value("string"), label: datasets.ClassLabel(names=["neg", "pos"]), "probs": probs}
    )
    rows = {"text": TEXTS, label: [0, 1] * 20, "probs": [{"neg": 0.9, "pos": 0.1}] * 40}
    datasets.Dataset.from_dict(rows, features).to_parquet(str(tmp_path / "a.parquet"))
    found = guess_columns(DataSource(path=str(tmp_path / "a.parquet")))
    assert f"label: column '{label}' (2 names); teacher: the answers in column 'probs'" in found.note


PAIRS_OF_SCORES = [{"label": "good", "score": 0.9}, {"label": "bad", "score": 0.1}]


@pytest.mark.parametrize("row", [0, 25])
@pytest.mark.parametrize(
    ("usual", "other", "kind"),
    [
        (PAIRS_OF_SCORES, [{"label": "good", "score": 1}, {"label": "bad", "score": 0}], LabelKind.NAME),
        (PAIRS_OF_SCORES[0], {"label": "good", "score": 1}, LabelKind.NAME),
        ([{"name": n, "prob": 0.8} for n in GOOD], [{"name": n, "prob": 1} for n in GOOD], LabelKind.NAMES),
        ([0.5] * 32, [0, 1] * 16, LabelKind.SCORE_OR_NONE),
        ([0.5] * 32, [0, 0.5] * 16, LabelKind.SCORE_OR_NONE),
    ],
)
def test_answers_that_javascript_wrote(tmp_path: Path, usual: Any, other: Any, kind: LabelKind, row: int) -> None:
    cells = {"text": TEXTS, "p": with_row(in_turn(usual), row, other)}
    found = guess(tmp_path, cells)
    assert found.source.teacher is not None
    assert found.kind is kind
    examples = read_examples(found.source, kind=kind)
    assert all(example.answer is not None for example in examples)
    if kind is LabelKind.NAME:  # as labels only
        named = guess(tmp_path, cells, label="p")
        assert named.source.teacher is None
        assert {example.label for example in read_examples(named.source)} == {"good"}


PAIRED = in_turn([{"label": "a", "score": 1}, {"label": "b", "score": 0}])


@pytest.mark.parametrize("cells", [PAIRED, in_turn([*range(100, 132)]), with_row(in_turn([0.5] * 32), 3, [True] * 32)])
def test_whole_numbers_alone_are_no_answers(tmp_path: Path, cells: list[Any]) -> None:
    found = guess(tmp_path, {"text": TEXTS, "label": NAMED, "p": cells})
    assert (found.source.label, found.source.teacher) == ("label", None)
    assert {example.label for example in read_examples(found.source)} == {"good", "bad"}


def test_votes_may_be_true_or_false_and_tags_follow_from_answers_alone(tmp_path: Path) -> None:
    two = {"ann": BOOLEANS, "ben": in_turn(True)}, [{"true": 2}, {"true": 1, "false": 1}]
    for cells, votes in (two, ({"all": in_turn([True, False, False])}, [{"true": 1, "false": 2}] * 2)):
        found = guess(tmp_path, {"text": TEXTS, **cells}, teacher=",".join(cells))
        answers = [e.answer for e in read_examples(found.source)[:2] if e.answer is not None]
        assert [{n: v for n, v in zip(a.names, a.values[0], strict=True) if v} for a in answers] == votes
    words = [text.split() for text in TEXTS]
    outside, begin = {"O": 0.9, "B-A": 0.1}, {"O": 0.2, "B-A": 0.8}
    answers = with_row(in_turn([begin, *[outside] * 9]), 3, [outside] * 10)
    found = guess(tmp_path, {"tokens": words, "t": answers})
    assert found.kind is LabelKind.SPANS
    spans = [example.label for example in read_examples(found.source, kind=LabelKind.SPANS)]
    assert spans == with_row(in_turn((Span(0, 6, "A"),)), 3, ())


BY_LABEL = {"good": in_turn(0.9, 0.2), "bad": in_turn(0.1, 0.8)}
VOTES = {"ann": NAMED, "ben": in_turn("good")}


@pytest.mark.parametrize(
    ("cells", "teacher", "label", "labels"),
    [
        ({**BY_LABEL, "verdict": NAMED}, "good,bad", "verdict", {"good", "bad"}),
        ({**BY_LABEL, "source": SOURCES}, "good,bad", None, {"good", "bad"}),
        ({**VOTES, "verdict": NAMED}, "ann,ben", "verdict", {"good", "bad"}),
        ({**VOTES, "source": SOURCES}, "ann,ben", None, {"good", "bad"}),
        ({"by": NAMED, "source": SOURCES}, "by", None, {"good", "bad"}),
        ({"p": ANSWERS, "source": SOURCES}, "p", None, {"good"}),
        ({"p": ANSWERS, "label": in_turn(0, 1)}, "p", "label", {0, 1}),  # data.labels may name the numbers
    ],
)
def test_a_named_teacher_gives_the_labels_beside_other_columns(
    tmp_path: Path, cells: dict[str, Any], teacher: str, label: str | None, labels: set[Any]
) -> None:
    found = guess(tmp_path, {"text": TEXTS, **cells}, teacher=teacher)
    assert (found.source.label if "label" in found.source.model_fields_set else None) == label
    assert ("which give the labels too" in found.note) is (label is None)
    examples = read_examples(found.source)
    assert all(example.answer is not None for example in examples)
    assert {example.label for example in examples} == labels


@pytest.mark.parametrize(
    ("rows", "other", "kind"),
    [
        ([0, 39], [1, 0.0], LabelKind.NAME),
        ([25], "[1.0, 0.0]", LabelKind.NAME),
        (range(10), [True, 0.5], LabelKind.NAMES),
        (range(10), [0.3, 0.7], LabelKind.NAMES),
        (range(40), [7, 3], LabelKind.NAMES),
        (range(40), [0.7], LabelKind.NAMES),
    ],
)
def test_two_lists_are_zero_shot_answers_if_the_scores_of_nearly_all_rows_fall(
    tmp_path: Path, rows: Sequence[int], other: Any, kind: LabelKind
) -> None:
    scores = [other if i in rows else [0.7, 0.3] for i in range(len(TEXTS))]
    found = guess(tmp_path, {"sequence": TEXTS, "labels": in_turn(["a", "b"]), "scores": scores})
    assert found.kind is kind
    if kind is LabelKind.NAME:
        answer = read_examples(found.source)[1].answer
        assert answer is not None
        assert dict(zip(answer.names, answer.values[0], strict=True)) == {"a": 0.7, "b": 0.3}


@pytest.mark.parametrize(
    ("answers", "is_answered"),
    [
        ([""] + ["orders"] * 39, True),
        ([["number"], [], ["my", "orders"], []] * 10, True),
        (["several of them"] + ["orders"] * 39, True),
        (["orders"] + ["yes", "no", "unknown"] * 13, False),
        (["orders", *"abcde"] + ["orders"] * 34, False),
        (["yes", "no"] * 20, False),
    ],
)
def test_questions_on_a_text_are_told_by_several_rows(tmp_path: Path, answers: list[Any], is_answered: bool) -> None:
    questions = [f"what is it that I asked in case {i}" for i in range(40)]
    with nullcontext() if is_answered else suppress(InputError):
        found = guess(tmp_path, {"passage": TEXTS, "question": questions, "answer": answers})
        assert (found.kind is LabelKind.ANSWERS) is is_answered
        assert not is_answered or taken(found) == "question context answers"


def draw_triplets() -> dict[str, list[tuple[str, ...]]]:
    """Rows of three texts: triplets, and others that have three texts for another reason."""
    words = (("find", "close", "paint"), ("old", "new", "red", "blue"), ("door", "shop", "car", "boat"))
    goals = [f"{verb} the {size} {thing}" for verb, size, thing in product(*words)]
    near = [f"please {goal} for me" for goal in goals]
    far = near[17:] + near[:17]
    names = ["ask the price of something", "ask the way to somewhere", "tell what was seen"]
    return {
        "triplets": [*zip(goals, near, far, strict=True)],
        "with explanations": [*zip(goals, near, (f"it says {goal}" for goal in goals), strict=True)],
        "third is nearer": [*zip(goals, far, near, strict=True)],
        "of the same text": [*zip(goals, near, near, strict=True)],
        "turns of a talk": [*zip(goals, goals[1:], goals[2:], strict=False)],
        "names of classes": [(f"{goal} now", names[i % 3], names[(i + 1) % 3]) for i, goal in enumerate(goals)],
    }


TRIPLETS = draw_triplets()


@pytest.mark.parametrize("kind", TRIPLETS)
@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_triplets_without_names_are_told_only_where_no_doubt_is(tmp_path: Path, kind: str, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    lines = ["\t".join(row) if ending == "tsv" else json.dumps(row) for row in TRIPLETS[kind]]
    path.write_text("".join(f"{line}\n" for line in lines))
    if kind == "triplets":
        found = guess_columns(DataSource(path=str(path)))
        assert found.note.startswith("triplets, 96 rows")
        examples = read_examples(found.source, kind=LabelKind.SCORE_OR_NONE)
        assert [(e.text, e.pair, e.label) for e in examples[:2]] == [
            ("find the old door", "please find the old door for me", 1.0),
            ("find the old door", "please close the old shop for me", 0.0),
        ]
        named = guess_columns(DataSource(path=str(path), text="column 1", text_pair="column 2"), LabelKind.NONE)
        assert taken(named) == "column 1 column 2 label"
        return
    with pytest.raises(InputError) as caught:
        guess_columns(DataSource(path=str(path)))
    hint = "If they are triplets, name them in a first row: anchor, positive, negative."
    assert (hint in str(caught.value)) is (kind != "names of classes")
