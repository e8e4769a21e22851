"""Several heads on one encoder: from a recipe to files with an output for each, and the gates of each head."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.heads.several import read_head_rows, resolve_head_labels
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.answers import HeadAnswers
from pocketbert.core.predict.examples import HeadLabels
from pocketbert.core.predict.scores import Score
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.tasks import TaskName, several_task
from pocketbert.pipeline.direct.exporting import export_recipe
from pocketbert.pipeline.gates.checks import check_chance, check_drop, check_each_head, check_kept, check_student
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.options import ExportOptions
from pocketbert.pipeline.run import RECIPE_FILE
from support.client_environments import ROOT
from support.clients import same_fields
from support.defects import ONNX, ONNX_INT8, relist
from support.defects import onnx as defects
from support.fixtures import completed_run, once
from support.tiny import write_bert
from support.tiny_task import RECIPE, merged
from support.tiny_texts import KEYWORDS, task_rows, write_lines

Run = Callable[..., Any]
Refuse = Callable[..., str]
TASKS = {"slots": {"task": "token-classification", "label": "tags"}, "intent": {"task": "text-classification"}}
"""Not in the order of the alphabet, in which config.json has them."""
SLOTS = several_task({"intent": "text-classification", "slots": "token-classification"})
COLUMNS = {"intent": "intent", "slots": "tags"}
FINETUNE = {"steps": 200, "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 50}
CHANGES = {
    "task": None,
    "tasks": TASKS,
    "data": {"labels": None, "train": {"text": "tokens"}, "eval": {"text": "tokens"}},
    "teacher": {"finetune": FINETUNE},
    "distill": [{"method": "task", **FINETUNE, "steps": 120, "signals": {"labels": 1}}],
    "verify": {"max_drop": 0.03},
}


def head_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of the tiny task with the intent, and a tag at the keyword that tells what it is."""
    rows = []
    for row in task_rows(count, seed):
        tokens, keywords = row["text"].split(), KEYWORDS[row["label"]]
        tags = [f"B-{row['label']}" if word in keywords else "O" for word in tokens]
        rows.append({"tokens": tokens, "tags": tags, "intent": row["label"]})
    return rows


def write_recipe(folder: Path, **changes: Any) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged(merged(RECIPE, CHANGES), changes), sort_keys=False))
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, teacher and recipe of the tiny task with two heads."""
    with once(tmp_path_factory, "tiny-heads") as (folder, there):
        if not there:
            folder.mkdir()
            # some rows lack the label of one head
            train = [
                {k: v for k, v in row.items() if k != ("tags" if i % 5 == 0 else "intent" if i % 7 == 0 else "")}
                for i, row in enumerate(head_rows(600, 1))
            ]
            write_lines(folder / "train.jsonl", train)
            write_lines(folder / "eval.jsonl", head_rows(150, 2))
            write_bert(folder / "teacher")
            write_recipe(folder)
    return folder


@pytest.fixture(scope="session")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of that task, all gates passed; read-only by convention."""
    with once(tmp_path_factory, "tiny-heads-run") as (run, there):
        if not there:
            completed_run(run, folder / "recipe.yaml")
    return run


@pytest.fixture
def phone(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "phone", tmp_path / "phone"))


# Rows and labels


def read(tmp_path: Path, rows: Sequence[dict[str, Any]]) -> Any:
    source = DataSource(path=str(write_lines(tmp_path / "rows.jsonl", rows)), text="tokens")
    return read_head_rows(source, SLOTS, COLUMNS)


def test_labels_of_all_heads_are_joined_by_row(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["dim", "it"], "tags": ["B-lamp", "O"], "intent": "lamp"},
        {"tokens": ["hum", "it"], "intent": "music"},
        {"tokens": ["wake", "me"], "tags": ["B-timer", "O"]},
        {"tokens": ["nothing"]},
    ]
    found = read(tmp_path, rows)
    assert [row.text for row in found] == ["dim it", "hum it", "wake me"], "a row without any label is left out"
    assert all(isinstance(row.label, HeadLabels) for row in found)
    assert [row.label.labels[0] for row in found] == ["lamp", "music", None]
    assert [[span.label for span in row.label.labels[1] or ()] for row in found] == [["lamp"], [], ["timer"]]
    labels = resolve_head_labels(SLOTS, {}, None, found)
    tags = [f"slots: {mark}-{name}" for name in ("lamp", "timer") for mark in "BI"]
    assert labels.names == ("intent: lamp", "intent: music", "slots: O", *tags)
    declared = resolve_head_labels(SLOTS, {"intent": ["music", "lamp"]}, None, found)
    assert declared.names[:2] == ("intent: music", "intent: lamp")
    assert resolve_head_labels(SLOTS, {}, labels, found).names == labels.names
    with pytest.raises(
        InputError, match=r"no row has a label of the head 'slots' in column 'tags'.*tasks\.slots\.label"
    ):
        read(tmp_path, [{"tokens": ["dim"], "intent": "lamp"}, {"tokens": ["hum"], "intent": "music"}])


LABEL = "label: belongs to one head: give tasks.NAME.label"
TEACHER = "teacher: belongs to one head: give tasks.NAME.teacher"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": None, "task": "several"}, "tasks: task is several, and its heads are not listed"),
        ({"task": "regression"}, "task: is regression, and tasks lists several heads"),
        ({"tasks": {"slots": None}}, "tasks"),
        ({"tasks": {"slots": {"colum": "tags"}}}, "unknown key 'colum'; allowed: label, labels, task, teacher, weight"),
        ({"tasks": {"slots": {"task": "fill-mask"}}}, "fill-mask cannot share an encoder with other heads"),
        ({"tasks": {"Slots": {"task": "regression"}}}, "tasks"),
        *(
            ({"tasks": {n: {"task": "regression"}}}, f"tasks.{n}: a head cannot be called {n}")
            for n in ("teacher", "text", "truncated", "row")
        ),
        ({"tasks": {f"h{i}": {"task": "regression"} for i in range(15)}}, "at most 16 items"),
        ({"data": {"labels": ["a", "b"]}}, "data.labels: belongs to one head: give tasks.NAME.labels"),
        ({"data": {"train": {"text_pair": "b"}}}, "data.train.text_pair: several takes one text"),
        *(({"data": {part: {"teacher": "probs"}}}, f"data.{part}.{TEACHER}") for part in ("train", "eval")),
        *(({"data": {part: {"label": "tags"}}}, f"data.{part}.{LABEL}") for part in ("train", "eval")),
        ({"data": {"validation": {"path": "v.jsonl", "teacher": "probs"}}}, f"data.validation.{TEACHER}"),
        ({"data": {"validation": {"path": "v.jsonl", "label": "tags"}}}, f"data.validation.{LABEL}"),
        ({"student": {"layers": 0}}, "student.layers: 0: is not possible with several heads"),
        ({"student": {"layers": 1, "vocabulary": {}}}, "student.vocabulary: is not possible with several heads"),
        ({"answer": {"temperature": 1.5}}, "answer.temperature: has no meaning for several"),
        ({"training": {"metric": "slots.accuracy"}}, "training.metric: 'slots.accuracy' is not measured"),
        (
            {"distill": [{"method": "task", "steps": 2}, {"method": "qat", "steps": 2}]},
            "distill.1: method qat does not train several heads",
        ),
        ({"quantize": {"budget": {"max_size_mb": 1}}}, "quantize.budget: is not possible with several heads"),
    ],
)
def test_what_several_heads_cannot_have_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(write_recipe(tmp_path, **changes))
    assert said in str(caught.value)


@pytest.fixture
def taught(folder: Path, finished: Path, tmp_path: Path) -> Callable[..., Path]:
    """`taught(**changes)`: a recipe with the finished run's teacher."""
    data = {part: {"path": str(folder / f"{part}.jsonl")} for part in ("train", "eval")}
    teacher = {"model": str(finished / "teacher"), "finetune": None}
    return lambda **changes: write_recipe(tmp_path, data=data, teacher=teacher, **changes)


def test_a_model_with_other_heads_is_refused(taught: Callable[..., Path], refuse: Refuse) -> None:
    other = {"intent": TASKS["intent"], "mood": {"task": "text-classification", "label": "intent"}, "slots": None}
    said = "the model has slots (token-classification), intent (text-classification); the recipe lists"
    assert said in refuse("data", "check", taught(tasks=other))


def test_a_ready_teacher_with_these_heads_teaches_them(
    taught: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    succeed("distill", taught(), "-o", tmp_path / "run")
    assert open_model_folder(str(tmp_path / "run/student")).heads == {name: own["task"] for name, own in TASKS.items()}
    scores = read_training(tmp_path / "run/student").score
    assert min(own.value for own in scores.heads.values()) > 0.9


# The whole chain


def test_both_heads_learn_and_each_file_has_an_output_for_each(finished: Path) -> None:
    phone = finished / "phone"
    artefacts = read_artefacts(phone)
    assert artefacts.task is TaskName.SEVERAL
    assert artefacts.heads == {"intent": "text-classification", "slots": "token-classification"}
    for record in artefacts.models():
        assert [t.name for t in record.signature.outputs] == ["slots_logits", "intent_logits"]
        score = record.scores["eval"]
        assert score.heads["intent"].value > 0.9, record.path
        assert score.heads["slots"].value > 0.9, record.path
        assert score.value == pytest.approx(np.mean([own.value for own in score.heads.values()]))
    model = open_model_folder(str(phone))
    assert model.task is TaskName.SEVERAL
    assert model.heads == artefacts.heads
    assert model.config["architectures"] == ["BertForTokenClassification"]
    gates = json.loads((finished / "verify.json").read_text())["gates"]
    for name in (ONNX, ONNX_INT8):
        own = {gate["name"] for gate in gates if gate["file"] == name}
        assert {f"{gate} {head}" for gate in ("chance", "drop", "reference") for head in TASKS} <= own
    card = (phone / "README.md").read_text()
    assert "2 heads on one encoder" in card
    assert "By head on eval: " in card
    assert "pipeline_tag" not in card, "a widget of one task would show half of it"


def test_predict_shows_the_answers_of_all_heads(finished: Path, succeed: Run, refuse: Refuse) -> None:
    phone, text = finished / "phone", "please dim the kitchen lamp now"
    assert isinstance(pocketbert.load(phone).predict([text])[0], HeadAnswers)
    line = succeed("predict", "-m", phone, text).stdout
    assert line.startswith("slots\tlamp [")
    assert "\tintent\tlamp\t" in line
    fields = json.loads(succeed("predict", "-m", phone, "--json", text).stdout)
    assert fields["intent"]["label"] == "lamp"
    assert {span["text"] for span in fields["slots"]["spans"]} <= {"dim", "lamp"}
    refuse("predict", "-m", phone, "a", "--text-pair", "b")


def test_the_cards_code_reads_all_heads(finished: Path) -> None:
    phone, text = finished / "phone", "please dim the kitchen lamp now"
    code = re.findall(r"```python\n(.*?)```", (phone / "README.md").read_text(), re.DOTALL)
    alone = next(part for part in code if "onnxruntime.InferenceSession" in part).replace("your text", text)
    run = subprocess.run([sys.executable, "-c", alone], cwd=phone, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found, answers = ast.literal_eval(run.stdout), pocketbert.load(phone).predict([text])[0].fields()
    assert found["intent"] == ("lamp", pytest.approx(answers["intent"]["score"], abs=1e-3))
    tagged = {(start, end) for start, end, tag in found["slots"] if tag != "O"}
    assert tagged == {(span["start"], span["end"]) for span in answers["slots"]["spans"]}


def test_changed_heads_are_not_taken_for_finished(folder: Path, finished: Path, succeed: Run, refuse: Refuse) -> None:
    command = ("run", folder / "recipe.yaml", "-o", finished, "--dry-run")
    assert {line.split("\t")[-1] for line in succeed(*command).stdout.splitlines()[1:]} == {"finished"}
    for change in ("tasks.slots.weight=2", "tasks.intent.labels=[timer, lamp, music]"):
        said = refuse(*command, change)
        assert f"{change.partition('=')[0]} was " in said
        assert "would be made anew" in said


def test_a_finished_model_is_exported_and_quantized_again(finished: Path, tmp_path: Path, succeed: Run) -> None:
    succeed("export", "-m", finished / "student", "-o", tmp_path / "again", "--format", "onnx")
    assert read_artefacts(tmp_path / "again").heads == {name: own["task"] for name, own in TASKS.items()}
    succeed("quantize", "-m", finished / "phone", "-o", tmp_path / "small", "--scheme", "w4")
    assert len(pocketbert.load(tmp_path / "small", "w4").predict(["a song"])[0].fields()) == 2


NO_HEAD = "names no column of a head; the folder has the heads slots, intent"


def test_rows_for_an_export_name_the_column_of_each_head(
    finished: Path, folder: Path, tmp_path: Path, succeed: Run, refuse: Refuse
) -> None:
    command = ("export", "-m", finished / "student", "--format", "onnx", "--scheme", "fp32", "--data")
    result = succeed(*command, folder / "eval.jsonl", "--label", "slots=tags", "-o", tmp_path / "e")
    assert "text: column 'tokens'" in result.stderr, "the column of texts is found"
    scores = read_artefacts(tmp_path / "e").default_model().scores["eval"].heads
    assert min(scores["slots"].value, scores["intent"].value) > 0.9
    unnamed = refuse(*command, folder / "eval.jsonl", "-o", tmp_path / "u")
    assert "no column 'slots'; allowed: intent, tags, tokens" in unnamed
    assert "Of several heads: --label slots=COLUMN,intent=COLUMN" in unnamed
    assert NO_HEAD in refuse(*command, folder / "eval.jsonl", "--label", "mood=tags", "-o", tmp_path / "u")


def test_calibration_rows_name_the_column_of_each_head(
    finished: Path, folder: Path, tmp_path: Path, succeed: Run
) -> None:
    rows = ("--calibrate", folder / "train.jsonl", "--label", "slots=tags")
    succeed("quantize", "-m", finished / "phone", "-o", tmp_path / "q", "--scheme", "a8w8", *rows)
    assert len(pocketbert.load(tmp_path / "q", "a8w8").predict(["a song"])[0].fields()) == 2
    recipe = load_recipe(tmp_path / "q" / RECIPE_FILE)
    assert recipe.label_columns == {"slots": "tags", "intent": "intent"}


def test_rows_with_labels_in_different_columns_are_refused(finished: Path, folder: Path) -> None:
    data = DataSource(path=str(folder / "eval.jsonl"), label="slots=tags,intent=mood")
    calibrate = DataSource(path=str(folder / "train.jsonl"), label="slots=tags")
    said = "--label: slots=tags,intent=mood and slots=tags name other columns of the heads"
    with pytest.raises(InputError, match=said):
        export_recipe(str(finished / "student"), ExportOptions(schemes=["a8w8"], data=data, calibrate=calibrate))


def test_labelled_rows_score_each_head(finished: Path, folder: Path, succeed: Run, refuse: Refuse) -> None:
    command = ("verify", "-m", finished / "phone", "--data", folder / "eval.jsonl", "--label")
    result = succeed(*command, "slots=tags", "--text", "tokens", "--json")
    content = json.loads(result.stdout.splitlines()[-1])
    assert {*content["scores"][ONNX]["eval.jsonl"]["heads"]} == {"intent", "slots"}
    assert NO_HEAD in refuse(*command, "tags")


def test_commands_that_take_one_head_say_so(finished: Path, folder: Path, tmp_path: Path, refuse: Refuse) -> None:
    phone, student, data = finished / "phone", finished / "student", ("--data", folder / "eval.jsonl")
    text, out = ("--text", "tokens"), ("-o", tmp_path / "out")
    for said, *command in (
        ("has several heads; answers of one head are compared", "diff", phone, phone, *data, *text),
        ("its models have several heads; a diagnosis is of one", "diagnose", finished),
        (
            "has several heads; sensitivity is measured for one",
            *("sensitivity", "-m", phone, "--calibrate", folder / "train.jsonl"),
        ),
        (
            "has several heads (slots, intent), and a column holds the answers of one",
            *("teach", "-m", student, *data, *text, *out),
        ),
        ("several", "quantize", "-m", phone, *out, "--budget", "max_size_mb=1", *data),
        ("has one head, not several", "export", "-m", folder / "teacher", *out, "--task", "several"),
        (
            "has several heads (slots, intent), which token-classification would read as one",
            *("export", "-m", student, *out, "--task", "token-classification"),
        ),
    ):
        assert said in refuse(*command), command


@pytest.mark.parametrize("platform", ["android", "web", "server"])
def test_a_platforms_pack_has_all_heads(platform: str, finished: Path, tmp_path: Path, succeed: Run) -> None:
    succeed("pack", "-m", finished / "phone", "-o", tmp_path / "assets", "--for", platform)
    artefacts = read_artefacts(tmp_path / "assets")
    assert artefacts.heads == {name: own["task"] for name, own in TASKS.items()}
    answer = pocketbert.load(tmp_path / "assets", file=artefacts.default_model().path).predict(["dim the lamp"])[0]
    assert {*answer.fields()} == {*TASKS}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("artifacts.json", {"heads": None}, "heads are named for the task several"),
        ("artifacts.json", {"heads": {"slots": "token-classification", "mood": "regression"}}, "do not fit the labels"),
        ("artifacts.json", {"heads": {}}, "at least 2 items"),
        ("artifacts.json", {"heads": {f"h{i}": "regression" for i in range(17)}}, "at most 16 items"),
        ("artifacts.json", {"heads": {"../x": "regression", "slots": "token-classification"}}, "heads.../x"),
        ("artifacts.json", {"heads": {"text": "regression", "slots": "token-classification"}}, "cannot be called text"),
        ("artifacts.json", {"heads": {"intent": "fill-mask", "slots": "token-classification"}}, "fill-mask is no task"),
        ("config.json", {"pocketbert_heads": {"slots": "token-classification"}}, "pocketbert_heads is"),
        ("config.json", {"pocketbert_heads": None}, "pocketbert_heads is None"),
    ],
)
def test_a_folder_whose_heads_contradict_each_other_is_refused(
    name: str, change: dict[str, Any], said: str, phone: Path, refuse: Refuse
) -> None:
    content = json.loads((phone / name).read_text())
    (phone / name).write_text(json.dumps({k: v for k, v in {**content, **change}.items() if v is not None}))
    if name == "config.json":
        relist(phone, name)
    assert said in refuse("verify", "-m", phone)


def test_the_javascript_package_gives_the_answers_of_all_heads(finished: Path) -> None:
    """The package's tokens and answers of a folder out of a run; the engine returns what Python's computed."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    phone, texts = finished / "phone", ["please dim the kitchen lamp now", "a song"]
    model = pocketbert.load(phone, file=ONNX)
    runs = []
    for row in [*(r.input for r in read_golden(phone / GOLDEN_FILE)), *texts]:
        [encoded] = model.tokenizer.encode([row])
        outputs = model.predictor.run(model.tokenizer.pad([encoded]))
        told = {name: {"shape": list(value.shape), "data": value.ravel().tolist()} for name, value in outputs.items()}
        runs.append({"ids": encoded.ids.tolist(), "outputs": told})
    code = (
        f'import {{ load }} from "{(ROOT / "runtime/javascript/index.js").as_uri()}";\n'
        f"const runs = {json.dumps(runs)};\n"
        "const run = async ({ input_ids: ids }) => Object.fromEntries(Object.entries(runs.find((one) => one.ids.join() === ids.join()).outputs)"
        ".map(([name, { shape, data }]) => [name, { shape, data: Float32Array.from(data) }]));\n"
        f'const engine = async () => ({{ name: "python", version: "", inputs: {json.dumps(model.predictor.inputs)}, lengths: [], run, close() {{}} }});\n'
        f"const model = await load({json.dumps(str(phone))}, {{ file: {json.dumps(ONNX)}, engine }});\n"
        f"console.log(JSON.stringify([model.heads, await model.predict({json.dumps(texts)})]));"
    )
    run = subprocess.run([node, "--input-type=module", "-"], input=code, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    heads, made = json.loads(run.stdout)
    assert heads == {name: own["task"] for name, own in TASKS.items()}
    for one, answer in zip(made, model.predict(texts), strict=True):
        same_fields(one, answer, 1e-6)


# Gates find a broken head


def break_head(columns: slice, width: int) -> Callable[[Any], None]:
    """Exchange the labels of one head in what is stored of the last layer: whatever has as many numbers as all heads."""

    def change(model: Any) -> None:
        changed = 0
        for tensor in model.graph.initializer:
            for axis, size in enumerate(tensor.dims):
                if size == width:

                    def exchange(value: np.ndarray, axis: int = axis) -> np.ndarray:
                        value = np.moveaxis(value, axis, 0)
                        value[columns] = np.roll(value[columns], 1, 0)
                        return np.moveaxis(value, 0, axis)

                    defects.change_array(tensor, exchange)
                    changed += 1
        assert changed

    return change


@pytest.mark.parametrize(("broken", "sound"), [("intent", "slots"), ("slots", "intent")])
@pytest.mark.parametrize("name", [ONNX, ONNX_INT8])
def test_a_broken_head_is_found_by_its_gate(broken: str, sound: str, name: str, phone: Path, cli: Run) -> None:
    labels = read_artefacts(phone).labels
    own = [i for i, label in enumerate(labels) if label.startswith(f"{broken}: ")]
    defects.edit(phone / name, break_head(slice(own[0], own[-1] + 1), len(labels)))
    relist(phone, name)
    result = cli("verify", "-m", phone, "--json")
    assert result.exit_code == 3
    gates = {g["name"]: g["passed"] for g in json.loads(result.stdout.splitlines()[-1])["gates"] if g["file"] == name}
    assert not gates[f"reference {broken}"]
    assert gates[f"reference {sound}"], "the other head is as it was"


def score(intent: float, slots: float) -> Score:
    """A score of two heads."""
    heads = {
        name: Score(metric=metric, value=value, others={}, rows=1000, chance=0.5, finite=True)
        for name, metric, value in (("intent", "accuracy", intent), ("slots", "span_f1", slots))
    }
    mean = (intent + slots) / 2
    return Score(metric="mean_of_heads", value=mean, others={}, rows=1000, chance=0.5, finite=True, heads=heads)


def test_a_head_that_lost_is_not_outweighed_by_one_that_won() -> None:
    def failed(gates: Any) -> list[str]:
        return [gate.name for gate in gates if not gate.passed]

    before, after = score(0.90, 0.80), score(0.84, 0.88)
    assert after.value > before.value
    assert failed(check_each_head(check_drop, "f", after, before, 0.01, "fp32")) == ["drop intent"]
    assert failed(check_each_head(check_kept, "f", score(0.9, 0.4), score(0.9, 0.8), 0.9)) == ["kept slots"]
    assert failed(check_each_head(check_chance, "f", score(0.4, 0.9), "eval")) == ["chance intent"]
    assert failed(check_student(score(0.9, 0.4), score(0.9, 0.9), 0.9)) == ["chance slots", "kept slots"]
    alone = before.heads["intent"]
    assert [g.name for g in check_each_head(check_drop, "f", alone, alone, 0.01, "fp32")] == ["drop"]


def test_a_head_that_cannot_be_checked_is_listed_as_skipped() -> None:
    both = score(0.9, 0.8)
    empty = both.heads["slots"].model_copy(update={"rows": 0, "value": 0.0})
    lacking = both.model_copy(update={"heads": {**both.heads, "slots": empty}})
    older = both.model_copy(update={"heads": {"intent": both.heads["intent"]}})
    for check, bound in ((check_drop, (0.01, "fp32")), (check_kept, (0.9,))):
        for own, reference, why in (
            (lacking, both, "none of the scored rows has a label of it"),
            (older, both, "none of the scored rows has a label of it"),
            (both, lacking, "what it is compared with has no score of it"),
            (both, older, "what it is compared with has no score of it"),
        ):
            intent, slots = check_each_head(check, "f", own, reference, *bound)
            assert (intent.passed, intent.skipped) == (True, False)
            assert (slots.name, slots.skipped) == (f"{check.__name__.removeprefix('check_')} slots", True)
            assert slots.detail == f"the head 'slots' is not checked: {why}."
    assert [g.skipped for g in check_each_head(check_chance, "f", lacking, "eval")] == [False, True]
