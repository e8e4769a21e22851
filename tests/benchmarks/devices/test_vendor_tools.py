"""What compilers of vendors share: programs in a separate process, and files of one length."""

import os
import time
from pathlib import Path

import pytest

from pocketbert.benchmarks.devices import vendor_tools
from pocketbert.benchmarks.devices.vendor_tools import ProcessEnd, only_signature, operators_of, run_separately
from pocketbert.runtime.tflite import TflitePredictor


def run_shell(script, folder, limit_s=60.0, **environment):
    return run_separately(["sh", "-c", script], folder, limit_s, environment)


def is_alive(pid):
    """Return whether a process runs; one that ended may be there until its parent has read how."""
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
def test_how_it_ended_and_what_it_told(tmp_path, monkeypatch, script, how):
    script = f"pwd; echo $HOME $GIVEN >&2; {script}"
    log = f"{tmp_path}\n{os.environ['HOME']} given\n"
    assert run_shell(script, tmp_path, GIVEN="given") == ProcessEnd(how, log)
    monkeypatch.setattr(vendor_tools, "_MAX_LOG", 5)
    assert run_shell(script, tmp_path).log == log[:5]


def test_a_limit_ends_what_it_started_too(tmp_path):
    ended = run_shell("sleep 60 & echo $!; sleep 60", tmp_path, 0.3)
    assert ended.problem == "the process did not end within 0 s"
    child, end = int(ended.log), time.monotonic() + 10
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_alive(child)


def test_it_ends_with_this_process(tmp_path, monkeypatch):
    told = tmp_path / "pid"

    def interrupt(process, limit_s):
        monkeypatch.undo()
        while not (told.exists() and told.read_text().strip()):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(vendor_tools.subprocess.Popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_shell("echo $$ > pid; sleep 60", tmp_path)
    assert not is_alive(int(told.read_text()))


def test_one_signature_of_several(exported_tflite):
    path = exported_tflite("bert")
    keys = TflitePredictor(path, 1).signature_keys
    longest = keys[max(keys)]
    small, graph = only_signature(path.read_bytes(), longest)
    assert graph == 0
    found = operators_of(small, 0)
    assert found.compiled == 0
    assert found.counts["FULLY_CONNECTED"] > 4
    assert only_signature(small, longest) == (small, 0)
