"""A recipe for a data file alone: what is found in the rows, what is kept in the run folder, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert import api
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import dump_recipe, load_recipe
from pocketbert.pipeline.phone.pack import portable
from pocketbert.pipeline.recipes import StartingRecipe, student_lines
from pocketbert.pipeline.run_folder import data_digest
from support.tiny_task import Task
from support.tiny_texts import LABELS, task_rows, write_lines

Command = Callable[..., Any]
TRAINING = "epochs: 8, batch: 32, lr: 0.003, dropout: 0.0"
QUICK = (
    f"teacher.finetune={{{TRAINING}}}",
    f"distill=[{{method: task, {TRAINING}}}]",
    "student.layers=1",
    "export.formats=[onnx]",
    "benchmark=null",
    "quantize={scheme: fp32}",
)


def write_table(path: Path, rows: list[dict[str, Any]], header: bool = True, suffix: str = "") -> Path:
    """Rows as comma-separated values; without a header, labels are numbers."""
    lines = ["id,utterance,intent"] if header else []
    for i, row in enumerate(rows):
        label = row["label"] if header else LABELS.index(row["label"]) + 1
        lines.append(f"{i},{row['text']}{suffix},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def start(tiny: Task, data: Path, *overrides: str, **said: Any) -> StartingRecipe:
    model = f"teacher.model={tiny.folder / 'teacher'}"
    return api.starting_recipe(api.DataFiles(data, **said), "runs/x", [model, *overrides])


def test_a_table_alone(task: Task, tmp_path: Path) -> None:
    found = start(task, write_table(tmp_path / "my rows.csv", task_rows(600, 1)))
    recipe = found.recipe
    assert (recipe.name, recipe.task.value, recipe.data.max_length) == ("my-rows", "text-classification", 32)
    assert (recipe.data.train.text, recipe.data.train.label) == ("utterance", "intent")
    assert recipe.data.eval.fraction == 0.1
    assert recipe.export.lengths == [16, 32]
    assert recipe.teacher.finetune.epochs == 8, "4,800 rows are seen"
    assert found.notes[:2] == (
        "text: column 'utterance', label: column 'intent' (3 names)",
        "task: text-classification, from the labels",
    )
    assert yaml.safe_load(found.text)["teacher"]["model"] == "minilm-l6"
    assert sum(line.lstrip().startswith("#") for line in found.text.splitlines()) > 5


def test_students_are_compared_where_rows_are_many_and_nothing_names_one(task: Task, tmp_path: Path) -> None:
    few = write_table(tmp_path / "few.csv", task_rows(1_999, 1))
    many = write_table(tmp_path / "many.csv", task_rows(2_000, 1))
    two_stages = "distill=[{method: task, steps: 9}, {method: task, steps: 9}]"
    for data, override, layers in (
        (few, "seed=7", 3),
        (many, "seed=7", None),
        (many, "distill.0.batch=16", None),
        (many, "quantize={budget: {max_drop: 0.01}}", None),
        (many, "student.vocabulary={}", None),
        (many, "student.auto.if_none_keeps=best", None),
        (many, "student.layers=1", 1),
        (many, two_stages, 3),
        (many, "quantize={budget: {max_drop: 0.01, students: [{intermediate: 32}]}}", 3),
        (many, "export={formats: [tflite]}", 3),
    ):
        found = start(task, data, override)
        student = found.recipe.student
        assert (student.layers, student.auto is not None) == (layers, layers is None), (data, override)
        said = [note for note in found.notes if note.startswith("student: ")]
        assert len(said) == (not override.startswith("student"))
        assert all(note.startswith("student: 3 layers;") is (layers == 3) for note in said)
        if student.auto is not None:
            assert (student.auto.keep, student.auto.if_none_keeps) == (0.97, "best")
            assert "3-layer" not in found.text
            assert "3 of its layers" not in found.text


def test_a_table_without_a_header(task: Task, tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.csv", task_rows(600, 1), header=False)
    dev = write_table(tmp_path / "dev.csv", task_rows(60, 2), header=False, suffix=" again")
    found = start(task, path, evaluation=dev)
    assert found.notes[0] == "no header: column 2 is the text, column 3 the label (3 numbers)"
    for source in (found.recipe.data.train, found.recipe.data.eval):
        assert (source.text, source.label) == ("column 2", "column 3")
    assert found.recipe.data.train.header is False
    report = api.data_check(found.recipe)
    assert {split.name: split.rows for split in report.splits} == {"train": 600, "eval": 60}
    assert set(report.splits[0].labels) == {"1", "2", "3"}
    assert "label names are the numbers in the training data, in numeric order" in report.notes
    decided = start(task, path, header=False, evaluation=dev)
    assert decided.recipe.data.eval.header is False


def test_a_recipe_names_a_file_without_a_header_in_its_notes(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{row['text']},{row['label']}\n" for row in task_rows(60, 1)))

    def check(**more: Any) -> list[str]:
        source = {"path": str(path), "text": "column 1", "label": "column 2", **more}
        report = api.data_check(load_recipe(task.variant(tmp_path / "r.yaml", data={"train": source})))
        return [n for n in report.notes if "header" in n]

    (note,) = check()
    assert note.startswith("rows.csv: no header was found, the first row is data")
    assert check(header=False) == []
    with pytest.raises(InputError, match="no column 'column 1'") as caught:
        check(header=True)
    assert "header: false" in caught.value.problems[0].fix


def test_another_installation_continues_a_run_and_an_edited_recipe_is_refused(task: Task, tmp_path: Path) -> None:
    found = start(task, write_table(tmp_path / "rows.csv", task_rows(600, 1)))
    (tmp_path / "run").mkdir()
    found.keep(tmp_path / "run", overwrite=False)
    kept = tmp_path / "run" / "recipe.yaml"
    header, rest = kept.read_text().split("\n", 1)
    elsewhere = f"{header}-elsewhere\n{rest}"
    kept.write_text(elsewhere)
    found.keep(tmp_path / "run", overwrite=False)
    assert kept.read_text() == elsewhere
    kept.write_text(elsewhere.replace("seed: 7", "seed: 8"))
    with pytest.raises(InputError, match="differs from the recipe for this data"):
        found.keep(tmp_path / "run", overwrite=False)


def test_many_rows_are_seen_less_often(task: Task, tmp_path: Path) -> None:
    rows = [{"text": f"{row['text']} {i}", "label": row["label"]} for i, row in enumerate(task_rows(24_000, 1))]
    path = write_table(tmp_path / "rows.csv", rows)
    found = start(task, path, evaluation=path)
    assert found.recipe.distill[0].epochs == 2
    assert found.recipe.data.eval.path == str(path)


@pytest.mark.parametrize(
    ("labels", "task_name"),
    [
        ([i / 7 for i in range(60)], "regression"),
        ([list(LABELS[: i % 4]) for i in range(60)], "multi-label"),
        ([[{"start": 0, "end": 2, "label": "thing"}] for _ in range(60)], "token-classification"),
        ([i % 3 for i in range(60)], "text-classification"),
    ],
)
def test_the_labels_tell_the_task(task: Task, tmp_path: Path, labels: list[Any], task_name: str) -> None:
    rows = [{"text": row["text"], "label": label} for row, label in zip(task_rows(60, 1), labels, strict=True)]
    assert start(task, write_lines(tmp_path / "rows.jsonl", rows)).recipe.task.value == task_name


def test_labels_that_could_be_several_things_are_a_question(task: Task, tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": i} for i, row in enumerate(task_rows(60, 1))]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError, match="--task text-classification, or --task regression"):
        start(task, path)
    assert start(task, path, task="regression").recipe.task.value == "regression"
    assert start(task, path, task="feature-extraction").recipe.teacher.finetune is None
    with pytest.raises(InputError, match="recipes cp fill-mask"):
        start(task, path, task="fill-mask")


TAGGED = "".join(f"Ann NN B-PER\nlives VB O\nin IN O\nOslo {i} B-LOC\n\n" for i in range(40))
FOLDED = "".join(f"{'fine' if i % 2 else 'poor'} film {i} – naïve;{'a,b' if i % 2 else 'b'}\n" for i in range(40))
MARGINS = "".join(
    f'{{"query": "the film {i}", "pos": "film {i}", "neg": "a lamp", "margin": {i % 5 + 2.5}}}\n' for i in range(40)
)
TRIPLETS = "".join(f'{{"query": "the film {i}", "pos": "film {i}", "neg": "a lamp"}}\n' for i in range(40))


RANKED = "text: first, text_pair: second, label: score}"


@pytest.mark.parametrize(
    ("name", "content", "task_name", "train", "note"),
    [
        ("b.jsonl", MARGINS, "feature-extraction", RANKED, "scored triplets, 80 rows"),
        ("a.jsonl", TRIPLETS, "feature-extraction", RANKED, "triplets, 80 rows"),
        (
            "a.txt",
            TAGGED,
            "token-classification",
            'text: "column 1", label: "column 3"}',
            "spans from CoNLL columns 1 and 3, 40",
        ),
        ("a.conll", "word\tO\n\nAnn\tB-PER\n\n" * 20, "token-classification", "", "spans from CoNLL columns 1 and 2"),
        ("a.csv", "text;tags\n" + FOLDED, "multi-label", 'label: tags, separator: ","}', "lists of 2 names"),
    ],
)
def test_other_forms_of_data(
    task: Task, tmp_path: Path, name: str, content: str, task_name: str, train: str, note: str
) -> None:
    (tmp_path / name).write_bytes(content.encode("cp1252"))
    found = start(task, tmp_path / name, evaluation=tmp_path / name)
    assert found.recipe.task.value == task_name
    assert note in found.notes[0]
    lines = [line for line in found.text.splitlines() if line.startswith(("  train:", "  eval:"))]
    assert [train in line for line in lines] == [True, True]
    assert ("margins: 10" in found.text) is (content is MARGINS)


def test_a_folder_of_classes_is_a_data_file(task: Task, tmp_path: Path, succeed: Command) -> None:
    for i, row in enumerate(task_rows(60, 1)):
        path = tmp_path / "texts" / row["label"] / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(row["text"])
    command = ("run", "--data", tmp_path / "texts", f"teacher.model={task.folder / 'teacher'}", "-o", tmp_path / "run")
    said = succeed(*command, "--dry-run").stderr
    assert "a folder for each class, 60 rows: text: column 'text', label: column 'label' (3 names)" in said
    before = data_digest(DataSource(path=str(tmp_path / "texts")))
    path.write_text("another text")
    assert before != data_digest(DataSource(path=str(tmp_path / "texts")))


def test_rows_without_a_label_are_counted_in_the_report(task: Task, tmp_path: Path) -> None:
    rows = [{**row, "label": "" if i % 10 == 0 else row["label"]} for i, row in enumerate(task_rows(200, 1))]
    found = start(task, write_lines(tmp_path / "rows.jsonl", rows))
    assert found.notes[-1] == "rows.jsonl: 20 of 200 rows have no label: the teacher labels them for the student"
    report = api.data_check(found.recipe)
    assert report.unlabelled == {"rows.jsonl": 20}
    assert "rows.jsonl: 20 rows without a label (the teacher labels them)" in report.lines()
    logits = "distill=[{method: task, epochs: 1, signals: {logits: 1, hidden: 0, attention: 0}}]"
    other_pieces = start(task, tmp_path / "rows.jsonl", "student={layers: 1, vocabulary: {at_least: 2}}", logits)
    assert other_pieces.notes[-1] == "rows.jsonl: 20 of 200 rows have no label: they are left out"
    report = api.data_check(other_pieces.recipe)
    assert "rows.jsonl: 20 rows without a label (left out)" in report.lines()


def test_the_teacher_of_questions_is_not_opened_for_their_length(tmp_path: Path) -> None:
    row = {"question": "what is it?", "context": "it is a lamp", "answers": {"text": ["lamp"], "answer_start": [8]}}
    rows = [{**row, "question": f"what is number {i}?"} for i in range(30)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    found = api.starting_recipe(api.DataFiles(path), "runs/x", [f"teacher.model={tmp_path / 'none'}"])
    assert found.recipe.task.value == "question-answering"


@pytest.mark.parametrize("rows", [0, -1])
def test_a_diagnosis_of_no_rows_is_refused(tmp_path: Path, rows: int) -> None:
    with pytest.raises(InputError, match=f"rows: {rows} is no number of rows to answer; allowed: 1 or more"):
        api.diagnose(tmp_path, rows)


def made(count: int = 60, **columns: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Rows whose columns follow from their number, beside a text."""
    texts: dict[str, Callable[[int], Any]] = {} if "question" in columns else {"text": lambda i: f"row {i}"}
    return [{name: cell(i) for name, cell in {**texts, **columns}.items()} for i in range(count)]


def probs(odd: Any = None, scale: float = 1.0) -> Callable[[int], Any]:
    """Probabilities of three labels, times a number; the 18th may be others."""
    names = ("refund", "delay", "praise")
    return lambda i: (
        odd if odd and i == 17 else {name: (0.9 if j == i % 3 else 0.05) * scale for j, name in enumerate(names)}
    )


def numbers(*odd: float) -> dict[str, float]:
    return dict(zip(("refund", "delay", "praise"), odd, strict=True))


PAIRS = made(question=lambda i: f"how do I do {i}?", answer=lambda i: f"the way number {i} is this")
PROBABILITIES = "the teacher's answers are taken for probabilities"
LOGITS = "the teacher's answers are taken for logits (numbers of any size)"
NONE = (
    "rows.jsonl:18: column 'probs': the numbers 0.9, 0.6, 0.3 (sum 1.8) are no probabilities (from 0 to 1; of labels that "
    "exclude each other about 1 in all), as those of 59 other rows are."
)
NO_VOTES = "the numbers 0, 0 (sum 0) are no votes (whole numbers from 0, at least one of them above 0)"
TWICE = "warning: 30 rows name a label twice; if these are votes of several people, name the column with --teacher"


@pytest.mark.parametrize(
    ("rows", "more", "line"),
    [
        (made(probs=probs()), "", PROBABILITIES),
        (made(probs=probs(scale=7.3)), "", LOGITS),
        (made(probs=probs(numbers(0.9, 0.6, 0.3))), "", NONE),
        (made(probs=probs(numbers(90, 6, 4))), "", "the numbers 90, 6, 4 (sum 100) are no probabilities"),
        (made(probs=probs()), "--teacher prob", "no column 'prob'; did you mean 'probs'?"),
        # right data that looks a little like a mistake
        (made(probs=lambda i: {"a": 1.0, "b": float(i == 9)}), "", "task: multi-label"),
        (made(probs=lambda i: {"a": 0.4, "b": 0.9 if i % 5 == 0 else 0.1}), "--teacher probs", "task: multi-label"),
        (made(grade=lambda i: 1.2 if i == 9 else i / 60), "--teacher grade", "task: regression"),
        (made(logits=lambda i: {"a": -0.5, "b": 1.5 if i == 9 else -1.5}), "", LOGITS),
        (made(good=lambda _: 0.9, bad=lambda i: "NA" if i == 9 else 0.1), "--teacher good,bad", PROBABILITIES),
        # votes
        (made(v=lambda i: {"a": 2 * (i != 9), "b": 0}), "--teacher v", NO_VOTES),
        (
            made(v=lambda i: "a" if i % 2 else {"a": 0.5, "b": 0.5}),
            "--teacher v",
            "column 'v' has labels in some rows and numbers in others",
        ),
        (
            made(ann=lambda _: "spam", ben=lambda i: 3 if i == 9 else "spam"),
            "--teacher ann,ben",
            "'spam' is a label, and other columns of the row hold numbers",
        ),
        (
            made(a=lambda _: "a", b=lambda i: "ab"[i % 2], c=lambda i: ("b", None)[i % 2]),
            "--teacher a,b,c",
            "the teacher's answers are taken for votes",
        ),
        (made(text=lambda i: f"row number {i}", votes=lambda i: ["good", "bad" if i % 2 else "good"]), "", TWICE),
        # labels
        (made(), "--label label", "no column 'label'; allowed: text"),
        (
            made(label=lambda i: "refunq" if i == 4 else ("refund", "delay")[i % 2]),
            "",
            "warning: 1 label has one row only: 'refunq'; misspelt? 'refunq' for 'refund'",
        ),
        (made(40, label=lambda i: "ab"[i % 2]), "", "warning: 40 rows are few to train on"),
        (
            made(label=lambda i: "None" if i % 3 else "irony"),
            "",
            "warning: the label 'None' of 40 rows may stand for a missing one",
        ),
        (PAIRS, "", "Pairs of similar texts need none: --text-pair 'answer' --task feature-extraction."),
        (
            PAIRS,
            "--text-pair answer --task feature-extraction",
            "read as: 'how do I do 0?' | 'the way number 0 is this' -> none",
        ),
        (made(id=lambda i: f"r{i}"), "", "without labels: --task feature-extraction"),
    ],
)
def test_what_a_check_says_about_answers_and_labels(
    rows: list[dict[str, Any]], more: str, line: str, tmp_path: Path, cli: Command
) -> None:
    result = cli("data", "check", write_lines(tmp_path / "rows.jsonl", rows), *more.split())
    assert line in " ".join((result.stdout + result.stderr).split())


def test_a_recipe_is_refused_before_training_where_no_row_has_an_answer(
    task: Task, tmp_path: Path, refuse: Command
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", made(probs=probs(), label=lambda i: "ab"[i % 2]))
    data = {"train": {"path": str(path), "teacher": "prob"}, "labels": None}
    recipe = task.variant(tmp_path / "r.yaml", data=data, teacher={"finetune": None})
    said = refuse("run", recipe, "-o", tmp_path / "run", "--dry-run")
    assert "no row has an answer in column 'prob'" in said


def test_a_data_file_is_checked_without_a_recipe(
    tmp_path: Path, succeed: Command, refuse: Command, cli: Command
) -> None:
    path = tmp_path / "rows.csv"
    rows = [f'"a film, number {i}",{"good" if i % 2 else "bad"}' for i in range(30)]
    rows += ['"a film, number 1",bad', '"a film, number 2",bad', '"a lamp, too",Good', '"a box, too",']
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    result = succeed("data", "check", path)
    for line in (
        "text\t34\t32\ta film, number 0",
        "rows.csv: text: column 'text', label: column 'label' (3 names)",
        "task: text-classification",
        "rows: 33, 1 more without a label",
        "labels: bad 17, good 15, Good 1",
        "read as: 'a film, number 0' -> bad",
        "warning: 1 of 34 rows have an empty label: the teacher of a run may label them",
        "warning: 1 label has one row only: 'Good'",
        "warning: labels that differ only in case or blanks: 'good', 'Good'",
        "warning: 1 rows repeat a text with another label: 'a film, number 1' is 'good' in row 3 and 'bad' in row 32",
        "warning: 1 rows repeat a text with the same label",
    ):
        assert line in result.stdout.splitlines(), result.stdout
    path.write_text("what was said,where it went\n" + "\n".join(rows[:30]) + "\n")
    assert json.loads(cli("data", "check", path, "--json").stdout)["task"] == "text-classification"
    path.write_text(
        "play this,music\n" + "".join(f"{w} it now {i},{w}s\n" for i in range(9) for w in ("stop", "start"))
    )
    unsure = succeed("data", "check", path).stdout
    assert "('play this', 'music') is taken as the names of the columns; if it is data, give --no-header" in unsure
    refused = cli("data", "check", path, "--label", "other")
    assert (refused.exit_code, "no column 'other'" in refused.stderr) == (2, True)
    assert "play this\t" in refused.stdout, "columns are shown nevertheless"
    for args, message in (
        ((path, "seed=3"), "seed=3: is a key of a recipe"),
        (("sst2", "--label", "intent"), "--label: belong to a data file"),
        ((path, "--encoding", "klingon"), "'klingon' is no encoding of text"),
        ((tmp_path / "none.csv",), "file not found"),
    ):
        assert message in refuse("data", "check", *args)


def test_from_a_table_to_the_phone(task: Task, tmp_path: Path, succeed: Command, refuse: Command) -> None:
    data, run = write_table(tmp_path / "rows.csv", task_rows(600, 1)), tmp_path / "run"
    command = ("run", "--data", data, *QUICK, f"teacher.model={task.folder / 'teacher'}", "-o", run)
    assert "distill.0" in succeed(*command, "--dry-run").stdout
    assert not run.exists(), "a dry run writes nothing"
    result = succeed(*command)
    assert "text: column 'utterance', label: column 'intent' (3 names)" in result.stderr
    assert f"recipe:          {run}/recipe.yaml" in result.stdout
    report = json.loads((run / "data.json").read_text())
    sizes = {split["name"]: split["rows"] for split in report["splits"]}
    assert sum(sizes.values()) + report["train_in_eval"] == 600
    assert 30 < sizes["eval"] < 100
    assert f"train finetune: {-(-8 * sizes['train'] // 32)} steps of 32 rows: 8" in result.stderr
    kept = load_recipe(run / "recipe.yaml")
    assert kept.data.eval.fraction == 0.1
    assert "finished before, skipped" in succeed(*command).stderr
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text() + "# mine\n")
    assert "it was edited, or the data, the options or the version changed" in refuse(*command)
    assert (run / "recipe.yaml").read_text().endswith("# mine\n")


def test_what_does_not_go_together(tmp_path: Path, refuse: Command) -> None:
    data = write_table(tmp_path / "rows.csv", task_rows(60, 1))
    for args, message in (
        (("run", "--data", data, "sst2"), "together with the recipe 'sst2'"),
        (("run", "sst2", "--label", "intent"), "--label: belong to --data"),
        (("run", "sst2", "--no-header"), "--header, --no-header: belong to --data"),
        (("run",), "no recipe and no data"),
        (("run", data), f"pocketbert run --data {data}"),
        (("run", "--data", tmp_path / "none.csv"), "none.csv"),
    ):
        assert message in refuse(*args, "-o", tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [("recipes", "validate"), ("run", "--dry-run")])
def test_what_a_run_would_find_is_found_before(
    task: Task, tmp_path: Path, cli: Command, command: tuple[str, ...]
) -> None:
    for changes, message in (
        ({"teacher": {"finetune": None}}, "has no trained head for text-classification"),
        ({"data": {"train": {"label": "intent"}}}, "no column 'intent'"),
        ({"data": {"labels": ["lamp", "music"]}}, "label 'timer' is not in the label set"),
        ({"data": {"eval": {"path": str(tmp_path / "none.jsonl")}}}, "none.jsonl"),
        ({}, ""),
    ):
        result = cli(*command, task.variant(tmp_path / "r.yaml", **changes))
        assert result.exit_code == (2 if message else 0), result.output
        assert message in result.stderr


def test_what_is_packed_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        """schema: 1
name: portable
task: text-classification
data:
  train: {path: sub/train.jsonl}
  eval: {path: dev.jsonl}
  corpus: {sources: [{path: sub/text.jsonl}]}
  augment: {vectors: sub/words.txt}
teacher: {model: google-bert/bert-base-uncased, adapters: [./tuned, org/adapter]}
student: {model: ./general}
distill:
  - {method: tinybert-general, steps: 1, masking: similar, vectors: sub/glove.txt}
  - {method: tinybert-prediction, steps: 1, augmented: true}
"""
    )
    recipe = load_recipe(path)
    assert recipe.data.augment.vectors == tmp_path / "sub" / "words.txt", "counted from the recipe"
    written = dump_recipe(portable(recipe))
    assert str(tmp_path) not in written
    for name in ("train.jsonl", "dev.jsonl", "text.jsonl", "words.txt", "general", "glove.txt"):
        assert f": {name}\n" in written
    assert "google-bert/bert-base-uncased" in written
    assert portable(recipe).teacher.adapters == ["tuned", "org/adapter"]


def test_the_lines_of_a_student_to_copy_are_yaml_with_the_same_values(task: Task, tmp_path: Path) -> None:
    recipe = start(task, write_table(tmp_path / "rows.csv", task_rows(600, 1))).recipe
    stage = recipe.distill[0].model_copy(update={"dropout": None})
    stage.model_fields_set.add("dropout")
    read = yaml.safe_load("\n".join(student_lines(recipe.model_copy(update={"distill": [stage]}))))
    assert read["distill"][0]["dropout"] is None
    assert read["teacher"]["model"] == recipe.teacher.model
