"""Texts from stdin and from files: what is no text is bad input, and both are read alike."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.cli import predict
from pocketbert.core.data.streams import Limits, read_texts
from pocketbert.core.errors import InputError

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a\nna\xefve\n", "stdin:2: not UTF-8"),
        ("naïve".encode("utf-16"), "stdin:1: contains a null byte"),
        (b"\x7fELF\0\0", "stdin:1: contains a null byte"),
        (b"x" * (5 << 20), "stdin:1: line longer than 4,194,304 bytes"),
        (b"\n" * 1_000_001, "stdin: more than 1,000,000 lines"),
    ],
)
def test_what_is_no_text_on_stdin_is_bad_input(cli: Cli, tmp_path: Path, raw: bytes, message: str) -> None:
    result = cli("predict", "-m", tmp_path, input=raw)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_a_closed_stdin_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stdin in (None, closed):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(InputError, match="got no text"):
            predict._read_stdin(Limits())


def test_a_stdin_that_cannot_be_read_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "a").open("w") as stream:
        monkeypatch.setattr(sys, "stdin", stdin_of(stream))
        with pytest.raises(InputError, match="stdin: cannot be read"):
            predict._read_stdin(Limits())


def stdin_of(stream: Any) -> Any:
    """A stdin whose descriptor was opened for writing."""
    return io.TextIOWrapper(io.BufferedReader(_WriteOnly(stream)))


class _WriteOnly(io.RawIOBase):
    def __init__(self, stream: Any) -> None:
        self._number = stream.fileno()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = os.read(self._number, len(buffer))
        return len(buffer)


def test_stdin_and_a_file_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"\xef\xbb\xbfone\rstill one\r\n\n two\x0b\xe2\x80\xa8\nlast"
    (tmp_path / "a.txt").write_bytes(raw)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    texts = predict._read_stdin(Limits())
    assert texts == read_texts(tmp_path / "a.txt") == ["one\rstill one", "", " two\x0b\u2028", "last"]


def test_a_pipe_as_a_file_is_refused_and_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    result = cli("predict", "-m", tmp_path, "--file", tmp_path / "a.txt")
    assert result.exit_code == 2
    assert "is a pipe, not a file" in result.stderr
    (tmp_path / "b.txt").write_text("too long " * 200)
    result = cli("predict", "-m", tmp_path, "--file", tmp_path / "b.txt", "--max-line-mb", "0.001")
    assert result.exit_code == 2
    assert "line longer than 1,048 bytes" in result.stderr
