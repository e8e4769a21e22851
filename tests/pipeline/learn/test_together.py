"""Rows of several kinds in one recipe: texts without labels, a column of answers, validation rows, vectors, and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.errors import InputError
from pocketbert.core.metrics import describe_details
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, read_pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.learn.data import AGREEMENT, RunData, load_data
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.validation import make_validation, scored_by_default_up_to
from pocketbert.pipeline.phone.pack import portable
from pocketbert.pipeline.recipes import smaller_recipe
from support.tiny_task import Task
from support.tiny_texts import LABELS, task_rows, write_lines

Run = Callable[..., Any]
Recipe = Callable[..., Path]
SHORT = {"steps": 4, "batch": 8, "lr": 1e-3}
OUTPUTS = {"method": "task", **SHORT, "signals": {"hidden": 0, "attention": 0}}


def learning(**signals: float) -> dict[str, Any]:
    """A stage with these signals and no others."""
    return {**OUTPUTS, "signals": {"logits": 0, "hidden": 0, "attention": 0, **signals}}


@pytest.fixture
def ready(task: Task, tiny_model: Recipe, tmp_path: Path) -> Recipe:
    """`ready(data, **changes)`: a recipe whose teacher has a head and is not fine-tuned."""
    teacher = {"model": str(tiny_model("bert", 2, LABELS)), "finetune": None}

    def write(data: dict[str, Any], **changes: Any) -> Path:
        settings = {"distill": [OUTPUTS], "teacher": teacher, **changes}
        return task.variant(tmp_path / "recipe.yaml", data=data, **settings)

    return write


def load(recipe_file: Path) -> RunData:
    recipe = load_recipe(recipe_file)
    return load_data(recipe, open_model_folder(recipe.teacher.model))


def count(data: RunData) -> dict[str, int]:
    return {name: len(split.examples) for name, split in data.splits.items()}


def texts_at(path: Path, rows: int, seed: int) -> dict[str, str]:
    path.write_text("".join(row["text"] + "\n" for row in task_rows(rows, seed)))
    return {"path": str(path)}


def answered(path: Path, rows: int, seed: int, has_answer: int = 1, has_label: int = 0) -> dict[str, str]:
    """A source of rows with answers; every `has_answer`-th has none, every `has_label`-th has a label too."""
    found = []
    for i, row in enumerate(task_rows(rows, seed)):
        probs = {name: 0.9 if name == row["label"] else 0.05 for name in LABELS}
        own = {"label": row["label"]} if has_label and i % has_label == 0 else {}
        found.append({"text": row["text"], **({"probs": probs} if has_answer == 1 or i % has_answer else {}), **own})
    return {"path": str(write_lines(path, found))}


# --- which rows are trained on, scored and chosen with ---


def test_phrases_of_a_sentence_that_is_scored_or_chosen_with_are_not_trained_on(ready: Recipe, tmp_path: Path) -> None:
    sentences = [f"the film number {i} is a fine thing of {i} parts" for i in range(200)]
    rows = [{"text": t, "label": LABELS[i % 2]} for i, s in enumerate(sentences) for t in (s, " ".join(s.split()[3:]))]
    train = {"path": str(write_lines(tmp_path / "rows.jsonl", rows))}
    evaluation = {"path": None, "fraction": 0.4, "at_most": 80}
    for validation in (None, {"fraction": 0.2}):
        found = load(ready({"train": train, "eval": evaluation, "validation": validation}))
        texts = {name: [e.text for e in split.examples] for name, split in found.splits.items()}
        trained, held = texts.pop("train"), [t for own in texts.values() for t in own]
        assert all(30 < len(own) < 110 for own in texts.values())
        assert not [t for t in trained for h in held if t in h or h in t]
        if validation is None:
            assert found.report.train_in_eval == len(rows) - len(held) - len(trained) > 20


def test_texts_alone_with_validation_rows_choose_checkpoints_and_seeds(
    ready: Recipe, succeed: Run, tmp_path: Path
) -> None:
    data = {"train": None, "transfer": {"sources": [texts_at(tmp_path / "t.txt", 50, 7)]}}
    data["validation"] = {"path": str(write_lines(tmp_path / "v.jsonl", task_rows(30, 9)))}
    recipe = ready(data, training={"seeds": 2, "evaluate_every": 2})
    found = load(recipe)
    assert (count(found), found.scores_agreement) == ({"train": 50, "eval": 150, "validation": 30}, False)
    succeed("distill", recipe, "-o", tmp_path / "run")
    training = read_training(tmp_path / "run/student")
    assert [score.chosen for score in training.seeds].count(True) == 1
    assert [step for step, _ in training.curves[-1].scores] == [2, 4]
    assert AGREEMENT not in training.notes, "the evaluation rows have labels"
    del data["validation"]
    with pytest.raises(InputError, match=r"Name some: data\.validation\.path"):
        load(ready(data, training={"seeds": 2}))


def test_evaluation_rows_need_no_training_rows(ready: Recipe) -> None:
    assert count(load(ready({"train": None}, student=None, distill=None))) == {"eval": 150}


@pytest.mark.parametrize("validation", [{"fraction": 0.25}, "labelled"], ids=["taken", "a file"])
def test_unlabelled_training_rows_with_validation_rows(validation: Any, ready: Recipe, tmp_path: Path) -> None:
    if validation == "labelled":
        validation = {"path": str(write_lines(tmp_path / "v.jsonl", task_rows(30, 9)))}
    rows = {"train": texts_at(tmp_path / "t.txt", 80, 7), "labels": None, "validation": validation}
    found = load(ready({**rows, "eval": {"path": None, "fraction": 0.3}}))
    assert (found.labelled, found.scores_agreement, found.labels.names) == (False, True, LABELS)
    assert len(found.splits["validation"].truth) == len(found.splits["validation"].examples) > 10
    judged = load(ready({**rows, "labels": list(LABELS)}))
    assert (count(judged)["eval"], judged.scores_agreement) == (150, False), "only the validation rows may lack labels"


def test_rows_without_an_answer_in_a_column_are_left_out(ready: Recipe, tmp_path: Path) -> None:
    train = {**answered(tmp_path / "c.jsonl", 60, 1, has_answer=3), "teacher": "probs"}
    found = load(ready({"train": train}))
    assert (count(found), found.unlabelled) == ({"train": 40, "eval": 150}, [])
    with pytest.raises(InputError, match=r"data\.transfer: its texts have no answers in the column"):
        load(ready({"train": train, "transfer": {"sources": [texts_at(tmp_path / "t.txt", 20, 7)]}}))
    rows = write_lines(tmp_path / "e.jsonl", [{"text": row["text"]} for row in task_rows(30, 12)])
    with pytest.raises(InputError, match="no column 'label' or 'probs'; allowed: text"):
        load(ready({"train": train, "eval": {"path": str(rows)}}))


def test_rows_of_the_evaluation_file_are_not_trained_on_where_their_label_is_an_answer(
    ready: Recipe, tmp_path: Path
) -> None:
    train = {**answered(tmp_path / "c.jsonl", 60, 1), "teacher": "probs"}
    half, alone = answered(tmp_path / "e.jsonl", 30, 14, has_label=2), answered(tmp_path / "v.jsonl", 20, 15)
    found = load(ready({"train": train, "eval": half, "validation": alone}))
    assert count(found) == {"train": 60, "eval": 15, "validation": 20}
    taken = load(ready({"train": {**half, "teacher": "probs"}, "eval": {"path": None, "fraction": 0.4}}))
    assert sum(count(taken).values()) == 30, "of a share of the training rows, they are"


# --- validation rows by default ---


@pytest.mark.parametrize("rows", [990, 1000])
def test_rows_that_are_taken_for_validation_are_scored(rows: int, task: Task, tmp_path: Path) -> None:
    many = [{"text": f"{row['text']} {i}", "label": row["label"]} for i, row in enumerate(task_rows(rows, 21))]
    source = {"path": str(write_lines(tmp_path / "rows.jsonl", many))}
    finetune = {"epochs": 2, "steps": None, "batch": 32, "lr": 1e-3}
    changes = {"data": {"train": source}, "teacher": {"finetune": finetune}, "distill": [OUTPUTS]}
    recipe = load_recipe(task.variant(tmp_path / "r.yaml", **changes))
    model = open_model_folder(recipe.teacher.model)
    data, settings = load_data(recipe, model), recipe.teacher.finetune
    settings = settings.for_rows(len(data.splits["train"].encoded))
    tokenizer = TextTokenizer(model.tokenizer_folder, 40)
    found = make_validation(recipe, data.head, data.splits, settings, model.family, tokenizer, DEFAULT_POOLING)
    assert ("validation" in data.splits, found is not None) == (rows >= 1000, rows >= 1000)


def passes(count: int) -> dict[str, Any]:
    return {"epochs": count, "steps": None, "batch": 8, "lr": 1e-3}


REACHES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], int | str | None]] = [
    (SHORT, {**SHORT, "steps": 500}, {}, 2000),
    ({**SHORT, "steps": 600}, {**SHORT, "steps": 500}, {}, None),  # the teacher's own training has decided it
    (passes(1), passes(2), {}, "any"),
    (passes(2), SHORT, {}, None),
    (passes(2), SHORT, {"augment": {"copies": 2}}, "any"),  # copies are older than the teacher
    (passes(1), passes(2), {"validation": {"fraction": 0.1}}, None),
    (SHORT, SHORT, {}, None),
]


@pytest.mark.parametrize(("finetune", "stage", "data", "wanted"), REACHES)
def test_what_decides_about_validation_rows_beyond_the_first_training(
    finetune: dict[str, Any], stage: dict[str, Any], data: dict[str, Any], wanted: Any, task: Task, tmp_path: Path
) -> None:
    stages = [{"method": "task", "augmented": "augment" in data, **{k: v for k, v in stage.items() if v is not None}}]
    recipe = task.variant(tmp_path / "r.yaml", data=data, teacher={"finetune": finetune}, distill=stages)
    assert scored_by_default_up_to(load_recipe(recipe)) == wanted


def test_a_stage_that_first_needs_validation_rows_changes_the_rows_of_all(
    task: Task, succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    def command(steps: int) -> tuple[object, ...]:
        stages = [{**OUTPUTS, "steps": steps}]
        recipe = task.variant(tmp_path / "r.yaml", distill=stages, teacher={"finetune": SHORT})
        return "distill", recipe, "-o", tmp_path / "run"

    succeed(*command(5))
    for steps, said in ((6, "distill.0 and the step behind it"), (500, "data and the 3 steps behind it")):
        assert said in refuse(*command(steps))


# --- sentence vectors ---


def test_vectors_without_scores_choose_nothing(
    vectors_recipe: Recipe, scored_pairs: Callable[[int], dict[str, str]], tmp_path: Path
) -> None:
    texts = {"train": texts_at(tmp_path / "t.txt", 40, 7), "eval": texts_at(tmp_path / "e.txt", 20, 5)}
    scored = scored_pairs(8)

    def read(seeds: int, **validation: str) -> RunData:
        return load(vectors_recipe({**texts, "validation": validation}, OUTPUTS, training={"seeds": seeds}))

    assert "validation" in read(1, **scored).splits
    plain = read(1, **{**scored, "label": "none"})
    assert len(plain.splits["validation"].truth) == 40, "the texts of a pair are to find each other"
    with pytest.raises(InputError, match=r"data\.validation: checkpoints and seeds are chosen by scores of pairs"):
        read(1, **texts_at(tmp_path / "v.txt", 20, 6))
    with pytest.raises(InputError, match=r"training\.seeds: .* and its rows have no scores"):
        read(2, **scored)


def test_vectors_that_may_be_cut(
    vectors_recipe: Recipe, scored_pairs: Callable[[int], dict[str, str]], succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    data = {"train": texts_at(tmp_path / "t.txt", 40, 7), "eval": scored_pairs(8)}
    recipe = vectors_recipe(data, OUTPUTS, export={"formats": ["onnx"]})
    for edits, said in (
        (["answer.dimensions=[4, 99]"], "answer.dimensions: 99 is more than the 32 numbers of a vector"),
        (
            ["answer.dimensions=[4]", "answer.similarity=manhattan"],
            "vectors compared by the Manhattan distance cannot be rotated",
        ),
    ):
        assert said in refuse("run", recipe, "-o", tmp_path / "no", *edits)
    succeed("run", recipe, "-o", tmp_path / "run", "answer.dimensions=[16, 4]")
    poolings = [read_pooling(tmp_path / "run" / name) for name in ("teacher", "student")]
    rotations = [p.layers[-1].weights["linear.weight"] for p in poolings if p is not None]
    np.testing.assert_array_equal(*rotations)
    phone = tmp_path / "run/phone"
    artefacts = read_artefacts(phone)
    assert artefacts.processing.dimensions == [4, 16]
    scores = artefacts.default_model().scores["eval"].others
    assert {"spearman@4", "spearman@16"} <= scores.keys()
    card, search = (phone / "README.md").read_text(), describe_details(scores)
    assert "A vector may be cut to its first 4 or 16 numbers" in card
    assert search.startswith("recall@1 ")
    assert f"Search on eval, `{artefacts.default_model().path}`: {search}." in card
    assert search.split(", ")[1] in (tmp_path / "run/report.html").read_text()
    named = ("--text", "a", "--text-pair", "b", "--label", "label")
    checked = succeed("verify", "-m", phone, "--data", data["eval"]["path"], *named, "--max-drop", 0.5)  # 8 rows
    assert f"({search}) on pairs-8.jsonl" in " ".join((checked.output + checked.stderr).split())

    text = task_rows(1, 3)[0]["text"]
    (whole,), (cut,) = (
        [json.loads(line)["embedding"] for line in made.stdout.splitlines()]
        for made in (succeed("predict", "-m", phone, "--json", *more, text) for more in ((), ("--dimensions", "4")))
    )
    np.testing.assert_allclose(cut, np.array(whole[:4]) / np.linalg.norm(whole[:4]), atol=1e-6)
    rows, answers = tmp_path / "rows.csv", tmp_path / "answers.jsonl"
    rows.write_text(f"text\n{text}\n")
    succeed("predict", "-m", phone, "--file", rows, "--dimensions", "4", "-o", answers)
    np.testing.assert_allclose(json.loads(answers.read_text())["answer"]["embedding"], cut, atol=1e-6)
    said = refuse("predict", "-m", phone, "--dimensions", "5", text)
    assert "--dimensions: 5 is no length to cut vectors to; the model's are 4, 16" in said
    student, more = tmp_path / "run/student", ("--format", "onnx", "--scheme", "fp32")
    succeed("export", "-m", student, "-o", tmp_path / "again", *more)
    assert read_artefacts(tmp_path / "again").processing.dimensions == [4, 16], "the student's folder says so"


def ranked_rows(seed: int) -> list[dict[str, Any]]:
    """Queries with a text that has the same words and one that has others, and a reranker's scores."""
    texts = [row["text"] for row in task_rows(41, seed)]
    return [
        {"query": a, "positive": f"{a} now", "negative": b, "pos_score": 8.0, "neg_score": -1.0 - i % 5}
        for i, (a, b) in enumerate(pairwise(texts))
    ]


RANKED = {"text": "first", "text_pair": "second", "label": "score"}


@pytest.mark.parametrize(
    ("term", "changes", "columns", "note"),
    [
        ("margins", {}, "negative pos_score neg_score", "40 margins of 40 queries, divided by 13"),
        ("margins", {"margin_scale": 2.5}, "negative pos_score neg_score", "divided by 2.5"),
        ("margins", {"normalize": False}, "negative pos_score neg_score", "divided by 1"),
        ("negatives", {}, "negative", "40 texts of 40 queries, with negatives"),
        ("negatives", {}, "", "40 texts of 40 queries"),
    ],
)
def test_vectors_learn_from_rankings(
    term: str,
    changes: dict[str, Any],
    columns: str,
    note: str,
    vectors_recipe: Recipe,
    succeed: Run,
    tmp_path: Path,
) -> None:
    keys = ["query", "positive", *columns.split()]
    named = RANKED if columns else {"text": "query", "text_pair": "positive"}
    data = {}
    for split, seed in (("train", 8), ("eval", 9)):
        rows = [{k: row[k] for k in keys} for row in ranked_rows(seed)]
        data[split] = {"path": str(write_lines(tmp_path / f"{split}.jsonl", rows)), **named}
    changes = dict(changes)
    answer = {"normalize": changes.pop("normalize", True)}
    student = {"layers": 1, "hidden": 16, "heads": 2, "init": "random"}
    recipe = vectors_recipe(data, {**learning(**{term: 1}), "batch": 9, **changes}, answer=answer, student=student)
    succeed("distill", recipe, "-o", tmp_path / "run")
    training = read_training(tmp_path / "run/student")
    assert training.curves[-1].terms.keys() == {term}
    assert any(note in found for found in training.notes)
    score = training.score
    assert {"recall@1", "recall@10", "mrr@10"} <= {score.metric, *score.others}
    assert score.metric == ("spearman" if columns else "mrr@10")


def test_the_pairs_of_a_query_are_in_one_part_of_the_rows(vectors_recipe: Recipe, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", [row for seed in (8, 9) for row in ranked_rows(seed)])
    shares = {"eval": {"path": None, "fraction": 0.3}, "validation": {"fraction": 0.3}}
    found = load(vectors_recipe({"train": {"path": str(path), **RANKED}, **shares}, OUTPUTS))
    queries = {name: [e.text for e in split.examples] for name, split in found.splits.items()}
    assert sum(len(texts) for texts in queries.values()) == 160
    assert all(len(texts) > 20 for texts in queries.values())
    assert not any({*a} & {*b} for a, b in combinations(queries.values(), 2))


ORDER = "distill.0.signals.labels: learns the order of scored pairs, "
TOGETHER = "distill.0.signals.negatives: learns which texts belong together, and the training rows are"
DIFFERENCES = "distill.0.signals.margins: learns the differences of the scores of a query's texts, and the"


@pytest.mark.parametrize(
    ("data", "signals", "said"),
    [
        ({"train": "single"}, {"labels": 1}, ORDER + "and not every training row is"),
        ({"transfer": {"sources": ["single"]}}, {"labels": 1}, ORDER + "which cannot be mixed"),
        ({"augment": {"copies": 1, "candidates": 3}}, {"labels": 1}, ORDER + "which cannot be mixed"),
        ({"train": "single"}, {"negatives": 1}, TOGETHER),
        ({"train": "graded"}, {"negatives": 1}, TOGETHER),
        ({"train": "graded"}, {"margins": 1}, DIFFERENCES),
        (
            {"train": "plain"},
            {"margins": 1},
            "Give pairs of which several have the same first text and different scores",
        ),
        (
            {"train": "plain"},
            {"margins": 1, "negatives": 1},
            "distill.0.signals: margins and negatives read pairs in different ways",
        ),
        (
            {"train": "column"},
            {"negatives": 1},
            "distill.0.signals.negatives: groups rows otherwise than the column's",
        ),
    ],
)
def test_rows_from_which_a_signal_cannot_learn_are_refused(
    data: dict[str, Any],
    signals: dict[str, float],
    said: str,
    vectors_recipe: Recipe,
    scored_pairs: Callable[[int], dict[str, str]],
    refuse: Run,
    tmp_path: Path,
) -> None:
    graded = [{"a": row["query"], "b": row["positive"], "score": i % 7 / 7} for i, row in enumerate(ranked_rows(8))]
    pairs = {"path": str(write_lines(tmp_path / "p.jsonl", graded)), "text": "a", "text_pair": "b", "label": "none"}
    sources = {
        "single": {**texts_at(tmp_path / "t.txt", 40, 7), "label": "none"},
        "graded": {**pairs, "label": "score"},
        "plain": pairs,
        "column": {**pairs, "teacher": "v"},
    }
    train = sources.get(data.get("train", ""), scored_pairs(8))
    more = {key: value for key, value in data.items() if key != "train"}
    if "transfer" in more:
        more["transfer"] = {"sources": [{"path": sources["single"]["path"]}]}
    stage = {**learning(**{"logits": 1, **signals}), "augmented": "augment" in more}
    recipe = vectors_recipe({"train": train, "eval": scored_pairs(9), **more}, stage)
    assert said in refuse("distill", recipe, "-o", tmp_path / "run")


def test_signals_of_vectors_are_refused_for_other_tasks(task: Task, tmp_path: Path) -> None:
    other = task.variant(tmp_path / "c.yaml", distill=[learning(logits=1, negatives=1)])
    said = r"distill\.0\.signals\.negatives: compares vectors of texts, and the task is text-class"
    with pytest.raises(InputError, match=said):
        load_recipe(other)


# --- what becomes of such runs ---


def test_a_run_taught_by_a_column_has_no_teacher_to_diagnose_and_is_packed_without_paths(
    ready: Recipe, succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    train = {**answered(tmp_path / "c.jsonl", 60, 1), "teacher": "probs"}
    validation = {"path": str(write_lines(tmp_path / "v.jsonl", task_rows(20, 9)))}
    recipe, run = ready({"train": train, "validation": validation}, student={"layers": 0}), tmp_path / "run"
    succeed("distill", recipe, "-o", run)
    assert read_training(run / "student").score is not None
    assert read_training(run / "teacher").score is None
    labels = json.loads((run / "student" / "config.json").read_text())["id2label"]
    assert labels == dict(zip("012", LABELS, strict=True))
    assert "its teacher is a column of answers" in refuse("diagnose", run)
    assert str(tmp_path) not in portable(load_recipe(recipe)).data.model_dump_json()


def test_smaller_students_keep_the_shares_of_their_texts(task: Task, tmp_path: Path) -> None:
    def smaller(students: list[dict[str, Any]], **changes: Any) -> list[Any]:
        quantize = {"budget": {"max_size_mb": 1, "students": students}}
        data = {"transfer": {"sources": [texts_at(tmp_path / "t.txt", 20, 7)]}, "mix": {"transfer": 1}}
        recipe = load_recipe(task.variant(tmp_path / "r.yaml", data=data, quantize=quantize, **changes))
        return [smaller_recipe(recipe, s, 10, tmp_path / "run").data for s in recipe.quantize.budget.students]

    whole, otherwise = smaller([{"vocabulary": {}}, {"vocabulary": {"at_least": 3}}])
    assert whole.mix.transfer == 1
    assert (otherwise.transfer, otherwise.mix) == (None, None), "what the teacher says is of other tokens"
    with pytest.raises(InputError, match=r"students\.0\.intermediate: the recipe's own student has no layers"):
        smaller([{"intermediate": 16}], student={"layers": 0}, distill=[OUTPUTS])
