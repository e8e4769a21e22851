"""A recipe, its files or the libraries change between a run and the next: what is made again, kept or refused, and in which words.

The steps are those of a real recipe, but their makers write a line each, so that hundreds of edits can be tried in seconds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission, Step, StepPaths
from support.tiny_texts import task_rows, write_lines

TRAINING = ("teacher", "distill.0", "distill.1")
BEHIND_STUDENT = ("student", "onnx", "onnx-int8", "golden", "verify", "benchmark", "pack")
BEHIND_EXPORT = ("onnx", "onnx-int8", "golden", "verify", "onnx-teacher", "benchmark", "pack")
ORDER = ("data", "corpus", *TRAINING, "student", *BEHIND_EXPORT)


class KilledError(BaseException):
    """Ends a maker as a kill would: nothing after it runs."""


class Desk:
    """A run folder and a recipe to edit."""

    def __init__(self, folder: Path, recipe: Path) -> None:
        self.folder, self.recipe = folder, recipe
        self.versions: dict[str, str | None] = {}  # what is said to be installed; 1.0 of all else
        self.killed, self.failing = "", set[str]()  # step in which the process dies; steps whose gates fail
        self.made: list[str] = []  # steps of the last run; resumed ones with the number they went on from

    def installed(self, names: Sequence[str]) -> dict[str, str | None]:
        versions = {name: self.versions.get(name, "1.0") for name in names}
        return {name: version for name, version in versions.items() if version is not None}

    def run(self, *edits: str, **allowed: bool) -> list[str]:
        """Run the edited recipe; the steps that were made."""
        self.made = []
        self.steps(*edits, **allowed).execute()
        return self.made

    def kill_in(self, step: str, *edits: str, **allowed: bool) -> None:
        """Run, and die in a step."""
        self.killed = step
        with pytest.raises(KilledError):
            self.run(*edits, **allowed)
        self.killed = ""

    def plan(self, *edits: str, **allowed: bool) -> dict[str, str]:
        """What a dry run says of each step: its state, and why it is made again."""
        rows = self.steps(*edits, **allowed).plan()
        return {name: f"{state}: {why}" if why else state for name, _, state, why in rows}

    def refused(self, *edits: str, **allowed: bool) -> str:
        """The message with which a run and its plan are refused; nothing changes."""
        before = self.results()
        with pytest.raises(InputError) as error:
            self.run(*edits, **allowed)
        with pytest.raises(InputError):
            self.plan(*edits, **allowed)
        assert self.made == []
        assert self.results() == before
        return str(error.value)

    def results(self) -> dict[str, str]:
        """All results, by file."""
        inside = [p for p in self.folder.rglob("*") if p.is_file() and p.relative_to(self.folder).parts[0][0] != "."]
        return {p.relative_to(self.folder).as_posix(): p.read_text() for p in inside if p.name != "run.log"}

    def mark(self, step: str) -> Any:
        """What is remembered of a step."""
        return json.loads((self.folder / ".steps" / f"{step}.json").read_text())

    def steps(self, *edits: str, overwrite: bool = False, resume_anyway: bool = False) -> Run:
        desk, recipe = self, load_recipe(self.recipe, edits)

        class Faked(Run):
            def steps(self) -> list[Step]:
                return [replace(step, make=partial(desk._make, step.name)) for step in super().steps()]

        return Faked(recipe, self.folder, Permission(overwrite, resume_anyway))

    def _make(self, name: str, at: StepPaths) -> Sequence[str]:
        checkpoint, begun = at.work / "latest", 0
        if checkpoint.is_file():
            begun = int(checkpoint.read_text().removeprefix("step-"))
        if name == self.killed:
            if name in TRAINING:
                checkpoint.write_text(f"step-{begun + 50:07d}")
            raise KilledError(name)
        self.made.append(f"{name} from {begun}" if begun else name)
        (at.output / "result.txt" if at.output.is_dir() else at.output).write_text(f"{name} {at.work.name}\n")
        return [f"{name}: gate 'finite' failed"] if name in self.failing else []


@pytest.fixture
def desk(task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A run that has not begun, of a recipe with a general and a task stage."""
    here = Path(shutil.copytree(task.folder, tmp_path / "here"))
    text = write_lines(here / "text.jsonl", [{"text": row["text"]} for row in task_rows(20, 9)])
    recipe = task.variant(
        here / "recipe.yaml",
        data={
            "train": {"path": str(here / "train.jsonl")},
            "eval": {"path": str(here / "eval.jsonl")},
            "corpus": {"sources": [{"path": str(text)}], "length": 32},
        },
        teacher={"model": str(here / "teacher")},
        distill=[{"method": "minilm", "steps": 100, "batch": 8}, {"method": "task", "steps": 100, "batch": 8}],
        benchmark={"threads": [1]},
    )
    made = Desk(tmp_path / "run", recipe)
    monkeypatch.setattr("pocketbert.pipeline.run_folder.step.installed_versions", made.installed)
    return made


@pytest.fixture
def finished_desk(desk: Desk) -> Desk:
    """A run whose steps are all finished."""
    desk.run()
    return desk


# --- edits ---


@dataclass(frozen=True)
class Edit:
    """An edit of a finished run: by overrides, or by a further line in a file; without a message nobody is asked."""

    again: tuple[str, ...] = ()  # steps that are made again
    said: str = ""  # the message that refuses it without --overwrite
    edits: tuple[str, ...] = ()
    file: str = ""


EDITS = {
    "a stage's checkpoint": Edit(edits=("distill.0.checkpoint=7", "teacher.finetune.checkpoint=3")),
    "the first stage": Edit(
        ("distill.0", "distill.1", *BEHIND_STUDENT),
        "distill.0.steps was 100, is 120: distill.0 and the 8 steps behind it would be made anew.",
        ("distill.0.steps=120",),
    ),
    "several keys of the last stage": Edit(
        ("distill.1", *BEHIND_STUDENT),
        "distill.1.steps was 100, is 120; distill.1.lr was 0.0001, is 0.001; distill.1.signals.hidden was 1.0, is 0.0: "
        "distill.1 and the 7 steps behind it would be made anew.",
        ("distill.1.steps=120", "distill.1.lr=0.001", "distill.1.signals.hidden=0"),
    ),
    "a stage's precision": Edit(
        ("distill.1", *BEHIND_STUDENT),
        "distill.1.precision was not set, is fp32: distill.1 and the 7 steps behind it would be made anew.",
        ("distill.1.precision=fp32",),
    ),
    "the precision as it is": Edit(edits=("distill.1.precision=auto", "teacher.finetune.precision=auto")),
    "the teacher's training": Edit(
        ("teacher", "distill.1", "student", *BEHIND_EXPORT),
        "teacher.finetune.steps was 140, is 150: teacher and the 9 steps behind it would be made anew.",
        ("teacher.finetune.steps=150",),
    ),
    "the training rows": Edit(
        tuple(n for n in ORDER if n not in ("corpus", "distill.0")),
        "the content of data.train changed: data and the 10 steps behind it would be made anew.",
        file="train.jsonl",
    ),
    "the plain text": Edit(
        ("corpus", "distill.0", "distill.1", *BEHIND_STUDENT),
        "the content of data.corpus.sources.0 changed: corpus and the 9 steps behind it would be made anew.",
        file="text.jsonl",
    ),
    "the description": Edit(
        ("pack",), 'description was "", is "for lamps": pack would be made anew.', ("description=for lamps",)
    ),
    "lengths to export": Edit(
        BEHIND_EXPORT,
        "export.lengths was [16, 32], is [16]: onnx, onnx-teacher and the 5 steps behind them would be made anew.",
        ("export.lengths=[16]",),
    ),
    "a gate of verify": Edit(("verify", "pack"), edits=("verify.max_drop=0.5",)),
    "a gate of export": Edit(BEHIND_EXPORT, edits=("export.atol=0.01",)),
}


def change_file(desk: Desk, edit: Edit) -> None:
    if edit.file:
        path = desk.recipe.parent / edit.file
        first = path.read_text().splitlines()[0]
        path.write_text(path.read_text() + first.replace('"text": "', '"text": "again ') + "\n")


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_a_finished_run(finished_desk: Desk, name: str) -> None:
    desk, edit = finished_desk, EDITS[name]
    change_file(desk, edit)
    if edit.said:
        said = desk.refused(*edit.edits)
        assert said.startswith(f"{desk.folder}: {edit.said}"[:-1])
        assert "\n" not in said, "one message"
        assert "--overwrite to make them anew" in said
    planned = desk.plan(*edit.edits, overwrite=bool(edit.said))
    assert sorted(n for n, state in planned.items() if state != "finished") == sorted(edit.again)
    assert desk.run(*edit.edits, overwrite=bool(edit.said)) == [n for n in ORDER if n in edit.again]
    assert desk.run(*edit.edits) == []


def test_training_in_bf16_is_refused_ahead_where_the_machine_has_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = ("distill.1.precision=bf16", "teacher.finetune.precision=bf16")
    monkeypatch.setattr("pocketbert.distill.training.machine._bf16_is_fast", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = desk.refused(*edits)
    for key in ("teacher.finetune.precision", "distill.1.precision"):
        assert f"{key}: bf16, and this machine's CPU has neither avx512_bf16 nor AMX" in said
    assert "distill.0" not in said and "Set precision: auto" in said
    with monkeypatch.context() as able:
        able.setattr("pocketbert.distill.training.machine._bf16_is_fast", lambda: True)
        desk.kill_in("verify", *edits)
    assert desk.run(*edits)[0] == "verify", "what is trained already goes on anywhere"


@pytest.mark.parametrize(
    "name", ["a stage's checkpoint", "the first stage", "several keys of the last stage", "the training rows"]
)
def test_an_edit_after_a_kill_in_the_last_stage(desk: Desk, name: str) -> None:
    edit, concerned = EDITS[name], "distill.1" in EDITS[name].again
    desk.kill_in("distill.1")
    change_file(desk, edit)
    if concerned:
        said = desk.refused(*edit.edits)
        assert said.startswith(f"{desk.folder}: {edit.said.partition(': ')[0]}: ")
        assert f"unfinished work of distill.1: {desk.folder}/.work/distill.1-" in said
        assert "step 50" in said
        if edit.edits:
            assert desk.plan()["distill.1"] == "unfinished", "put back, nothing is lost"
    made = desk.run(*edit.edits, overwrite=concerned)
    last = "distill.1" if concerned else "distill.1 from 50"
    assert made == [*(n for n in ORDER[:4] if n in edit.again), last, *ORDER[ORDER.index("student") :]]


def test_stages_and_steps_that_are_added_or_left_out(finished_desk: Desk) -> None:
    said = finished_desk.refused("benchmark=null")
    assert "benchmark was set, is not set; pack reads benchmark no longer: pack would be made anew." in said
    assert finished_desk.run("benchmark=null", overwrite=True) == ["pack"]
    assert finished_desk.run(overwrite=True) == ["pack"], "what was measured before is still right"
    first = "{method: minilm, steps: 100, batch: 8}, {method: task, steps: 100, batch: 8, lr: 1e-4}"
    stages = f"distill=[{first}, {{method: task, steps: 9}}]"
    said = finished_desk.refused(stages)
    reads = "student reads distill.2 instead of distill.1; distill.2 was not set, is set: student and the 6 steps"
    assert reads in said
    assert finished_desk.run(stages, overwrite=True) == ["distill.2", *(n for n in ORDER if n in BEHIND_STUDENT)]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"seed": 1}, {"seed": 1}, []),
        ({"a": "int8"}, {"a": "w8"}, ["a was int8, is w8"]),
        ({"a": "two words"}, {"a": None}, ['a was "two words", is not set']),
        ({"a": "x" * 80}, {"a": True}, [f"a was {'x' * 57}..., is true"]),
        ({"s": {"a": 1}}, {"s": {"a": 1, "b": 2}}, ["s.b was not set, is 2"]),
        ({"s": None, "t": 1}, {"s": {"a": 1, "b": 2}, "t": 1}, ["s was not set, is set"]),
        ({"s": {"a": 1, "b": 2}}, {"s": None}, ["s was set, is not set"]),
        ({"d": [{"a": 1}, {"a": 2}]}, {"d": [{"a": 1}]}, ["d.1 was set, is not set"]),
        ({"d": []}, {"d": [{"a": 1}]}, ["d was not set, is set"]),
    ],
)
def test_each_change_is_named(before: dict[str, object], now: dict[str, object], said: list[str]) -> None:
    made, wanted = (Step("x", "", "x", told, (), lambda _: ()).made_from({}) for told in (before, now))
    assert made.changes(wanted) == said
    assert (made.hash == wanted.hash) == (said == [])


# --- kills and failures ---


@pytest.mark.parametrize("step", ORDER)
def test_killed_in_each_step(desk: Desk, step: str) -> None:
    desk.kill_in(step)
    done = ORDER[: ORDER.index(step)]
    planned = desk.plan()
    assert [planned[n] for n in done] == ["finished"] * len(done)
    assert planned[step] == "unfinished"
    assert desk.run() == [f"{step} from 50" if step in TRAINING else step, *ORDER[len(done) + 1 :]]
    unbroken = desk.results()
    assert desk.run() == []
    assert desk.results() == unbroken
    assert list((desk.folder / ".work").iterdir()) == []


@pytest.mark.parametrize("step", ["teacher", "distill.0", "onnx", "pack"])
def test_killed_while_it_is_made_anew(finished_desk: Desk, step: str) -> None:
    edits = ("teacher.finetune.steps=150", "distill.0.steps=120")
    finished_desk.kill_in(step, *edits, overwrite=True)
    rest = ORDER[ORDER.index(step) + 1 :]
    # what was allowed once is not asked again
    assert finished_desk.run(*edits) == [f"{step} from 50" if step in TRAINING else step, *rest]


def test_a_step_that_failed_is_made_again_without_being_asked(desk: Desk) -> None:
    desk.failing = {"verify"}
    with pytest.raises(GateError, match="marked failed"):
        desk.run()
    assert desk.mark("verify")["status"] == "failed"
    assert desk.plan()["verify"] == "to do: verify failed before"
    desk.failing = set()
    said = desk.refused("distill.1.steps=120")
    assert "distill.1.steps was 100, is 120: distill.1 and the 4 steps behind it would be made anew" in said
    assert desk.run("verify.max_drop=0.5") == ["verify", "onnx-teacher", "benchmark", "pack"]
    desk.failing = {"verify"}
    with pytest.raises(GateError):
        desk.run("verify.max_drop=0.0")
    assert not (desk.folder / "phone").exists(), "nothing stays packed whose gates failed after an edit"
    desk.failing = set()
    assert desk.run() == ["verify", "pack"]


# --- other library versions ---


def test_other_versions_are_refused_with_the_choice(finished_desk: Desk) -> None:
    finished_desk.versions["torch"] = "2.0"
    said = finished_desk.refused()
    names = "teacher, distill.0, distill.1, student, onnx and onnx-teacher"
    former = f"{finished_desk.folder}: torch was 1.0, is 2.0: {names} were made with the former versions."
    assert said.startswith(former)
    assert "--resume-anyway to take them as they are, which is recorded, or --overwrite to start over" in said
    finished_desk.versions = {"accelerate": None}
    assert "accelerate was 1.0, is not installed" in finished_desk.refused()
    finished_desk.versions = {}
    assert finished_desk.run() == []
    finished_desk.versions["torch"] = "2.0"
    assert finished_desk.run(overwrite=True) == [n for n in ORDER if n not in ("data", "corpus")]
    assert finished_desk.mark("student")["made_from"]["versions"]["torch"] == "2.0"


def test_results_of_other_versions_are_taken_as_they_are(finished_desk: Desk) -> None:
    before = finished_desk.results()
    assert finished_desk.steps().origin.accepted == ()
    finished_desk.versions["torch"] = "2.0"
    assert finished_desk.run(resume_anyway=True) == []
    assert finished_desk.results() == before
    assert finished_desk.run() == [], "decided once"
    made_from = finished_desk.mark("student")["made_from"]
    assert made_from["versions"]["torch"] == "1.0"
    assert [v["torch"] for v in made_from["accepted"]] == ["2.0"]
    accepted = finished_desk.steps().origin.accepted
    assert accepted[0] == "teacher (torch 1.0, taken on with 2.0)"
    aged = ["teacher", "distill.0", "distill.1", "student", "onnx", "onnx-teacher"]
    assert [text.partition(" ")[0] for text in accepted] == aged
    finished_desk.versions["torch"] = "3.0"
    assert "torch was 2.0, is 3.0" in finished_desk.refused()
    assert finished_desk.run(resume_anyway=True) == []
    finished_desk.versions["torch"] = "2.0"
    assert finished_desk.run() == [], "versions that were taken once are not asked about again"


def test_unfinished_work_of_other_versions_goes_on(desk: Desk) -> None:
    desk.kill_in("distill.1")
    desk.versions["torch"] = "2.0"
    said = desk.refused()
    assert "torch was 1.0, is 2.0: teacher, distill.0 and distill.1 were made with the former versions" in said
    assert f"unfinished work of distill.1: {desk.folder}/.work/distill.1-" in said
    assert "step 50" in said
    desk.kill_in("distill.1", resume_anyway=True)
    assert desk.run()[0] == "distill.1 from 100", "decided once, for unfinished work too"
    made_from = desk.mark("distill.1")["made_from"]
    assert made_from["versions"]["torch"] == "1.0"
    assert [v["torch"] for v in made_from["accepted"]] == ["2.0"]
    assert desk.mark("student")["made_from"]["versions"]["torch"] == "2.0"


def test_another_recipe_and_other_versions_at_once(finished_desk: Desk) -> None:
    finished_desk.versions["torch"] = "2.0"
    said = finished_desk.refused("distill.1.steps=120")
    assert "distill.1.steps was 100, is 120: distill.1 and the 7 steps behind it would be made anew" in said
    assert "torch was 1.0, is 2.0: teacher, distill.0 and onnx-teacher were made with the former versions" in said
    assert "would be made anew" in finished_desk.refused("distill.1.steps=120", resume_anyway=True)
    made = finished_desk.run("distill.1.steps=120", overwrite=True, resume_anyway=True)
    assert made[:2] == ["distill.1", "student"]
