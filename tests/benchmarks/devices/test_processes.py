"""Programs in a separate process: how they ended, what they printed, and that nothing of them is left."""

import os
import time
from pathlib import Path

import pytest

from pocketbert.benchmarks.devices import vendor_tools as processes
from pocketbert.benchmarks.devices.vendor_tools import ProcessEnd, run_separately


def shell(script, folder, limit_s=60.0, **environment):
    return run_separately(["sh", "-c", script], folder, limit_s, environment)


def alive(pid):
    """Whether a process runs; one that ended may be there until its parent has read how."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exit 0", ""),
        ("exit 7", "the process ended with status 7"),
        ("kill -SEGV $$", "the process was ended by SIGSEGV"),
    ],
)
def test_how_it_ended(tmp_path, script, how):
    assert shell("echo told; echo $GIVEN >&2; " + script, tmp_path, GIVEN="given") == ProcessEnd(how, "told\ngiven\n")


def test_it_works_in_the_folder_and_knows_the_environment(tmp_path):
    assert shell("pwd; echo $HOME", tmp_path).log.splitlines() == [str(tmp_path), os.environ["HOME"]]


def test_a_limit_ends_what_it_started_too(tmp_path):
    ended = shell("sleep 60 & echo $!; sleep 60", tmp_path, 0.5)
    assert ended.problem == "the process did not end within 0 s"
    child, end = int(ended.log), time.monotonic() + 10
    while alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(child)


def test_it_ends_with_this_process(tmp_path, monkeypatch):
    told = tmp_path / "pid"

    def interrupted(process, limit_s):
        monkeypatch.undo()
        while not (told.exists() and told.read_text().strip()):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes.subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shell("echo $$ > pid; sleep 60", tmp_path)
    assert not alive(int(told.read_text()))


def test_a_long_log_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_MAX_LOG", 5)
    assert shell("echo 123456789", tmp_path).log == "12345"
