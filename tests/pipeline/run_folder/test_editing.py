"""A recipe edited between a run and the next: what is made again, what is kept, what is refused, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pocketbert.core.errors import GateError, InputError

ORDER = (
    "data", "corpus", "teacher", "distill.0", "distill.1", "student", "onnx", "onnx-int8", "golden", "verify",
    "onnx-teacher", "benchmark", "pack",
)  # fmt: skip
BEHIND_STUDENT = ("student", "onnx", "onnx-int8", "golden", "verify", "benchmark", "pack")


@dataclass(frozen=True)
class Edit:
    """An edit of a finished run.

    Attributes:
        edits: Overrides of the recipe.
        again: Steps that are made again.
        said: The message that refuses it without ``--overwrite``; empty where it is made without being asked.
        file: File that gets a further line, instead.
    """

    again: tuple[str, ...] = ()
    said: str = ""
    edits: tuple[str, ...] = ()
    file: str = ""


EDITS = {
    "a stage's checkpoint": Edit(edits=("distill.0.checkpoint=7", "teacher.finetune.checkpoint=3")),
    "the first stage": Edit(
        ("distill.0", "distill.1", *BEHIND_STUDENT),
        "distill.0.steps was 100, is 120: distill.0 and the 8 steps behind it would be made anew.",
        ("distill.0.steps=120",),
    ),
    "the last stage": Edit(
        ("distill.1", *BEHIND_STUDENT),
        "distill.1.steps was 100, is 120: distill.1 and the 7 steps behind it would be made anew.",
        ("distill.1.steps=120",),
    ),
    "several keys of one stage": Edit(
        ("distill.1", *BEHIND_STUDENT),
        "distill.1.steps was 100, is 120; distill.1.lr was 0.0001, is 0.001; distill.1.signals.hidden was 1.0, is 0.0: "
        "distill.1 and the 7 steps behind it would be made anew.",
        ("distill.1.steps=120", "distill.1.lr=0.001", "distill.1.signals.hidden=0"),
    ),
    "the teacher's training": Edit(
        ("teacher", "distill.1", "student", *BEHIND_STUDENT[1:5], "onnx-teacher", "benchmark", "pack"),
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
        (*BEHIND_STUDENT[1:5], "onnx-teacher", "benchmark", "pack"),
        "export.lengths was [16, 32], is [16]: onnx, onnx-teacher and the 5 steps behind them would be made anew.",
        ("export.lengths=[16]",),
    ),
    "how to measure": Edit(
        ("benchmark", "pack"),
        "benchmark.runs was 100, is 50: benchmark and the step behind it would be made anew.",
        ("benchmark.runs=50",),
    ),
    "a gate of verify": Edit(("verify", "pack"), edits=("verify.max_drop=0.5",)),
    "a gate of export": Edit((*BEHIND_STUDENT[1:5], "onnx-teacher", "benchmark", "pack"), edits=("export.atol=0.01",)),
}


def edited(desk: Any, edit: Edit) -> None:
    if edit.file:
        path = desk.recipe.parent / edit.file
        path.write_text(
            path.read_text() + path.read_text().splitlines()[0].replace('"text": "', '"text": "again ') + "\n"
        )


def refused(desk: Any, *edits: str, **allowed: bool) -> str:
    before = desk.results()
    with pytest.raises(InputError) as error:
        desk.run(*edits, **allowed)
    with pytest.raises(InputError):
        desk.plan(*edits, **allowed)
    assert desk.made == []
    assert desk.results() == before
    return str(error.value)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_a_finished_run(finished_desk: Any, name: str) -> None:
    desk, edit = finished_desk, EDITS[name]
    edited(desk, edit)
    if edit.said:
        said = refused(desk, *edit.edits)
        assert said.startswith(f"{desk.folder}: {edit.said}"[:-1])
        assert "\n" not in said  # one message
        assert "--overwrite to make them anew" in said
    planned = desk.plan(*edit.edits, overwrite=bool(edit.said))
    assert sorted(n for n, state in planned.items() if state != "finished") == sorted(edit.again)
    assert desk.run(*edit.edits, overwrite=bool(edit.said)) == [n for n in ORDER if n in edit.again]
    assert desk.run(*edit.edits) == []


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_after_a_kill_in_the_last_stage(desk: Any, name: str) -> None:
    edit, concerned = EDITS[name], "distill.1" in EDITS[name].again
    desk.kill_in("distill.1")
    edited(desk, edit)
    if concerned:
        said = refused(desk, *edit.edits)
        assert said.startswith(f"{desk.folder}: {edit.said.partition(': ')[0]}: ")
        assert f"unfinished work of distill.1: {desk.folder}/.work/distill.1-" in said
        assert "step 50" in said
        edited_back = () if edit.edits else None
        if edited_back is not None:
            assert desk.plan()["distill.1"] == "unfinished"  # put back, nothing is lost
    made = desk.run(*edit.edits, overwrite=concerned)
    missing = ORDER[ORDER.index("student") :]
    assert ("distill.1" if concerned else "distill.1 from 50") in made
    first = [n for n in ORDER[:4] if n in edit.again and n in made]
    assert made == [*first, "distill.1" if concerned else "distill.1 from 50", *missing]


def test_a_recipe_put_back_after_a_refusal_resumes(desk: Any) -> None:
    desk.kill_in("distill.1")
    refused(desk, "distill.1.steps=120")
    refused(desk, "distill.0.steps=120")
    assert desk.run() == ["distill.1 from 50", *ORDER[ORDER.index("student") :]]


def test_a_later_stage_keeps_the_stages_before(finished_desk: Any) -> None:
    more = "distill=[{method: minilm, steps: 100, batch: 8}, {method: task, steps: 100, batch: 8, lr: 1e-4}, {method: task, steps: 9}]"
    said = refused(finished_desk, more)
    assert (
        "student reads distill.2 instead of distill.1; distill.2 was not set, is set: student and the 6 steps behind it would be made anew"
        in said
    )
    assert finished_desk.run(more, overwrite=True) == ["distill.2", *(n for n in ORDER if n in BEHIND_STUDENT)]


def test_a_step_that_is_left_out(finished_desk: Any) -> None:
    said = refused(finished_desk, "benchmark=null")
    assert "benchmark was set, is not set; pack reads benchmark no longer: pack would be made anew." in said
    assert finished_desk.run("benchmark=null", overwrite=True) == ["pack"]
    assert finished_desk.run(overwrite=True) == ["pack"]  # what was measured before is still right


@pytest.mark.parametrize("step", ORDER)
def test_killed_in_each_step(desk: Any, step: str) -> None:
    desk.kill_in(step)
    done = ORDER[: ORDER.index(step)]
    planned = desk.plan()
    assert [planned[n] for n in done] == ["finished"] * len(done)
    assert planned[step] == "unfinished"
    training = step in ("teacher", "distill.0", "distill.1")
    assert desk.run() == [f"{step} from 50" if training else step, *ORDER[len(done) + 1 :]]
    unbroken = desk.results()
    assert desk.run() == []
    assert desk.results() == unbroken
    assert list((desk.folder / ".work").iterdir()) == []


@pytest.mark.parametrize("step", ["teacher", "distill.0", "onnx", "verify", "pack"])
def test_killed_while_it_is_made_anew(finished_desk: Any, step: str) -> None:
    desk, edits = finished_desk, ("teacher.finetune.steps=150", "distill.0.steps=120")
    desk.kill_in(step, *edits, overwrite=True)
    again = [n for n in ORDER if n not in ("data", "corpus")]
    rest = again[again.index(step) :]
    training = step in ("teacher", "distill.0")
    # what was allowed once is not asked again
    assert desk.run(*edits) == [f"{step} from 50" if training else step, *rest[1:]]


def test_a_step_that_failed_is_made_again_without_being_asked(desk: Any) -> None:
    desk.failing = {"verify"}
    with pytest.raises(GateError, match="marked failed"):
        desk.run()
    assert desk.mark("verify")["status"] == "failed"
    assert desk.plan()["verify"] == "to do: verify failed before"
    desk.failing = set()
    assert desk.run() == ["verify", "onnx-teacher", "benchmark", "pack"]


def test_a_failed_verify_with_an_edit(desk: Any) -> None:
    desk.failing = {"verify"}
    with pytest.raises(GateError):
        desk.run()
    desk.failing = set()
    said = refused(desk, "distill.1.steps=120")
    assert "distill.1.steps was 100, is 120: distill.1 and the 4 steps behind it would be made anew" in said
    assert desk.run("verify.max_drop=0.5") == ["verify", "onnx-teacher", "benchmark", "pack"]


def test_a_gate_that_fails_after_an_edit_leaves_nothing_packed(finished_desk: Any) -> None:
    finished_desk.failing = {"verify"}
    with pytest.raises(GateError):
        finished_desk.run("verify.max_drop=0.0")
    assert not (finished_desk.folder / "phone").exists()
    finished_desk.failing = set()
    assert finished_desk.run() == ["verify", "pack"]
