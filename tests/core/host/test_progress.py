from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pocketbert.core.host import progress
from pocketbert.core.host.progress import Meter, print_note, set_quiet


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    set_quiet(False)
    yield
    set_quiet(False)


def count(label: str, total: int) -> None:
    """Do a piece of work of so many units."""
    with Meter(label, total) as meter:
        for _ in range(total):
            meter.advance()


def test_lines_go_to_stderr_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.0)
    print_note("hello [bold]you[/bold]")
    with Meter("work", 3) as meter:
        meter.advance(note="loss 0.5")
        meter.advance()
        meter.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "hello [bold]you[/bold]"
    assert "work: 1/3" in err
    assert "work: 2/3" in err
    assert "loss 0.5" in err


def test_plain_lines_carry_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.0)
    count("reading", 4)
    err = capsys.readouterr().err
    assert "reading: 3/4" in err
    assert "\x1b" not in err
    assert "\r" not in err


def test_short_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    count("reading", 3)
    assert capsys.readouterr() == ("", "")


def test_quiet_silences_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.0)
    set_quiet(True)
    print_note("hello")
    count("reading", 4)
    assert capsys.readouterr() == ("", "")


def test_a_resumed_meter_counts_from_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.0)
    with Meter("train", 10, start=7) as meter:
        meter.advance()
    assert "train: 8/10" in capsys.readouterr().err
    assert meter.done == 8


def test_long_lines_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("x" * 400)
    assert capsys.readouterr().err == "x" * 400 + "\n"


def test_waiting_tells_that_work_goes_on_and_ends_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_WAITING_INTERVAL_S", 0.01)
    with progress.report_waiting("model.onnx"):
        deadline = time.monotonic() + 10
        while "model.onnx: at work for" not in (told := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "model.onnx: at work for 0 s" in told
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == "", "nothing is said after the work"
