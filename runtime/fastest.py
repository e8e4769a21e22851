"""Run each batch with the file, engine and number of threads that a race on this machine found fastest at its length.

A race times the candidates against each other for a short while. `open_fastest` reads the plan of an earlier race of
the same files on the same machine, or runs the race (`race_apart`) and stores its plan. The `FastestPredictor` that it
returns opens the candidates that the plan needs and runs every batch with one of them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pocketbert.core.disk.files import read_json, sha256_json, sha256_path, write_json
from pocketbert.core.errors import InputError
from pocketbert.core.host.hardware import default_threads, describe_machine
from pocketbert.core.predict.predictor import Arrays, smallest_fitting_length
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, FilePredictor
from pocketbert.runtime.onnx import Spin
from pocketbert.runtime.race import IDLE_MS, LENGTHS, Cadence, Candidate, Plan, race_apart
from pocketbert.runtime.selftest import result_cache_file
from pocketbert.runtime.tflite import Padding, Run

_STEADY = 3
"""After this number of inputs of one length in a row the next one is expected to have it as well."""
_RECENT, _REVIEW = 64, 16
"""Number of the last inputs of mixed lengths that decide which candidate runs, and number of inputs between two
decisions."""
_REPORTED_LENGTH = 32
"""Tokens of a sentence: the length at which `FastestPredictor.choice` reports times."""
_VERSION = 10
"""Raise it when races measure something else, so that stored plans are not used any more."""


def open_fastest(
    files: Sequence[EngineFile],
    threads: int | None,
    max_length: int,
    pad_id: int,
    side: str,
    opened: Mapping[EngineFile, FilePredictor] | None = None,
    cadence: Cadence = Cadence.BATCH,
) -> FastestPredictor:
    """Open a predictor that runs each batch with whichever file, engine and thread count is fastest for its length.

    The candidates are timed against each other, unless timings of an earlier race are stored on this machine. New timings
    are stored, unless other work disturbed them.

    Args:
        files: Files that may be chosen, of one scheme.
        threads: Largest number of threads within an operator; default `default_threads`. One thread is tried as well,
            and ONNX Runtime also with threads that wait busily until a run ends or, with the cadence `batch`, longer.
        max_length: Longest input in tokens.
        pad_id: Padding token.
        side: Padding side.
        opened: Predictors of these files that are open already, with `threads` threads.
        cadence: How the model will be called: ``batch`` or ``interactive``. Timings of both are stored separately.

    Returns:
        A predictor that chooses by length. Timings are of one text at a time, as on a phone.
    """
    most = threads or default_threads()
    candidates = [Candidate(file, n) for file in files for n in sorted({1, most})]
    if most > 1:
        # threads that stay busy for 50 ms after a run are asleep again before the next single call
        spins = (Spin.RUN, Spin.ON) if cadence is Cadence.BATCH else (Spin.RUN,)
        onnx_files = [f for f in files if (f.format, f.runtime) == (Format.ONNX, None)]
        candidates += [Candidate(f, most, spin) for f in onnx_files for spin in spins]
    stored_plan = result_cache_file("fastest", _plan_key(candidates, max_length, cadence))
    plan = _read_plan(stored_plan, len(candidates)) if stored_plan is not None else None
    if plan is None:
        plan = race_apart(candidates, max_length, cadence)
        if not plan.disturbed and stored_plan is not None:
            with contextlib.suppress(OSError):  # a read-only home only means that the race is run again
                stored_plan.parent.mkdir(parents=True, exist_ok=True)
                write_json(stored_plan, plan.model_dump(mode="json"))
    opened_by_number = {
        i: opened[c.file]
        for i, c in enumerate(candidates)
        if opened and c.file in opened and (c.threads, c.spin) == (most, Spin.NO)
    }
    return FastestPredictor(candidates, plan, pad_id, side, opened_by_number, cadence=cadence)


def _plan_key(candidates: Sequence[Candidate], max_length: int, cadence: Cadence) -> str:
    """Return a digest of everything that a race's timings depend on: machine, engine versions, files and settings."""
    from pocketbert.core.formats import FORMATS
    from pocketbert.core.host.system import installed_versions

    files = dict.fromkeys(c.file for c in candidates)
    engines = [e for f in files for e in FORMATS[f.format].engines] + [f.runtime.value for f in files if f.runtime]
    digests = {f: sha256_path(f.path) for f in files}
    raced = [[digests[c.file], c.file.runtime, c.threads, c.spin] for c in candidates]
    versions = installed_versions(tuple(dict.fromkeys(engines)))
    return sha256_json([_VERSION, asdict(describe_machine()), versions, raced, max_length, cadence])


def _read_plan(path: Path, candidates: int) -> Plan | None:
    """Read the stored plan of an earlier race.

    Returns None if there is none, or if it does not have timings for `candidates` candidates.
    """
    if not path.is_file():
        return None
    try:
        plan = Plan.model_validate(read_json(path))
    except (InputError, ValidationError):
        return None
    return plan if len(plan.timings) == candidates and all(t.steady and t.mixed for t in plan.timings) else None


@dataclass(eq=False, slots=True)
class _LengthRoute:
    """What is needed to choose a candidate for texts of one length, computed for the first of them.

    Attributes:
        steady: Number of the candidate for a text that follows others of the same length.
        costs: Cost of one text for each candidate, after texts of mixed lengths.
        fits: Numbers of the candidates that take the length.
        runs: The prepared function and the path of the file, by number of the candidate; filled at its first use.
    """

    steady: int
    costs: NDArray[np.float64]
    fits: frozenset[int]
    runs: dict[int, tuple[Run, Path]] = field(default_factory=dict)


@dataclass(slots=True)
class FastestPredictor:
    """Runs every batch with the file, engine and thread count that is expected to be fastest for it.

    After `_STEADY` further inputs of one length in a row, it is the candidate that is fastest at that length. Inputs of
    mixed lengths are all run with one candidate, the one that is expected to need least time for the last `_RECENT`. If two candidates
    took turns, they would have to load their weights into the caches again and again, and busily waiting threads of one
    would take a core from the other.

    Attributes:
        candidates: The candidates that can be chosen.
        plan: Timings of the candidates.
        pad_id: Id with which inputs of files of fixed lengths are padded.
        side: Side on which they are padded.
        opened: Predictors of candidates that are open already, by number of the candidate.
        answered: The file that computed the last batch.
        cadence: How the model is called; the plan was measured for this.
    """

    candidates: Sequence[Candidate]
    plan: Plan
    pad_id: int
    side: str
    opened: dict[int, FilePredictor] = field(default_factory=dict)
    engine: str = "fastest"
    lengths: tuple[int, ...] = ()
    answered: Path = Path()
    cadence: Cadence = Cadence.BATCH
    engine_version: str = field(init=False)
    inputs: tuple[str, ...] = field(init=False)
    outputs: tuple[str, ...] = field(init=False)
    _first_input: str = field(init=False)
    _routes: dict[int, _LengthRoute] = field(default_factory=dict)
    _recent_costs: deque[NDArray[np.float64]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _mixed: int = -1
    _until_review: int = 0
    _last_length: int = 0
    _repeats: int = 0

    def __post_init__(self) -> None:
        """Open the candidates that are fastest at some usual length, and close other candidates that are open."""
        longest = max(n for t in self.plan.timings for n in t.steady)  # a file that only wins beyond it is not opened
        usual = [n for n in sorted({min(n, longest) for n in LENGTHS}) if self._fits(n)]
        used = {self.plan.best([n]) for n in usual} | {self.plan.best(usual, steady=False)}
        first = self._predictor(min(used))
        self.inputs, self.outputs = first.inputs, first.outputs
        self._first_input = self.inputs[0]
        engines = [self._predictor(i) for i in sorted(used)]
        self.engine_version = " + ".join(dict.fromkeys(f"{p.engine} {p.engine_version}" for p in engines))
        for i in set(self.opened) - used:
            del self.opened[i]

    @property
    def predictors(self) -> list[tuple[Path, FilePredictor]]:
        """The files that are open, and their engines."""
        return [(self.candidates[i].file.path, p) for i, p in self.opened.items()]

    def choice(self, folder: Path) -> str:
        """Return a sentence on which file is fastest at about 32 tokens, with the times of the others.

        Args:
            folder: Folder to which the names of files are relative.
        """
        length = max((n for n in LENGTHS if n <= _REPORTED_LENGTH and self._fits(n)), default=LENGTHS[0])
        best: dict[Path, tuple[float, int]] = {}
        for candidate, timing in zip(self.candidates, self.plan.timings, strict=True):
            took = (timing.expected_ms(length), candidate.threads)
            best[candidate.file.path] = min(took, best.get(candidate.file.path, took))
        ranked = [
            f"{path.relative_to(folder)} {ms:.2f} ms ({threads} thread{'s' * (threads != 1)})"
            for path, (ms, threads) in sorted(best.items(), key=lambda item: item[1])
        ]
        others = f"; slower: {', '.join(ranked[1:])}" if ranked[1:] else ""
        disturbed = ". The machine was busy: the times are measured again next time" if self.plan.disturbed else ""
        called = f", called after {IDLE_MS:g} ms idle" if self.cadence is Cadence.INTERACTIVE else ""
        return f"fastest at {length} tokens{called}: {ranked[0]}{others}{disturbed}"

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch of any length with the candidate chosen for it."""
        length = inputs[self._first_input].shape[1]
        route = self._routes.get(length) or self._add_route(length)
        if length == self._last_length:
            self._repeats += 1
        else:
            self._last_length, self._repeats = length, 0
        if self._repeats >= _STEADY:
            chosen = route.steady
        else:
            self._recent_costs.append(route.costs)
            self._until_review -= 1
            if self._until_review < 0 or self._mixed not in route.fits:
                self._mixed, self._until_review = int(np.sum(self._recent_costs, axis=0).argmin()), _REVIEW
            chosen = self._mixed
        if chosen not in route.runs:
            run = _prepare_run(self._predictor(chosen), length, Padding(self.pad_id, self.side))
            route.runs[chosen] = (run, self.candidates[chosen].file.path)
        run, self.answered = route.runs[chosen]
        return run(inputs)

    def _add_route(self, length: int) -> _LengthRoute:
        """Compute and store the costs of each candidate at a length; raise InputError if no file takes that length."""
        costs = self.plan.costs(length, steady=False)
        fits = frozenset(np.flatnonzero(np.isfinite(costs)).tolist())
        if not fits:
            smallest_fitting_length(self._predictor(0).lengths, length)  # raises the InputError
        self._routes[length] = _LengthRoute(self.plan.best([length]), costs, fits)
        return self._routes[length]

    def _fits(self, length: int) -> bool:
        """Return whether any candidate takes texts of a length."""
        return bool(np.isfinite(min(t.expected_ms(length) for t in self.plan.timings)))

    def _predictor(self, number: int) -> FilePredictor:
        """Return the predictor of a candidate, opened at its first use."""
        if number not in self.opened:
            self.opened[number] = self.candidates[number].open()
        return self.opened[number]


@runtime_checkable
class _PreparesLengths(Protocol):
    """A predictor that can prepare runs of one length in advance, as the TFLite engine does."""

    def prepare_run(self, length: int, padding: Padding) -> Run:
        """Return a function that runs batches of this length."""
        ...


def _prepare_run(predictor: FilePredictor, length: int, padding: Padding) -> Run:
    """Return a function that runs batches of one length on a predictor.

    The function pads the batches if the file only takes the lengths that it lists.

    Raises:
        InputError: If `length` exceeds the file's longest length.
    """
    if isinstance(predictor, _PreparesLengths):
        return predictor.prepare_run(length, padding)
    padded_length = smallest_fitting_length(predictor.lengths, length)
    if padded_length == length:
        return predictor.run
    return lambda inputs: predictor.run(padding.widened(inputs, padded_length))
