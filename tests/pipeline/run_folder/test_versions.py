"""Results and unfinished work of other library versions: refused, taken as they are, or made anew."""

from __future__ import annotations

from typing import Any

import pytest

from pocketbert.core.errors import InputError

AGED = ("teacher", "distill.0", "distill.1", "student", "onnx", "onnx-teacher")
"""Steps that torch decides."""


def refused(desk: Any, *edits: str, **allowed: bool) -> str:
    before = desk.results()
    with pytest.raises(InputError) as error:
        desk.run(*edits, **allowed)
    assert desk.made == []
    assert desk.results() == before
    return str(error.value)


def test_other_versions_are_refused_with_the_choice(finished_desk: Any) -> None:
    finished_desk.versions["torch"] = "2.0"
    said = refused(finished_desk)
    names = "teacher, distill.0, distill.1, student, onnx and onnx-teacher"
    assert said.startswith(
        f"{finished_desk.folder}: torch was 1.0, is 2.0: {names} were made with the former versions."
    )
    assert "--resume-anyway to take them as they are, which is recorded, or --overwrite to start over" in said
    del finished_desk.versions["torch"]
    assert finished_desk.run() == []


def test_taken_as_they_are(finished_desk: Any) -> None:
    before = finished_desk.results()
    finished_desk.versions["torch"] = "2.0"
    assert finished_desk.run(resume_anyway=True) == []
    assert finished_desk.results() == before
    assert finished_desk.run() == []  # decided once
    made_from = finished_desk.mark("student")["made_from"]
    assert made_from["versions"]["torch"] == "1.0"
    assert [v["torch"] for v in made_from["accepted"]] == ["2.0"]
    finished_desk.versions["torch"] = "3.0"
    assert "torch was 2.0, is 3.0" in refused(finished_desk)


def test_started_over(finished_desk: Any) -> None:
    finished_desk.versions["torch"] = "2.0"
    made = finished_desk.run(overwrite=True)
    assert made[0] == "teacher"
    assert "data" not in made
    assert "pack" in made  # everything behind them too
    assert finished_desk.mark("student")["made_from"]["versions"]["torch"] == "2.0"


def test_unfinished_work_goes_on(desk: Any) -> None:
    desk.kill_in("distill.1")
    desk.versions["torch"] = "2.0"
    said = refused(desk)
    assert "torch was 1.0, is 2.0: teacher, distill.0 and distill.1 were made with the former versions" in said
    assert f"unfinished work of distill.1: {desk.folder}/.work/distill.1-" in said
    assert "step 50" in said
    desk.kill_in("distill.1", resume_anyway=True)
    made = desk.run()  # decided once, for unfinished work too
    assert made[0] == "distill.1 from 100"
    made_from = desk.mark("distill.1")["made_from"]
    assert made_from["versions"]["torch"] == "1.0"
    assert [v["torch"] for v in made_from["accepted"]] == ["2.0"]
    assert desk.mark("student")["made_from"]["versions"]["torch"] == "2.0"


def test_unfinished_work_is_started_over(desk: Any) -> None:
    desk.kill_in("distill.1")
    desk.versions["torch"] = "2.0"
    assert desk.run(overwrite=True)[:3] == ["teacher", "distill.0", "distill.1"]


def test_both_at_once(finished_desk: Any) -> None:
    finished_desk.versions["torch"] = "2.0"
    said = refused(finished_desk, "distill.1.steps=120")
    assert "distill.1.steps was 100, is 120: distill.1 and the 7 steps behind it would be made anew" in said
    assert "torch was 1.0, is 2.0: teacher, distill.0 and onnx-teacher were made with the former versions" in said
    assert "would be made anew" in refused(finished_desk, "distill.1.steps=120", resume_anyway=True)
    made = finished_desk.run("distill.1.steps=120", overwrite=True, resume_anyway=True)
    assert made[:2] == ["distill.1", "student"]


def test_lineage_names_what_was_accepted(finished_desk: Any) -> None:
    run = finished_desk._run((), False, False)
    assert run.origin.accepted == ()
    finished_desk.versions["torch"] = "2.0"
    finished_desk.run(resume_anyway=True)
    accepted = finished_desk._run((), False, False).origin.accepted
    assert accepted[0] == "teacher (torch 1.0, taken on with 2.0)"
    assert [text.partition(" ")[0] for text in accepted] == list(AGED)


def test_a_library_that_came_or_went(finished_desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pocketbert.pipeline.run_folder.step.installed_versions",
        lambda names: {n: "1.0" for n in names if n != "accelerate"},
    )
    assert "accelerate was 1.0, is not installed" in refused(finished_desk)
