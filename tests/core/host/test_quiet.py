"""Output of libraries is silenced, and given back as it was; what it said goes into the notes of an error."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pocketbert.core.host.quiet import silence_output


def shout(word: str) -> None:
    """By every way a library has."""
    print(f"{word} print")
    print(f"{word} stderr", file=sys.stderr)
    os.write(1, f"{word} descriptor 1\n".encode())
    os.write(2, f"{word} descriptor 2\n".encode())
    subprocess.run([sys.executable, "-c", f"print('{word} child')"], check=True)
    warnings.warn(f"{word} warning", UserWarning, stacklevel=1)
    logging.getLogger("some.library").warning("%s logging", word)


def descriptors() -> int:
    """How many files this process has open; 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_nothing_inside_is_seen_and_everything_outside_is(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with silence_output():
        shout("inner")
    assert tuple(capfd.readouterr()) == ("", "")
    assert not recwarn
    assert not caplog.records
    shout("outer")
    out, err = capfd.readouterr()
    assert out.splitlines() == ["outer print", "outer descriptor 1", "outer child"]
    assert [line for line in err.splitlines() if line.startswith("outer")] == ["outer stderr", "outer descriptor 2"]
    assert [str(w.message) for w in recwarn] == ["outer warning"]
    assert [r.message for r in caplog.records] == ["outer logging"]


def test_descriptors_streams_and_log_level_are_as_before() -> None:
    root = logging.getLogger()
    before, streams = root.level, (sys.stdout, sys.stderr)
    root.setLevel(logging.INFO)
    try:
        files = [os.fstat(n).st_ino for n in (1, 2)]
        opened = descriptors()
        for _ in range(3):
            with silence_output():
                assert [os.fstat(n).st_ino for n in (1, 2)] != files
        with pytest.raises(RuntimeError), silence_output():
            raise RuntimeError("once")
        assert [os.fstat(n).st_ino for n in (1, 2)] == files
        assert (sys.stdout, sys.stderr) == streams
        assert root.level == logging.INFO
        assert descriptors() == opened
    finally:
        root.setLevel(before)


def test_a_notebooks_own_stream_stays_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    # there sys.stdout is no file, and has no descriptor
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with silence_output():
        print("progress bar")
    print("answer")
    assert stream.getvalue() == "answer\n"


def test_what_was_printed_goes_into_the_notes_of_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken") as caught, silence_output():
        for i in range(9):
            os.write(2, f"line {i} \xff\n".encode("latin-1"))
        print("and why")
        raise ValueError("broken")
    [note] = caught.value.__notes__
    assert note.startswith("printed before: ")
    assert note.endswith("| and why")
    assert "line 8" in note
    assert "line 3" not in note  # the last lines are enough
    with pytest.raises(KeyError) as silent, silence_output():
        raise KeyError("a")
    assert not hasattr(silent.value, "__notes__")
    assert tuple(capfd.readouterr()) == ("", "")


def test_it_can_be_nested_and_a_log_handler_made_inside_works_outside(capfd: pytest.CaptureFixture[str]) -> None:
    with silence_output():
        with silence_output():
            os.write(1, b"inner\n")
        print("middle")
        os.write(2, b"middle\n")
    os.write(1, b"after\n")
    assert tuple(capfd.readouterr()) == ("after\n", "")
    # absl makes one when it is imported, with sys.stderr as it is then
    with silence_output():
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": "inner"}))
    handler.emit(logging.makeLogRecord({"msg": "outer"}))
    assert tuple(capfd.readouterr()) == ("", "outer\n")
