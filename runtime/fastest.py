"""The fastest engine for each length, found by a short measured probe and remembered per machine and files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from pocketbert.core.errors import InputError
from pocketbert.core.files import read_json, sha256_json, sha256_path, write_json
from pocketbert.core.hardware import default_threads, machine
from pocketbert.core.predictor import Arrays, Predictor, fitting
from pocketbert.core.types import Format
from pocketbert.runtime.cache import cache_folder
from pocketbert.runtime.engines import FilePredictor, open_file
from pocketbert.runtime.onnx import OnnxPredictor

LENGTHS = (8, 16, 24, 32, 48, 64, 128, 256, 512)
"""Where a file that takes any length is probed; between them its time is interpolated."""
STEADY = 3
"""After so many inputs of one length in a row the next one is expected to have it as well."""
ROUNDS = 9
BUDGET_S = 6.0
"""Most seconds a probe takes; the slower the model, the fewer rounds, never fewer than 3."""
QUIET = 0.8
"""A probe is remembered when three quarters of its one-threaded inferences had at least this share of a core."""
_LEAST_ROUNDS = 3
_VERSION = 2


@dataclass(frozen=True)
class Candidate:
    """A file, and how to open it.

    Attributes:
        path: The file.
        format: Its format.
        threads: Threads within an operator.
        spin: See `pocketbert.runtime.onnx.OnnxPredictor`.
    """

    path: Path
    format: Format
    threads: int
    spin: bool = False

    def open(self) -> FilePredictor:
        """Open it."""
        return (
            OnnxPredictor(self.path, self.threads, spin=True)
            if self.spin
            else open_file(self.path, self.format, self.threads)
        )


class Timing(BaseModel):
    """What a candidate took.

    Attributes:
        file: Name of the file.
        threads: Its threads.
        spin: Whether its threads waited busily.
        fixed: Whether it takes the listed lengths only.
        steady: Wall time of one text in ms after another of the same length, by length in tokens: the lower quartile of
            the rounds, since whatever else runs on the machine only ever makes it longer.
        mixed: The same after a text of another length. LiteRT packs the weights once for each signature, so that a
            change of length finds none of them in the caches.
    """

    file: str
    threads: int
    spin: bool
    fixed: bool
    steady: dict[int, float]
    mixed: dict[int, float]

    def at(self, length: int, steady: bool = True) -> float:
        """Expected milliseconds for one text of a length; infinite where it does not fit."""
        ms = self.steady if steady else self.mixed
        known = sorted(ms)
        if self.fixed:
            return ms[fitting(known, length)] if length <= known[-1] else float("inf")
        if length > known[-1]:
            return ms[known[-1]] * length / known[-1]
        return float(np.interp(length, known, [ms[n] for n in known]))


class Plan(BaseModel):
    """Timings of all candidates on one machine.

    Attributes:
        timings: In the order of the candidates.
        disturbed: Whether the machine was so busy that the timings are not worth remembering.
    """

    timings: list[Timing]
    disturbed: bool = False

    def best(self, length: int, steady: bool = True) -> int:
        """Number of the candidate that is expected to be fastest at a length.

        Args:
            length: Tokens.
            steady: Whether the input before had the same length.
        """
        return int(np.argmin([t.at(length, steady) for t in self.timings]))


@dataclass
class FastestPredictor:
    """Runs every batch with the file, engine and thread count that the plan expects to be fastest at its length.

    Two plans in one: for inputs of one length, and for inputs of mixed lengths. It takes `STEADY` equal lengths to pass
    from the second to the first.

    Attributes:
        candidates: What can be chosen.
        plan: Their timings.
        pad_id: Id that a file of fixed lengths is padded with.
        side: Where that padding goes.
    """

    candidates: Sequence[Candidate]
    plan: Plan
    pad_id: int
    side: str
    engine: str = "fastest"
    lengths: tuple[int, ...] = ()
    _open: dict[int, FilePredictor] = field(default_factory=dict)
    _routes: dict[tuple[int, bool], tuple[FilePredictor, int]] = field(default_factory=dict)
    _last: int = 0
    _equal: int = 0

    def __post_init__(self) -> None:
        first = self._opened(self.plan.best(1))
        self.inputs, self.outputs = first.inputs, first.outputs
        both = {self.plan.best(n, steady) for n in LENGTHS if self._fits(n) for steady in (True, False)}
        used = [self._opened(i) for i in sorted(both)]
        self.engine_version = " + ".join(dict.fromkeys(f"{p.engine} {p.engine_version}" for p in used))

    @property
    def predictors(self) -> list[tuple[Path, FilePredictor]]:
        """The files that are open, and their engines."""
        return [(self.candidates[i].path, p) for i, p in self._open.items()]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch of any length; see `pocketbert.core.predictor.Predictor`."""
        length = inputs[self.inputs[0]].shape[1]
        self._equal = self._equal + 1 if length == self._last else 0
        self._last = length
        route = (length, self._equal >= STEADY)
        if route not in self._routes:  # found once: a short text takes less than a millisecond
            chosen = self._opened(self.plan.best(*route))
            self._routes[route] = (chosen, fitting(chosen.lengths, length) - length)
        predictor, more = self._routes[route]
        return predictor.run(self._padded(inputs, more) if more else inputs)

    def _fits(self, length: int) -> bool:
        return bool(np.isfinite(min(t.at(length) for t in self.plan.timings)))

    def _opened(self, number: int) -> FilePredictor:
        if number not in self._open:
            self._open[number] = self.candidates[number].open()
        return self._open[number]

    def _padded(self, inputs: Mapping[str, NDArray[np.generic]], more: int) -> dict[str, NDArray[np.generic]]:
        out: dict[str, NDArray[np.generic]] = {}
        for name, value in inputs.items():  # not np.pad, which takes 0.1 ms where a short text takes one
            rows, length = value.shape
            wide = np.full((rows, length + more), self.pad_id if name == "input_ids" else 0, value.dtype)
            start = 0 if self.side == "right" else more
            wide[:, start : start + length] = value
            out[name] = wide
        return out


def fastest(
    files: Sequence[tuple[Path, Format]], threads: int | None, max_length: int, pad_id: int, side: str
) -> FastestPredictor:
    """Probe files of one model, or remember what a probe said.

    Args:
        files: Files that may be chosen, of one scheme.
        threads: Most threads within an operator; default `default_threads`. One thread is tried as well, and ONNX
            Runtime's several threads also waiting busily.
        max_length: Longest input in tokens.
        pad_id: Padding token.
        side: Padding side.

    Returns:
        A predictor that routes by length. Timings are of one text at a time, as on a phone.
    """
    most = threads or default_threads()
    candidates = [Candidate(p, f, n) for p, f in files for n in sorted({1, most})]
    candidates += [Candidate(p, f, most, True) for p, f in files if f is Format.ONNX and most > 1]
    mark = cache_folder() / "fastest" / f"{_key(candidates, max_length)}.json"
    plan = _remembered(mark, len(candidates))
    if plan is None:
        plan = probe(candidates, max_length)
        if not plan.disturbed:
            with contextlib.suppress(OSError):  # a read-only home only means that the probe runs again
                mark.parent.mkdir(parents=True, exist_ok=True)
                write_json(mark, plan.model_dump(mode="json"))
    return FastestPredictor(candidates, plan, pad_id, side)


def probe(candidates: Sequence[Candidate], max_length: int) -> Plan:
    """Time every candidate at every length, in turns, so that a disturbance hits all of them.

    Args:
        candidates: What to time.
        max_length: Longest input in tokens.

    Returns:
        Wall times of one text.
    """
    opened = [c.open() for c in candidates]
    free = sorted({min(n, max_length) for n in LENGTHS})
    grids = [
        [n for n in p.lengths if n <= max_length or n == fitting(p.lengths, max_length)] or free
        for p in opened
    ]
    feeds = {n: _sample(n) for grid in grids for n in grid}
    steady: list[dict[int, list[float]]] = [{n: [] for n in grid} for grid in grids]
    mixed: list[dict[int, list[float]]] = [{n: [] for n in grid} for grid in grids]
    shares = []  # of a core that one-threaded inferences really had
    for predictor, grid in zip(opened, grids, strict=True):
        for n in grid:  # memory is planned and weights are packed at the first run of a shape
            _time(predictor, feeds[n])
    order, started = np.random.default_rng(0), time.perf_counter()
    for round_number in range(ROUNDS):
        for i in order.permutation(len(candidates)):
            turn = [int(n) for n in order.permutation(grids[i])]
            _time(opened[i], feeds[turn[-1]])  # another engine's weights are in the caches
            for n in turn:
                mixed[i][n].append(_time(opened[i], feeds[n]))
                cpu, wall = time.process_time(), _time(opened[i], feeds[n])
                steady[i][n].append(wall)
                if candidates[i].threads == 1:
                    shares.append((time.process_time() - cpu) * 1000 / wall)
        spent = time.perf_counter() - started
        if round_number + 1 >= _LEAST_ROUNDS and spent * (1 + 1 / (round_number + 1)) > BUDGET_S:
            break
    timings = [
        Timing(file=c.path.name, threads=c.threads, spin=c.spin, fixed=bool(p.lengths),
               steady=_lower_quartiles(steady[i]), mixed=_lower_quartiles(mixed[i]))
        for i, (c, p) in enumerate(zip(candidates, opened, strict=True))
    ]  # fmt: skip
    return Plan(timings=timings, disturbed=float(np.quantile(shares, 0.25)) < QUIET)


def _lower_quartiles(samples: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {n: float(np.quantile(values, 0.25)) for n, values in samples.items()}


def _time(predictor: Predictor, feed: Mapping[str, NDArray[np.int64]]) -> float:
    begin = time.perf_counter_ns()
    predictor.run(feed)
    return (time.perf_counter_ns() - begin) / 1e6


def _sample(length: int) -> dict[str, NDArray[np.int64]]:
    ids = (np.arange(length, dtype=np.int64) * 7 % 97)[None, :]  # any small ids: every vocabulary has them
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _key(candidates: Sequence[Candidate], max_length: int) -> str:
    from pocketbert.core.formats import FORMATS
    from pocketbert.core.versions import installed

    engines = installed(tuple(dict.fromkeys(e for c in candidates for e in FORMATS[c.format].engines)))
    files = [[sha256_path(c.path), c.threads, c.spin] for c in candidates]
    return sha256_json([_VERSION, machine().model_dump(), engines, files, max_length])


def _remembered(mark: Path, count: int) -> Plan | None:
    if not mark.is_file():
        return None
    try:
        plan = Plan.model_validate(read_json(mark))
    except (InputError, ValidationError):
        return None
    return plan if len(plan.timings) == count and all(t.steady and t.mixed for t in plan.timings) else None
