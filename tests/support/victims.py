"""A command that is killed at chosen moments and started again until it ends."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import canaries
from support.commands import command, one_core
from support.folders import tree

TIMED = ("benchmark.json", "README.md", "artifacts.json")
"""Files of the artefact folder that hold latencies, or digests of files that do."""
HIDDEN = (".lock", ".steps", ".work", ".pocketbert.json")
"""What a run folder keeps for itself."""


class Victim:
    """A run that is killed and started again with the same command; `kills` counts how often."""

    def __init__(self, arguments: list[object], folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.kills = 0
        self._finished: dict[str, tuple[bytes, int]] = {}

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """The command, killed at the end of the block at the latest."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(one_core(command(*self.arguments)), **pipes)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def kill(self, ready: Callable[[], bool], wait: float) -> bool:
        """Start, wait for a moment and some seconds more, kill; False if it ended before."""
        with self.running() as process:
            while process.poll() is None and not ready():
                time.sleep(0.002)
            end = time.monotonic() + wait
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            ended = process.poll()
            process.kill()
            _, err = process.communicate()
        assert ended in (None, 0), err
        self.kills += ended is None
        self.check_marks()
        return ended is None

    def finish(self) -> str:
        """Start once more and let it end; what it said."""
        with self.running() as process:
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
        self.check_marks()
        return err

    def check_marks(self) -> None:
        """No mark of a finished stage was written a second time."""
        marks = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in self.folder.glob(".steps/*.json")}
        for name, before in self._finished.items():
            assert marks.get(name) == before, f"{name} was lost or done again after kill {self.kills}"
        for content, _ in marks.values():
            assert json.loads(content)["status"] == "passed"
        self._finished = marks

    def check_whole(self, reference: Path, ignored: tuple[str, ...] = ()) -> None:
        """Everything is as in a run that nobody disturbed."""
        learned = ("teacher/model.safetensors", "student/model.safetensors", "metrics.jsonl")
        for name in (*learned, "onnx/model.onnx", "onnx-int8/model_int8.onnx"):
            assert (self.folder / name).read_bytes() == (reference / name).read_bytes(), name
        ours, theirs = tree(self.folder / "phone"), tree(reference / "phone")
        assert set(ours) == set(theirs)
        assert [n for n in ours if ours[n] != theirs[n] and n not in ignored] == []
        assert set(self._finished) == {p.name for p in (reference / ".steps").iterdir()}
        assert leftovers(self.folder) == []


def leftovers(folder: Path) -> list[str]:
    """Half files and forgotten folders in and beside a run folder."""
    inside = [p for p in folder.rglob("*") if p.name.startswith(".") and p.name not in HIDDEN]
    inside += list((folder / ".work").iterdir())
    inside += [p for p in (folder / ".steps").iterdir() if p.suffix != ".json"]
    strangers = {name.format(folder.name) for name in canaries.BESIDE}
    beside = [p for p in folder.parent.iterdir() if p.name.startswith(f".{folder.name}") and p.name not in strangers]
    return [str(p) for p in (*inside, *beside)]
