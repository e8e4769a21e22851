"""Time model files, engines and thread counts against each other, at each length, on this machine.

In the order of a run: `race_apart` starts this module as a process of its own, whose `main` calls `race`; its `Plan` holds a
`Timing` for each `Candidate`. A process of its own, because what the race opens and closes would leave the memory of this
process in pieces, and a model of a millisecond 5 % slower for good.

The speed of a machine that others use too changes by a third from one second to the next. So all candidates take turns in
rounds, a disturbance affects all of them, and they are compared within each round. A candidate that is far behind at a length
is not run there any more: the time goes to those that are close. A turn looks like use: some texts of mixed lengths, then,
length by length, texts of one length in a row until the caches are warm. (One text right after another engine's is no measure:
a small model takes twice its usual time there.)

For the cadence `interactive` a turn is one untimed call, which fills the caches, and then calls after an idle time each, of one
length and of mixed lengths.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from pocketbert.core.errors import MachineError
from pocketbert.core.host.system import can_start_python
from pocketbert.core.predict.predictor import smallest_fitting_length
from pocketbert.runtime.engines import EngineFile, FilePredictor, add_missing_inputs
from pocketbert.runtime.onnx import OnnxPredictor, Spin

IDLE_MS = 100.0
"""Idle time before each call of the cadence `interactive`."""
LENGTHS = (8, 16, 24, 32, 48, 64, 128, 256, 512)
"""Lengths at which a file that takes any length is timed; between them its time is interpolated."""
_SINGLE_LENGTHS = (8, 16, 32, 64, 128, 512)
"""The same for single calls, of which each costs the idle time."""
_SINGLES = 2
"""Timed calls of a turn of the cadence `interactive`."""
_ROUNDS, _LEAST_ROUNDS = 24, 3
_SPIN_ON_PRICE = 1.02
"""Threads that wait busily between runs occupy a core without use: they have to be faster by this factor."""
_CLOSE = (3.0, 1.6, 1.35, 1.25, 1.2, 1.15, 1.12)
"""A candidate that took more than this multiple of the best time at a length is out of the race there: before the first round, when
a disturbance may have affected its only inferences, before the second one, and so on."""
_QUIET = 0.8
"""The machine counts as quiet when one thread had at least this share of a core in three quarters of the rounds."""
_WARM_MS, _BURST_MS, _MOST = 8.0, 16.0, 12
"""A burst: ms of untimed inferences, ms of timed ones, and the most inferences of each."""
_FIRST_MS = 40.0
"""The first time of a length is the best of two inferences; below this number of ms, of up to four."""
_MIXED_MS = 25.0
"""The time of an inference of at least this number of ms does not depend on what ran before it."""
_MIXED_CYCLES, _MIXED_CYCLES_MS = (2, 5), 100.0
"""A turn of mixed lengths: once to fill the caches, then up to four times, together in about this number of ms."""
_SENTENCE = 64
"""Lengths are mixed among sentences, of at most this number of tokens, and among what is longer: a document between two sentences
would empty the caches that the second one finds full in use."""
_THREADS_PAY = 1.3
"""Where a file is faster by this factor with more threads, one thread is not tried at longer lengths."""
_REST_S, _SETTLE_S = 0.08, 0.005
"""ONNX Runtime's threads may wait busily for some 50 ms after a run, those of a LiteRT signature for some ms; meanwhile
the next candidate has one core less."""
_TIMEOUT_S = 600.0
"""No race takes nearly so long; a process that does hangs."""
_LEAVE_OUT = "Leave engine='fastest' out, or name a file."


class Cadence(StrEnum):
    """How an app calls the model, which decides what `fastest` measures."""

    BATCH = "batch"
    """One call right after the other: caches are full, the clock is high, threads are awake."""
    INTERACTIVE = "interactive"
    """Single calls, each after an idle time of `IDLE_MS`, as when a user types."""


_BUDGET_S = {Cadence.BATCH: 25.0, Cadence.INTERACTIVE: 60.0}
"""Most seconds spent on rounds, which are mostly idle where single calls are timed, since those vary more; the slower the model, the
fewer rounds, never fewer than `_LEAST_ROUNDS`. A length at which all candidates but one are out is decided and not run again; where
all lengths are, the race is over."""


@dataclass(frozen=True)
class Candidate:
    """A model file with the thread settings to open it; candidates are timed against each other.

    Attributes:
        file: The file.
        threads: Threads within an operator.
        spin: How its threads wait; of ONNX Runtime only.
    """

    file: EngineFile
    threads: int
    spin: Spin = Spin.NO

    def open(self) -> FilePredictor:
        """Open the file with its engine."""
        if self.spin is Spin.NO:
            return self.file.open(self.threads)
        return OnnxPredictor(self.file.path, self.threads, spin=self.spin)


class Timing(BaseModel):
    """The measured times of one candidate by length.

    Attributes:
        file: Name of the model file.
        threads: Number of threads within an operator.
        spin: How its threads waited.
        fixed: Whether it takes the listed lengths only.
        steady: Wall time of one text in ms after others of the same length, by length in tokens.
        mixed: The same after a text of another length. LiteRT packs the weights once for each signature, so that a
            change of length finds none of them in the caches.
    """

    file: str
    threads: int
    spin: Spin
    fixed: bool
    steady: dict[int, float]
    mixed: dict[int, float]

    def expected_ms(self, length: int, steady: bool = True) -> float:
        """Return the expected milliseconds for one text of a length, interpolated; infinite where it does not fit."""
        ms_by_length = self.steady if steady else self.mixed
        known = sorted(ms_by_length)
        if self.fixed:
            return ms_by_length[smallest_fitting_length(known, length)] if length <= known[-1] else float("inf")
        if length > known[-1]:
            return ms_by_length[known[-1]] * length / known[-1]
        return float(np.interp(length, known, [ms_by_length[n] for n in known]))


class Plan(BaseModel):
    """The result of a race: timings of all candidates on one machine.

    Attributes:
        timings: One per candidate, in their order.
        disturbed: Whether the machine was so busy that the timings are not worth remembering.
    """

    timings: list[Timing]
    disturbed: bool = False

    def costs(self, length: int, steady: bool = True) -> NDArray[np.float64]:
        """Return each candidate's cost of one text, shape [candidates]: its expected ms, more where threads spin on.

        Args:
            length: Tokens.
            steady: Whether the text comes after another of its own length.
        """
        prices = [_SPIN_ON_PRICE if t.spin is Spin.ON else 1 for t in self.timings]
        return np.array([t.expected_ms(length, steady) * p for t, p in zip(self.timings, prices, strict=True)])

    def best(self, lengths: Sequence[int], steady: bool = True) -> int:
        """Return the index of the candidate with the lowest total cost for texts of these lengths.

        Args:
            lengths: Tokens of each text.
            steady: Whether a text comes after another of its own length.
        """
        return int(np.sum([self.costs(n, steady) for n in lengths], axis=0).argmin())


class _Request(BaseModel):
    """The arguments of `race`, sent as JSON to the process that runs it."""

    candidates: list[Candidate]
    max_length: int
    rounds: int
    cadence: Cadence = Cadence.BATCH


@dataclass
class _Runner:
    """An opened candidate and the milliseconds measured so far, by length.

    Attributes:
        candidate: What is timed.
        predictor: The open file.
        grid: Lengths to time, ascending.
        first: Best ms before the first round.
        steady: ms of each round, after texts of the same length. A candidate that is out at a length stays out, so that
            value i is that of round i.
        mixed: The same after texts of other lengths.
        contested: Lengths at which it is still in the race.
    """

    candidate: Candidate
    predictor: FilePredictor
    grid: list[int]
    first: dict[int, float] = field(default_factory=dict)
    steady: dict[int, list[float]] = field(default_factory=dict)
    mixed: dict[int, list[float]] = field(default_factory=dict)
    contested: list[int] = field(default_factory=list)


def race_apart(candidates: Sequence[Candidate], max_length: int, cadence: Cadence = Cadence.BATCH) -> Plan:
    """Run `race` in a separate process, or in this one if no Python can be started; return its timings.

    Raises:
        MachineError: If the process crashes or hangs, as this one then would.
    """
    request = _Request(candidates=list(candidates), max_length=max_length, rounds=_ROUNDS, cadence=cadence)
    if not can_start_python():
        return race(candidates, max_length, _ROUNDS, cadence)
    # -P: a folder named like one of our imports in the user's working directory must not be picked up
    command = [sys.executable, "-P", "-m", __name__]
    try:
        process = subprocess.run(
            command,
            input=request.model_dump_json(),
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError:
        return race(candidates, max_length, _ROUNDS, cadence)
    except subprocess.TimeoutExpired as error:
        reason = f"timing the files took more than {_TIMEOUT_S:.0f} s."
        raise MachineError(f"engine 'fastest': {reason} {_LEAVE_OUT}") from error
    if process.returncode < 0:
        reason = f"the process that timed the files ended by signal {-process.returncode}."
        raise MachineError(f"engine 'fastest': {reason} {_LEAVE_OUT}")
    try:
        return Plan.model_validate_json((process.stdout.splitlines() or [""])[-1])
    except ValidationError:  # an embedding program that is no Python, or another set of packages
        return race(candidates, max_length, _ROUNDS, cadence)


def race(
    candidates: Sequence[Candidate], max_length: int, rounds: int = _ROUNDS, cadence: Cadence = Cadence.BATCH
) -> Plan:
    """Time the candidates at all lengths in rounds, until each length has a winner or the time is spent.

    Args:
        candidates: What to time.
        max_length: Longest input in tokens.
        rounds: Most rounds.
        cadence: How the model will be called.

    Returns:
        Wall times of one text.
    """
    single = cadence is Cadence.INTERACTIVE
    runners = []
    for candidate in candidates:
        predictor = candidate.open()
        lengths = _lengths_to_time(predictor, max_length, _SINGLE_LENGTHS if single else LENGTHS)
        runners.append(_Runner(candidate, predictor, lengths))
    for runner in sorted(runners, key=lambda r: -r.candidate.threads):
        _time_first_runs(runner, runners, single)
        _rest(runner)
    one_thread = next((r for r in runners if r.candidate.threads == 1), None)
    order, shares, started = np.random.default_rng(0), list[float](), time.perf_counter()
    for rounds_done in range(rounds):
        _drop_slow_candidates(runners, max_length, _CLOSE[min(rounds_done, len(_CLOSE) - 1)])
        if one_thread is not None:
            shares.append(_measure_core_share(one_thread))
        # lengths at which more than one candidate is left
        undecided = {n for n, count in Counter(n for r in runners for n in r.contested).items() if count > 1}
        spent = time.perf_counter() - started
        if not undecided or (rounds_done >= _LEAST_ROUNDS and spent * (1 + 1 / rounds_done) > _BUDGET_S[cadence]):
            break
        if single:
            _time_single_calls(runners, undecided, order)
        else:
            _time_bursts(runners, undecided, order)
    disturbed = bool(shares) and float(np.quantile(shares, 0.25)) < _QUIET
    return Plan(timings=_estimated_timings(runners), disturbed=disturbed)


def _lengths_to_time(predictor: FilePredictor, max_length: int, grid: Sequence[int]) -> list[int]:
    """Return the lengths at which to time a file: its own, or those of the grid if it takes any length."""
    listed = [
        n for n in predictor.lengths if n <= max_length or n == smallest_fitting_length(predictor.lengths, max_length)
    ]
    return listed or sorted({min(n, max_length) for n in grid})


def _time_first_runs(runner: _Runner, runners: Sequence[_Runner], single: bool) -> None:
    """Run a candidate at each length untimed, to warm it up, then take its first time there.

    Single calls are timed after an idle time each. A candidate with fewer threads stops at the length where more threads pay.
    """
    more_threads = next(
        (
            r
            for r in runners
            if r.first and r.candidate.file == runner.candidate.file and r.candidate.threads > runner.candidate.threads
        ),
        None,
    )
    predictor = runner.predictor
    for n in runner.grid:
        feed = _sample(n, predictor)
        _time(predictor, feed)
        if single:
            best = min(_time_after_idle(predictor, feed) for _ in range(_SINGLES))
        else:
            ms = _time(predictor, feed)
            repeats = int(np.clip(_FIRST_MS / max(ms, 0.01), 1, 3))
            best = min(ms, *(_time(predictor, feed) for _ in range(repeats)))
        runner.first[n] = best
        runner.contested.append(n)
        if more_threads is not None and more_threads.first.get(n, np.inf) * _THREADS_PAY < best:
            break  # one thread falls back further the longer the text


def _drop_slow_candidates(runners: Sequence[_Runner], max_length: int, within: float) -> None:
    """Drop each candidate at the lengths where it takes more than `within` times the best time.

    It stays if either the estimate from all rounds or its single best time is within that factor.
    """
    at_their_best = []
    for runner in runners:
        steady = {n: min([ms, *runner.steady.get(n, [])]) for n, ms in runner.first.items()}
        mixed = {n: min(runner.mixed.get(n) or [ms]) for n, ms in steady.items()}
        at_their_best.append(_timing(runner, steady, mixed))
    estimates = [_estimated_timings(runners), at_their_best]

    def is_close(number: int, n: int) -> bool:
        """Return whether a candidate's estimate at a length is within the factor of the best estimate."""
        length = min(n, max_length)
        return any(
            timings[number].expected_ms(length, steady) <= within * min(t.expected_ms(length, steady) for t in timings)
            for timings in estimates
            for steady in (True, False)
        )

    for number, runner in enumerate(runners):
        runner.contested = [n for n in runner.contested if is_close(number, n)]


def _time_bursts(runners: Sequence[_Runner], undecided: set[int], order: np.random.Generator) -> None:
    """Time one round of the cadence `batch`: each candidate at mixed lengths, then all at one length after another.

    Candidates whose threads keep spinning run last, at all their lengths, with one rest for all.
    """
    running = [r for r in runners if undecided.intersection(r.contested)]
    for i in order.permutation(len(running)):
        _time_mixed_bursts(running[i], order)
    others = [r for r in running if r.candidate.spin is not Spin.ON]
    for n in order.permutation(sorted(undecided.intersection(n for r in others for n in r.contested))):
        competing = [r for r in others if n in r.contested]
        for i in order.permutation(len(competing)):
            _time_burst(competing[i], int(n))
    for runner in (r for r in running if r.candidate.spin is Spin.ON):
        for n in order.permutation(sorted(undecided.intersection(runner.contested))):
            _time_burst(runner, int(n))
        _rest(runner)


def _time_mixed_bursts(runner: _Runner, order: np.random.Generator) -> None:
    """Time texts of alternating lengths, short and long ones apart; append the median time of each length."""
    quick = [n for n in order.permutation(runner.contested).tolist() if runner.first[n] < _MIXED_MS]
    groups = [n for n in quick if n <= _SENTENCE], [n for n in quick if n > _SENTENCE]
    several = [lengths for lengths in groups if len(lengths) > 1]
    for lengths in several:
        count = int(np.clip(_MIXED_CYCLES_MS / max(sum(runner.first[n] for n in lengths), 0.01), *_MIXED_CYCLES))
        cycles = [[_time(runner.predictor, _sample(n, runner.predictor)) for n in lengths] for _ in range(count)]
        # the first one finds another engine's weights in the caches
        for n, ms in zip(lengths, np.median(cycles[1:], axis=0), strict=True):
            runner.mixed.setdefault(n, []).append(float(ms))
    if several:
        _rest(runner)


def _time_burst(runner: _Runner, n: int) -> None:
    """Run texts of one length until the caches are warm, then time more and append the median."""
    feed, ms = _sample(n, runner.predictor), max(runner.first[n], 0.01)
    if runner.candidate.threads > 1:
        time.sleep(_SETTLE_S)
    for _ in range(int(np.clip(_WARM_MS / ms, ms < _MIXED_MS, _MOST))):  # slow ones need no warming
        runner.predictor.run(feed)
    burst = [_time(runner.predictor, feed) for _ in range(int(np.clip(_BURST_MS / ms, 1, _MOST)))]
    runner.steady.setdefault(n, []).append(float(np.median(burst)))


def _time_single_calls(runners: Sequence[_Runner], undecided: set[int], order: np.random.Generator) -> None:
    """Time one round of the cadence `interactive`: calls after an idle time, at mixed lengths, then at each length."""
    running = [r for r in runners if undecided.intersection(r.contested)]
    for i in order.permutation(len(running)):
        _time_mixed_singles(running[i], order)
    for n in order.permutation(sorted(undecided)):
        competing = [r for r in runners if n in r.contested]
        for i in order.permutation(len(competing)):
            predictor = competing[i].predictor
            feed = _sample(int(n), predictor)
            predictor.run(feed)  # the caches hold the weights of the engine before
            calls = [_time_after_idle(predictor, feed) for _ in range(_SINGLES)]
            competing[i].steady.setdefault(int(n), []).append(float(np.median(calls)))


def _time_mixed_singles(runner: _Runner, order: np.random.Generator) -> None:
    """Time one call per sentence length after an idle time, each after a call of another length."""
    lengths = [n for n in order.permutation(runner.contested).tolist() if n <= _SENTENCE]
    if len(lengths) < 2:
        return
    runner.predictor.run(_sample(lengths[-1], runner.predictor))
    for n in lengths:
        runner.mixed.setdefault(n, []).append(_time_after_idle(runner.predictor, _sample(n, runner.predictor)))


def _estimated_timings(runners: Sequence[_Runner]) -> list[Timing]:
    """Estimate the times of all candidates from the rounds so far, or from their first runs."""
    steady: list[dict[int, float]] = [{} for _ in runners]
    mixed: list[dict[int, float]] = [{} for _ in runners]
    for n in sorted({n for r in runners for n in r.first}):
        timed = [i for i, r in enumerate(runners) if n in r.first]
        first = [runners[i].first[n] for i in timed]
        steady_ms = _estimate_times([runners[i].steady.get(n, []) for i in timed], first)
        mixed_ms = _estimate_times([runners[i].mixed.get(n, []) for i in timed], steady_ms)
        for i, after_same, after_other in zip(timed, steady_ms, mixed_ms, strict=True):
            steady[i][n], mixed[i][n] = after_same, after_other
    return [_timing(r, s, m) for r, s, m in zip(runners, steady, mixed, strict=True)]


def _estimate_times(rounds: Sequence[Sequence[float]], otherwise: Sequence[float]) -> list[float]:
    """Estimate each candidate's time at one length from rounds in which candidates took turns.

    Args:
        rounds: ms of each round, by candidate; some left early.
        otherwise: The ms of candidates that were in no round.

    Returns:
        ms by candidate. The leader is the best of those that stayed longest; its time is its lower quartile, since whatever
        else runs only ever makes a time longer. The time of another one is the leader's times the median of their ratios in
        the rounds that they share; where those are fewer than three, times the ratio of their best times, `otherwise` included.
    """
    most = max(map(len, rounds))
    if most == 0:
        return list(otherwise)
    first = min((i for i, r in enumerate(rounds) if len(r) == most), key=lambda i: float(np.median(rounds[i])))
    leader, low = rounds[first], float(np.quantile(rounds[first], 0.25))

    def ratio_to_leader(number: int) -> float:
        ms, shared = rounds[number], leader[: len(rounds[number])]
        if len(ms) < _LEAST_ROUNDS:  # a leader that was interrupted in the only round would make all others look fast
            return min(*ms, otherwise[number]) / min(*shared, otherwise[first])
        return float(np.median(np.asarray(ms) / np.asarray(shared)))

    return [
        low * ratio_to_leader(i) if ms else other for i, (ms, other) in enumerate(zip(rounds, otherwise, strict=True))
    ]


def _timing(runner: _Runner, steady: dict[int, float], mixed: dict[int, float]) -> Timing:
    """Build the `Timing` of a candidate from its milliseconds by length."""
    candidate, fixed = runner.candidate, bool(runner.predictor.lengths)
    name, threads, spin = candidate.file.path.name, candidate.threads, candidate.spin
    return Timing(file=name, threads=threads, spin=spin, fixed=fixed, steady=steady, mixed=mixed)


def _measure_core_share(runner: _Runner) -> float:
    """Return the share of a core that one thread gets now: CPU time over wall time of a few short texts."""
    shortest = min(runner.first)
    feed = _sample(shortest, runner.predictor)
    count = int(np.clip(_BURST_MS / max(runner.first[shortest], 0.01), 1, _MOST))
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        runner.predictor.run(feed)
    return (time.process_time() - cpu) / max(time.perf_counter() - began, 1e-9)


def _rest(runner: _Runner) -> None:
    """Sleep until a candidate's busily waiting threads are asleep and leave the core to the next candidate."""
    if runner.candidate.spin is Spin.ON:
        time.sleep(_REST_S)


def _time(predictor: FilePredictor, feed: Mapping[str, NDArray[np.generic]]) -> float:
    begin = time.perf_counter_ns()
    predictor.run(feed)
    return (time.perf_counter_ns() - begin) / 1e6


def _time_after_idle(predictor: FilePredictor, feed: Mapping[str, NDArray[np.generic]]) -> float:
    time.sleep(IDLE_MS / 1000)
    return _time(predictor, feed)


def _sample(length: int, predictor: FilePredictor) -> dict[str, NDArray[Any]]:
    """Make one input row of `length` tokens with every input that the file takes."""
    ids = (np.arange(length, dtype=np.int64) * 7 % 97)[None, :]  # any small ids: every vocabulary has them
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    return add_missing_inputs(predictor, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})


def main() -> None:
    """Read the arguments of a race from stdin, run it, and print the timings as JSON on the last line of stdout."""
    request = _Request.model_validate_json(sys.stdin.read())
    print(race(request.candidates, request.max_length, request.rounds, request.cadence).model_dump_json())


if __name__ == "__main__":
    main()
