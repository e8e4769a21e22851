"""The folder on an Android device with the runners, the model files and their inputs, and how a runner is started there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from pocketbert.benchmarks.devices.adb.client import RUN_S, RUNNING, Adb
from pocketbert.benchmarks.devices.adb.facts import choose, mask, policies, read_clusters
from pocketbert.benchmarks.devices.runners.benchmark_model import LITERT
from pocketbert.benchmarks.devices.runners.perf_test import ONNX
from pocketbert.core.disk.files import sha256_file, sha256_path
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, FilePredictor

FOLDER = "POCKETBERT_ADB_RUNNERS"
"""Environment variable: the folder with the runners, built for the phone, and the libraries that they load."""
RUNNERS = {Format.TFLITE: LITERT, Format.ONNX: ONNX}


def cores_of(adb: Adb, kind: str, where: str) -> tuple[int, ...]:
    """The cores of a kind on a device: ``little``, ``big`` or ``prime``; none for all, where no kind is named.

    Args:
        adb: The device.
        kind: The kind; empty for all.
        where: What errors call the device.

    Raises:
        InputError: If it has no such cores.
    """
    try:
        return choose(read_clusters(adb.script(policies("cpuinfo_max_freq", "related_cpus"))), kind) if kind else ()
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.", f"Leave '@{kind}' away.")) from error


class Place:
    """The folder on a device.

    Args:
        adb: The device.
        cpus: Cores that runners may use; empty for all.
    """

    def __init__(self, adb: Adb, cpus: Sequence[int] = ()) -> None:
        self.adb, self.where, self.cpus = adb, adb.where, cpus
        self.versions = dict[Format, str]()
        self._sent, self._opened, self._series = dict[Path, str](), dict[Path, FilePredictor](), 0

    def runner(self, format: Format) -> str:
        """Send the runner of a format and its libraries; returns what tells its version."""
        if format not in self.versions:
            folder = Path(os.environ.get(FOLDER) or "/nonexistent")
            name = RUNNERS[format]
            if not (folder / name).is_file():
                raise MissingBackendError(
                    f"{name} for the device", f"export {FOLDER}=FOLDER (with {name}, built for the device, in it)"
                )
            for file in [folder / name, *sorted(folder.glob("*.so*"))]:
                self.adb.push(file, file.name)
            self.adb.shell("chmod", "755", name)
            self.versions[format] = f"sha256 {sha256_file(folder / name)[:12]}"
        return self.versions[format]

    def send(self, file: EngineFile) -> str:
        """Send a model file once; its name on the device."""
        if file.path not in self._sent:
            name = f"{sha256_path(file.path)}.{file.format.value}"
            self.adb.push(file.path, name)
            self._sent[file.path] = name
        return self._sent[file.path]

    def opened(self, file: EngineFile) -> FilePredictor:
        """The file as this machine opens it, once: a large ONNX file is optimized for seconds."""
        if file.path not in self._opened:
            self._opened[file.path] = file.open(1)
        return self._opened[file.path]

    def next_series(self) -> str:
        """A new name for the folder of a series of inputs."""
        self._series += 1
        return f"series-{self._series}"

    def run(
        self, command: Sequence[str], before: str = "true", after: str = "cat runner.log", seconds: float = 0.0
    ) -> str:
        """Start a runner on the chosen cores, and note its process, which the end of the connection ends.

        Args:
            command: The runner and its arguments.
            before: What the shell does before.
            after: What prints the result, by default what the runner has printed.
            seconds: How long the runner was told to run.
        """
        pinned = ["taskset", mask(self.cpus), *command] if self.cpus else list(command)
        noted = shlex.join(["sh", "-c", f'echo $$ > {RUNNING}; exec "$@"', "sh", *pinned])
        failed = f"{{ rm -f {RUNNING}; cat runner.log; exit 1; }}"
        script = (
            f"{before}; LD_LIBRARY_PATH=. {noted} < /dev/null > runner.log 2>&1 || {failed}; rm -f {RUNNING}; {after}"
        )
        return self.adb.script(script, RUN_S + seconds)
