"""Who ends at once when a signal comes, and who at a good place first."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pocketbert.core.host.processes import postpone_stop, postpone_stops


def test_nothing_runs() -> None:
    assert not postpone_stop(KeyboardInterrupt())


def test_the_first_request_waits_and_the_second_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    first = KeyboardInterrupt()
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
