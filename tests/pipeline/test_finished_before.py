"""What is called finished is whole and of the same inputs; nothing else is skipped, and nothing is lost on the way."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pocketbert import ExportOptions, api
from pocketbert.core.disk.ownership import write_marker
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.run_folder import step
from support.runs import undo
from support.tiny import write_bert
from support.tiny_texts import LABELS

Cli = Callable[..., Any]
Refuse = Callable[..., str]
SKIPPED = "finished before with the same model and settings, skipped"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier; read-only by convention."""
    return write_bert(tmp_path_factory.mktemp("source") / "model", LABELS)


@pytest.fixture(scope="module")
def exported_once(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its artefact folder with the fp32 ONNX file; read-only by convention."""
    folder = tmp_path_factory.mktemp("finished") / "phone"
    api.export(str(source), folder, ExportOptions(schemes=["fp32"], formats=["onnx"]))
    return folder


@pytest.fixture
def output(exported_once: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be written again."""
    return Path(shutil.copytree(exported_once, tmp_path / "phone"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def export(model: Path, output: Path, *more: str) -> tuple[object, ...]:
    """The command that wrote the folder."""
    return "export", "-m", model, "-o", output, "--format", "onnx", "--scheme", "fp32", *more


def listing(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if "pocketbert-cache" not in p.parts)


TURNED = {"id2label": {"0": "music", "1": "lamp", "2": "timer"}, "label2id": {"music": 0, "lamp": 1, "timer": 2}}
CHANGES: dict[str, Callable[[Path], object]] = {
    "label names": lambda m: edit(m / "config.json", **TURNED),
    "tokenizer": lambda m: edit(m / "tokenizer.json", normalizer=None),
    "special tokens": lambda m: (m / "special_tokens_map.json").write_text("{}"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_export_of_changed_files_is_not_finished_before(
    change: str, source: Path, output: Path, tmp_path: Path, succeed: Cli, refuse: Refuse
) -> None:
    model = Path(shutil.copytree(source, tmp_path / "model"))
    same = succeed(*export(model, output))
    assert SKIPPED in same.stderr, "another folder with the same content is the same model"
    CHANGES[change](model)
    said = f"{output}: holds files of another model, of other options or of another version; nothing was written."
    assert said in refuse(*export(model, output))


def test_an_export_with_other_library_versions_is_not_finished_before(
    source: Path, output: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "installed_versions", lambda names=(): dict.fromkeys(names, "99.0"))
    refuse(*export(source, output))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda o: (o / "onnx/model.onnx").write_text("broken"), "onnx/model.onnx: changed since it was packed"),
        (lambda o: (o / "golden.jsonl").unlink(), "golden.jsonl: listed, but not there"),
        (lambda o: (o / "thesis.txt").write_text("precious"), "thesis.txt: there, but not listed"),
    ],
    ids=["changed", "removed", "added"],
)
def test_a_damaged_output_is_not_finished(
    damage: Callable[[Path], object], said: str, source: Path, output: Path, succeed: Cli, refuse: Refuse
) -> None:
    damage(output)
    before, again = listing(output), refuse(*export(source, output))
    assert f"{output}/{said}" in again
    assert "nothing was written" in again
    assert listing(output) == before
    if (output / "thesis.txt").exists():  # not even with --overwrite
        again = refuse(*export(source, output, "--overwrite"))
        assert "holds what PocketBERT did not write (thesis.txt)" in again
        assert (output / "thesis.txt").read_text() == "precious"
    else:
        succeed(*export(source, output, "--overwrite"))
        assert SKIPPED in succeed(*export(source, output)).stderr


def test_every_file_that_an_export_opens_is_hashed(tmp_path: Path) -> None:
    model = write_bert(tmp_path / "model", LABELS)
    (model / "special_tokens_map.json").write_text("{}")
    opened: set[str] = set()
    watching = [True]

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(args[0], str) and args[0].startswith(f"{model}/"):
            opened.add(args[0].removeprefix(f"{model}/"))

    sys.addaudithook(watch)  # it cannot be taken away again
    api.export(str(model), tmp_path / "phone", ExportOptions(schemes=["fp32"], formats=["onnx"]))
    watching.clear()
    assert {"config.json", "tokenizer.json", "vocab.txt"} <= opened
    for name in sorted(opened):
        before = open_model_folder(str(model)).digest
        content = (model / name).read_bytes()
        (model / name).write_bytes(content + b" " if name != "model.safetensors" else content[:-1] + b"\0")
        assert open_model_folder(str(model)).digest != before, name
        (model / name).write_bytes(content)


def test_foreign_folders_beside_an_export_survive(source: Path, tmp_path: Path, succeed: Cli, refuse: Refuse) -> None:
    names = [".p.12345678", ".p.old", ".p.partial", ".p.run"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("precious")
    refuse(*export(source, tmp_path / "p", "--max-length", "200"))
    assert listing(tmp_path) == sorted([*names, *(f"{name}/thesis.txt" for name in names)])
    succeed(*export(source, tmp_path / "p"))
    assert {(tmp_path / name / "thesis.txt").read_text() for name in names} == {"precious"}


def test_a_second_export_leaves_the_first_ones_work_alone(source: Path, tmp_path: Path, refuse: Refuse) -> None:
    working = tmp_path / ".p.abcd1234"
    (working / "run").mkdir(parents=True)
    write_marker(working, "temporary folder", output="p", of="export")
    (working / "run" / "half").write_text("x")
    with FileLock(working / ".lock"):
        for more in ([], ["--max-length", "200"]):
            said = refuse(*export(source, tmp_path / "p", *more), code=1)
            assert f"another process is working on {tmp_path}/p" in said
            assert (working / "run" / "half").exists()
    assert not (tmp_path / "p").exists()


# --- runs: the same rules for each step ---


def test_a_run_is_not_finished_when_its_teachers_files_change(
    task: Any, run_copy: Path, tmp_path: Path, succeed: Cli, refuse: Refuse
) -> None:
    model = Path(shutil.copytree(task.folder / "teacher", tmp_path / "model"))
    command = ("run", task.variant(tmp_path / "r.yaml", teacher={"model": str(model)}), "-o", run_copy)
    same = succeed(*command, f"teacher.model={task.folder / 'teacher'}")
    assert "pack: finished before, skipped" in same.stderr
    edit(model / "tokenizer_config.json", model_max_length=12)
    said = refuse(*command)
    assert f"{run_copy}: the content of teacher.model changed; " in said
    assert ": data and the 8 steps behind it would be made anew. Nothing was changed." in said


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("teacher/model.safetensors", "teacher"),
        ("onnx/model.onnx", "onnx"),
        ("data.json", "data.json"),
        ("phone/README.md", "phone"),
    ],
)
def test_a_run_with_a_damaged_output_is_not_finished(
    name: str, output: str, task: Any, run_copy: Path, refuse: Refuse
) -> None:
    path = run_copy / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    said, file = refuse("run", task.recipe, "-o", run_copy), name.partition("/")[2] or "the file"
    assert f"{run_copy}/{output}: {file} was changed or removed after it was made." in said
    assert "--overwrite to make it again" in said


def test_a_damaged_file_is_made_again_with_overwrite(
    task: Any, finished: Path, run_copy: Path, succeed: Cli, refuse: Refuse
) -> None:
    golden = run_copy / "phone" / "golden.jsonl"
    golden.unlink()
    refuse("run", task.recipe, "-o", run_copy)
    made = succeed("run", task.recipe, "-o", run_copy, "--overwrite")
    assert "verify: finished before, skipped" in made.stderr
    assert golden.read_bytes() == (finished / "phone" / "golden.jsonl").read_bytes()


@pytest.mark.parametrize("place", ["student", "phone/notes", "student/notes"])
def test_a_users_files_in_a_run_folder_are_never_replaced(
    place: str, task: Any, run_copy: Path, refuse: Refuse
) -> None:
    if place == "student":
        undo(run_copy, "student")
    (run_copy / place).mkdir()
    thesis = run_copy / place / "thesis.txt"
    thesis.write_text("precious")
    made = "made" if place == "student" else "written"
    for more in ([], ["--overwrite"], ["distill.0.steps=90", "--overwrite"]):
        assert f"was not {made} by this run" in refuse("run", task.recipe, "-o", run_copy, *more)
        assert thesis.read_text() == "precious"


def test_unfinished_training_of_other_settings_is_kept(task: Any, run_copy: Path, succeed: Cli, refuse: Refuse) -> None:
    undo(run_copy, "distill.0", "student")
    work = run_copy / ".work" / "distill.0-0123456789ab"
    (work / "distill.0" / "step-0299000").mkdir(parents=True)
    (work / "distill.0" / "latest").write_text("step-0299000")
    before = {p: p.stat().st_mtime_ns for p in work.rglob("*")}
    for more in ([], ["distill.0.lr=0.01"]):
        said = refuse("run", task.recipe, "-o", run_copy, *more)
        assert "distill.0-0123456789ab does not tell what it is made from" in said
        assert f"(unfinished work of distill.0: {work}, distill.0 at step 299,000)" in said
        assert "--overwrite to make them anew" in said
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*")} == before
    made = succeed("distill", task.recipe, "-o", run_copy, "--overwrite", "distill.0.steps=2")
    assert f"removed unfinished work of other settings: {work}" in made.stderr
    assert not work.exists()


def test_what_other_versions_made_is_taken_as_it_is(
    task: Any, run_copy: Path, succeed: Cli, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo(run_copy, "pack")
    before = step.installed_versions
    newer = {"torch": "99.0"}
    monkeypatch.setattr(
        step, "installed_versions", lambda names: {**before(names), **{n: v for n, v in newer.items() if n in names}}
    )
    torch = before(("torch",))["torch"]
    assert "Fix: --resume-anyway" in refuse("run", task.recipe, "-o", run_copy)
    taken = succeed("run", task.recipe, "-o", run_copy, "--resume-anyway")
    assert "  taken as they are, made with other library versions: teacher, distill.0, student, onnx" in taken.stderr
    lineage = json.loads((run_copy / "phone" / "artifacts.json").read_text())["lineage"]
    said = lineage["made with other library versions (--resume-anyway)"]
    assert said.startswith(f"teacher (torch {torch}, taken on with 99.0); distill.0 (torch ")
    assert f"teacher (torch {torch}, taken on with 99.0)" in (run_copy / "phone" / "README.md").read_text()
    for verb in ("run", "finetune", "distill"):
        succeed(verb, task.recipe, "-o", run_copy, "--resume-anyway")


def test_a_folder_that_only_looks_like_a_run_is_left_alone(task: Any, tmp_path: Path, refuse: Refuse) -> None:
    folder = tmp_path / "run"
    for name in (".steps", "student"):
        (folder / name).mkdir(parents=True)
    (folder / "student" / "thesis.txt").write_text("precious")
    (folder / ".lock").write_text("mine")
    before = listing(folder)
    for more in ([], ["--overwrite"], ["--dry-run"]):
        said = refuse("run", task.recipe, "-o", folder, *more)
        assert f"{folder}: exists and is not a run folder; nothing was written." in said
        assert listing(folder) == before
    assert (folder / ".lock").read_text() == "mine"


@pytest.mark.parametrize(
    ("task", "changed"), [("token-classification", {"words", "prompts"}), ("text-classification", set())]
)
def test_a_run_made_before_words_ended_at_punctuation_and_prompts_were_left_out_is_not_continued(
    task: str, changed: set[str], source: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "model"))
    data = {name: {"path": f"{name}.jsonl"} for name in ("train", "eval")}
    content = {"schema": 1, "name": "a", "task": task, "teacher": {"model": str(folder)}, "data": data}
    before = Inputs(recipe_from_values(content, "test")).task_settings()
    said = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**said, "pre_tokenizer": {"type": "WhitespaceSplit"}}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "q "}}))
    after = Inputs(recipe_from_values(content, "test")).task_settings()
    assert after.keys() - before.keys() == changed
