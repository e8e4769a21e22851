"""What is told while work goes on: plain lines on the error stream, nothing when quiet."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from pocketbert.core.host import progress
from pocketbert.core.host.progress import Meter, print_note, set_quiet
from pocketbert.core.host.quiet import silence_output


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is told."""
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.0)


def count(label: str, total: int) -> None:
    """Do a piece of work of so many units."""
    with Meter(label, total) as meter:
        for _ in range(total):
            meter.advance(note="loss 0.5")


def test_plain_lines_go_to_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("hello [bold]you[/bold]")
    print_note("x" * 400)
    count("work", 3)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[:2] == ["hello [bold]you[/bold]", "x" * 400]
    for words in ("work: 1/3", "work: 2/3", "loss 0.5"):
        assert words in err
    assert "\x1b" not in err
    assert "\r" not in err


def test_short_work_and_a_quiet_command_are_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_quiet(True)
    print_note("hello")
    count("reading", 4)
    set_quiet(False)
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 60.0)
    count("reading", 3)
    assert capsys.readouterr() == ("", "")


def test_a_resumed_meter_counts_from_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("train", 10, start=7) as meter:
        meter.advance()
    assert "train: 8/10" in capsys.readouterr().err
    assert meter.done == 8


def wait_for(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """What is printed until these words are, for 10 s at most."""
    deadline, shown = time.monotonic() + 10, ""
    while words not in shown and time.monotonic() < deadline:
        time.sleep(0.01)
        shown += capsys.readouterr().err
    return shown


def test_long_parts_are_named_with_their_stage_and_what_remains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_WAITING_INTERVAL_S", 0.01)
    for place, part in enumerate(progress.report_parts("gates", {"a": 1, "b": 2, "c": 3}), 1):
        assert part == place
        shown = wait_for(capsys, "a, 1 of 3\n") if place == 1 else ""  # before the first part has ended
        assert place > 1 or "  gates: a, 1 of 3\n" in shown
        if place == 1:
            time.sleep(1)
        if place == 2:
            progress.note_stage("gate padding")
            shown = wait_for(capsys, "left: gate padding")
            assert re.search(r"  gates: b, 2 of 3, about \d s left: gate padding\n", shown)
            with progress.expect_end(250):
                assert "; about 4 minutes left in all\n" in wait_for(capsys, "left in all")
    with progress.report_waiting("model.onnx"):
        assert "model.onnx: at work for 0 s" in wait_for(capsys, "model.onnx: at work for")
    with pytest.raises(ValueError, match="broken"):
        for _ in progress.report_parts("gates", {"a": 1}):
            raise ValueError("broken")
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == "", "nothing is said after the work, nor after an error"


def test_progress_is_shown_while_a_library_is_silenced_and_names_its_stage(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_WAITING_INTERVAL_S", 0.01)
    progress.note_stage("outside of any work")
    shown = ""
    for stderr in (sys.stderr, os.fdopen(os.dup(2), "w"), open(2, "w", closefd=False)):  # noqa: SIM115
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress.report_waiting("model.tflite"), silence_output():
            print("what the library prints", file=sys.stderr, flush=True)
            os.write(2, b"and from C++")
            progress.note_stage("length 2 of 4")
            deadline, shown = time.monotonic() + 10, ""
            while "length 2 of 4" not in shown and time.monotonic() < deadline:
                time.sleep(0.01)
                shown += capfd.readouterr().err
        assert "model.tflite: at work for 0 s: length 2 of 4\n" in shown
        shown += capfd.readouterr().err
        assert "library" not in shown
        assert "C++" not in shown
        assert "outside" not in shown
