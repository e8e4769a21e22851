"""`teach --engine ray`: two processes write the file that one writes, and one of them may be killed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pocketbert import TeachOptions
from pocketbert.api import teach
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from pocketbert.pipeline.teach import models
from pocketbert.pipeline.teach.models import open_teacher_model
from support.tiny import write_bert
from support.tiny_texts import task_rows, write_lines

ROWS = 3000
"""Six portions."""
_KEY_LINE = 65
"""Bytes of the first line of a file of kept answers."""


def kill_workers(killed: list[int], done: threading.Event, most: int, behind: Path | None) -> None:
    """End processes that are answering, each once, as soon as the file of kept answers `behind` has a portion."""
    while not done.is_set() and len(killed) < most:
        time.sleep(0.05)
        if behind is not None and not (behind.is_file() and behind.stat().st_size > _KEY_LINE):
            continue
        for child in psutil.Process().children(recursive=True):
            try:
                if "_Worker.answer" in " ".join(child.cmdline()) and child.pid not in killed and len(killed) < most:
                    child.kill()
                    killed.append(child.pid)
            except psutil.Error:
                continue


@contextmanager
def killing_workers(most: int, behind: Path | None = None) -> Iterator[list[int]]:
    """Kill answering processes while the block runs; see `kill_workers`."""
    killed, done = list[int](), threading.Event()
    killer = threading.Thread(target=kill_workers, args=(killed, done, most, behind))
    killer.start()
    try:
        yield killed
    finally:
        done.set()
        killer.join()


@pytest.mark.slow
def test_two_processes_write_what_one_writes_and_a_killed_one_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pocketbert[ray]'")
    model = str(write_bert(tmp_path / "model", ("a", "b", "c")))
    rows = write_lines(tmp_path / "rows.jsonl", task_rows(ROWS, 1))
    asked = TeachOptions(engine="ray", workers=2)
    one = teach([model], rows, tmp_path / "one.jsonl").output.read_bytes()
    opened = list[models.ModelTeacher]()
    monkeypatch.setattr(
        models, "open_teacher_model", lambda *given: opened.append(open_teacher_model(*given)) or opened[-1]
    )
    with killing_workers(1) as killed:
        report = teach([model], rows, tmp_path / "killed.jsonl", asked)
    assert {p.device.type for p in opened[0]._model.model.parameters()} == {"meta"}, "only the workers read weights"
    assert killed and not psutil.pid_exists(killed[0])
    assert report.rows == ROWS and report.output.read_bytes() == one


@pytest.mark.slow
def test_a_worker_that_dies_too_often_ends_the_command_and_finished_rows_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pocketbert[ray]'")
    model = str(write_bert(tmp_path / "model", ("a", "b", "c")))
    rows, output = write_lines(tmp_path / "rows.jsonl", task_rows(ROWS, 1)), tmp_path / "out.jsonl"
    one = teach([model], rows, tmp_path / "one.jsonl").output.read_bytes()
    asked = TeachOptions(engine="ray", workers=1)
    with killing_workers(99, output.with_name(".out.jsonl.answers")) as killed, pytest.raises(MachineError) as error:
        teach([model], rows, output, asked)
    assert error.value.exit_code is ExitCode.MACHINE
    assert "a process of Ray was started anew 3 times and died again. It needs more memory" in str(error.value)
    assert "What is answered is kept: the same command continues." in str(error.value)
    assert len(killed) == 4
    assert not output.exists()
    capsys.readouterr()
    report = teach([model], rows, output, asked)
    assert "rows were answered before" in capsys.readouterr().err
    assert report.output.read_bytes() == one


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
