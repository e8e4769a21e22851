"""`teach --engine ray`: two processes write the file that one writes, and one of them may be killed."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pocketbert import TeachOptions
from pocketbert.api import teach
from pocketbert.core.errors import InputError, MissingBackendError
from support.tiny import write_bert
from support.tiny_texts import task_rows, write_lines

ROWS = 3000
"""Six portions."""


def kill_one_worker(killed: list[int], done: threading.Event) -> None:
    """End the first process that is answering."""
    while not done.is_set() and not killed:
        for child in psutil.Process().children(recursive=True):
            try:
                if "_Worker.answer" in " ".join(child.cmdline()):
                    child.kill()
                    killed.append(child.pid)
                    return
            except psutil.Error:
                continue
        time.sleep(0.05)


@pytest.mark.slow
def test_two_processes_write_what_one_writes_and_a_killed_one_loses_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pocketbert[ray]'")
    model = str(write_bert(tmp_path / "model", ("a", "b", "c")))
    rows = write_lines(tmp_path / "rows.jsonl", task_rows(ROWS, 1))
    asked = TeachOptions(engine="ray", workers=2)
    one = teach([model], rows, tmp_path / "one.jsonl").output.read_bytes()
    killed, done = list[int](), threading.Event()
    killer = threading.Thread(target=kill_one_worker, args=(killed, done))
    killer.start()
    try:
        report = teach([model], rows, tmp_path / "killed.jsonl", asked)
    finally:
        done.set()
        killer.join()
    assert killed and not psutil.pid_exists(killed[0])
    assert report.rows == ROWS and report.output.read_bytes() == one


def test_what_ray_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = "ray" in sys.modules
    rows, prompt = write_lines(tmp_path / "rows.jsonl", task_rows(3, 1)), tmp_path / "prompt.txt"
    prompt.write_text("{text} {labels}")
    server = {"endpoint": "http://localhost:1", "prompt": prompt, "labels": {"a": "a", "b": "b"}}
    with pytest.raises(InputError, match="--engine ray: starts processes that open models"):
        teach([], rows, tmp_path / "out.jsonl", TeachOptions(engine="ray", **server))
    with pytest.raises(InputError, match="--engine: there is none called 'dask'"):
        teach(["model"], rows, tmp_path / "out.jsonl", TeachOptions(engine="dask"))
    with pytest.raises(InputError, match="--workers: counts processes of Ray"):
        teach(["model"], rows, tmp_path / "out.jsonl", TeachOptions(workers=2))
    monkeypatch.setattr("pocketbert.pipeline.doctor.installed_versions", lambda names: {})
    with pytest.raises(MissingBackendError, match=r"ray.*pip install 'pocketbert\[ray\]'"):
        teach(["model"], rows, tmp_path / "out.jsonl", TeachOptions(engine="ray"))
    assert ("ray" in sys.modules) is before
