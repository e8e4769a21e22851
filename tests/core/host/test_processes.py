"""Processes of a launcher, and who ends at once when a signal comes, and who at a good place first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pocketbert.core.errors import MachineError
from pocketbert.core.host import processes
from pocketbert.core.host.processes import (
    LaunchedProcess,
    Order,
    _Channel,
    current_process,
    exchange,
    postpone_stop,
    postpone_stops,
)
from support.ports import free_port


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of process 0 of two."""
    variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def test_a_launcher_says_which_process_this_is(launched: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_process() == LaunchedProcess(0, 2)
    monkeypatch.setenv("RANK", "1")
    assert not current_process().main
    monkeypatch.delenv("WORLD_SIZE")
    assert current_process() == LaunchedProcess(0, 1)
    assert current_process().main
    with processes.direct_processes():
        processes.order_training("student", "abc")  # nobody to call
    monkeypatch.delenv("RANK")
    assert exchange("plan") == ["plan"]


def test_orders_arrive_in_sequence_and_end(launched: dict[str, str]) -> None:
    first, second = _Channel(LaunchedProcess(0, 2)), _Channel(LaunchedProcess(1, 2))
    sent = [Order("teacher", "a"), Order("student", "b"), Order(None, code=3)]
    assert second.end_code() is None
    for order in sent:
        first.send(order)
    assert list(second.orders()) == sent
    assert second.end_code() == 3
    assert first.failure() is None
    second.report(OSError("no room"))
    failure = first.failure()
    assert isinstance(failure, MachineError)
    assert str(failure) == "process 1: no room. Finished work is kept: the same command resumes."


def test_every_process_gets_the_texts_of_all(launched: dict[str, str]) -> None:
    channels = [_Channel(LaunchedProcess(rank, 2)) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        for texts in (["plan", ""], ["", "done"]):
            given = [threads.submit(channel.exchange, text) for channel, text in zip(channels, texts, strict=True)]
            assert [future.result(30) for future in given] == [texts, texts]
    channels[1].report(OSError("no room"))
    with pytest.raises(MachineError, match=r"process 1: no room\. Finished work is kept"):
        channels[0].exchange("alone")
    channels[0].send(Order(None, code=2))
    with pytest.raises(SystemExit) as ended:
        _Channel(LaunchedProcess(1, 3)).exchange("one is missing")
    assert ended.value.code == 2


STUCK = """
import time
from pocketbert.core.host import processes
processes._STUCK_S = 0.5
with processes.direct_processes():
    processes._Channel(processes.LaunchedProcess(1, 2)).report(OSError("bad luck"))
    time.sleep(600)
"""


def test_process_0_does_not_wait_for_one_that_failed(launched: dict[str, str]) -> None:
    command, environment = [sys.executable, "-c", STUCK], {**os.environ, **launched}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "Error: process 1: bad luck. Finished work is kept" in ended.stderr
    assert "Traceback" not in ended.stderr


WRONG_ROW = """
import sys, time
from pocketbert.core.errors import InputError, PocketBertError, Problem
from pocketbert.core.host import processes
processes._STUCK_S = 0.5
def read(order):
    raise InputError(Problem("rows.jsonl:3", "no column 'text'.", "Name it."), Problem("rows.jsonl:7", "no text."))
try:
    if not processes.current_process().main:
        processes.follow_orders(read)
    with processes.direct_processes():
        processes.order_training("corpus", "abc")
        time.sleep(600) if sys.argv[1] == "busy" else processes.exchange()
except PocketBertError as error:
    print(f"raised: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("busy", [False, True])
def test_wrong_input_of_another_process_ends_all_as_it_ends_one(busy: bool, launched: dict[str, str]) -> None:
    command = [sys.executable, "-c", WRONG_ROW, "busy" if busy else "waits"]
    started = [
        subprocess.Popen(command, env={**os.environ, **launched, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    printed = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2]
    problems = ["rows.jsonl:3: no column 'text'. Fix: Name it.", "rows.jsonl:7: no text."]
    assert all(problem in printed[0] for problem in problems)
    assert ("2 problems:" if busy else "raised: ") in printed[0]
    assert printed[1] == "", "it is printed once"
    assert "process 1" not in printed[0]


def test_the_first_request_waits_and_the_second_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    first = KeyboardInterrupt()
    assert not postpone_stop(first), "nothing runs"
    with postpone_stops() as hold:
        assert hold.asked is None
        assert postpone_stop(first)
        assert hold.asked is first
        assert "a second signal stops at once" in capfd.readouterr().err
        assert not postpone_stop(KeyboardInterrupt())
    assert not postpone_stop(first)


@pytest.fixture
def ctrl_c_heard() -> Iterator[None]:
    """Python's own handler: a process that was started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_heard")
def test_without_a_command_the_first_ctrl_c_waits() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), postpone_stops() as hold:
        signal.raise_signal(signal.SIGINT)
        assert isinstance(hold.asked, KeyboardInterrupt)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one was swallowed")
    assert signal.getsignal(signal.SIGINT) is before
