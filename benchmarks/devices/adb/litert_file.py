"""A TFLite file on an Android device, timed by LiteRT's ``benchmark_model``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pocketbert.benchmarks.devices.adb.place import Place
from pocketbert.benchmarks.devices.adb.runners import WARMUP, litert_command, litert_profile_command
from pocketbert.benchmarks.devices.protocol import Burst, Sample
from pocketbert.benchmarks.devices.runners.benchmark_model import (
    LITERT,
    LitertTimes,
    read_delay,
    read_litert,
    read_operators,
)
from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.operators.times import OpTimes
from pocketbert.benchmarks.records import ColdStart
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.tflite import TflitePredictor


class LitertFile:
    """A TFLite file that ``benchmark_model`` times: a fresh process for each inference.

    The runner tells single times of no more than one inference: of several only the first, the last and statistics.
    """

    engine = LITERT
    pauses = WARMUP + 1
    """The runner waits after each of its inferences, the timed one included."""

    def __init__(self, place: Place, file: EngineFile, threads: int) -> None:
        self._place, self._threads = place, threads
        self.engine_version, self._name = place.runner(Format.TFLITE), place.send(file)
        predictor = place.opened(file)
        assert isinstance(predictor, TflitePredictor)
        self._keys = predictor.signature_keys

    def prepare(self, feeds: Sequence[Feed]) -> Burst:
        """Choose the signatures once; the runner makes its own random inputs of these lengths."""
        return self.prepare_idle(feeds, 0.0)

    def prepare_idle(self, feeds: Sequence[Feed], gap_ms: float) -> Burst:
        """As `prepare`, with an idle time that the runner keeps after each untimed inference."""
        keys = [self._key(feed) for feed in feeds]

        def burst(numbers: Sequence[int]) -> list[Sample]:
            return [self._one(keys[number % len(keys)], gap_ms) for number in numbers]

        return burst

    def start(self, feed: Feed) -> ColdStart:
        """Start a process that runs an input of this length; the figures are the runner's own."""
        found = self._run(self._key(feed))
        return ColdStart(
            load_ms=found.init_us / 1e3,
            first_ms=found.first_us / 1e3,
            length=feed["input_ids"].shape[1],
            peak_memory_bytes=found.memory_bytes,
            peak_rss_bytes=None,
            told_by=LITERT,
        )

    def profile(self, feed: Feed, runs: int) -> OpTimes:
        """Have the runner profile the operators at the length of an input.

        Raises:
            ValueError: If it prints no table of operators.
        """
        command = litert_profile_command(self._name, self._threads, self._key(feed), runs)
        return read_operators(self._place.run(command))

    def _key(self, feed: Feed) -> str:
        return self._keys[feed["input_ids"].shape[1]]

    def _one(self, key: str, gap_ms: float) -> Sample:
        found = self._run(key, gap_ms)
        if found.count != 1:
            raise MachineError(f"{self._place.where}: {LITERT} timed {found.count} inferences instead of 1.")
        return Sample(round(found.last_us / 1e3, 4))

    def _run(self, key: str, gap_ms: float = 0.0) -> LitertTimes:
        said = self._place.run(litert_command(self._name, self._threads, key, delay_s=gap_ms / 1000))
        try:
            if gap_ms and not math.isclose(read_delay(said) or 0.0, gap_ms / 1000, rel_tol=1e-4):
                raise ValueError(f"{LITERT} does not tell that it waits between inferences; --run_delay was asked for")
            return read_litert(said)
        except ValueError as error:
            raise InputError(Problem(self._place.where, f"{error}.")) from error
