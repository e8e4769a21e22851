"""An ONNX file on an Android device, timed by ONNX Runtime's ``onnxruntime_perf_test``."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pocketbert.benchmarks.devices.adb.place import Place
from pocketbert.benchmarks.devices.adb.runners import perf_test_command, tensor_proto
from pocketbert.benchmarks.devices.protocol import Burst, Sample
from pocketbert.benchmarks.devices.runners.perf_test import ONNX, read_perf_test, read_printed
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.operators.times import WARMUP as LEFT_OUT
from pocketbert.benchmarks.operators.times import OpTimes
from pocketbert.benchmarks.operators.trace import read_profile
from pocketbert.benchmarks.records import ColdStart
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, filled


class OnnxFile:
    """An ONNX file that ``onnxruntime_perf_test`` times: one process for consecutive inferences on the same input."""

    engine = ONNX

    def __init__(self, place: Place, file: EngineFile, threads: int) -> None:
        self._place, self._threads = place, threads
        self.engine_version, self._name = place.runner(Format.ONNX), place.send(file)
        self._predictor = place.opened(file)

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Send the inputs once; see `_send`."""
        series = self._send([[feed] for feed in feeds])

        def burst(numbers: Sequence[int]) -> list[Sample]:
            chosen = [number % len(feeds) for number in numbers]
            return [sample for one, all in groupby(chosen) for sample in self._some(f"{series}/{one}", len(list(all)))]

        return burst

    def run_for(self, feeds: Sequence[Feed], seconds: int) -> list[Sample]:
        """Run in one process for some seconds; of several inputs the runner draws one each time."""
        folder, result = f"{self._send([feeds])}/0", "sustained.csv"
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, seconds=seconds)
        self._place.run(command, before=f"rm -f {result}", after="true", seconds=seconds)
        with tempfile.TemporaryDirectory(prefix="pocketbert-times-") as name:
            self._place.adb.pull(result, Path(name) / result)
            return self._samples((Path(name) / result).read_text(encoding="utf-8", errors="replace"))

    def start(self, feed: Feed) -> ColdStart | None:
        """Start a process that runs an input; the figures are the runner's own, and None where it prints none."""
        folder, result = f"{self._send([[feed]])}/0", "start.csv"
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, runs=1)
        try:
            told = read_printed(self._place.run(command, before=f"rm -f {result}"))
        except ValueError:  # another version; what is measured does not depend on these words
            return None
        if told.session_s is None:
            return None
        return ColdStart(
            load_ms=told.session_s * 1000,
            first_ms=told.first_ms or None,  # whole ms: 0 tells nothing
            length=feed["input_ids"].shape[1],
            peak_memory_bytes=None,
            peak_rss_bytes=told.peak_rss_bytes,
            told_by=ONNX,
        )

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Have the runner write a trace of the operators, and read it here."""
        folder, before, result = f"{self._send([[feed]])}/0", "rm -f trace*.json profiled.csv", "profiled.csv"
        untimed = 1  # the runner makes one by itself, and it is in the trace
        runs += LEFT_OUT - untimed
        command = perf_test_command(f"{folder}/model.onnx", self._threads, result, runs=runs, trace="trace")
        self._place.run(command, before=before, after="mv trace*.json trace.json")
        with tempfile.TemporaryDirectory(prefix="pocketbert-trace-") as name:
            self._place.adb.pull("trace.json", Path(name) / "trace.json")
            return read_profile(Path(name) / "trace.json", skip=LEFT_OUT)

    def _send(self, groups: Sequence[Sequence[Feed]]) -> str:
        """Send inputs as files of the form that the runner reads: a folder for each group with a link to the model."""
        adb, series = self._place.adb, self._place.next_series()
        with tempfile.TemporaryDirectory(prefix="pocketbert-inputs-") as name:
            for number, feeds in enumerate(groups):
                for place, feed in enumerate(feeds):
                    self._write(Path(name) / series / str(number) / f"test_data_set_{place}", feed)
            adb.push(Path(name) / series, series)
        adb.script(f"for d in {series}/*; do ln -s ../../{shlex.quote(self._name)} $d/model.onnx || exit 1; done")
        return series

    def _write(self, folder: Path, feed: Feed) -> None:
        folder.mkdir(parents=True)
        given = filled(self._predictor, feed)
        for place, key in enumerate(self._predictor.inputs):
            (folder / f"input_{place}.pb").write_bytes(tensor_proto(key, given[key]))

    def _some(self, folder: str, runs: int) -> list[Sample]:
        command = perf_test_command(f"{folder}/model.onnx", self._threads, "result.csv", runs=runs)
        samples = self._samples(self._place.run(command, before="rm -f result.csv", after="cat result.csv"))
        if len(samples) != runs:
            raise MachineError(f"{self._place.where}: {ONNX} timed {len(samples)} inferences instead of {runs}.")
        return samples

    def _samples(self, results: str) -> list[Sample]:
        """The times of a file of results."""
        try:
            return [Sample(round(time, 4)) for time in read_perf_test(results)]
        except ValueError as error:
            raise InputError(Problem(self._place.where, f"{error}.")) from error
