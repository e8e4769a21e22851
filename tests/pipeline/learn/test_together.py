"""Rows of several kinds in one recipe: texts without labels, a column of answers, validation rows, and seeds."""

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

Cli = Callable[..., Any]
SHORT = {"steps": 4, "batch": 8, "lr": 1e-3}
OUTPUTS = {"method": "task", **SHORT, "signals": {"hidden": 0, "attention": 0}}


@pytest.fixture
def ready(task: Task, tiny_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
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


def test_phrases_of_a_sentence_that_is_scored_are_not_trained_on(ready: Callable[..., Path], tmp_path: Path) -> None:
    sentences = [f"the film number {i} is a fine thing of {i} parts" for i in range(200)]
    rows = [{"text": t, "label": LABELS[i % 2]} for i, s in enumerate(sentences) for t in (s, " ".join(s.split()[3:]))]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    found = load(ready({"train": {"path": str(path)}, "eval": {"path": None, "fraction": 0.4, "at_most": 80}}))
    held, trained = ([e.text for e in found.splits[name].examples] for name in ("eval", "train"))
    assert 50 < len(held) < 110
    assert not [t for t in trained for h in held if t in h or h in t]
    assert found.report.train_in_eval == len(rows) - len(held) - len(trained) > 20


def texts_at(path: Path, rows: int, seed: int) -> dict[str, str]:
    path.write_text("".join(row["text"] + "\n" for row in task_rows(rows, seed)))
    return {"path": str(path)}


def answered(rows: int, seed: int, has_answer: int = 1, has_label: int = 0) -> list[dict[str, Any]]:
    """Rows with answers; every `has_answer`-th has none, every `has_label`-th has a label too."""
    found = []
    for i, row in enumerate(task_rows(rows, seed)):
        probs = {name: 0.9 if name == row["label"] else 0.05 for name in LABELS}
        own = {"label": row["label"]} if has_label and i % has_label == 0 else {}
        found.append({"text": row["text"], **({"probs": probs} if has_answer == 1 or i % has_answer else {}), **own})
    return found


def test_rows_that_only_judge_need_no_training_rows(ready: Callable[..., Path]) -> None:
    assert count(load(ready({"train": None}, student=None, distill=None))) == {"eval": 150}


def test_texts_alone_with_validation_rows_choose_checkpoints_and_seeds(
    ready: Callable[..., Path], cli: Cli, tmp_path: Path
) -> None:
    data = {"train": None, "transfer": {"sources": [texts_at(tmp_path / "t.txt", 50, 7)]}}
    data["validation"] = {"path": str(write_lines(tmp_path / "v.jsonl", task_rows(30, 9)))}
    recipe = ready(data, training={"seeds": 2, "evaluate_every": 2})
    found = load(recipe)
    assert (count(found), found.scores_agreement) == ({"train": 50, "eval": 150, "validation": 30}, False)
    result = cli("distill", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output + result.stderr
    training = read_training(tmp_path / "run/student")
    assert [score.chosen for score in training.seeds].count(True) == 1
    assert [step for step, _ in training.curves[-1].scores] == [2, 4]
    assert AGREEMENT not in training.notes, "the evaluation rows have labels"
    del data["validation"]
    with pytest.raises(InputError, match=r"Name some: data\.validation\.path"):
        load(ready(data, training={"seeds": 2}))


@pytest.mark.parametrize("validation", [{"fraction": 0.25}, "labelled"], ids=["taken", "a file"])
def test_unlabelled_training_rows_with_validation_rows(
    validation: Any, ready: Callable[..., Path], tmp_path: Path
) -> None:
    if validation == "labelled":
        validation = {"path": str(write_lines(tmp_path / "v.jsonl", task_rows(30, 9)))}
    rows = {"train": texts_at(tmp_path / "t.txt", 80, 7), "labels": None, "validation": validation}
    found = load(ready({**rows, "eval": {"path": None, "fraction": 0.3}}))
    assert (found.labelled, found.scores_agreement, found.labels.names) == (False, True, LABELS)
    assert len(found.splits["validation"].truth) == len(found.splits["validation"].examples) > 10
    judged = load(ready({**rows, "labels": list(LABELS)}))
    assert (count(judged)["eval"], judged.scores_agreement) == (150, False), "only the validation rows may lack labels"


def test_a_column_says_nothing_about_rows_that_have_no_answer(ready: Callable[..., Path], tmp_path: Path) -> None:
    train = {"path": str(write_lines(tmp_path / "c.jsonl", answered(60, 1, has_answer=3))), "teacher": "probs"}
    found = load(ready({"train": train}))
    assert (count(found), found.unlabelled) == ({"train": 40, "eval": 150}, [])
    texts = {"sources": [texts_at(tmp_path / "t.txt", 20, 7)]}
    with pytest.raises(InputError, match=r"data\.transfer: its texts have no answers in the column"):
        load(ready({"train": train, "transfer": texts}))
    rows = write_lines(tmp_path / "e.jsonl", [{"text": row["text"]} for row in task_rows(30, 12)])
    with pytest.raises(InputError, match="no column 'label' or 'probs'; allowed: text"):
        load(ready({"train": train, "eval": {"path": str(rows)}}))


def test_rows_of_the_evaluation_file_are_not_trained_on_where_their_label_is_an_answer(
    ready: Callable[..., Path], tmp_path: Path
) -> None:
    train = {"path": str(write_lines(tmp_path / "c.jsonl", answered(60, 1))), "teacher": "probs"}
    half = {"path": str(write_lines(tmp_path / "e.jsonl", answered(30, 14, has_label=2)))}
    alone = {"path": str(write_lines(tmp_path / "v.jsonl", answered(20, 15)))}
    found = load(ready({"train": train, "eval": half, "validation": alone}))
    assert count(found) == {"train": 60, "eval": 15, "validation": 20}
    taken = load(ready({"train": {**half, "teacher": "probs"}, "eval": {"path": None, "fraction": 0.4}}))
    assert sum(count(taken).values()) == 30, "of a share of the training rows, they are"


@pytest.mark.parametrize("rows", [990, 1000, 1100])
def test_rows_that_are_taken_for_validation_are_scored(rows: int, task: Task, tmp_path: Path) -> None:
    many = [{"text": f"{row['text']} {i}", "label": row["label"]} for i, row in enumerate(task_rows(rows, 21))]
    source = {"path": str(write_lines(tmp_path / "rows.jsonl", many))}
    finetune = {"epochs": 2, "steps": None, "batch": 32, "lr": 1e-3}
    recipe = load_recipe(
        task.variant(tmp_path / "r.yaml", data={"train": source}, teacher={"finetune": finetune}, distill=[OUTPUTS])
    )
    model = open_model_folder(recipe.teacher.model)
    data, settings = load_data(recipe, model), recipe.teacher.finetune
    assert settings is not None
    settings = settings.for_rows(len(data.splits["train"].encoded))
    tokenizer = TextTokenizer(model.tokenizer_folder, 40)
    found = make_validation(recipe, data.head, data.splits, settings, model.family, tokenizer, DEFAULT_POOLING)
    assert ("validation" in data.splits, found is not None) == (rows >= 1000, rows >= 1000)


TWO_PASSES, ONE_PASS = (
    {"epochs": 2, "steps": None, "batch": 8, "lr": 1e-3},
    {"epochs": 1, "steps": None, "batch": 8, "lr": 1e-3},
)
REACHES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], int | str | None]] = [
    (SHORT, {**SHORT, "steps": 500}, {}, 2000),
    ({**SHORT, "steps": 600}, {**SHORT, "steps": 500}, {}, None),  # the teacher's own training has decided it
    (ONE_PASS, TWO_PASSES, {}, "any"),
    (TWO_PASSES, SHORT, {}, None),
    (TWO_PASSES, SHORT, {"augment": {"copies": 2}}, "any"),  # copies are older than the teacher
    (ONE_PASS, TWO_PASSES, {"validation": {"fraction": 0.1}}, None),
    (SHORT, SHORT, {}, None),
]


@pytest.mark.parametrize(("finetune", "stage", "data", "wanted"), REACHES)
def test_what_decides_about_validation_rows_beyond_the_first_training(
    finetune: dict[str, Any],
    stage: dict[str, Any],
    data: dict[str, Any],
    wanted: int | str | None,
    task: Task,
    tmp_path: Path,
) -> None:
    stages = [{"method": "task", "augmented": "augment" in data, **{k: v for k, v in stage.items() if v is not None}}]
    recipe = task.variant(tmp_path / "r.yaml", data=data, teacher={"finetune": finetune}, distill=stages)
    assert scored_by_default_up_to(load_recipe(recipe)) == wanted


def test_a_stage_that_first_needs_validation_rows_changes_the_rows_of_all(task: Task, cli: Cli, tmp_path: Path) -> None:
    def recipe(steps: int) -> Path:
        stage = {**OUTPUTS, "steps": steps}
        return Path(task.variant(tmp_path / "r.yaml", distill=[stage], teacher={"finetune": SHORT}))

    assert scored_by_default_up_to(load_recipe(recipe(5))) is None
    assert cli("distill", recipe(5), "-o", tmp_path / "run").exit_code == 0
    for steps, said in ((6, "distill.0 and the step behind it"), (500, "data and the 3 steps behind it")):
        changed = cli("distill", recipe(steps), "-o", tmp_path / "run")
        assert changed.exit_code == 2
        assert said in " ".join((changed.output + changed.stderr).split())


def test_vectors_without_scores_choose_nothing(tiny_model: Callable[..., Path], task: Task, tmp_path: Path) -> None:
    texts = texts_at(tmp_path / "t.txt", 40, 7)
    pairs = [
        {"a": row["text"], "b": f"{row['text']} now", "label": i % 5 / 5} for i, row in enumerate(task_rows(20, 8))
    ]
    scored = {"path": str(write_lines(tmp_path / "s.jsonl", pairs)), "text": "a", "text_pair": "b"}
    teacher = {"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None}

    def read(seeds: int, **data: Any) -> RunData:
        said = {"labels": None, "train": texts, "eval": texts_at(tmp_path / "e.txt", 20, 5), **data}
        changes = {"task": "feature-extraction", "teacher": teacher, "distill": [OUTPUTS]}
        return load(task.variant(tmp_path / "r.yaml", data=said, training={"seeds": seeds}, **changes))

    assert "validation" in read(1, validation=scored).splits
    plain = {**scored, "label": "none"}
    assert len(read(1, validation=plain).splits["validation"].truth) == 20, "the texts of a pair are to find each other"
    with pytest.raises(InputError, match=r"data\.validation: checkpoints and seeds are chosen by scores of pairs"):
        read(1, validation=texts_at(tmp_path / "v.txt", 20, 6))
    with pytest.raises(InputError, match=r"training\.seeds: .* and its rows have no scores"):
        read(2, validation=scored)


def test_vectors_that_may_be_cut(tiny_model: Callable[..., Path], task: Task, cli: Cli, tmp_path: Path) -> None:
    texts = [row["text"] for row in task_rows(41, 8)]
    # any model finds a text most alike to itself
    pairs = [{"a": a, "b": a if i % 2 else b, "label": i % 2} for i, (a, b) in enumerate(pairwise(texts))]
    scored = {"path": str(write_lines(tmp_path / "s.jsonl", pairs)), "text": "a", "text_pair": "b", "label": "label"}
    recipe = task.variant(
        tmp_path / "r.yaml",
        task="feature-extraction",
        data={"labels": None, "train": texts_at(tmp_path / "t.txt", 40, 7), "eval": scored},
        teacher={"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
        distill=[OUTPUTS],
        export={"formats": ["onnx"]},
    )
    wide = cli("run", recipe, "-o", tmp_path / "wide", "answer.dimensions=[4, 99]")
    assert wide.exit_code == 2
    assert "answer.dimensions: 99 is more than the 32 numbers of a vector" in wide.stderr
    refused = cli("run", recipe, "-o", tmp_path / "no", "answer.dimensions=[4]", "answer.similarity=manhattan")
    assert "vectors compared by the Manhattan distance cannot be rotated" in refused.stderr
    made = cli("run", recipe, "-o", tmp_path / "run", "answer.dimensions=[16, 4]")
    assert made.exit_code == 0, made.output + made.stderr
    poolings = [read_pooling(tmp_path / "run" / name) for name in ("teacher", "student")]
    rotations = [p.layers[-1].weights["linear.weight"] for p in poolings if p is not None]
    np.testing.assert_array_equal(*rotations)
    phone = tmp_path / "run/phone"
    artefacts = read_artefacts(phone)
    assert artefacts.processing.dimensions == [4, 16]
    assert {"spearman@4", "spearman@16"} <= artefacts.default_model().scores["eval"].others.keys()
    card = (phone / "README.md").read_text()
    assert "A vector may be cut to its first 4 or 16 numbers" in card
    search = describe_details(artefacts.default_model().scores["eval"].others)
    assert search.startswith("recall@1 ")
    assert f"Search on eval, `{artefacts.default_model().path}`: {search}." in card
    assert search.split(", ")[1] in (tmp_path / "run/report.html").read_text()
    named = ("--text", "a", "--text-pair", "b", "--label", "label")
    checked = cli("verify", "-m", phone, "--data", tmp_path / "s.jsonl", *named)
    assert f"({search}) on s.jsonl" in " ".join((checked.output + checked.stderr).split())
    text = task_rows(1, 3)[0]["text"]
    (whole,), (cut,) = (
        [
            json.loads(line)["embedding"]
            for line in cli("predict", "-m", phone, "--json", *more, text).stdout.splitlines()
        ]
        for more in ((), ("--dimensions", "4"))
    )
    np.testing.assert_allclose(cut, np.array(whole[:4]) / np.linalg.norm(whole[:4]), atol=1e-6)
    rows, answers = tmp_path / "rows.csv", tmp_path / "answers.jsonl"
    rows.write_text(f"text\n{text}\n")
    assert cli("predict", "-m", phone, "--file", rows, "--dimensions", "4", "-o", answers).exit_code == 0
    np.testing.assert_allclose(json.loads(answers.read_text())["answer"]["embedding"], cut, atol=1e-6)
    again = cli(
        "export", "-m", tmp_path / "run/student", "-o", tmp_path / "again", "--format", "onnx", "--scheme", "fp32"
    )
    assert again.exit_code == 0, again.output + again.stderr
    assert read_artefacts(tmp_path / "again").processing.dimensions == [4, 16], "the student's folder says so"
    refused = cli("predict", "-m", phone, "--dimensions", "5", text)
    assert refused.exit_code == 2
    assert "--dimensions: 5 is no length to cut vectors to; the model's are 4, 16" in refused.stderr


def test_vectors_learn_the_order_of_scored_pairs(
    tiny_model: Callable[..., Path], task: Task, cli: Cli, tmp_path: Path
) -> None:
    def pairs_of(seed: int) -> dict[str, str]:
        texts = [row["text"] for row in task_rows(41, seed)]
        pairs = [{"a": a, "b": a if i % 2 else b, "label": i % 2} for i, (a, b) in enumerate(pairwise(texts))]
        path = write_lines(tmp_path / f"s{seed}.jsonl", pairs)
        return {"path": str(path), "text": "a", "text_pair": "b", "label": "label"}

    single = texts_at(tmp_path / "t.txt", 40, 7)

    def write(logits: int, **data: Any) -> Path:
        stage = {**OUTPUTS, "batch": 6, "signals": {"logits": logits, "hidden": 0, "attention": 0, "labels": 1}}
        stage["augmented"] = "augment" in data
        return task.variant(
            tmp_path / "r.yaml",
            task="feature-extraction",
            data={"labels": None, "train": pairs_of(8), "eval": pairs_of(9), **data},
            teacher={"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
            distill=[stage],
        )

    assert cli("distill", write(0), "-o", tmp_path / "run").exit_code == 0
    (curve,) = read_training(tmp_path / "run/student").curves
    assert curve.terms.keys() == {"labels"}
    for data, message in (
        (
            {"train": single},
            "distill.0.signals.labels: learns the order of scored pairs, and not every training row is",
        ),
        (
            {"transfer": {"sources": [single]}},
            "distill.0.signals.labels: learns the order of scored pairs, which cannot be mixed",
        ),
        (
            {"augment": {"copies": 1, "candidates": 3}},
            "distill.0.signals.labels: learns the order of scored pairs, which cannot be mixed",
        ),
    ):
        refused = cli("distill", write(1, **data), "-o", tmp_path / "refused", "--overwrite")
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.split()), refused.stderr


def ranked_rows(seed: int) -> list[dict[str, Any]]:
    """Queries with a text that has the same words and one that has others, and a reranker's scores."""
    texts = [row["text"] for row in task_rows(41, seed)]
    return [
        {"query": a, "positive": f"{a} now", "negative": b, "pos_score": 8.0, "neg_score": -1.0 - i % 5}
        for i, (a, b) in enumerate(pairwise(texts))
    ]


RANKED: list[tuple[str, dict[str, Any], str, str]] = [
    ("margins", {}, "negative pos_score neg_score", "40 margins of 40 queries, divided by 13"),
    ("margins", {"margin_scale": 2.5}, "negative pos_score neg_score", "divided by 2.5"),
    ("margins", {"normalize": False}, "negative pos_score neg_score", "divided by 1"),
    ("negatives", {}, "negative", "40 texts of 40 queries, with negatives"),
    ("negatives", {}, "", "40 texts of 40 queries"),
]


@pytest.mark.parametrize(("term", "changes", "columns", "note"), RANKED)
def test_vectors_learn_from_rankings(
    term: str,
    changes: dict[str, Any],
    columns: str,
    note: str,
    tiny_model: Callable[..., Path],
    task: Task,
    cli: Cli,
    tmp_path: Path,
) -> None:
    keys = ["query", "positive", *columns.split()]
    train, judged = (
        write_lines(tmp_path / f"r{seed}.jsonl", [{k: row[k] for k in keys} for row in ranked_rows(seed)])
        for seed in (8, 9)
    )
    named = (
        {"text": "first", "text_pair": "second", "label": "score"}
        if columns
        else {"text": "query", "text_pair": "positive"}
    )
    stage = {**OUTPUTS, "batch": 9, "signals": {"logits": 0, "hidden": 0, "attention": 0, term: 1}}
    recipe = task.variant(
        tmp_path / "r.yaml",
        task="feature-extraction",
        data={"labels": None, "train": {"path": str(train), **named}, "eval": {"path": str(judged), **named}},
        teacher={"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
        answer={"normalize": changes.get("normalize", True)},
        distill=[{**stage, **{k: v for k, v in changes.items() if k != "normalize"}}],
        student={"layers": 1, "hidden": 16, "heads": 2, "init": "random"},
    )
    made = cli("distill", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.output + made.stderr
    training = read_training(tmp_path / "run/student")
    assert training.curves[-1].terms.keys() == {term}
    assert any(note in found for found in training.notes)
    score = training.score
    assert score is not None
    assert {"recall@1", "recall@10", "mrr@10"} <= {score.metric, *score.others}
    assert score.metric == ("spearman" if columns else "mrr@10")


def test_the_pairs_of_a_query_are_in_one_part_of_the_rows(
    tiny_model: Callable[..., Path], task: Task, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "r.jsonl", [row for seed in (8, 9) for row in ranked_rows(seed)])
    recipe = task.variant(
        tmp_path / "r.yaml",
        task="feature-extraction",
        data={
            "labels": None,
            "train": {"path": str(path), "text": "first", "text_pair": "second", "label": "score"},
            "eval": {"path": None, "fraction": 0.3},
            "validation": {"fraction": 0.3},
        },
        teacher={"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
        distill=[OUTPUTS],
    )
    queries = {name: [e.text for e in split.examples] for name, split in load(recipe).splits.items()}
    assert sum(len(texts) for texts in queries.values()) == 160
    assert all(len(texts) > 20 for texts in queries.values())
    assert not any({*a} & {*b} for a, b in combinations(queries.values(), 2))


def test_rows_that_are_no_rankings_teach_none(
    tiny_model: Callable[..., Path], task: Task, cli: Cli, tmp_path: Path
) -> None:
    single = texts_at(tmp_path / "t.txt", 40, 7)
    graded = [{"a": row["query"], "b": row["positive"], "score": i % 7 / 7} for i, row in enumerate(ranked_rows(8))]
    pairs = {"path": str(write_lines(tmp_path / "p.jsonl", graded)), "text": "a", "text_pair": "b"}
    scored = {**pairs, "label": "score"}
    for data, terms, message in (
        (
            single,
            {"negatives": 1},
            "distill.0.signals.negatives: learns which texts belong together, and the training rows are",
        ),
        (
            scored,
            {"negatives": 1},
            "distill.0.signals.negatives: learns which texts belong together, and the training rows are",
        ),
        (
            scored,
            {"margins": 1},
            "distill.0.signals.margins: learns the differences of the scores of a query's texts, and the",
        ),
        (pairs, {"margins": 1}, "Give pairs of which several have the same first text and different scores"),
        (
            pairs,
            {"margins": 1, "negatives": 1},
            "distill.0.signals: margins and negatives read pairs in different ways",
        ),
        (
            {**pairs, "teacher": "v"},
            {"negatives": 1},
            "distill.0.signals.negatives: groups rows otherwise than the column's",
        ),
    ):
        recipe = task.variant(
            tmp_path / "r.yaml",
            task="feature-extraction",
            data={"labels": None, "train": {"label": "none", **data}, "eval": texts_at(tmp_path / "e.txt", 20, 5)},
            teacher={"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
            distill=[{**OUTPUTS, "signals": {"logits": 1, "hidden": 0, "attention": 0, **terms}}],
        )
        refused = cli("distill", recipe, "-o", tmp_path / "refused", "--overwrite")
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.split()), refused.stderr
    other = task.variant(tmp_path / "c.yaml", distill=[{**OUTPUTS, "signals": {"logits": 1, "negatives": 1}}])
    with pytest.raises(
        InputError, match=r"distill\.0\.signals\.negatives: compares vectors of texts, and the task is text-class"
    ):
        load_recipe(other)


def test_a_run_taught_by_a_column_is_packed_without_paths_and_is_not_diagnosed(
    ready: Callable[..., Path], cli: Cli, tmp_path: Path
) -> None:
    train = {"path": str(write_lines(tmp_path / "c.jsonl", answered(60, 1))), "teacher": "probs"}
    validation = {"path": str(write_lines(tmp_path / "v.jsonl", task_rows(20, 9)))}
    recipe = ready({"train": train, "validation": validation}, student={"layers": 0})
    assert cli("distill", recipe, "-o", tmp_path / "run").exit_code == 0
    refused = cli("diagnose", tmp_path / "run")
    assert refused.exit_code == 2
    assert "its teacher is a column of answers" in refused.output + refused.stderr
    assert str(tmp_path) not in portable(load_recipe(recipe)).data.model_dump_json()


def test_smaller_students_keep_the_shares_of_their_texts(task: Task, tmp_path: Path) -> None:
    def smaller(students: list[dict[str, Any]], **changes: Any) -> list[Any]:
        quantize = {"budget": {"max_size_mb": 1, "students": students}}
        data = {"transfer": {"sources": [texts_at(tmp_path / "t.txt", 20, 7)]}, "mix": {"transfer": 1}}
        recipe = load_recipe(task.variant(tmp_path / "r.yaml", data=data, quantize=quantize, **changes))
        assert recipe.quantize.budget is not None
        return [smaller_recipe(recipe, s, 10, tmp_path / "run").data for s in recipe.quantize.budget.students]

    whole, otherwise = smaller([{"vocabulary": {}}, {"vocabulary": {"at_least": 3}}])
    assert whole.mix.transfer == 1
    assert (otherwise.transfer, otherwise.mix) == (None, None), "what the teacher says is of other tokens"
    with pytest.raises(InputError, match=r"students\.0\.intermediate: the recipe's own student has no layers"):
        smaller([{"intermediate": 16}], student={"layers": 0}, distill=[OUTPUTS])
