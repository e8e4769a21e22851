"""Choose the fastest engine for each length by a short race, which is remembered per machine and files."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pocketbert.core.disk.files import read_json, sha256_json, sha256_path, write_json
from pocketbert.core.errors import InputError
from pocketbert.core.host.hardware import default_threads, machine
from pocketbert.core.predict.predictor import Arrays, fitting
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, FilePredictor, runs
from pocketbert.runtime.onnx import Spin
from pocketbert.runtime.race import IDLE_MS, LENGTHS, Cadence, Candidate, Plan, race_apart
from pocketbert.runtime.selftest import remembered
from pocketbert.runtime.tflite import Padding, Run

STEADY = 3
"""After this number of inputs of one length in a row the next one is expected to have it as well."""
RECENT, REVIEW = 64, 16
"""How many of the last inputs of mixed lengths decide, and after how many further ones they decide anew."""
_VERSION = 10
TOLD = 32
"""Tokens of a sentence: the length that a user is told times of."""


@dataclass(eq=False, slots=True)
class _Known:
    """What is the same for every text of one length, found by the first one: a short text takes less than a millisecond.

    Attributes:
        steady: The candidate for a text after others of its own length.
        costs: What one text costs each candidate after others of mixed lengths.
        fits: Candidates that take the length.
        routes: Those that ran it, by candidate: a function that was prepared for the length, and the file behind it.
    """

    steady: int
    costs: NDArray[np.float64]
    fits: frozenset[int]
    routes: dict[int, tuple[Run, Path]] = field(default_factory=dict)


@dataclass(slots=True)
class FastestPredictor:
    """Runs every batch with the file, engine and thread count that the plan expects to be fastest.

    After `STEADY` more inputs of one length it is the fastest at that length. Inputs of mixed lengths all go to one
    candidate, the one that is expected to need least time for the last `RECENT` of them: two that take turns would have to
    load their weights into the caches again and again, and threads of one that still wait busily take the other's core.

    Attributes:
        candidates: What can be chosen.
        plan: Their timings.
        pad_id: Id that a file of fixed lengths is padded with.
        side: Where that padding goes.
        opened: Predictors of candidates that are open already, by their number.
        answered: The file that computed the last batch.
        cadence: How the model is called: what the plan was measured for.
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
    _first: str = field(init=False)
    _known: dict[int, _Known] = field(default_factory=dict)
    _recent: deque[NDArray[np.float64]] = field(default_factory=lambda: deque(maxlen=RECENT))
    _mixed: int = -1
    _until_review: int = 0
    _last: int = 0
    _equal: int = 0

    def __post_init__(self) -> None:
        longest = max(n for t in self.plan.timings for n in t.steady)  # a file that only wins beyond it is not opened
        usual = [n for n in sorted({min(n, longest) for n in LENGTHS}) if self._fits(n)]
        used = {self.plan.best([n]) for n in usual} | {self.plan.best(usual, steady=False)}
        first = self._predictor(min(used))
        self.inputs, self.outputs = first.inputs, first.outputs
        self._first = self.inputs[0]
        engines = [self._predictor(i) for i in sorted(used)]
        self.engine_version = " + ".join(dict.fromkeys(f"{p.engine} {p.engine_version}" for p in engines))
        for i in set(self.opened) - used:
            del self.opened[i]

    @property
    def predictors(self) -> list[tuple[Path, FilePredictor]]:
        """The files that are open, and their engines."""
        return [(self.candidates[i].file.path, p) for i, p in self.opened.items()]

    def choice(self, folder: Path) -> str:
        """What the race found, in one sentence: the fastest file at about 32 tokens, and the others' times.

        Args:
            folder: Names of files are relative to it.
        """
        length = max((n for n in LENGTHS if n <= TOLD and self._fits(n)), default=LENGTHS[0])
        best: dict[Path, tuple[float, int]] = {}
        for candidate, timing in zip(self.candidates, self.plan.timings, strict=True):
            took = (timing.at(length), candidate.threads)
            best[candidate.file.path] = min(took, best.get(candidate.file.path, took))
        ranked = sorted(best, key=lambda path: best[path])
        named = [
            f"{p.relative_to(folder)} {best[p][0]:.2f} ms ({best[p][1]} thread{'s' * (best[p][1] != 1)})"
            for p in ranked
        ]
        others = f"; slower: {', '.join(named[1:])}" if named[1:] else ""
        disturbed = ". The machine was busy: the times are measured again next time" if self.plan.disturbed else ""
        called = f", called after {IDLE_MS:g} ms idle" if self.cadence is Cadence.INTERACTIVE else ""
        return f"fastest at {length} tokens{called}: {named[0]}{others}{disturbed}"

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch of any length; see `pocketbert.core.predict.predictor.Predictor`."""
        length = inputs[self._first].shape[1]
        known = self._known.get(length) or self._learn(length)
        if length == self._last:
            self._equal += 1
        else:
            self._last, self._equal = length, 0
        if self._equal >= STEADY:
            chosen = known.steady
        else:
            self._recent.append(known.costs)
            self._until_review -= 1
            chosen = self._mixed
            if self._until_review < 0 or chosen not in known.fits:
                chosen = self._review()
        run, self.answered = known.routes.get(chosen) or self._route(known, chosen, length)
        return run(inputs)

    def _learn(self, length: int) -> _Known:
        costs = self.plan.costs(length, steady=False)
        fits = frozenset(np.flatnonzero(np.isfinite(costs)).tolist())
        if not fits:
            fitting(self._predictor(0).lengths, length)  # refuses it
        self._known[length] = _Known(self.plan.best([length]), costs, fits)
        return self._known[length]

    def _review(self) -> int:
        self._mixed, self._until_review = int(np.sum(self._recent, axis=0).argmin()), REVIEW
        return self._mixed

    def _route(self, known: _Known, number: int, length: int) -> tuple[Run, Path]:
        run = runs(self._predictor(number), length, Padding(self.pad_id, self.side))
        known.routes[number] = (run, self.candidates[number].file.path)
        return known.routes[number]

    def _fits(self, length: int) -> bool:
        return bool(np.isfinite(min(t.at(length) for t in self.plan.timings)))

    def _predictor(self, number: int) -> FilePredictor:
        if number not in self.opened:
            self.opened[number] = self.candidates[number].open()
        return self.opened[number]


def fastest(
    files: Sequence[EngineFile],
    threads: int | None,
    max_length: int,
    pad_id: int,
    side: str,
    opened: Mapping[EngineFile, FilePredictor] | None = None,
    cadence: Cadence = Cadence.BATCH,
) -> FastestPredictor:
    """Race files of one model against each other, or remember how a race ended.

    Args:
        files: Files that may be chosen, of one scheme.
        threads: Most threads within an operator; default `default_threads`. One thread is tried as well, and ONNX
            Runtime's several threads also waiting busily, until a run ends or, in a batch, longer.
        max_length: Longest input in tokens.
        pad_id: Padding token.
        side: Padding side.
        opened: Those that are open already, with `threads` threads.
        cadence: How the model will be called. The races of both are remembered, each under its own key.

    Returns:
        A predictor that routes by length. Timings are of one text at a time, as on a phone.
    """
    most = threads or default_threads()
    candidates = [Candidate(f, n) for f in files for n in sorted({1, most})]
    waiting = [f for f in files if (f.format, f.runtime) == (Format.ONNX, None) and most > 1]
    # threads that stay busy for 50 ms after a run are asleep again before the next single call
    spins = (Spin.RUN, Spin.ON) if cadence is Cadence.BATCH else (Spin.RUN,)
    candidates += [Candidate(f, most, spin) for f in waiting for spin in spins]
    mark = remembered("fastest", _key(candidates, max_length, cadence))
    plan = _remembered(mark, len(candidates)) if mark is not None else None
    if plan is None:
        plan = race_apart(candidates, max_length, cadence)
        if not plan.disturbed and mark is not None:
            with contextlib.suppress(OSError):  # a read-only home only means that the race is run again
                mark.parent.mkdir(parents=True, exist_ok=True)
                write_json(mark, plan.model_dump(mode="json"))
    there = {
        i: opened[c.file]
        for i, c in enumerate(candidates)
        if opened and c.file in opened and (c.threads, c.spin) == (most, Spin.NO)
    }
    return FastestPredictor(candidates, plan, pad_id, side, there, cadence=cadence)


def _key(candidates: Sequence[Candidate], max_length: int, cadence: Cadence) -> str:
    from pocketbert.core.formats import FORMATS
    from pocketbert.core.host.system import installed

    files = dict.fromkeys(c.file for c in candidates)
    names = [
        *(e for f in files for e in FORMATS[f.format].engines),
        *(f.runtime.value for f in files if f.runtime),
    ]
    digests = {f: sha256_path(f.path) for f in files}
    raced = [[digests[c.file], c.file.runtime, c.threads, c.spin] for c in candidates]
    versions = installed(tuple(dict.fromkeys(names)))
    return sha256_json([_VERSION, machine().model_dump(), versions, raced, max_length, cadence])


def _remembered(mark: Path, count: int) -> Plan | None:
    if not mark.is_file():
        return None
    try:
        plan = Plan.model_validate(read_json(mark))
    except (InputError, ValidationError):
        return None
    return plan if len(plan.timings) == count and all(t.steady and t.mixed for t in plan.timings) else None
