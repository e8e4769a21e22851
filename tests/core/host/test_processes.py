from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pocketbert.core.host import processes
from pocketbert.core.host.processes import LaunchedProcess, Order, _Channel, current_process
from support.ports import free_port


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of process 0 of two."""
    variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert current_process() == LaunchedProcess(0, 1)
    assert current_process().main
    with processes.direct_processes():
        processes.order_training("student", "abc")  # nobody to call


def test_a_launcher_says_which_process_this_is(launched: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_process() == LaunchedProcess(0, 2)
    monkeypatch.setenv("RANK", "1")
    assert not current_process().main


def test_orders_arrive_in_sequence_and_end(launched: dict[str, str]) -> None:
    first, second = _Channel(LaunchedProcess(0, 2)), _Channel(LaunchedProcess(1, 2))
    sent = [Order("teacher", "a"), Order("student", "b"), Order(None, code=3)]
    assert second.end_code() is None
    for order in sent:
        first.send(order)
    assert list(second.orders()) == sent
    assert second.end_code() == 3
    assert first.failure() is None
    second.report("no room")
    assert first.failure() == "process 1: no room."


STUCK = """
import time
from pocketbert.core.host import processes
processes._STUCK_S = 0.5
with processes.direct_processes():
    processes._Channel(processes.LaunchedProcess(1, 2)).report("bad luck")
    time.sleep(600)
"""


def test_process_0_does_not_wait_for_one_that_failed(launched: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK],
        env={**os.environ, **launched},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "Error: process 1: bad luck. Finished work is kept" in ended.stderr
    assert "Traceback" not in ended.stderr
